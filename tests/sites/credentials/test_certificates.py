"""Certificates for sites' own keys, shown to a server that asks for them."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedmm.core.errors import FedmmError
from fedmm.deploy.federation import prepare
from fedmm.deploy.layout import Federation
from fedmm.sites.config import read_site
from fedmm.sites.credentials.certificates import client_context, issue_certificates, site_context


@pytest.fixture
def there(tmp_path: Path) -> Federation:
    made = Federation(tmp_path / "federation")
    prepare(made, 9093, ["hospital-a", "hospital-b"])
    return made


def shown_to(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The name in the certificate that a server is shown."""
    ours, theirs = socket.socketpair()
    names = []

    def answer() -> None:
        with server.wrap_socket(theirs, server_side=True) as connection:
            subject = (connection.getpeercert() or {})["subject"]
            names.append(subject[0][0][1])
            connection.sendall(b"!")

    thread = threading.Thread(target=answer)
    thread.start()
    with client.wrap_socket(ours, server_hostname="localhost") as connection:
        assert connection.recv(1) == b"!"
    thread.join()
    return str(names[0])


def test_a_site_shows_the_certificate_that_its_file_names(there: Federation, tmp_path: Path) -> None:
    assert [path.name for path in issue_certificates(there.keys, there.certificates)] == [
        "hospital-a.pem",
        "hospital-b.pem",
    ]
    file = tmp_path / "site.toml"
    file.write_text(
        '[site]\nname = "hospital-b"\n[superlink]\naddress = "localhost:9092"\n'
        'certificate = "federation/certificates/ca.crt"\nkey = "federation/keys/hospital-b"\n'
        'coordinator = "federation/coordinator.pub"\n'
        'client_certificate = "federation/keys/hospital-b.pem"\n'
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(there.certificates / "server.pem", there.certificates / "server.key")
    server.load_verify_locations(there.certificates / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    assert shown_to(server, site_context(read_site(file))) == "hospital-b"


def test_certificates_are_for_the_sites_keys_and_for_clients_alone(there: Federation) -> None:
    (path, _) = issue_certificates(there.keys, there.certificates)
    made = x509.load_pem_x509_certificate(path.read_bytes())
    authority = x509.load_pem_x509_certificate((there.certificates / "ca.crt").read_bytes())
    made.verify_directly_issued_by(authority)
    key = serialization.load_ssh_public_key(path.with_suffix(".pub").read_bytes())
    assert made.public_key() == key
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    before = path.read_bytes()
    assert issue_certificates(there.keys, there.certificates) == []
    assert path.read_bytes() == before


def test_what_does_not_fit_is_refused_in_a_sentence(there: Federation, tmp_path: Path) -> None:
    issue_certificates(there.keys, there.certificates)
    authority, keys = there.certificates / "ca.crt", there.keys
    with pytest.raises(FedmmError, match=r"hospital-a\.pem; the coordinator makes it from the key's \.pub"):
        client_context(authority, keys / "hospital-a.pem", keys / "hospital-b")
    with pytest.raises(FedmmError, match=r"superlink\.client_certificate cannot be read"):
        client_context(authority, tmp_path / "none.pem", keys / "hospital-b")
    (keys / "hospital-c.pub").write_text("nothing\n")
    with pytest.raises(FedmmError, match=r"hospital-c\.pub is not a public key"):
        issue_certificates(there.keys, there.certificates)
    (there.certificates / "ca.key").unlink()
    (keys / "hospital-c.pub").write_bytes((keys / "hospital-a.pub").read_bytes())
    with pytest.raises(FedmmError, match=r"no ca\.crt with its ca\.key"):
        issue_certificates(there.keys, there.certificates)
