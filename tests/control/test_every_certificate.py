"""What each certificate that the components make says: subject, issuer, key, validity, extensions."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from control.manager.webhookserver.certificates import make
from control.standalone.apiserver.tls import ensure_pki, kubelet_serving_certificate
from control.standalone.kubelet.server.certs import serving_certificate
from koordlet.app.selfsigned import self_signed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIVE_MINUTES = timedelta(minutes=5)
LONG_NAME = "n" * 63 + ".long"
"""Longer than a common name can be."""
AUTHORITY, AUTHORITY_OF_SERVERS = x509.BasicConstraints(True, None), x509.BasicConstraints(True, 0)
NO_AUTHORITY = x509.BasicConstraints(False, None)
SERVER, CLIENT = (
    x509.ExtendedKeyUsage([usage]) for usage in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
)


def names(*names: str) -> x509.SubjectAlternativeName:
    def general(name: str) -> x509.GeneralName:
        return x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)

    return x509.SubjectAlternativeName([general(name) for name in names])


def usage(*usages: str) -> x509.KeyUsage:
    possible = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{name: name in usages for name in possible})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[x509.Certificate, x509.Certificate]]:
    """What for -> (certificate, its issuer's)."""
    folder = tmp_path_factory.mktemp("pki")
    pki = ensure_pki(folder, ("10.1.2.3", "0.0.0.0", "api.example"), NOW)
    node, _ = kubelet_serving_certificate(folder, folder / "issued", "n1", "10.0.0.1", NOW)
    own, _ = serving_certificate(folder / "own", "n1", "10.0.0.1", NOW)
    own_by_name, _ = serving_certificate(folder / "byname", LONG_NAME, "host.example", NOW)
    webhooks = make("webhook.example", NOW)

    def pair(cert: Path | bytes, issuer: Path | bytes | None = None) -> tuple[x509.Certificate, x509.Certificate]:
        texts = (pem.read_bytes() if isinstance(pem, Path) else pem for pem in (cert, issuer or cert))
        first, second = (x509.load_pem_x509_certificate(text) for text in texts)
        return first, second

    return {
        "a page": pair(self_signed(("host.example", "10.0.0.1", "host.example"))),
        "the API server's authority": pair(pki.ca_file),
        "the API server": pair(pki.cert_file, pki.ca_file),
        "the API server as a client of kubelets": pair(pki.kubelet_client_cert_file, pki.ca_file),
        "a kubelet, issued": pair(node, pki.ca_file),
        "a kubelet's own": pair(own),
        "a kubelet's own, with names only": pair(own_by_name),
        "the webhooks' authority": pair(webhooks.ca_cert),
        "the webhook server": pair(webhooks.cert, webhooks.ca_cert),
    }


API_SERVER_NAMES = names("10.1.2.3", "api.example", "127.0.0.1", "10.96.0.1", "localhost", "kubernetes",
                         "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
                         socket.gethostname())  # fmt: skip
PROPERTIES: dict[str, tuple[str, timedelta, timedelta, Sequence[x509.ExtensionType]]] = {
    "a page": ("CN=host.example", HOUR, 365 * DAY, [AUTHORITY_OF_SERVERS, SERVER, names("host.example", "10.0.0.1")]),
    "the API server's authority": (
        "CN=koord-standalone-ca", FIVE_MINUTES, 3650 * DAY,
        [AUTHORITY_OF_SERVERS, usage("digital_signature", "key_cert_sign", "crl_sign")],
    ),
    "the API server": ("CN=kube-apiserver", FIVE_MINUTES, 365 * DAY, [NO_AUTHORITY, SERVER, API_SERVER_NAMES]),
    "the API server as a client of kubelets": (
        "CN=kube-apiserver-kubelet-client", FIVE_MINUTES, 365 * DAY, [NO_AUTHORITY, CLIENT],
    ),
    "a kubelet, issued": (
        "CN=system:node:n1,O=system:nodes", FIVE_MINUTES, 365 * DAY, [NO_AUTHORITY, SERVER, names("n1", "10.0.0.1")],
    ),
    "a kubelet's own": (
        "CN=system:node:n1", FIVE_MINUTES, 365 * DAY,
        [NO_AUTHORITY, SERVER, names("n1", "localhost", "10.0.0.1", "127.0.0.1")],
    ),
    "a kubelet's own, with names only": (
        f"CN={f'system:node:{LONG_NAME}'[:64]}", FIVE_MINUTES, 365 * DAY,
        [NO_AUTHORITY, SERVER, names(LONG_NAME, "localhost", "host.example", "127.0.0.1")],
    ),
    "the webhooks' authority": (
        "CN=webhook-cert-ca", FIVE_MINUTES, 3650 * DAY,
        [AUTHORITY, usage("digital_signature", "key_encipherment", "key_cert_sign", "crl_sign")],
    ),
    "the webhook server": (
        "CN=webhook.example", FIVE_MINUTES, 3650 * DAY,
        [NO_AUTHORITY, usage("digital_signature", "key_encipherment"), SERVER, names("localhost", "webhook.example")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("purpose", PROPERTIES)
def test_a_certificate_says(certificates: dict[str, tuple[x509.Certificate, x509.Certificate]], purpose: str) -> None:
    subject, before, after, extensions = PROPERTIES[purpose]
    cert, issuer = certificates[purpose]
    assert cert.subject.rfc4514_string() == subject
    cert.verify_directly_issued_by(issuer)
    key, issuer_key = cert.public_key(), issuer.public_key()
    assert isinstance(key, rsa.RSAPublicKey if "webhook" in purpose else ec.EllipticCurvePublicKey)
    assert isinstance(issuer_key, type(key))
    assert key.key_size == (2048 if isinstance(key, rsa.RSAPublicKey) else 256)
    if purpose == "a page":  # made by the machine's clock
        assert cert.not_valid_after_utc - cert.not_valid_before_utc == before + after
        assert timedelta() <= datetime.now(UTC) - (cert.not_valid_before_utc + before) < HOUR
    else:
        assert (cert.not_valid_before_utc, cert.not_valid_after_utc) == (NOW - before, NOW + after)
    values = set(extensions)
    if cert != issuer:
        values.add(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key))
    elif purpose.endswith("authority"):
        values.add(x509.SubjectKeyIdentifier.from_public_key(key))
    assert {extension.value for extension in cert.extensions} == values
    critical = {type(extension.value) for extension in cert.extensions if extension.critical}
    assert critical == {x509.BasicConstraints, x509.KeyUsage} & {type(value) for value in values}
