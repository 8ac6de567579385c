"""Compression of uploads and broadcasts: exact, or 16- or 8-bit codes with one scale per block of coordinates.

Encoding loses precision, so both sides continue from the decoded values, computed with the same arithmetic:

uploads:     the client encodes its update z_i - z_0 plus the residual of its earlier codes (error feedback);
             z_i becomes z_0 + the decoded update, in the client's own state and at the server alike.
broadcasts:  the server encodes the difference between its point and the one that its clients know; the coding error
             becomes part of the next difference. A client that was not counted in the last round does not know that
             point and is sent the full vectors.

Codes are scaled by the largest value in their block, so the coding error vanishes as updates vanish. What either side
must remember is kept in its state, under names that begin with ``wire.``.
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
"""Number of coordinates that share a scale."""

_RESERVED = "wire."
RESIDUAL = "wire.residual"
_KNOWN = "wire.known."
_CODES, _SCALES = ".codes", ".scales"


@dataclass(frozen=True)
class Codec:
    """Codes of ``dtype`` between ``-most`` and ``most``, with one float32 scale per :data:`BLOCK` coordinates."""

    dtype: torch.dtype
    most: float

    def encode(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes ``[..., size]`` and scales ``[..., blocks]`` of a vector ``[..., size]``.

        If a block is not finite, neither is its scale.
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
        """Return the vector ``[..., size]`` that codes and scales represent."""
        units = scales.to(dtype).unsqueeze(-1).expand(*scales.shape, BLOCK).flatten(-2)
        return codes.to(dtype) * units[..., : codes.shape[-1]]

    def rounded(self, vector: Tensor) -> Tensor:
        """Return a vector as it is after encoding and decoding."""
        return self.decode(*self.encode(vector), vector.dtype)

    def size_in_bytes(self, size: int) -> int:
        """Return the number of bytes of an encoded vector of ``size`` coordinates."""
        return size * self.dtype.itemsize + -(-size // BLOCK) * torch.float32.itemsize


CODECS: dict[str, Codec] = {"fp16": Codec(torch.float16, 32768.0), "int8": Codec(torch.int8, 127.0)}
"""Codecs of all encodings but ``exact``. fp16 codes go up to 32768, so that small values in a block stay accurate."""


def vector_bytes(encoding: Encoding, size: int, dtype: torch.dtype) -> int:
    """Return the number of bytes needed to send a vector."""
    return size * dtype.itemsize if encoding == "exact" else CODECS[encoding].size_in_bytes(size)


def _pack(codec: Codec, name: str, vector: Tensor) -> State:
    codes, scales = codec.encode(vector)
    return {name + _CODES: codes, name + _SCALES: scales}


def _unpack(codec: Codec, name: str, coded: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    return codec.decode(coded[name + _CODES], coded[name + _SCALES], dtype)


# States ---------------------------------------------------------------------------------------------------------------


def algorithms_part(state: State) -> State:
    """Return a server's or client's state without the entries of this module."""
    return {name: vector for name, vector in state.items() if not name.startswith(_RESERVED)}


def known_point(state: State) -> State:
    """Return what clients were sent in the last round, as remembered by the server or by a client of that round."""
    return {name.removeprefix(_KNOWN): vector for name, vector in state.items() if name.startswith(_KNOWN)}


def remember(broadcasts: Encoding, sent: State) -> State:
    """Return the state entries with which a server or client remembers a broadcast."""
    return {} if broadcasts == "exact" else {_KNOWN + name: vector for name, vector in sent.items()}


def first_memory(uploads: Encoding, broadcasts: Encoding, sent: State) -> State:
    """Return a client's initial memory if the server's initial broadcast is ``sent``."""
    residual = {} if uploads == "exact" else {RESIDUAL: torch.zeros_like(sent["z"])}
    return {**residual, **remember(broadcasts, sent)}


# Uploads --------------------------------------------------------------------------------------------------------------


class Transmitted(NamedTuple):
    """A client's point as it arrives, ``[..., size]``; the named tensors that are sent; what it must remember."""

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
    """Send a client's point z ``[..., size]`` to a server at z_0.

    Encoding comes after clipping and noise, so codes of noisy updates reveal no more than these do. But codes are not a
    function of the updates' *sum*, so noise that is shared among clients requires exact uploads.
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
    """Return a client's point for a round in which it is not sent; the residual of its earlier codes is kept."""
    return Transmitted(z, {}, {RESIDUAL: memory[RESIDUAL]} if RESIDUAL in memory else {})


def transmit_others(transmission: Transmission, algorithm: Algorithm, upload: State, z: Tensor, sent: State) -> State:
    """Return an upload whose other vectors are clipped like z if they depend on the local steps directly.

    In a plain algorithm, everything else that is uploaded follows from z as it arrives (SCAFFOLD's change of its
    control). Other algorithms may upload only z if updates carry noise, because nothing else is noised.
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
    """Return a placeholder upload with the names, shapes and dtypes that are sent; its values mean nothing."""
    if uploads == "exact":
        return upload
    others = {name: vector for name, vector in upload.items() if name != "z"}
    return {**_pack(CODECS[uploads], "z", torch.zeros_like(upload["z"])), **others}


def decode_upload(uploads: Encoding, coded: State, sent: State) -> State:
    """Return the upload that was sent as ``coded`` by a client that had received ``sent``."""
    if uploads == "exact":
        return coded
    others = {name: vector for name, vector in coded.items() if not name.startswith("z.")}
    return {"z": sent["z"] + _unpack(CODECS[uploads], "z", coded, sent["z"].dtype), **others}


# Broadcasts -----------------------------------------------------------------------------------------------------------


class Broadcast(NamedTuple):
    """What the clients of a round work from, and the codes that are sent to clients that know the last point."""

    sent: State
    codes: State


def broadcast(broadcasts: Encoding, now: State, known: State) -> Broadcast:
    """Return what a server at ``now`` sends to clients that know ``known``, ``[..., size]`` by name."""
    if broadcasts == "exact":
        return Broadcast(now, now)
    codes: State = {}
    for name, vector in now.items():
        codes |= _pack(CODECS[broadcasts], name, vector - known[name])
    return Broadcast(decode_broadcast(broadcasts, codes, known), codes)


def decode_broadcast(broadcasts: Encoding, coded: State, known: State) -> State:
    """Return what a server sent to a client that knows ``known``; ``coded`` holds codes or the full vectors."""
    if broadcasts == "exact" or not _is_coded(coded):
        return coded
    names = [name.removesuffix(_CODES) for name in coded if name.endswith(_CODES)]
    for name in names:
        if name not in known:
            raise FedmmError(f"the client received codes of {name!r} but does not know the point that they refer to")
    return {name: known[name] + _unpack(CODECS[broadcasts], name, coded, known[name].dtype) for name in names}


def readable(coded: State, own: State) -> bool:
    """Return whether a client in state ``own`` can decode ``coded``: it knows the points to which any codes refer."""
    return all(_KNOWN + name.removesuffix(_CODES) in own for name in coded if name.endswith(_CODES))


def _is_coded(names: Collection[str]) -> bool:
    return any(name.endswith(_CODES) for name in names)
