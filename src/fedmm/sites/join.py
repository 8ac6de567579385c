"""The site's side of an invitation: its key, whom it trusts, and its file, all in one folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmm.config.toml import set_values, write_toml
from fedmm.core.errors import FedmmError, require
from fedmm.sites.config import read_site
from fedmm.sites.credentials.invitation import Invitation, same_fingerprint, write_new
from fedmm.sites.credentials.keys import AUTHORITY, generate_node_key, public_line
from fedmm.sites.credentials.parsing import describe_key, read_private_key

COORDINATOR = "coordinator.pub"

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

Say = Callable[[str], None]


def join(
    invitation: Invitation,
    out: Path,
    data: Mapping[str, str],
    *,
    state: str = "",
    settings: Sequence[str] = (),
    fingerprint: str = "",
    say: Say = lambda line: None,
) -> None:
    """Write a site's file, and beside it its key, the authority's certificate and the coordinator's public key.

    data: ``kind``, ``path`` and ``domain`` of its rows, which go before the invitation's hints. state: the
    folder for what it keeps, ``state/NAME`` by default. settings: other values
    of the file, ``section.key=value``. fingerprint: as it was heard over the phone. Nothing is overwritten, and where
    something cannot be written, nothing is left.
    """
    require(
        not fingerprint or same_fingerprint(fingerprint, invitation.fingerprint),
        f"the invitation is not the coordinator's: its fingerprint is {invitation.fingerprint}, not {fingerprint}",
    )
    name, folder = invitation.site, out.parent
    text = _site_text(invitation, {**invitation.hints, **data}, state, settings)
    if invitation.key:
        private, public = invitation.key, public_line(read_private_key(invitation.key, "the key")[1], name)
    else:
        private, public = generate_node_key(name)
    shared = {folder / AUTHORITY: invitation.certificate, folder / COORDINATOR: invitation.coordinator}
    own = {
        folder / name: (private, 0o600),
        folder / f"{name}.pub": (public, 0o644),
        out: (text.encode(), 0o644),
    }
    require(len({*shared, *own}) == 5, f"{out} cannot be the site's file too; name another with --out")
    _write(shared, own)
    say(f"wrote {out}, {folder / AUTHORITY}, {folder / COORDINATOR} and the key {folder / name}")
    say(f"fingerprint of the invitation: {invitation.fingerprint}; ask the coordinator on the phone if it is the same")
    if not invitation.key:
        say(f"fingerprint of the site's key: {describe_key(public)}")
        say(f"send {folder / name}.pub to the coordinator, which is this line:")
        say(public.decode().rstrip())
    say(f"then `fedmm deploy site {out}` runs the site")


def _site_text(invitation: Invitation, data: Mapping[str, str], state: str, settings: Sequence[str]) -> str:
    """The site's file, as it will be read."""
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
            "coordinator": COORDINATOR,
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
            require(not path.exists(), f"{path} is there already, and is not overwritten")
        for path, content in shared.items():
            require(
                not path.exists() or path.read_bytes() == content,
                f"{path} is there already, and is of another federation; join in a folder of its own",
            )
        for folder in {path.parent for path in own}:
            folder.mkdir(parents=True, exist_ok=True)
        missing = {path: (content, 0o644) for path, content in shared.items() if not path.exists()}
        for path, (content, mode) in {**missing, **own}.items():
            write_new(path, content, mode)
            written.append(path)
    except (OSError, ValueError) as problem:
        for path in written:
            with suppress(OSError):
                path.unlink()
        if isinstance(problem, FedmmError):
            raise
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise FedmmError(f"the site's files cannot be written: {reason}") from problem
