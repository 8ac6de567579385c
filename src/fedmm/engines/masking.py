"""Secure aggregation with pairwise masks that cancel in the sum, after Bonawitz et al. (2017).

Each pair of a round's sites derives a common seed from X25519 keys that the sites sign; one adds the mask generated
from the seed, and the other subtracts it. Each site also adds a mask of its own. The server then asks the sites whose
updates arrived to open the sum. Each first signs the list of sites in the sum, and checks that all others signed the
same list. Then it reveals the seed of its own mask, and the seeds it shares with sites whose updates did not arrive:
never both kinds for one site, so that a late update stays hidden. There is no secret sharing: every site in a sum must
help to open it, or the round has none. docs/secure_aggregation.md says what the server learns, and what it could do.
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
"""The name of a masked update's only vector: everything that the algorithm uploads, as codes."""

_SEED_BYTES = 32


class SignedKey(NamedTuple):
    """A site's public key for the masks of a run, with the site's signature."""

    key: bytes
    signature: bytes


Offer = Mapping[str, SignedKey]
"""The keys of all sites of a round by name, as the server forwards them."""
Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""Checks a site's signature (name, signature, text) with the keys that this site's owner was given."""


class Opening(NamedTuple):
    """What a site reveals to open a sum: the seed of its own mask, and by name the seeds shared with missing sites."""

    own: bytes
    gone: Mapping[str, bytes]


class NotOpened(Exception):  # noqa: N818 - reads as what happened
    """Raised with the reason if a sum cannot be opened."""


class MaskKey:
    """A site's X25519 key for the masks of one run, derived from the site's secret and the run's name."""

    def __init__(self, secret: bytes, run: str) -> None:
        require(len(secret) >= _SEED_BYTES, f"a mask secret must have at least {_SEED_BYTES} bytes")
        private = _derive_seed(secret, b"fedmm mask key\x1f" + run.encode())
        self._private = _x25519().X25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> bytes:
        """The public key, which the other sites need to derive the shared seeds."""
        return bytes(self._private.public_key().public_bytes_raw())

    def seed(self, other: bytes, label: bytes) -> bytes:
        """Return the seed shared with the owner of another public key in a round."""
        try:
            shared = self._private.exchange(_x25519().X25519PublicKey.from_public_bytes(other))
        except ValueError as problem:
            raise FedmmError("a mask key is not an X25519 key") from problem
        return _derive_seed(shared, b"fedmm mask seed\x1f" + label)


def build_signed_text(run: str, site: str, key: bytes) -> bytes:
    """Return the text that a site signs to vouch for its key."""
    return b"fedmm mask key\x1f" + json.dumps([run, site, key.hex()]).encode()


def mask(seed: bytes, size: int) -> Codes:
    """Return ``size`` pseudorandom numbers modulo 2^64 (ChaCha20), unpredictable without the seed."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415 - comes with the extra

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8")


@dataclass
class Masks:
    """A site's side of secure aggregation.

    name, run: of the site and the run. key: the site's own. sign, verify: sign texts, and check others' signatures.
    ledger: what the site has sent and opened. least: the fewest updates that a sum may have.
    """

    name: str
    run: str
    key: MaskKey
    sign: Sign
    verify: Verify
    ledger: MaskLedger
    least: int = 3

    def masked(self, invitation: Invitation, update: Update, offer: Offer) -> Update:
        """Return an update as the server may see it; one without vectors is returned unchanged."""
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
        """Return the site's own signed key, for the other sites."""
        return SignedKey(self.key.public, self.sign(build_signed_text(self.run, self.name, self.key.public)))

    def confirmed(self, session: int, round: int, survivors: Iterable[str]) -> bytes:
        """Return the site's signed consent to open the sum of these sites' updates; it consents to one sum a round."""
        sent, names = self._sent(session, round, survivors)
        self.ledger.opens(sent, names)
        return self.sign(_build_confirmation(self.run, sent.label, names))

    def opened(self, session: int, round: int, survivors: Iterable[str], confirmations: Mapping[str, bytes]) -> Opening:
        """Return what opens the sum of these sites' updates; refuse unless each of them has consented."""
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
            f"it helps to open sums of at least {self.least} updates, but this one has {len(names)}",
        )
        strangers = [name for name in names if name != self.name and name not in sent.shared]
        require(not strangers, f"it shares no mask with {', '.join(map(repr, strangers))}")
        return sent, names

    def _check(self, offer: Offer) -> None:
        """Refuse keys that the sites did not sign: with keys of its own, the server would know every mask."""
        own = offer.get(self.name)
        require(
            own is not None and own.key == self.key.public,
            "the server forwarded a key for this site that is not its own",
        )
        require(
            len(offer) >= self.least,
            f"it masks updates among at least {self.least} sites, but this round has {len(offer)}",
        )
        for other, (key, signature) in sorted(offer.items()):
            require(
                other == self.name or self.verify(other, signature, build_signed_text(self.run, other, key)),
                f"the mask key of {other!r} is not signed with the key that this site holds for {other!r}",
            )


