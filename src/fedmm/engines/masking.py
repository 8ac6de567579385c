"""Sums of updates of which the server sees no single one: pairwise masks that cancel, after Bonawitz et al. (2017).

Each pair of a round's sites shares a seed, by X25519 keys that the sites sign; one adds the mask that the seed makes,
the other subtracts it. Each site also adds a mask of its own. The server then asks those whose updates arrived to open
the sum. Each first signs whose updates it is of, and sees that all others have signed the same. Then it tells its own
mask's seed, and the seeds that it shares with those whose updates did not arrive: never both of one site, so that an
update that comes late stays hidden. There are no shares of secrets: whoever is part of a sum has to help to open it, or
the round has none. docs/secure_aggregation.md says what the server learns, and what it could do.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.errors import FedmmError, require
from fedmm.engines.mask_ledger import MaskLedger, Uploaded
from fedmm.engines.messages import Invitation, Update

MASKED = "masked"
"""The one vector of an update that is masked: all that the algorithm uploads, as codes."""

_SEED_BYTES = 32


class SignedKey(NamedTuple):
    """A site's public key for the masks of a run, and its signature of it."""

    key: bytes
    signature: bytes


Offer = Mapping[str, SignedKey]
"""By name, the keys of all sites of a round, as the server hands them on."""
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""Whether a site, by its name, made the signature of a text: by keys that the asking site's owner was given."""


class Opening(NamedTuple):
    """What a site tells of its masks: the seed of its own, and by name those shared with sites that are gone."""

    own: bytes
    gone: Mapping[str, bytes]


class NotOpened(Exception):  # noqa: N818 - reads as what happened
    """A sum that could not be opened, and why."""


class MaskKey:
    """A site's X25519 key for the masks of one run: a function of a secret of the site's and the run's name."""

    def __init__(self, secret: bytes, run: str) -> None:
        require(len(secret) >= _SEED_BYTES, f"a secret for masks must have at least {_SEED_BYTES} bytes")
        private = _derive_seed(secret, b"fedmm mask key\x1f" + run.encode())
        self._private = _x25519().X25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> bytes:
        """What others need to share seeds with it."""
        return bytes(self._private.public_key().public_bytes_raw())

    def seed(self, other: bytes, label: bytes) -> bytes:
        """The seed that it shares with another key's site in a round."""
        try:
            shared = self._private.exchange(_x25519().X25519PublicKey.from_public_bytes(other))
        except ValueError as problem:
            raise FedmmError("a key for masks is not an X25519 key") from problem
        return _derive_seed(shared, b"fedmm mask seed\x1f" + label)


def build_signed_text(run: str, site: str, key: bytes) -> bytes:
    """What a site signs."""
    return b"fedmm mask key\x1f" + json.dumps([run, site, key.hex()]).encode()


def mask(seed: bytes, size: int) -> Codes:
    """So many numbers modulo 2^64 that nobody can tell from chance who has not the seed (ChaCha20)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415 - comes with the extra

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8")


@dataclass
class Masks:
    """A site's part.

    name, run: whose, in which run. key: the site's own. sign, verify: its signatures, and those of the others.
    ledger: what it has sent and opened. least: it helps to open no sum of fewer updates.
    """

    name: str
    run: str
    key: MaskKey
    sign: Sign
    verify: Verify
    ledger: MaskLedger
    least: int = 3

    def masked(self, invitation: Invitation, update: Update, offer: Offer) -> Update:
        """An update as the server may see it; one without vectors stays as it is."""
        if update.lost:
            return update
        self._check(offer)
        label = round_label(self.run, invitation, offer)
        codes = upload_codes(update.vectors, invitation.sent)
        digest = hashlib.sha256(codes.tobytes()).hexdigest()
        session, t = invitation.session, invitation.round
        own = self.ledger.own_seed(self.run, session, t, label, digest)
        shared = {other: self.key.seed(each.key, label) for other, each in offer.items() if other != self.name}
        if own is None:
            own = secrets.token_bytes(_SEED_BYTES)
            self.ledger.uploads(Uploaded(self.run, session, t, label, digest, own, shared))
        hidden = codes + mask(own, len(codes))
        for other, seed in shared.items():
            hidden = _add_mask(hidden, seed, self.name < other)
        vectors = {MASKED: torch.from_numpy(hidden.view(np.int64))}
        return replace(update, vectors=vectors, statistics={}, metrics={})

    def signed(self) -> SignedKey:
        """The site's own key, for the others."""
        return SignedKey(self.key.public, self.sign(build_signed_text(self.run, self.name, self.key.public)))

    def confirmed(self, session: int, round: int, survivors: Iterable[str]) -> bytes:
        """The site's word that the sum of these sites' updates is to be opened; it gives it to one sum in a round."""
        sent, names = self._sent(session, round, survivors)
        self.ledger.opens(sent, names)
        return self.sign(_build_confirmation(self.run, sent.label, names))

    def opened(self, session: int, round: int, survivors: Iterable[str], confirmations: Mapping[str, bytes]) -> Opening:
        """What opens the sum of these sites' updates, where each of them has given its word."""
        sent, names = self._sent(session, round, survivors)
        self.ledger.opens(sent, names)
        text = _build_confirmation(self.run, sent.label, names)
        for other in names:
            require(
                other == self.name or self.verify(other, confirmations.get(other, b""), text),
                f"{other!r} has not confirmed that its update is part of this sum",
            )
        return Opening(sent.own, {name: seed for name, seed in sent.shared.items() if name not in names})

    def _sent(self, session: int, round: int, survivors: Iterable[str]) -> tuple[Uploaded, list[str]]:
        sent, names = self.ledger.sent(self.run, session, round), sorted(set(survivors))
        require(sent is not None, f"it sent no update in round {round + 1} that could be part of a sum")
        assert sent is not None
        require(self.name in names, "it was asked to open a sum that does not contain its own update")
        require(
            len(names) >= self.least,
            f"it helps to open sums of at least {self.least} updates, and this one has {len(names)}",
        )
        strangers = [name for name in names if name != self.name and name not in sent.shared]
        require(not strangers, f"it shares no mask with {', '.join(map(repr, strangers))}")
        return sent, names

    def _check(self, offer: Offer) -> None:
        """Refuse keys that are not the sites' own: whoever hands them on could share all masks."""
        own = offer.get(self.name)
        require(own is not None and own.key == self.key.public, "the server hands on another key than this site's own")
        require(
            len(offer) >= self.least, f"it masks updates among at least {self.least} sites, and here are {len(offer)}"
        )
        for other, (key, signature) in sorted(offer.items()):
            require(
                other == self.name or self.verify(other, signature, build_signed_text(self.run, other, key)),
                f"the key for masks of {other!r} is not signed by the key that this site has for {other!r}",
            )


