"""TLS: clients know the server by its certificate, and where it asks for theirs, show one."""

from __future__ import annotations

import datetime
import ssl
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.cli.test_cli import gemmill
from tests.service.running import Running, serving

pytestmark = pytest.mark.slow


def certified(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that is its own authority, for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(*pem))
    files[1].chmod(0o644)
    return files


def status(server: Running, context: ssl.SSLContext) -> int:
    connection = HTTPSConnection("localhost", server.port, timeout=30, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_who_has_no_certificate_is_not_served(tmp_path: Path) -> None:
    (cert, key), (mine, my_key), (other, other_key) = (
        certified(tmp_path, name) for name in ("server", "mine", "other")
    )
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(mine))
    with serving(tmp_path / "server", *options) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            status(server, ssl.create_default_context())
        context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(server, context)
        context.load_cert_chain(other, other_key)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(server, context)
        context = ssl.create_default_context(cafile=str(cert))
        context.load_cert_chain(mine, my_key)
        assert status(server, context) == 200
        assert server.end() == 0
    log = (tmp_path / "server" / "log").read_text()
    assert f"{key}: others may read this private key (mode 644); run chmod 600 {key}" in log


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    (cert, _), (_, other_key) = (certified(tmp_path, name) for name in ("server", "other"))
    refused = gemmill("serve", "--port", "0", "--tls-cert", cert, "--tls-key", other_key)
    assert refused.exit_code == 2
    assert f"{cert}, {other_key}: not a certificate and its private key in PEM: KEY_VALUES_MISMATCH" in refused.stderr
