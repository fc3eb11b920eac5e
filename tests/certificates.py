"""Certificates for servers and clients in tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from koordlet.app import certificate
from koordlet.app.selfsigned import self_signed

KEY_END = b"-----END PRIVATE KEY-----\n"


def write_pair(directory: Path, pem: bytes) -> tuple[Path, Path]:
    """(certificate, key) files in `directory` with the parts of `pem`, a key and a certificate."""
    key, _, cert = pem.partition(KEY_END)
    cert_file, key_file = directory / "tls.crt", directory / "tls.key"
    cert_file.write_bytes(cert)
    key_file.write_bytes(key + KEY_END)
    return cert_file, key_file


def self_signed_files(directory: Path, *names: str) -> tuple[Path, Path]:
    """(certificate, key) files in `directory` of a self-signed certificate for these names and addresses."""
    return write_pair(directory, self_signed(names))


class Identity(NamedTuple):
    cert: x509.Certificate
    key: certificate.PrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.cert.public_bytes(certificate.PEM)

    @property
    def key_pem(self) -> bytes:
        return certificate.key_pem(self.key)


def identity(name: str, issuer: Identity | None = None) -> Identity:
    """A certificate for servers and clients and its key: of an authority or, with `issuer`, signed by one."""
    key, now = certificate.ec_key(), datetime.now(UTC)
    cert = certificate.build(
        certificate.subject(name),
        key,
        (now - timedelta(days=1), now + timedelta(days=1)),
        x509.BasicConstraints(ca=issuer is None, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName(name)]),
        issuer=issuer,
    )
    return Identity(cert, key)
