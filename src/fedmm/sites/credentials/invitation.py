"""An invitation: the one file that tells a site everything about a federation, and how a site joins with it."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.config.toml import set_values, write_toml
from fedmm.core.errors import FedmmError, Say, require, unknown
from fedmm.core.files import DOMAINS
from fedmm.sites.config import KINDS, read_site
from fedmm.sites.credentials.certificates import parse_certificates
from fedmm.sites.credentials.files import AUTHORITY, is_host, read_input_tables, write_credential
from fedmm.sites.credentials.keys import (
    describe_key,
    generate_node_key,
    parse_private_key,
    parse_public_key,
    public_line,
)

SECTION, VERSION = "invitation", 1
COORDINATOR = "coordinator"
_LARGEST = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
HINTS = {"kind": KINDS, "domain": DOMAINS}
_NEEDED = ("site", "address", "certificate", "coordinator", "fingerprint")
_KEYS = ("version", *_NEEDED, "key", *HINTS)
_LAST_PORT = 65535


@dataclass(frozen=True)
class SiteInvitation:
    """What a site is told. site: its name. address: the SuperLink's, as sites reach it. certificate: of the authority
    that signed the SuperLink's. coordinator: the public key that signs the server's messages. key: the site's private
    key, if the coordinator made it; empty if the site makes its own. hints: ``kind`` and ``domain`` of its rows.
    """

    site: str
    address: str
    certificate: bytes
    coordinator: bytes
    key: bytes
    hints: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A fingerprint of what the site will trust, to compare by phone; the same for all sites of a federation."""
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
        return f"# Only for the site: `fedmm deploy join THIS-FILE`.\n{secret}{write_toml({SECTION: table})}"


def read_invitation(file: Path) -> SiteInvitation:
    """Read an invitation; whoever carried it may have altered it, so everything is checked before it is used."""
    tables = read_input_tables(file, _LARGEST)
    table = tables.get(SECTION)
    if not isinstance(table, dict) or len(tables) != 1:
        raise FedmmError(f"{file} is not an invitation: it must have a section [{SECTION}] and no other")
    return _check_invitation(table)


def _check_invitation(table: Mapping[str, Any]) -> SiteInvitation:
    for key in table:
        if key not in _KEYS:
            raise unknown(f"key in [{SECTION}]", key[:50], _KEYS)
    version = table.get("version")
    require(
        type(version) is int and version == VERSION,
        f"the invitation's version must be {VERSION}, not {version!r}; was it made by another version of fedmm?",
    )
    for key in _NEEDED:
        require(key in table, f"the invitation has no {key}")
    for key in table.keys() - {"version"}:
        require(isinstance(table[key], str), f"{key} of the invitation must be text, not {table[key]!r:.50}")
    require_name(table["site"])
    require_address(table["address"])
    for key, known in HINTS.items():
        if key in table and table[key] not in known:
            raise unknown(f"{key} in the invitation", table[key][:50], known)
    private = parse_private_key(table["key"].encode(), "the invitation's key")[0] if "key" in table else b""
    invitation = SiteInvitation(
        table["site"],
        table["address"],
        parse_certificates(table["certificate"].encode(), "the invitation's certificate"),
        public_line(parse_public_key(table["coordinator"].encode(), "the invitation's coordinator"), COORDINATOR),
        private,
        {name: table[name] for name in HINTS if name in table},
    )
    require(
        same_fingerprint(table["fingerprint"], invitation.fingerprint),
        f"the invitation was changed in transit: its fingerprint is {invitation.fingerprint}, not the one it states",
    )
    return invitation


def same_fingerprint(one: str, other: str) -> bool:
    """Return whether two fingerprints are the same, however they were written down."""
    left, right = (re.sub(r"[\s:-]", "", text).lower() for text in (one, other))
    return left == right


def require_name(name: str) -> None:
    """Raise FedmmError if a name is unfit for a site and the files of its keys on any machine."""
    require(
        _NAME.fullmatch(name) is not None and name.lower() != COORDINATOR,
        f"an invited site's name must be at most 63 letters, digits, - and _, and not {COORDINATOR!r}; it cannot be "
        f"{name[:80]!r}",
    )


def require_address(address: str) -> None:
    """Raise FedmmError if an address is not host:port."""
    host, colon, port = address.rpartition(":")
    right = bool(colon) and re.fullmatch("[0-9]{1,5}", port) is not None and 1 <= int(port) <= _LAST_PORT
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    require(right and is_host(bare), f"an address must be host:port, not {address[:300]!r}")