def _build_confirmation(run: str, label: bytes, survivors: list[str]) -> bytes:
    return b"fedmm masked sum\x1f" + json.dumps([run, label.hex(), survivors]).encode()


def round_label(run: str, invitation: Invitation, names: Iterable[str]) -> bytes:
    """Return the label that a round's seeds depend on. It covers the sent point: masks for two points do not cancel."""
    about = json.dumps([run, invitation.session, invitation.round, sorted(names)])
    label = hashlib.sha256(about.encode())
    for name, vector in sorted(invitation.sent.items()):
        label.update(name.encode() + b"\x1f" + vector.detach().cpu().numpy().tobytes())
    return label.digest()


def upload_codes(upload: State, sent: State) -> Codes:
    """Return an upload's codes, one vector after another, each minus what was sent under its name."""
    wide = {name: vector.double() for name, vector in sorted(upload.items())}
    return np.concatenate([encode(each - sent[name].double() if name in sent else each) for name, each in wide.items()])


def build_masked_template(upload: State) -> State:
    """Return a masked upload with the expected name, shape and dtype."""
    return {MASKED: torch.zeros(sum(map(len, upload.values())), dtype=torch.int64)}


def require_all(answers: Mapping[str, object], updates: Mapping[str, Update]) -> None:
    """Raise ``NotOpened`` if a site whose update is part of a sum has not answered."""
    for name in sorted(updates.keys() - answers.keys()):
        raise NotOpened(f"{name!r} did not help open the sum")


def sum_codes(updates: Mapping[str, Update], invited: Iterable[str], openings: Mapping[str, Opening]) -> Codes:
    """Return the sum of what these updates hide; raise ``NotOpened`` if an opening is missing or malformed."""
    require_all(openings, updates)
    gone = set(invited) - set(updates)
    total: Any = np.uint64(0)
    for name in sorted(updates):
        opening = openings[name]
        if opening.gone.keys() != gone or {len(opening.own), *map(len, opening.gone.values())} != {_SEED_BYTES}:
            raise NotOpened(f"{name!r} sent seeds other than those it was asked for")
        codes = updates[name].vectors[MASKED].cpu().numpy().view(np.uint64)
        codes = codes - mask(opening.own, len(codes))
        for other, seed in opening.gone.items():
            codes = _add_mask(codes, seed, name > other)
        total = total + codes
    return np.asarray(total)


def mean_upload(codes: Codes, number: int, like: State, sent: State) -> State:
    """Return the mean of ``number`` uploads from the sum of their codes."""
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


# Vectors as integer multiples of a small step, modulo 2^64: their sums are exact, in any order ------------------------

Codes = NDArray[np.uint64]

STEP = 2.0**-40
"""The step to which coordinates are rounded, finer than the rounding of float32 except for the smallest ones."""
LARGEST = 2.0**14
"""The largest coordinate of an update; :data:`fedmm.core.federation.MOST_SUMMED` of them stay below 2^63 steps."""


def encode(vector: Tensor) -> Codes:
    """Return the codes of a vector; refuse one that is not finite or too large."""
    wide = vector.detach().cpu().double()
    require(bool(wide.isfinite().all()), "its update is not finite, and cannot be part of a sum")
    largest = float(wide.abs().amax()) if len(wide) else 0.0
    require(
        largest <= LARGEST, f"its update has a coordinate of {largest:.4g}, above {LARGEST:g}, and cannot be summed"
    )
    codes: Codes = (wide / STEP).round().to(torch.int64).numpy().view(np.uint64)
    return codes


def decode(codes: Codes) -> Tensor:
    """Return the float64 vector of codes, or of a sum of codes."""
    return torch.from_numpy(codes.view(np.int64).astype(np.float64)) * STEP