def _build_confirmation(run: str, label: bytes, survivors: list[str]) -> bytes:
    return b"fedmm masked sum\x1f" + json.dumps([run, label.hex(), survivors]).encode()


def round_label(run: str, invitation: Invitation, names: Iterable[str]) -> bytes:
    """What the seeds of a round are of: among others, of the point that was sent. Masks of two points do not cancel."""
    about = json.dumps([run, invitation.session, invitation.round, sorted(names)])
    label = hashlib.sha256(about.encode())
    for name, vector in sorted(invitation.sent.items()):
        label.update(name.encode() + b"\x1f" + vector.detach().cpu().numpy().tobytes())
    return label.digest()


def upload_codes(upload: State, sent: State) -> Codes:
    """An upload's codes, one vector after the other, each less what was sent under its name."""
    wide = {name: vector.double() for name, vector in sorted(upload.items())}
    return np.concatenate([encode(each - sent[name].double() if name in sent else each) for name, each in wide.items()])


def build_masked_template(upload: State) -> State:
    """A masked upload of the right name, shape and dtype."""
    return {MASKED: torch.zeros(sum(map(len, upload.values())), dtype=torch.int64)}


def require_all(answers: Mapping[str, object], updates: Mapping[str, Update]) -> None:
    """``NotOpened`` where somebody whose update is part of a sum has not answered."""
    for name in sorted(updates.keys() - answers.keys()):
        raise NotOpened(f"{name!r} did not help")


def sum_codes(updates: Mapping[str, Update], invited: Iterable[str], openings: Mapping[str, Opening]) -> Codes:
    """The sum of what these updates hide; ``NotOpened`` where an opening is missing or is no such thing."""
    require_all(openings, updates)
    gone = set(invited) - set(updates)
    total: Any = np.uint64(0)
    for name in sorted(updates):
        opening = openings[name]
        if opening.gone.keys() != gone or {len(opening.own), *map(len, opening.gone.values())} != {_SEED_BYTES}:
            raise NotOpened(f"{name!r} sent other seeds than it was asked for")
        codes = updates[name].vectors[MASKED].cpu().numpy().view(np.uint64)
        codes = codes - mask(opening.own, len(codes))
        for other, seed in opening.gone.items():
            codes = _add_mask(codes, seed, name > other)
        total = total + codes
    return np.asarray(total)


def mean_upload(codes: Codes, number: int, like: State, sent: State) -> State:
    """The mean of so many uploads from the sum of their codes."""
    mean, start = {}, 0
    for name, right in sorted(like.items()):
        update = decode(codes[start : start + len(right)]).to(right.device) / number
        start += len(right)
        mean[name] = (update + sent[name].double() if name in sent else update).to(right.dtype)
    return mean


def _add_mask(codes: Codes, seed: bytes, plus: bool) -> Codes:
    noise = mask(seed, len(codes))
    return codes + noise if plus else codes - noise


def _derive_seed(secret: bytes, about: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - comes with the extra
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(algorithm=hashes.SHA256(), length=_SEED_BYTES, salt=None, info=about).derive(secret)


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415 - comes with the extra
    except ModuleNotFoundError:
        raise FedmmError("masked sums need the package cryptography: install fedmm[flower]") from None
    return x25519


# Vectors as whole multiples of a small step, modulo 2^64: their sums are exact, in any order --------------------------

Codes = NDArray[np.uint64]

STEP = 2.0**-40
"""What a coordinate is rounded to: less than the rounding of float32 for all but the smallest."""
LARGEST = 2.0**14
"""The largest coordinate of an update: :data:`fedmm.core.federation.MOST_SUMMED` of them stay below 2^63 steps."""


def encode(vector: Tensor) -> Codes:
    """The codes of a vector; one that is not finite or too large has none."""
    wide = vector.detach().cpu().double()
    require(bool(wide.isfinite().all()), "its update is not finite, and cannot be part of a sum")
    largest = float(wide.abs().amax()) if len(wide) else 0.0
    require(
        largest <= LARGEST, f"its update has a coordinate of {largest:.4g}, above {LARGEST:g}, and cannot be summed"
    )
    codes: Codes = (wide / STEP).round().to(torch.int64).numpy().view(np.uint64)
    return codes


def decode(codes: Codes) -> Tensor:
    """The float64 vector of these codes, or of their sum."""
    return torch.from_numpy(codes.view(np.int64).astype(np.float64)) * STEP
