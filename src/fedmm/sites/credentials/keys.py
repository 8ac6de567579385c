"""Certificates for the SuperLink and keys for its nodes, by the ``cryptography`` package that comes with Flower."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.paths import is_name

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
AUTHORITY_KEY, _AUTHORITY_NAME = "ca.key", "fedmm federation"
_DAYS, _AUTHORITY_DAYS = 825, 3650
_LONGEST_HOST = 253
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """An authority of one's own and the SuperLink's certificate for these hosts; those that are there stay.

    Where only the SuperLink's is missing, the authority that is there signs a new one.
    """
    if all((folder / name).exists() for name in (AUTHORITY, CERTIFICATE, KEY)):
        return
    x509, hashes, serialization, ec = _cryptography()
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, key: Any, signed_by: Any, days: int, extensions: Sequence[tuple[Any, bool]]) -> Any:
        made = (
            x509.CertificateBuilder()
            .subject_name(_named(x509, subject))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(signed_by, hashes.SHA256())

    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer, usage = _named(x509, _AUTHORITY_NAME), dict.fromkeys(_USAGES, False)
    pem = serialization.Encoding.PEM

    def write_key(name: str, key: Any) -> None:
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(folder / name, private, 0o600)

    if (folder / AUTHORITY).exists():
        issuer, authority_key = _authority(folder)
    else:
        authority = certificate(
            _AUTHORITY_NAME, authority_key, authority_key, _AUTHORITY_DAYS,
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), True),
                (x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False),
            ],
        )  # fmt: skip
        write_key(AUTHORITY_KEY, authority_key)
        _write(folder / AUTHORITY, authority.public_bytes(pem), 0o644)
    server = certificate(
        hosts[0], server_key, authority_key, _DAYS,
        [
            (x509.SubjectAlternativeName([_host(x509, host) for host in hosts]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.KeyUsage(**{**usage, "digital_signature": True}), True),
            (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
        ],
    )  # fmt: skip
    write_key(KEY, server_key)
    _write(folder / CERTIFICATE, server.public_bytes(pem), 0o644)


def _authority(folder: Path) -> tuple[Any, Any]:
    """The name and the key of an authority that is there."""
    x509, _, serialization, _ = _cryptography()
    if (folder / AUTHORITY_KEY).is_file():
        require_private(folder / AUTHORITY_KEY, f"the private key {AUTHORITY_KEY}")
    try:
        name = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()).subject
        return name, serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(
            f"{folder} has {AUTHORITY} but not {CERTIFICATE} and {KEY}, and no {AUTHORITY_KEY} that could sign them; "
            f"put them there, or take {AUTHORITY} away for a new authority"
        ) from problem


def make_node_key(path: Path) -> None:
    """A node's key in OpenSSH's form, and ``.pub`` beside it; one that is there stays."""
    named = path.name != "" and path.name.isprintable() and is_name(path.name + ".pub")
    require(named, f"{str(path)!r} names no file for a key; it is named as the site, in letters, digits and dashes")
    public = path.with_name(path.name + ".pub")
    try:
        if path.is_file() and public.is_file():
            return
        require(not path.exists(), f"{path} is there and no key with its .pub beside it; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_key(path, public)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise FedmmError(f"a key cannot be written to {path}: {reason}") from problem


def _make_key(path: Path, public: Path) -> None:
    private, line = generate_node_key(path.name)
    _write(path, private, 0o600)
    _write(public, line, 0o644)


def generate_node_key(name: str) -> tuple[bytes, bytes]:
    """A new private key, and the line of its public part; name: whose it is."""
    _, _, serialization, ec = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    return private, public_line(key.public_key(), name)


def public_line(key: Any, name: str) -> bytes:
    """A public key as a line in OpenSSH's form."""
    _, _, serialization, _ = _cryptography()
    shown = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return bytes(shown + f" {name}\n".encode())


