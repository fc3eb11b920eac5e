"""Makes a self-signed certificate: `python -m koordlet.app.selfsigned NAME…` writes key and certificate as PEM.

Servers run it as a child process (`koordlet.app.servertls`), because the library for certificates takes much memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509

from koordlet.app import certificate

VALID_DAYS = 365


def self_signed(names: Iterable[str]) -> bytes:
    """A key and a certificate for these names and addresses, valid for one year, as PEM."""
    key, now, unique = certificate.ec_key(), datetime.now(UTC), list(dict.fromkeys(names))
    cert = certificate.build(
        certificate.subject(unique[0]),
        key,
        (now - timedelta(hours=1), now + timedelta(days=VALID_DAYS)),
        x509.BasicConstraints(ca=True, path_length=0),
        certificate.SERVER_AUTH,
        x509.SubjectAlternativeName(certificate.general_names(unique)),
    )
    return certificate.key_pem(key) + cert.public_bytes(certificate.PEM)


if __name__ == "__main__":
    sys.stdout.buffer.write(self_signed(sys.argv[1:]))
