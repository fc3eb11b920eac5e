"""The self-signed serving certificate of the stand-in kubelet, as a real kubelet makes by default."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from koordlet.app import atomicfile, certificate

VALID_DAYS = 365
RENEW_DAYS = 30


def serving_certificate(folder: Path, node: str, address: str, now: datetime | None = None) -> tuple[Path, Path]:
    """(certificate, key) as PEM files in `folder`; made again when missing, near expiry or for another name."""
    now = now or datetime.now(UTC)
    cert_path, key_path = folder / "kubelet.crt", folder / "kubelet.key"
    if key_path.exists() and _usable(cert_path, node, address, now):
        return cert_path, key_path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = certificate.ec_key()
    cert = certificate.build(
        certificate.subject(f"system:node:{node}"),
        key,
        (now - timedelta(minutes=5), now + timedelta(days=VALID_DAYS)),
        x509.SubjectAlternativeName(_names(node, address)),
        certificate.NO_AUTHORITY,
        certificate.SERVER_AUTH,
    )
    atomicfile.write(key_path, certificate.key_pem(key))
    atomicfile.write(cert_path, cert.public_bytes(certificate.PEM))
    return cert_path, key_path


def _names(node: str, address: str) -> list[x509.GeneralName]:
    addresses = certificate.general_names((address, "127.0.0.1"))
    return [x509.DNSName(node), x509.DNSName("localhost"), *addresses]  # a node's name may look like an address


def _usable(path: Path, node: str, address: str, now: datetime) -> bool:
    try:
        cert = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return False
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names) == _names(node, address) and cert.not_valid_after_utc > now + timedelta(days=RENEW_DAYS)
