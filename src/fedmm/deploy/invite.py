"""The coordinator's side of invitations: one file for each site, and the public keys that come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmm.core.errors import FedmmError, Say, require, unknown
from fedmm.deploy.federation import answers, register
from fedmm.deploy.layout import Federation, read_settings
from fedmm.sites.credentials.certificates import certificate_hosts, parse_certificates
from fedmm.sites.credentials.files import AUTHORITY, CERTIFICATE, STDIN, read_input, read_input_tables, write_credential
from fedmm.sites.credentials.invitation import COORDINATOR, HINTS, SiteInvitation, require_address, require_name
from fedmm.sites.credentials.keys import describe_key, generate_node_key, parse_public_key, public_line

PORT = 9092
"""Where the proxy in front of a SuperLink listens."""
_LARGEST, _LONGEST_KEY = 1 << 20, 4096

Sites = Mapping[str, Mapping[str, str]]
"""What is known of each site's rows, by its name: ``kind``, ``domain``."""


def read_sites(file: Path) -> Sites:
    """Read the sites of a file: ``sites = ["a", "b"]``, or a table ``[sites.a]`` for each with kind and domain."""
    tables = read_input_tables(file)
    listed = tables.get("sites")
    if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        require(len(set(listed)) == len(listed), f"{file} lists a site twice")
        listed = {name: {} for name in listed}
    if not isinstance(listed, dict) or not all(isinstance(table, dict) for table in listed.values()):
        raise FedmmError(f'{file} must list its sites: sites = ["a", "b"], or a table [sites.a] for each')
    for name, table in listed.items():
        for key, value in table.items():
            if key not in HINTS:
                raise unknown(f"key in [sites.{name}]", key, HINTS)
            require(value in HINTS[key], f"sites.{name}.{key} must be one of {', '.join(HINTS[key])}, not {value!r}")
    return listed


def invite(
    federation: Federation, sites: Sites, *, address: str = "", with_keys: bool = False, say: Say = lambda line: None
) -> list[Path]:
    """Write ``invitations/NAME.toml`` for each site; each file is for that site only.

    address: the SuperLink's, as sites reach it; by default the first host of its certificate, at port 9092. with_keys:
    put the sites' private keys into the invitations, and write ``keys/NAME.pub`` at once; else each site makes its own.
    """
    made = read_settings(federation)
    require(not made.insecure, "a federation in plain text is for one machine and cannot invite sites")
    require(bool(sites), "name the sites to invite, or a file of them with --all")
    _require_names(list(sites))
    address = address or _usual_address(federation)
    require_address(address)
    known = [name for name in sites if (federation.keys / f"{name}.pub").exists()]
    for name in known:
        say(f"{name} is not invited again, since its key is in {federation.keys}")
    try:
        certificate = parse_certificates((federation.certificates / AUTHORITY).read_bytes(), AUTHORITY)
        coordinator = _public_line(Path(f"{federation.coordinator}.pub").read_bytes(), "coordinator.pub", COORDINATOR)
        invitations = [
            SiteInvitation(name, address, certificate, coordinator, b"", dict(hints))
            for name, hints in sites.items()
            if name not in known
        ]
        federation.invitations.mkdir(mode=0o700, exist_ok=True)
        written = [_write(federation, invitation, with_keys=with_keys) for invitation in invitations]
    except OSError as problem:
        raise FedmmError(f"invitations cannot be written to {federation.invitations}: {problem.strerror}") from problem
    if written:
        say(f"{len(written)} invitations to {address} are in {federation.invitations}; send each only to its own site")
        say(f"fingerprint, to compare over the phone: {invitations[0].fingerprint}")
    return written


def _write(federation: Federation, invitation: SiteInvitation, *, with_keys: bool) -> Path:
    path = federation.invitations / f"{invitation.site}.toml"
    path.unlink(missing_ok=True)  # of an earlier address; it holds no key, or the public part would be in keys/
    if with_keys:
        private, line = generate_node_key(invitation.site)
        invitation = replace(invitation, key=private)
        write_credential(federation.keys / f"{invitation.site}.pub", line, 0o644)
    write_credential(path, invitation.text().encode(), 0o600)
    return path


