"""Certificates and public keys that another machine sent: parsed strictly, and written anew rather than copied."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from pathlib import Path

from fedmm.core.errors import FedmmError, require

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError:
    raise FedmmError("federations of sites need Flower: install fedmm[flower]") from None

_MOST_CERTIFICATES = 8


def read_certificates(content: bytes, what: str) -> bytes:
    """The certificates of a PEM text and nothing else of it. what: as whoever gave them calls them."""
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as problem:
        raise FedmmError(f"{what} is no certificate (PEM)") from problem
    require(len(found) <= _MOST_CERTIFICATES, f"{what} has over {_MOST_CERTIFICATES} certificates")
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in found)


def read_public_key(content: bytes, what: str) -> ec.EllipticCurvePublicKey:
    """A public key in OpenSSH's form."""
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as problem:
        raise FedmmError(f"{what} is no public key in OpenSSH's form (ECDSA)") from problem
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedmmError(f"{what} must be an ECDSA key of 384 bits, as `fedmm deploy join` makes it")
    return key


def read_private_key(content: bytes, what: str) -> tuple[bytes, ec.EllipticCurvePublicKey]:
    """A private key in OpenSSH's form, written anew, and its public part."""
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:  # TypeError: one with a password
        raise FedmmError(f"{what} is no private key in OpenSSH's form (ECDSA, no password)") from problem
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedmmError(f"{what} must be an ECDSA key of 384 bits")
    openssh = serialization.PrivateFormat.OpenSSH
    text = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    return text, key.public_key()


def describe_key(line: bytes) -> str:
    """A public key's fingerprint, as ``ssh-keygen -l`` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def certificate_hosts(path: Path) -> list[str]:
    """The hosts that a certificate is for, in its order; names and addresses of loopback are left out."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as problem:
        raise FedmmError(f"the certificate {path} cannot be read: {problem.strerror}") from problem
    except (ValueError, x509.ExtensionNotFound) as problem:
        raise FedmmError(f"{path} is no certificate that names its hosts") from problem
    hosts = [str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
    return [host for host in hosts if not _is_loopback(host)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
