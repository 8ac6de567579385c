"""A federation's certificates: its authority's, the SuperLink's, and those of sites for a proxy that asks for one."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.sites.config import SiteConfig, is_loopback
from fedmm.sites.credentials.files import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    KEY,
    read_credential,
    require_private,
    write_credential,
)
from fedmm.sites.credentials.keys import public_keys, read_node_key

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise FedmmError("federations of sites need Flower: install fedmm[flower]") from None

SUFFIX = ".pem"
"""``keys/NAME.pub`` is the site's public key, ``keys/NAME.pem`` the certificate for it."""
_AUTHORITY_NAME = "fedmm federation"
_DAYS, _AUTHORITY_DAYS = 825, 3650
_MOST_CERTIFICATES = 8
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_PEM = serialization.Encoding.PEM


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Create an authority and the SuperLink's certificate for these hosts; existing ones are kept.

    If only the SuperLink's is missing, the existing authority signs a new one.
    """
    if all((folder / name).exists() for name in (AUTHORITY, CERTIFICATE, KEY)):
        return
    folder.mkdir(parents=True, exist_ok=True)

    def write_pair(name: str, key_name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write_credential(folder / key_name, private, 0o600, overwrite=True)
        write_credential(folder / name, certificate.public_bytes(_PEM), 0o644, overwrite=True)

    if (folder / AUTHORITY).exists():
        issuer, authority_key = _read_authority(folder)
    else:
        issuer, authority_key = _name(_AUTHORITY_NAME), ec.generate_private_key(ec.SECP384R1())
        extensions = [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage("key_cert_sign", "crl_sign"), True),
            (x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), False),
        ]
        public = authority_key.public_key()
        authority = _sign(_AUTHORITY_NAME, public, issuer, authority_key, _AUTHORITY_DAYS, extensions)
        write_pair(AUTHORITY, AUTHORITY_KEY, authority, authority_key)
    server_key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        (x509.SubjectAlternativeName([_host(host) for host in hosts]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
    ]
    server = _sign(hosts[0], server_key.public_key(), issuer, authority_key, _DAYS, extensions)
    write_pair(CERTIFICATE, KEY, server, server_key)


def issue_certificates(keys: Path, authority: Path) -> list[Path]:
    """Sign a certificate for every ``keys/NAME.pub`` that has none yet; return the new ones.

    authority: the folder with the certificate and key that sign.

    The key is the node's own, so a certificate is not secret and is of no use to anyone else.
    """
    public_keys(keys)  # raises if one is not a key
    made = []
    for public in sorted(keys.glob("*.pub")):
        path = public.with_suffix(SUFFIX)
        if not path.exists():
            path.write_bytes(_client_certificate(authority, public))
            made.append(path)
    return made


def _client_certificate(folder: Path, public: Path) -> bytes:
    key = serialization.load_ssh_public_key(public.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedmmError(f"{public} is not an ECDSA key such as `fedmm deploy key` makes")
    try:
        issuer, signing = _load_authority(folder)
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(
            f"{folder} has no {AUTHORITY} with its {AUTHORITY_KEY} that could sign certificates; `fedmm deploy "
            "prepare` makes them"
        ) from problem
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False),
    ]
    return _sign(public.stem[:64], key, issuer, signing, _DAYS, extensions).public_bytes(_PEM)


def client_context(authority: Path, certificate: Path | None, key: Path) -> ssl.SSLContext:
    """Return a site's TLS context: whom it trusts, and the certificate that it presents if it has one.

    authority: the certificate of the authority that signed the SuperLink's. key: the node's private key.
    """
    _require_certificate(authority, "superlink.certificate")
    context = ssl.create_default_context(cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        _require_certificate(certificate, "superlink.client_certificate")
        _load_pair(context, certificate, read_node_key(key, "superlink.key"))
    return context


def site_context(config: SiteConfig) -> ssl.SSLContext:
    """Return the TLS context of a site's file."""
    link = config.superlink
    shown = config.path(link.client_certificate) if link.client_certificate else None
    return client_context(config.path(link.certificate), shown, config.path(link.key))


def _load_pair(context: ssl.SSLContext, certificate: Path, private: ec.EllipticCurvePrivateKey) -> None:
    """Load a key through an encrypted temporary file: Python's ssl reads keys only from files, and no OpenSSH keys."""
    password = secrets.token_hex(32)
    encryption = serialization.BestAvailableEncryption(password.encode())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "key"
        file.write_bytes(private.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption))
        try:
            context.load_cert_chain(certificate, file, password)
        except ssl.SSLError as problem:
            raise FedmmError(
                f"superlink.client_certificate does not match superlink.key: {certificate}; the coordinator makes it "
                "from the key's .pub with `fedmm deploy certify`"
            ) from problem


def parse_certificates(content: bytes, what: str) -> bytes:
    """Return the certificates in a PEM text and nothing else of it. what: its name in messages."""
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as problem:
        raise FedmmError(f"{what} is not a certificate (PEM)") from problem
    require(len(certificates) <= _MOST_CERTIFICATES, f"{what} has over {_MOST_CERTIFICATES} certificates")
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def certificate_hosts(path: Path) -> list[str]:
    """Return the hosts that a certificate is for, in order; loopback names and addresses are left out."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as problem:
        raise FedmmError(f"the certificate {path} cannot be read: {problem.strerror}") from problem
    except (ValueError, x509.ExtensionNotFound) as problem:
        raise FedmmError(f"{path} is not a certificate that names its hosts") from problem
    hosts = [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    return [host for host in hosts if not is_loopback(host)]


def _require_certificate(path: Path, what: str) -> None:
    content = read_credential(path, what)
    try:
        x509.load_pem_x509_certificate(content)
    except ValueError as problem:
        raise FedmmError(f"{what} is not a certificate (PEM): {path}") from problem


def _load_authority(folder: Path) -> tuple[x509.Name, Any]:
    name = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()).subject
    return name, serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)


def _read_authority(folder: Path) -> tuple[x509.Name, Any]:
    """Return the name and the key of an existing authority."""
    if (folder / AUTHORITY_KEY).is_file():
        require_private(folder / AUTHORITY_KEY, f"the private key {AUTHORITY_KEY}")
    try:
        return _load_authority(folder)
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(
            f"{folder} has {AUTHORITY} but not {CERTIFICATE} and {KEY}, and no {AUTHORITY_KEY} that could sign them; "
            f"add them, or remove {AUTHORITY} to create a new authority"
        ) from problem


def _sign(
    subject: str, key: Any, issuer: x509.Name, signing: Any, days: int, extensions: Sequence[tuple[Any, bool]]
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signing, hashes.SHA256())


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
