"""The self-signed serving certificate of the stand-in kubelet, as a real kubelet makes by default."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koordlet.app import atomicfile

VALID_DAYS = 365
RENEW_DAYS = 30


def serving_certificate(folder: Path, node: str, address: str, now: datetime | None = None) -> tuple[Path, Path]:
    """(certificate, key) as PEM files in `folder`; made again when missing, near expiry or for another name."""
    now = now or datetime.now(UTC)
    cert_path, key_path = folder / "kubelet.crt", folder / "kubelet.key"
    if key_path.exists() and _usable(cert_path, node, address, now):
        return cert_path, key_path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"[:64])])
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(_names(node, address)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    atomicfile.write(
        key_path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    atomicfile.write(cert_path, cert.public_bytes(serialization.Encoding.PEM))
    return cert_path, key_path


def _names(node: str, address: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(node), x509.DNSName("localhost")]
    for ip in dict.fromkeys([address, "127.0.0.1"]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(ip)))
        except ValueError:
            names.append(x509.DNSName(ip))
    return names


def _usable(path: Path, node: str, address: str, now: datetime) -> bool:
    try:
        cert = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return False
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names) == _names(node, address) and cert.not_valid_after_utc > now + timedelta(days=RENEW_DAYS)
