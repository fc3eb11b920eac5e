"""Builds X.509 certificates.

The library for them takes 9 MB of memory: an agent that needs one certificate in months runs `koordlet.app.selfsigned`
as a child process and does not import this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

COMMON_NAME_CHARS = 64
"""Upper bound of X.520."""
NO_AUTHORITY = x509.BasicConstraints(ca=False, path_length=None)
SERVER_AUTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey, form: serialization.PrivateFormat = PKCS8) -> bytes:
    return key.private_bytes(PEM, form, serialization.NoEncryption())


def subject(common_name: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name[:COMMON_NAME_CHARS])])


def general_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Each address or DNS name once."""

    def general_name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    return [general_name(host) for host in dict.fromkeys(hosts)]


def build(
    name: x509.Name,
    key: PrivateKey,
    validity: tuple[datetime, datetime],
    *extensions: x509.ExtensionType,
    issuer: tuple[x509.Certificate, PrivateKey] | None = None,
    serial: int | None = None,
) -> x509.Certificate:
    """A certificate for the public key of `key`, signed by `issuer` or, without one, by `key` itself."""
    issuer_name, issuer_key = (name, key) if issuer is None else (issuer[0].subject, issuer[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
    )
    for extension in extensions:
        # RFC 5280 §4.2.1: these two are critical
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    if issuer is not None:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