COORDINATOR_FILE = f"{COORDINATOR}.pub"

POLICY = """
# What the site's owner lets an experiment do; these are the defaults.
# [policy]
# allow_imports = []
# allow_paths = []
# min_batch_size = 8
# min_local_steps = 2
# min_rows = 20
# max_rounds = 1000
# max_questions = 5000
# max_epsilon = inf
# delta = 1e-5
# require_approval = false
"""


def join(
    invitation: SiteInvitation,
    out: Path,
    data: Mapping[str, str],
    *,
    state: str = "",
    settings: Sequence[str] = (),
    fingerprint: str = "",
    say: Say = lambda line: None,
) -> None:
    """Write a site's file, and beside it its key, the authority's certificate and the coordinator's public key.

    data: ``kind``, ``path`` and ``domain`` of its rows, which override the invitation's hints. state: the folder for
    what the site stores, ``state/NAME`` by default. settings: other values of the file, ``section.key=value``.
    fingerprint: as heard by phone. Nothing is overwritten, and if something cannot be written, nothing is left behind.
    """
    require(
        not fingerprint or same_fingerprint(fingerprint, invitation.fingerprint),
        f"the invitation is not the coordinator's: its fingerprint is {invitation.fingerprint}, not {fingerprint}",
    )
    name, folder = invitation.site, out.parent
    text = _site_text(invitation, {**invitation.hints, **data}, state, settings)
    if invitation.key:
        private, public = invitation.key, public_line(parse_private_key(invitation.key, "the key")[1], name)
    else:
        private, public = generate_node_key(name)
    shared = {folder / AUTHORITY: invitation.certificate, folder / COORDINATOR_FILE: invitation.coordinator}
    own = {
        folder / name: (private, 0o600),
        folder / f"{name}.pub": (public, 0o644),
        out: (text.encode(), 0o644),
    }
    require(len({*shared, *own}) == 5, f"{out} is the name of another of the site's files; choose another with --out")
    _write(shared, own)
    say(f"wrote {out}, {folder / AUTHORITY}, {folder / COORDINATOR_FILE} and the key {folder / name}")
    say(f"fingerprint of the invitation: {invitation.fingerprint}; compare it with the coordinator's over the phone")
    if not invitation.key:
        say(f"fingerprint of the site's key: {describe_key(public)}")
        say(f"send {folder / name}.pub to the coordinator; it holds this line:")
        say(public.decode().rstrip())
    say(f"then `fedmm deploy site {out}` runs the site")


def _site_text(invitation: SiteInvitation, data: Mapping[str, str], state: str, settings: Sequence[str]) -> str:
    """Return the site's file, checked by reading it."""
    require(
        "kind" in data and (data["kind"] == "share" or "path" in data),
        "say where the site's rows are: --data PATH --kind KIND --domain DOMAIN",
    )
    tables: dict[str, dict[str, Any]] = {
        "site": {"name": invitation.site, "state": state or f"state/{invitation.site}"},
        "data": dict(data),
        "superlink": {
            "address": invitation.address,
            "certificate": AUTHORITY,
            "key": invitation.site,
            "coordinator": COORDINATOR_FILE,
        },
    }
    text = write_toml(set_values(tables, settings)) + POLICY
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "site.toml"
        file.write_text(text, encoding="utf-8")
        read_site(file)
    return text


def _write(shared: Mapping[Path, bytes], own: Mapping[Path, tuple[bytes, int]]) -> None:
    written: list[Path] = []
    try:
        for path in own:
            require(not path.exists(), f"{path} already exists and is not overwritten")
        for path, content in shared.items():
            require(
                not path.exists() or path.read_bytes() == content,
                f"{path} already exists and belongs to another federation; join from another folder",
            )
        for folder in {path.parent for path in own}:
            folder.mkdir(parents=True, exist_ok=True)
        missing = {path: (content, 0o644) for path, content in shared.items() if not path.exists()}
        for path, (content, mode) in {**missing, **own}.items():
            write_credential(path, content, mode)
            written.append(path)
    except (OSError, ValueError) as problem:
        for path in written:
            with suppress(OSError):
                path.unlink()
        if isinstance(problem, FedmmError):
            raise
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise FedmmError(f"the site's files cannot be written: {reason}") from problem
