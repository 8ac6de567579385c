"""An invitation: the one file by which a coordinator tells a site all that it has to know. Needs no torch."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.files import DOMAINS
from fedmm.sites.config import KINDS
from fedmm.sites.credentials.input_files import read_input_tables
from fedmm.sites.credentials.keys import is_host, public_line
from fedmm.sites.credentials.parsing import read_certificates, read_private_key, read_public_key

SECTION, VERSION = "invitation", 1
COORDINATOR = "coordinator"
_LARGEST = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HINTS = {"kind": KINDS, "domain": DOMAINS}
_NEEDED = ("site", "address", "certificate", "coordinator", "fingerprint")
_KEYS = ("version", *_NEEDED, "key", *_HINTS)
_LAST_PORT = 65535


@dataclass(frozen=True)
class Invitation:
    """What a site is told. site: its name. address: the SuperLink's, as sites reach it. certificate: of the authority
    that signed the SuperLink's. coordinator: the public key that signs the server's messages. key: the site's private
    key, where the coordinator made it; empty where the site makes its own. hints: ``kind`` and ``domain`` of its rows.
    """

    site: str
    address: str
    certificate: bytes
    coordinator: bytes
    key: bytes
    hints: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Of whom the site will trust, for reading out over the phone; the same for all sites of a federation."""
        digest = hashlib.sha256(f"fedmm invitation {VERSION}\n{self.address}\n".encode())
        digest.update(self.certificate)
        digest.update(self.coordinator)
        text = digest.hexdigest()[:32]
        return "-".join(text[place : place + 4] for place in range(0, len(text), 4))

    def text(self) -> str:
        """The invitation as TOML."""
        table: dict[str, Any] = {
            "version": VERSION,
            "site": self.site,
            "address": self.address,
            "fingerprint": self.fingerprint,
            **self.hints,
            "certificate": self.certificate.decode(),
            "coordinator": self.coordinator.decode(),
        }
        if self.key:
            table["key"] = self.key.decode()
        secret = "# It holds the site's private key: whoever reads it can take the site's place.\n" if self.key else ""
        return f"# For the site alone: `fedmm deploy join THIS-FILE`.\n{secret}{write_toml({SECTION: table})}"


def read_invitation(file: Path) -> Invitation:
    """An invitation, which whoever carried it may have written: nothing in it is used before it was checked."""
    tables = read_input_tables(file, _LARGEST)
    table = tables.get(SECTION)
    if not isinstance(table, dict) or len(tables) != 1:
        raise FedmmError(f"{file} is no invitation: it must have a section [{SECTION}] and no other")
    return _checked(table)


def _checked(table: Mapping[str, Any]) -> Invitation:
    for key in table:
        if key not in _KEYS:
            raise unknown(f"key in [{SECTION}]", key[:50], _KEYS)
    version = table.get("version")
    require(
        type(version) is int and version == VERSION,
        f"the invitation's version must be {VERSION}, not {version!r}; is it of another fedmm?",
    )
    for key in _NEEDED:
        require(key in table, f"the invitation has no {key}")
    for key in table.keys() - {"version"}:
        require(isinstance(table[key], str), f"{key} of the invitation must be text, not {table[key]!r:.50}")
    require_name(table["site"])
    require_address(table["address"])
    for key, known in _HINTS.items():
        if key in table and table[key] not in known:
            raise unknown(f"{key} in the invitation", table[key][:50], known)
    private = read_private_key(table["key"].encode(), "the invitation's key")[0] if "key" in table else b""
    invitation = Invitation(
        table["site"],
        table["address"],
        read_certificates(table["certificate"].encode(), "the invitation's certificate"),
        public_line(read_public_key(table["coordinator"].encode(), "the invitation's coordinator"), COORDINATOR),
        private,
        {name: table[name] for name in _HINTS if name in table},
    )
    require(
        same_fingerprint(table["fingerprint"], invitation.fingerprint),
        f"the invitation was changed on its way: its fingerprint is {invitation.fingerprint}, and it says another",
    )
    return invitation


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are the same, however they were written down."""
    left, right = (re.sub(r"[\s:-]", "", text).lower() for text in (one, other))
    return left == right


def require_name(name: str) -> None:
    """Refuse what cannot name a site and the files of its keys on every machine."""
    require(
        _NAME.fullmatch(name) is not None and name.lower() != COORDINATOR,
        f"a site that is invited is named in letters, digits, - and _, at most 63 and not {COORDINATOR!r}; it cannot "
        f"be {name[:80]!r}",
    )


def require_address(address: str) -> None:
    """Refuse what is no host:port."""
    host, colon, port = address.rpartition(":")
    right = bool(colon) and re.fullmatch("[0-9]{1,5}", port) is not None and 1 <= int(port) <= _LAST_PORT
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    require(right and is_host(bare), f"an address must be host:port, not {address[:300]!r}")


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file where there is none; a link is not followed."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(number, "wb") as file:
        file.write(content)
