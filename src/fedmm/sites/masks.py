"""A site's part in masked sums: its keys, and those of the other sites, which its owner has from them."""

from __future__ import annotations

from fedmm.core.errors import require
from fedmm.core.federation import Terms
from fedmm.core.mechanisms import SecretNoise
from fedmm.engines.secure_sum.ledger import MaskLedger
from fedmm.engines.secure_sum.masking import MaskKey, Masks
from fedmm.sites.config import SiteConfig
from fedmm.sites.credentials.keys import signer, verifier

_SECRET, _LEDGER = "masks.secret", "masks.jsonl"


def site_masks(config: SiteConfig, terms: Terms, run: str) -> Masks | None:
    """The site's masks in a run; None where it has none. A site that has others' keys takes part in no other runs."""
    section, link = config.masks, config.superlink
    if not terms.secure_sum:
        require(
            not section.peers,
            "this site's updates are for masked sums alone (masks.peers), and the experiment has no secure_sum = true",
        )
        return None
    require(
        bool(section.peers and link.key),
        "secure_sum = true needs superlink.key and masks.peers in this site's file: a folder with the public key "
        "NAME.pub of every other site, from the sites themselves and not from the coordinator",
    )
    folder = config.path(section.peers)
    require(folder.is_dir(), f"masks.peers is no folder: {folder}")
    verifiers = {path.stem: verifier(path, "a key in masks.peers") for path in sorted(folder.glob("*.pub"))}

    def verify(name: str, signature: bytes, text: bytes) -> bool:
        return name in verifiers and verifiers[name](signature, text)

    return Masks(
        config.site.name,
        run,
        MaskKey(SecretNoise.kept_in(config.state / _SECRET).secret, run),
        signer(config.path(link.key), "superlink.key"),
        verify,
        MaskLedger(config.state / _LEDGER),
        section.least,
    )
