"""Certificates for servers and clients of tests, and the authority that signs them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """Who signs certificates.

    Args:
        folder: where its own, ``ca.pem``, and those that it signs are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, Ed25519PrivateKey.generate()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._signed(self._name, self._key, None).public_bytes(Encoding.PEM))

    def issue(self, host: str) -> Path:
        """A file with a certificate of a host, or of a client, and its key."""
        key = Ed25519PrivateKey.generate()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        file = self._folder / f"{host}.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(self._signed(name, key, host).public_bytes(Encoding.PEM) + private)
        return file

    def _signed(self, name: x509.Name, key: Ed25519PrivateKey, host: str | None) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, None)