def require_certificate(path: Path, what: str) -> None:
    """Refuse what is no certificate. what: as whoever wrote the path calls it."""
    x509, _, _, _ = _cryptography()
    try:
        x509.load_pem_x509_certificate(_content(path, what))
    except ValueError as problem:
        if isinstance(problem, FedmmError):
            raise
        raise FedmmError(f"{what} is no certificate (PEM): {path}") from problem


def require_private(path: Path, what: str) -> None:
    """Refuse a private key that other accounts of this machine may read. what: as whoever wrote the path calls it."""
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        raise FedmmError(f"{what} cannot be read: {path}: {problem.strerror}") from problem
    others = os.name == "posix" and mode & 0o077
    require(
        not others,
        f"{what} may be read or changed by other accounts of this machine (mode {stat.S_IMODE(mode):o}), so it is no "
        f"secret: `chmod 600 {path}` mends it; where somebody may have read it, make another one",
    )


def require_private_keys(certificates: Path, keys: Path) -> None:
    """Refuse a coordinator's folder in which a private key may be read by others."""
    found = [certificates / name for name in (KEY, AUTHORITY_KEY)]
    found += sorted(path.with_suffix("") for path in keys.glob("*.pub")) if keys.is_dir() else []
    for path in found:
        if path.is_file():
            require_private(path, f"the private key {path.name}")


def read_node_key(path: Path, what: str) -> Any:
    """A private key that nobody else may read; what is none is refused. what: as whoever wrote the path calls it."""
    require_private(path, what)
    _, _, serialization, ec = _cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - comes with the extra

    try:
        key = serialization.load_ssh_private_key(_content(path, what), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:  # TypeError: one with a password
        if isinstance(problem, FedmmError):
            raise
        key = None
    require(
        isinstance(key, ec.EllipticCurvePrivateKey),
        f"{what} is no private key as `fedmm deploy key` makes it (ECDSA, OpenSSH's form, no password): {path}",
    )
    return key


def signer(path: Path, what: str = "the coordinator's key") -> Callable[[bytes], bytes]:
    """What signs texts with a private key."""
    key = read_node_key(path, what)
    _, hashes, _, ec = _cryptography()
    return lambda text: bytes(key.sign(text, ec.ECDSA(hashes.SHA256())))


def verifier(path: Path, what: str) -> Callable[[bytes, bytes], bool]:
    """What checks signatures of texts with a public key."""
    _, hashes, serialization, ec = _cryptography()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415 - comes with the extra

    try:
        key = serialization.load_ssh_public_key(_content(path, what))
    except (ValueError, UnsupportedAlgorithm) as problem:
        if isinstance(problem, FedmmError):
            raise
        key = None
    require(isinstance(key, ec.EllipticCurvePublicKey), f"{what} is no public key in OpenSSH's form (ECDSA): {path}")

    def verify(signature: bytes, text: bytes) -> bool:
        try:
            key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    return verify


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FedmmError(f"{what} cannot be read: {path}: {problem.strerror}") from problem


def is_host(text: str) -> bool:
    """Whether a text is an address, or a name that a host may have."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text) <= _LONGEST_HOST and _HOST.fullmatch(text) is not None
    return True


def public_keys(folder: Path) -> dict[str, bytes]:
    """By site, the public key that its node must hold, in the form in which Flower tells it."""
    if not folder.is_dir():
        return {}
    _, _, serialization, _ = _cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - comes with the extra

    keys = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as problem:
            raise FedmmError(f"{path} is no public key in OpenSSH's form") from problem
        keys[path.name.removesuffix(".pub")] = key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    return keys


def _named(x509: Any, name: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(number, "wb") as file:
        file.write(content)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509  # noqa: PLC0415 - comes with the extra
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ModuleNotFoundError:
        raise FedmmError("federations of sites need Flower: install fedmm[flower]") from None
    return x509, hashes, serialization, ec