def accept(federation: Federation, files: Sequence[Path], say: Say = lambda line: None) -> list[str]:
    """Put the public keys of invited sites into ``keys/``, all or none, and register them with a running SuperLink.

    A key belongs to the site that its file is named after; from standard input, to the one named at its line's end.
    """
    made = read_settings(federation)
    keys: dict[str, bytes] = {}
    for name, content in _read_lines(files):
        require_name(name)
        line = _public_line(content, f"the key of {name}", name)
        require(keys.get(name, line) == line, f"two keys were given for {name}")
        keys[name] = line
    try:
        _require_new(federation, keys)
        for name, line in keys.items():
            path = federation.keys / f"{name}.pub"
            if not path.exists():
                write_credential(path, line, 0o644)
            say(f"accepted {name}: {describe_key(line)}")
    except OSError as problem:
        raise FedmmError(f"keys cannot be put into {federation.keys}: {problem.strerror}") from problem
    if answers(made):
        register(federation, say)
    else:
        say(f"no SuperLink runs; once one does, `fedmm deploy register {federation.folder}` registers the keys")
    return list(keys)


def _require_names(names: Sequence[str]) -> None:
    for name in names:
        require_name(name)
    require(
        len({name.lower() for name in names}) == len(names),
        "two of these sites differ only in capital letters, which some file systems do not distinguish",
    )


def _usual_address(federation: Federation) -> str:
    hosts = certificate_hosts(federation.certificates / CERTIFICATE)
    require(
        bool(hosts),
        "the SuperLink's certificate is only for this machine; give the address at which sites reach it with --address",
    )
    return f"[{hosts[0]}]:{PORT}" if ":" in hosts[0] else f"{hosts[0]}:{PORT}"


def _read_lines(files: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Return the site and the line of each public key."""
    require(bool(files), "name the files of public keys that came back, or - for standard input")
    found = []
    for file in files:
        if file == STDIN:
            lines = [line for line in read_input(file, _LARGEST).splitlines() if line.strip()]
            found += [(_owner(line), line) for line in lines]
            continue
        line = read_input(file, _LONGEST_KEY)
        name = file.name.removesuffix(".pub")
        require(file.name.endswith(".pub"), f"{file} must be named after its site: NAME.pub")
        require(
            _owner(line) == name, f"{file} holds the key of {_owner(line)[:80]!r}; name it after that site: NAME.pub"
        )
        found.append((name, line))
    return found


def _owner(line: bytes) -> str:
    """Return the owner that a key's line names."""
    words = line.decode("utf-8", "replace").split()
    return words[2] if len(words) == 3 else ""


def _public_line(content: bytes, what: str, name: str) -> bytes:
    require(
        len(content) < _LONGEST_KEY and b"\n" not in content.strip(), f"{what} is not a public key: it has many lines"
    )
    return public_line(parse_public_key(content.strip(), what), name)


def _require_new(federation: Federation, keys: Mapping[str, bytes]) -> None:
    """Raise FedmmError for keys of sites that were not invited, or that would let one site speak for another."""
    accepted = {
        path.name.removesuffix(".pub"): _bits(_public_line(path.read_bytes(), str(path), ""))
        for path in sorted(federation.keys.glob("*.pub"))
    }
    signing = _public_line(Path(f"{federation.coordinator}.pub").read_bytes(), "coordinator.pub", COORDINATOR)
    owners = {_bits(signing): COORDINATOR, **{bits: name for name, bits in accepted.items()}}
    for name, line in keys.items():
        bits = _bits(line)
        require(
            (federation.invitations / f"{name}.toml").exists(),
            f"{name} was not invited; run `fedmm deploy invite {federation.folder} {name}`",
        )
        require(
            accepted.get(name, bits) == bits,
            f"{name} already has another key; to replace it, remove {federation.keys / name}.pub",
        )
        owner = owners.setdefault(bits, name)
        require(owner == name, f"the key of {name} already belongs to {owner}; every site needs its own key")


def _bits(line: bytes) -> bytes:
    """Return the key in a line, without the owner's name."""
    return line.split()[1]
