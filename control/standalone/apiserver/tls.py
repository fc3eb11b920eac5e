"""The server's own certificate authority and certificates, kept in the data directory.

`pki/ca.crt`, `pki/ca.key` live as long as the directory; the serving certificate and the server's client certificate
for kubelets are made again when the addresses change or they are about to expire. A key for service-account tokens is
kept beside them. Keys are mode 0600. Files are written beside their place and renamed, so that a crash leaves the old
one or the new one.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from control.standalone.auth.bootstrap import KUBELET_CLIENT
from koordlet.app import atomicfile, certificate

CA_DAYS, SERVING_DAYS, RENEW_DAYS = 3650, 365, 30
SERVICE_IP = "10.96.0.1"
CLIENT_AUTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
_SERVICE_NAMES = (
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
    kubelet_client_cert_file: Path
    kubelet_client_key_file: Path

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

    def kubelet_context(self, ca: Path | None) -> ssl.SSLContext:
        """For connections to kubelets: the server's client certificate; verifies the kubelet's certificate by `ca`.

        `ca` is the cluster's own authority by default. It may also contain the certificates of kubelets themselves.
        """
        context = ssl.create_default_context(cafile=str(ca or self.ca_file))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(self.kubelet_client_cert_file, self.kubelet_client_key_file)
        return context


def ensure_pki(directory: Path, hosts: tuple[str, ...], now: datetime | None = None) -> Pki:
    """Make missing or expiring keys and certificates for the addresses and names in `hosts`. Raises PkiError."""
    now = now or datetime.now(UTC)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = _files(directory)
    if not (pki.ca_file.exists() and pki.ca_key_file.exists()):
        _make_ca(pki, now)
    ca, ca_key = _load(pki.ca_file, pki.ca_key_file)
    names = _names((*hosts, "127.0.0.1", SERVICE_IP, *_SERVICE_NAMES, socket.gethostname()))
    if not _still_good(pki.cert_file, pki.key_file, ca, names, now):
        subject = certificate.subject("kube-apiserver")
        _issue((pki.cert_file, pki.key_file), (ca, ca_key), subject, certificate.SERVER_AUTH, names, now)
    client = (pki.kubelet_client_cert_file, pki.kubelet_client_key_file)
    if not _still_good(*client, ca, [], now):
        _issue(client, (ca, ca_key), certificate.subject(KUBELET_CLIENT), CLIENT_AUTH, [], now)
    if not pki.sa_key_file.exists():
        atomicfile.write(pki.sa_key_file, certificate.key_pem(certificate.ec_key()), mode=0o600)
    return pki


def kubelet_serving_certificate(
    directory: Path, folder: Path, node: str, address: str, now: datetime | None = None
) -> tuple[Path, Path]:
    """(certificate, key) in `folder` for the kubelet of a node, issued by the authority in `directory`.

    Made again when missing, near expiry or for other names. Raises PkiError.
    """
    now, pki = now or datetime.now(UTC), _files(directory)
    ca, ca_key = _load(pki.ca_file, pki.ca_key_file)
    cert_file, key_file = folder / "kubelet.crt", folder / "kubelet.key"
    names = _names((node, address))
    if not _still_good(cert_file, key_file, ca, names, now):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        subject = certificate.subject(f"system:node:{node}", organization="system:nodes")
        _issue((cert_file, key_file), (ca, ca_key), subject, certificate.SERVER_AUTH, names, now)
    return cert_file, key_file


def _files(directory: Path) -> Pki:
    names = ("ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "sa.key", "kubelet-client.crt", "kubelet-client.key")
    return Pki(*(directory / name for name in names))


def _make_ca(pki: Pki, now: datetime) -> None:
    key = certificate.ec_key()
    cert = certificate.build(
        certificate.subject("koord-standalone-ca"),
        key,
        _validity(now, CA_DAYS),
        x509.BasicConstraints(ca=True, path_length=0),
        x509.KeyUsage(True, False, False, False, False, True, True, False, False),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    )
    _write((pki.ca_file, pki.ca_key_file), cert, key)


def _issue(
    files: tuple[Path, Path],
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    subject: x509.Name,
    usage: x509.ExtendedKeyUsage,
    names: list[x509.GeneralName],
    now: datetime,
) -> None:
    """Write a certificate and its key, signed by the authority `issuer`."""
    key = certificate.ec_key()
    extensions = [certificate.NO_AUTHORITY, usage, *([x509.SubjectAlternativeName(names)] if names else ())]
    _write(files, certificate.build(subject, key, _validity(now, SERVING_DAYS), *extensions, issuer=issuer), key)


def _validity(now: datetime, days: int) -> tuple[datetime, datetime]:
    return now - timedelta(minutes=5), now + timedelta(days=days)


def _write(files: tuple[Path, Path], cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    cert_file, key_file = files
    atomicfile.write(key_file, certificate.key_pem(key), mode=0o600)
    atomicfile.write(cert_file, cert.public_bytes(certificate.PEM), mode=0o644)


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Without the addresses that a server only listens at."""
    names = certificate.general_names(hosts)
    return [name for name in names if not (isinstance(name, x509.IPAddress) and name.value.is_unspecified)]


def _still_good(
    cert_file: Path, key_file: Path, ca: x509.Certificate, names: list[x509.GeneralName], now: datetime
) -> bool:
    if not (cert_file.exists() and key_file.exists()):
        return False
    cert, _ = _load(cert_file, key_file)
    if cert.issuer != ca.subject or cert.not_valid_after_utc < now + timedelta(days=RENEW_DAYS):
        return False
    if not names:
        return True
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
