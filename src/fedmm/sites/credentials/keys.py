"""The keys of nodes and of the coordinator, handled by the ``cryptography`` package that comes with Flower.

Anything from another machine is parsed strictly, and written anew rather than copied.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import is_name
from fedmm.sites.credentials.files import read_credential, require_private, write_credential

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError:
    raise FedmmError("federations of sites need Flower: install fedmm[flower]") from None


def make_node_key(path: Path) -> None:
    """Create a node's key in OpenSSH format, and ``.pub`` beside it; an existing one is kept."""
    named = path.name != "" and path.name.isprintable() and is_name(path.name + ".pub")
    require(named, f"{str(path)!r} cannot be a key file; name it after the site, in letters, digits and dashes")
    public = path.with_name(path.name + ".pub")
    try:
        if path.is_file() and public.is_file():
            return
        require(not path.exists(), f"{path} exists but is not a key with its .pub beside it; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        private, line = generate_node_key(path.name)
        write_credential(path, private, 0o600, overwrite=True)
        write_credential(public, line, 0o644, overwrite=True)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise FedmmError(f"a key cannot be written to {path}: {reason}") from problem


def generate_node_key(name: str) -> tuple[bytes, bytes]:
    """Return a new private key and its public line; name: whose it is."""
    key = ec.generate_private_key(ec.SECP384R1())
    return _private_text(key), public_line(key.public_key(), name)


def public_line(key: ec.EllipticCurvePublicKey, name: str) -> bytes:
    """Return a public key as a line in OpenSSH format."""
    shown = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return shown + f" {name}\n".encode()


def describe_key(line: bytes) -> str:
    """Return a public key's fingerprint, as ``ssh-keygen -l`` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def parse_public_key(content: bytes, what: str) -> ec.EllipticCurvePublicKey:
    """Parse a public key in OpenSSH format from another machine. what: its name in messages."""
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise FedmmError(f"{what} is not a public key in OpenSSH format (ECDSA)") from problem
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedmmError(f"{what} must be an ECDSA key of 384 bits, such as `fedmm deploy join` makes")
    return key


def parse_private_key(content: bytes, what: str) -> tuple[bytes, ec.EllipticCurvePublicKey]:
    """Parse a private key in OpenSSH format from another machine; return it written anew, and its public part."""
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:  # TypeError: one with a password
        raise FedmmError(f"{what} is not a private key in OpenSSH format (ECDSA, no password)") from problem
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedmmError(f"{what} must be an ECDSA key of 384 bits")
    return _private_text(key), key.public_key()


def read_node_key(path: Path, what: str) -> ec.EllipticCurvePrivateKey:
    """Read a private key; raise FedmmError if it is none or others may read it. what: its name in messages."""
    require_private(path, what)
    content = read_credential(path, what)
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: one with a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedmmError(
            f"{what} is not a private key such as `fedmm deploy key` makes (ECDSA, OpenSSH format, no password): {path}"
        )
    return key


def signer(path: Path, what: str = "the coordinator's key") -> Callable[[bytes], bytes]:
    """Return a function that signs bytes with a private key."""
    key = read_node_key(path, what)
    return lambda text: key.sign(text, ec.ECDSA(hashes.SHA256()))


def verifier(path: Path, what: str) -> Callable[[bytes, bytes], bool]:
    """Return a function that verifies signatures of bytes with a public key."""
    content = read_credential(path, what)
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedmmError(f"{what} is not a public key in OpenSSH format (ECDSA): {path}")

    def verify(signature: bytes, text: bytes) -> bool:
        try:
            key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    return verify


def public_keys(folder: Path) -> dict[str, bytes]:
    """Return the public key that each site's node must have, by site, in Flower's format."""
    keys = {}
    for path in sorted(folder.glob("*.pub")) if folder.is_dir() else ():
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as problem:
            raise FedmmError(f"{path} is not a public key in OpenSSH format") from problem
        keys[path.name.removesuffix(".pub")] = key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    return keys


def _private_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
