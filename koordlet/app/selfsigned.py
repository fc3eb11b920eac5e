"""Makes a self-signed certificate: `python -m koordlet.app.selfsigned NAME…` writes key and certificate as PEM.

Servers run it as a child process (`koordlet.app.servertls`), because the library for certificates takes much memory.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 365


def self_signed(names: Iterable[str]) -> bytes:
    """A key and a certificate for these names and addresses, valid for one year, as PEM."""

    def general(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    key = ec.generate_private_key(ec.SECP256R1())
    unique = list(dict.fromkeys(names))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, unique[0][:64])])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general(name) for name in unique]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + cert.public_bytes(serialization.Encoding.PEM)


if __name__ == "__main__":
    sys.stdout.buffer.write(self_signed(sys.argv[1:]))
