"""Federations in one process whose sites mask their updates, each with its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedmm import Terms
from fedmm.core.algorithm import Algorithm
from fedmm.core.problem import FederatedProblem
from fedmm.engines.mask_ledger import MaskLedger
from fedmm.engines.masking import MaskKey, Masks, Offer, SignedKey, build_signed_text
from fedmm.remote.messaging import Messaging

RUN = "a run"


class Site:
    """A site's keys: its identity, and the one from which its masks are derived."""

    def __init__(self, name: str, secret: bytes = b"") -> None:
        self.name = name
        self.identity = ec.generate_private_key(ec.SECP256R1())
        self.key = MaskKey((secret or name.encode()).ljust(32, b"."), RUN)

    def sign(self, text: bytes) -> bytes:
        return self.identity.sign(text, ec.ECDSA(hashes.SHA256()))

    def signed(self) -> SignedKey:
        return SignedKey(self.key.public, self.sign(build_signed_text(RUN, self.name, self.key.public)))


class Sites:
    """Sites that know each other's identities."""

    def __init__(self, names: list[str], secret: bytes = b"") -> None:
        self.each = {name: Site(name, secret + name.encode() if secret else b"") for name in names}

    @property
    def offer(self) -> dict[str, SignedKey]:
        return {name: site.signed() for name, site in self.each.items()}

    def verify(self, name: str, signature: bytes, text: bytes) -> bool:
        try:
            self.each[name].identity.public_key().verify(signature, text, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, KeyError):
            return False
        return True

    def masks(self, least: int = 2, ledgers: Mapping[str, MaskLedger] | None = None) -> dict[str, Masks]:
        kept = ledgers or {}
        return {
            name: Masks(name, RUN, site.key, site.sign, self.verify, kept.get(name, MaskLedger()), least)
            for name, site in self.each.items()
        }


def masked_engine(
    problem: FederatedProblem,
    algorithm: Algorithm,
    rounds: int,
    *,
    secret: bytes = b"",
    least: int = 2,
    offer: Offer | None = None,
    exchange: Any = None,
    **terms: Any,
) -> Messaging:
    sites = Sites(sorted(client.name for client in problem.clients), secret)
    return Messaging(
        problem,
        algorithm,
        rounds,
        Terms(secure_sum=True, **terms),
        exchange,
        masks=sites.masks(least),
        offer=sites.offer if offer is None else offer,
    )
