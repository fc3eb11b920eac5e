"""The webhook server's key, certificate and CA: generation, validation, storage format. Pure, except for randomness.

RSA 2048. The CA is valid for ten years and is kept while it remains valid for at least one more year; a server
certificate must remain valid for at least six months (spec 04 §1.7). When the CA changes, the old one stays in
`previous_ca`: the API server trusts both while replicas serve different certificates, so a rotation fails no request.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from koordlet.app import certificate

CA_NAME = "webhook-cert-ca"
YEARS_10 = timedelta(days=10 * 365)
SERVER_MARGIN = timedelta(days=183)
CA_MARGIN = timedelta(days=365)
PREVIOUS_CA = "previous-ca-cert.pem"
PREVIOUS_UNTIL = "previous-ca-until"
PREVIOUS_CA_TTL_S = 600.0
FILES = ("ca-key.pem", "ca-cert.pem", "key.pem", "tls.key", "cert.pem", "tls.crt")
"""Names of the files and of the Secret's keys; tls.key and tls.crt are copies of key.pem and cert.pem."""


class BadCertificate(ValueError):
    """A file is not a key or certificate; the message names it."""


@dataclass(frozen=True)
class Certificates:
    """PEM texts. `previous_ca` is empty unless the CA was replaced recently; `previous_until` is Unix time."""

    ca_key: bytes
    ca_cert: bytes
    key: bytes
    cert: bytes
    previous_ca: bytes = b""
    previous_until: float = 0.0

    def data(self) -> dict[str, bytes]:
        """File name -> content."""
        files = dict(zip(FILES, (self.ca_key, self.ca_cert, self.key, self.key, self.cert, self.cert), strict=True))
        if self.previous_ca:
            files |= {PREVIOUS_CA: self.previous_ca, PREVIOUS_UNTIL: f"{self.previous_until:.0f}".encode()}
        return files

    @classmethod
    def of(cls, data: Mapping[str, bytes]) -> Certificates | None:
        """From the files or a Secret; None when one is missing."""
        if not all(data.get(name) for name in FILES):
            return None
        until = data.get(PREVIOUS_UNTIL, b"")
        return cls(
            data["ca-key.pem"],
            data["ca-cert.pem"],
            data["key.pem"],
            data["cert.pem"],
            data.get(PREVIOUS_CA, b""),
            float(until) if until.isdigit() else 0.0,
        )

    def after(self, former_ca: bytes, now: float) -> Certificates:
        """A copy that trusts the former CA for another PREVIOUS_CA_TTL_S."""
        return replace(self, previous_ca=former_ca, previous_until=now + PREVIOUS_CA_TTL_S)

    def without_expired_ca(self, now: float) -> Certificates:
        """A copy without a former CA that is no longer needed."""
        return self if now < self.previous_until else replace(self, previous_ca=b"", previous_until=0.0)

    @property
    def bundle(self) -> bytes:
        """The CA bundle for the API server."""
        return b"\n".join(part.rstrip() for part in (self.ca_cert, self.previous_ca) if part) + b"\n"


def problem(certs: Certificates, dns_name: str, now: datetime) -> str | None:
    """The reason why these cannot serve `dns_name` for another six months; None if they can."""
    at = now + SERVER_MARGIN
    try:
        cert, ca = _cert(certs.cert, "cert.pem"), _cert(certs.ca_cert, "ca-cert.pem")
        key = _key(certs.key, "key.pem")
    except BadCertificate as error:
        return str(error)
    if key.public_key() != cert.public_key():
        return "key.pem does not match cert.pem"
    try:
        cert.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return "cert.pem was not issued by ca-cert.pem"
    for name, checked in (("cert.pem", cert), ("ca-cert.pem", ca)):
        if now < checked.not_valid_before_utc:
            return f"{name} is not valid before {checked.not_valid_before_utc:%Y-%m-%d}"
        if at > checked.not_valid_after_utc:
            return f"{name} expires on {checked.not_valid_after_utc:%Y-%m-%d}"
    if not _names(cert, dns_name):
        return f"cert.pem is not for {dns_name}"
    return None


def make(dns_name: str, now: datetime, old: Certificates | None = None) -> Certificates:
    """New certificates; the old CA is kept if it is valid for another year. Takes up to one second of CPU time."""
    ca_key_pem, ca_pem = (old.ca_key, old.ca_cert) if old is not None and _ca_valid(old, now) else _make_ca(now)
    ca, ca_key = _cert(ca_pem, "ca-cert.pem"), _key(ca_key_pem, "ca-key.pem")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    cert = certificate.build(
        certificate.subject(dns_name),
        key,
        (ca.not_valid_before_utc, now + YEARS_10),
        certificate.NO_AUTHORITY,
        x509.KeyUsage(True, False, True, False, False, False, False, False, False),
        certificate.SERVER_AUTH,
        x509.SubjectAlternativeName(certificate.general_names(("localhost", dns_name))),
        issuer=(ca, ca_key),
        serial=_serial(),
    )
    new = Certificates(ca_key_pem, ca_pem, _key_pem(key), cert.public_bytes(certificate.PEM))
    if old is None:
        return new
    if old.ca_cert == ca_pem:
        return replace(new, previous_ca=old.previous_ca, previous_until=old.previous_until)
    return new.after(old.ca_cert, now.timestamp())


def _ca_valid(old: Certificates, now: datetime) -> bool:
    try:
        ca, key = _cert(old.ca_cert, "ca-cert.pem"), _key(old.ca_key, "ca-key.pem")
        ca.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):  # BadCertificate is a ValueError
        return False
    in_time = ca.not_valid_before_utc <= now and now + CA_MARGIN <= ca.not_valid_after_utc
    return in_time and key.public_key() == ca.public_key()


def _make_ca(now: datetime) -> tuple[bytes, bytes]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    cert = certificate.build(
        certificate.subject(CA_NAME),
        key,
        (now - timedelta(minutes=5), now + YEARS_10),  # the API server's clock may be behind
        x509.BasicConstraints(ca=True, path_length=None),
        x509.KeyUsage(True, False, True, False, False, True, True, False, False),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        serial=_serial(),
    )
    return _key_pem(key), cert.public_bytes(certificate.PEM)


def _serial() -> int:
    return 1 + secrets.randbits(63) % (2**63 - 1)


def _names(cert: x509.Certificate, dns_name: str) -> bool:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(dns_name) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return dns_name in names.get_values_for_type(x509.DNSName)


def _cert(pem: bytes, name: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BadCertificate(f"{name} is not a PEM certificate") from error


def _key(pem: bytes, name: str) -> rsa.RSAPrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise BadCertificate(f"{name} is not a PEM key") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise BadCertificate(f"{name} is not an RSA key")
    return key


def _key_pem(key: rsa.RSAPrivateKey) -> bytes:
    return certificate.key_pem(key, serialization.PrivateFormat.TraditionalOpenSSL)
