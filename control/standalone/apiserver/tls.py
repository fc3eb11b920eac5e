"""The server's own certificate authority and serving certificate, kept in the data directory.

`pki/ca.crt`, `pki/ca.key` live as long as the directory; the serving certificate is made again when the
addresses change or it is about to expire, and a key for service-account tokens is kept beside them. Keys are mode
0600. Files are written beside their place and renamed, so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koordlet.app import atomicfile

CA_DAYS, SERVING_DAYS, RENEW_DAYS = 3650, 365, 30
SERVICE_IP = "10.96.0.1"
_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class PkiError(Exception):
    """A key or certificate in the data directory can't be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Pki:
    ca_file: Path
    ca_key_file: Path
    cert_file: Path
    key_file: Path
    sa_key_file: Path

    @property
    def ca_pem(self) -> str:
        return self.ca_file.read_text()

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert_file, self.key_file)
        # Client certificates of this CA authenticate users; they are optional.
        context.load_verify_locations(self.ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure_pki(directory: Path, hosts: tuple[str, ...], now: datetime | None = None) -> Pki:
    """Make missing or expiring keys and certificates for the addresses and names in `hosts`. Raises PkiError."""
    now = now or datetime.now(UTC)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki(*(directory / n for n in ("ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "sa.key")))
    if not (pki.ca_file.exists() and pki.ca_key_file.exists()):
        _make_ca(pki, now)
    ca, ca_key = _load(pki.ca_file, pki.ca_key_file)
    names = _alt_names(hosts)
    if not _still_good(pki, ca, names, now):
        _make_serving(pki, ca, ca_key, names, now)
    if not pki.sa_key_file.exists():
        atomicfile.write(pki.sa_key_file, _pem(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
    return pki


def _make_ca(pki: Pki, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-standalone-ca")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    cert = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    atomicfile.write(pki.ca_key_file, _pem(key), mode=0o600)
    atomicfile.write(pki.ca_file, cert.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _make_serving(
    pki: Pki, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], now: datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    cert = (
        _builder(subject, ca.subject, key, now, SERVING_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    atomicfile.write(pki.key_file, _pem(key), mode=0o600)
    atomicfile.write(pki.cert_file, cert.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _alt_names(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, "127.0.0.1", SERVICE_IP, *_NAMES, socket.gethostname())):
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            names.append(x509.DNSName(host))
            continue
        if not address.is_unspecified:
            names.append(x509.IPAddress(address))
    return names


def _still_good(pki: Pki, ca: x509.Certificate, names: list[x509.GeneralName], now: datetime) -> bool:
    if not (pki.cert_file.exists() and pki.key_file.exists()):
        return False
    cert, _ = _load(pki.cert_file, pki.key_file)
    if cert.issuer != ca.subject or cert.not_valid_after_utc < now + timedelta(days=RENEW_DAYS):
        return False
    cert_names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names) <= set(cert_names)


def _load(cert_file: Path, key_file: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        cert = x509.load_pem_x509_certificate(cert_file.read_bytes())
    except (OSError, ValueError) as error:
        raise PkiError(f"{cert_file}: {error}") from error
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise PkiError(f"{key_file}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{key_file}: not an elliptic-curve key")
    if key.public_key() != cert.public_key():
        raise PkiError(f"{key_file}: does not belong to {cert_file}")
    return cert, key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
