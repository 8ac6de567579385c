"""Certificates for the sites' own keys, for a proxy that takes requests from nobody else. Needs no torch."""

from __future__ import annotations

import datetime
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.sites.config import SiteConfig
from fedmm.sites.credentials.keys import AUTHORITY, AUTHORITY_KEY, public_keys, read_node_key, require_certificate

SUFFIX = ".pem"
"""``keys/NAME.pub`` is the site's public key, ``keys/NAME.pem`` the certificate for it."""

_DAYS = 825


def issue_certificates(keys: Path, authority: Path, days: int = _DAYS) -> list[Path]:
    """Sign a certificate for every ``keys/NAME.pub`` that has none yet; those that were made now.

    authority: the folder with the certificate and key that sign.

    The key is the node's own, so a certificate is no secret and is of no use to anyone else.
    """
    require(days >= 1, f"a certificate must hold for at least 1 day, not {days}")
    public_keys(keys)  # all of them are keys
    made = []
    for public in sorted(keys.glob("*.pub")):
        path = public.with_suffix(SUFFIX)
        if not path.exists():
            path.write_bytes(_certificate(authority, public, days))
            made.append(path)
    return made


def client_context(authority: Path, certificate: Path | None, key: Path) -> ssl.SSLContext:
    """How a site speaks TLS: whom it trusts, and the certificate that it shows where it has one.

    authority: the certificate of the one that signed the SuperLink's. key: the node's private key.
    """
    require_certificate(authority, "superlink.certificate")
    context = ssl.create_default_context(cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        require_certificate(certificate, "superlink.client_certificate")
        _load(context, certificate, read_node_key(key, "superlink.key"))
    return context


def site_context(config: SiteConfig) -> ssl.SSLContext:
    """The same by a site's file."""
    link = config.superlink
    shown = config.path(link.client_certificate) if link.client_certificate else None
    return client_context(config.path(link.certificate), shown, config.path(link.key))


def _load(context: ssl.SSLContext, certificate: Path, private: Any) -> None:
    """Python's ssl reads keys from files alone and not in OpenSSH's form: the file is encrypted, and gone at once."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - comes with the extra

    password = secrets.token_hex(32)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "key"
        file.write_bytes(pem)
        try:
            context.load_cert_chain(certificate, file, password)
        except ssl.SSLError as problem:
            raise FedmmError(
                f"superlink.client_certificate is not for superlink.key: {certificate}; the coordinator makes it of "
                "the key's .pub by `fedmm deploy certify`"
            ) from problem


def _certificate(folder: Path, public: Path, days: int) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - comes with the extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key = serialization.load_ssh_public_key(public.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedmmError(f"{public} is no key as `fedmm deploy key` makes it (ECDSA)")
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        signing: Any = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(
            f"{folder} has no {AUTHORITY} with its {AUTHORITY_KEY} that could sign certificates; `fedmm deploy "
            "prepare` makes them"
        ) from problem
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, public.stem[:64])]))
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(usage, True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False)
        .sign(signing, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)
