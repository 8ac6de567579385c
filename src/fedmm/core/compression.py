"""The form in which vectors travel: as they are, or as 16- or 8-bit codes with a scale for every few coordinates.

Coding loses digits, so both sides go on from what the codes say, computed by the same arithmetic:

uploads:     the client codes its update z_i - z_0 together with what earlier codes left out of it (error feedback);
             z_i becomes z_0 + what the codes say, for the client's own state and for the server alike.
broadcasts:  the server codes the way from the point that its clients know to its own; what the codes leave out is part
             of the next way. A client that was not counted in the last round does not know that point: it is sent the
             whole one.

Codes are relative to the largest of their neighbours, so that what they leave out vanishes where updates vanish. What
either side has to remember is kept in its state, under names that begin with ``wire.``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, State
from fedmm.core.errors import FedmmError, require
from fedmm.core.mechanisms import Circumstances, Transmission, transmit_point

Encoding = Literal["exact", "fp16", "int8"]
ENCODINGS: tuple[Encoding, ...] = ("exact", "fp16", "int8")

BLOCK = 256
"""Coordinates that share a scale."""

_RESERVED = "wire."
RESIDUAL = "wire.residual"
_KNOWN = "wire.known."
_CODES, _SCALES = ".codes", ".scales"


@dataclass(frozen=True)
class Codec:
    """Codes of ``dtype`` from ``-most`` to ``most``, and a float32 scale for each :data:`BLOCK` coordinates."""

    dtype: torch.dtype
    most: float

    def encode(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Codes ``[..., size]`` and scales ``[..., blocks]`` of a vector ``[..., size]``.

        Where a block is not finite, neither is its scale.
        """
        size = vector.shape[-1]
        padded = torch.nn.functional.pad(vector, (0, -size % BLOCK))
        blocks = padded.view(*vector.shape[:-1], -1, BLOCK)
        scales = (blocks.abs().amax(dim=-1) / self.most).to(torch.float32)
        unit = scales.to(vector.dtype).unsqueeze(-1)
        codes = torch.where(unit > 0, blocks / unit, 0.0).clamp(-self.most, self.most)
        if not self.dtype.is_floating_point:
            codes = codes.nan_to_num(0.0).round()
        return codes.flatten(-2)[..., :size].to(self.dtype), scales

    def decode(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """What codes and scales say, ``[..., size]``."""
        units = scales.to(dtype).unsqueeze(-1).expand(*scales.shape, BLOCK).flatten(-2)
        return codes.to(dtype) * units[..., : codes.shape[-1]]

    def rounded(self, vector: Tensor) -> Tensor:
        """What is left of a vector that travels."""
        return self.decode(*self.encode(vector), vector.dtype)

    def size_in_bytes(self, size: int) -> int:
        """Bytes that a vector takes to send."""
        return size * self.dtype.itemsize + -(-size // BLOCK) * torch.float32.itemsize


CODECS: dict[str, Codec] = {"fp16": Codec(torch.float16, 32768.0), "int8": Codec(torch.int8, 127.0)}
"""For every encoding but ``exact``. fp16's codes leave room below 1, so that small neighbours keep their digits."""


def vector_bytes(encoding: Encoding, size: int, dtype: torch.dtype) -> int:
    """Bytes that a vector takes to send."""
    return size * dtype.itemsize if encoding == "exact" else CODECS[encoding].size_in_bytes(size)


def _pack(codec: Codec, name: str, vector: Tensor) -> State:
    codes, scales = codec.encode(vector)
    return {name + _CODES: codes, name + _SCALES: scales}


def _unpack(codec: Codec, name: str, coded: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    return codec.decode(coded[name + _CODES], coded[name + _SCALES], dtype)


# States ---------------------------------------------------------------------------------------------------------------


def algorithms_part(state: State) -> State:
    """A server's or client's state without what is remembered here."""
    return {name: vector for name, vector in state.items() if not name.startswith(_RESERVED)}


def known_point(state: State) -> State:
    """What clients were sent in the last round, as the server or a client of that round remembers it."""
    return {name.removeprefix(_KNOWN): vector for name, vector in state.items() if name.startswith(_KNOWN)}


def remember(broadcasts: Encoding, sent: State) -> State:
    """What a server, and a client, remembers of a broadcast."""
    return {} if broadcasts == "exact" else {_KNOWN + name: vector for name, vector in sent.items()}


def first_memory(uploads: Encoding, broadcasts: Encoding, sent: State) -> State:
    """What a client remembers at the start, where the server stands at ``sent``."""
    residual = {} if uploads == "exact" else {RESIDUAL: torch.zeros_like(sent["z"])}
    return {**residual, **remember(broadcasts, sent)}


# Uploads --------------------------------------------------------------------------------------------------------------


class Transmitted(NamedTuple):
    """A client's point as it arrives, ``[..., size]``; the named tensors that travel; what it has to remember."""

    z: Tensor
    coded: State
    memory: State


def transmit(
    transmission: Transmission,
    uploads: Encoding,
    z: Tensor,
    z_0: Tensor,
    memory: Mapping[str, Tensor],
    given: Circumstances | None = None,
) -> Transmitted:
    """Send a client's point z ``[..., size]`` to a server that stands at z_0.

    What the transmission makes of the update is coded last: codes of noisy updates tell no more than these do. They
    are no function of the updates' *sum*, so that noise which is shared among clients goes with exact uploads alone.
    """
    if uploads == "exact":
        z = transmit_point(transmission, z, z_0, given)
        return Transmitted(z, {"z": z}, {})
    update = transmission.transmitted(z - z_0, given)
    before = memory.get(RESIDUAL)
    wanted = update if before is None else update + before
    codec = CODECS[uploads]
    coded = _pack(codec, "z", wanted)
    said = _unpack(codec, "z", coded, wanted.dtype)
    return Transmitted(z_0 + said, coded, {RESIDUAL: wanted - said})


def keep_back(z: Tensor, memory: Mapping[str, Tensor]) -> Transmitted:
    """A client's point in a round in which it is not sent: what earlier codes left out of it stays to be sent."""
    return Transmitted(z, {}, {RESIDUAL: memory[RESIDUAL]} if RESIDUAL in memory else {})


def transmit_others(transmission: Transmission, algorithm: Algorithm, upload: State, z: Tensor, sent: State) -> State:
    """An upload whose vectors beside z, where they come of the local steps themselves, are shortened like z.

    What a plain algorithm sends beside z follows from z as it arrives (SCAFFOLD's change of its control). Of the others
    nothing may travel with noise but z as it arrives: the noise is on nothing else.
    """
    if algorithm.plain or transmission.exact:
        return upload
    if transmission.private:
        require(
            upload.keys() == {"z"} and upload["z"] is z,
            f"updates cannot carry noise with {algorithm.name}: its clients send more than z, which the noise on z "
            "does not hide; use an algorithm that sends only z, such as fedmm",
        )
        return upload
    others = {name: vector for name, vector in upload.items() if name != "z"}
    arriving = {
        name: transmit_point(transmission, v, sent.get(name, torch.zeros_like(v))) for name, v in others.items()
    }
    return {**upload, **arriving}


def travelling(uploads: Encoding, upload: State) -> State:
    """An upload of the names, shapes and dtypes that travel; its values are none that anyone sent."""
    if uploads == "exact":
        return upload
    others = {name: vector for name, vector in upload.items() if name != "z"}
    return {**_pack(CODECS[uploads], "z", torch.zeros_like(upload["z"])), **others}


def decode_upload(uploads: Encoding, coded: State, sent: State) -> State:
    """The upload that travelled as ``coded``, from a client that was sent ``sent``."""
    if uploads == "exact":
        return coded
    others = {name: vector for name, vector in coded.items() if not name.startswith("z.")}
    return {"z": sent["z"] + _unpack(CODECS[uploads], "z", coded, sent["z"].dtype), **others}


# Broadcasts -----------------------------------------------------------------------------------------------------------


class Broadcast(NamedTuple):
    """What the clients of a round work from, and the codes that take those who know the last point there."""

    sent: State
    codes: State


def broadcast(broadcasts: Encoding, now: State, known: State) -> Broadcast:
    """What a server at ``now`` sends to clients that know ``known``, ``[..., size]`` by name."""
    if broadcasts == "exact":
        return Broadcast(now, now)
    codes: State = {}
    for name, vector in now.items():
        codes |= _pack(CODECS[broadcasts], name, vector - known[name])
    return Broadcast(decode_broadcast(broadcasts, codes, known), codes)


def decode_broadcast(broadcasts: Encoding, coded: State, known: State) -> State:
    """What a server sent, for a client that knows ``known``; ``coded`` holds codes, or the whole vectors."""
    if broadcasts == "exact" or not _is_coded(coded):
        return coded
    names = [name.removesuffix(_CODES) for name in coded if name.endswith(_CODES)]
    for name in names:
        if name not in known:
            raise FedmmError(f"codes of {name!r} came to a client that does not know the point they begin at")
    return {name: known[name] + _unpack(CODECS[broadcasts], name, coded, known[name].dtype) for name in names}


def readable(coded: State, own: State) -> bool:
    """Whether a client in this state knows where the codes begin that it was sent, if they are codes."""
    return all(_KNOWN + name.removesuffix(_CODES) in own for name in coded if name.endswith(_CODES))


def _is_coded(names: Collection[str]) -> bool:
    return any(name.endswith(_CODES) for name in names)
