"""Certificates: made, judged, stored; and the webhook configurations that are written from them."""

from __future__ import annotations

import base64
import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from control.manager.options import WebhookEnv
from control.manager.webhookserver import configurations, registrations
from control.manager.webhookserver.certificates import FILES, PREVIOUS_CA_TTL_S, YEARS_10, Certificates, make, problem
from control.manager.webhookserver.certstore import FileStore
from control.manager.webhookserver.configurations import ConfigurationTarget, WebhookConfiguration
from koordlet.api.meta import ObjectMeta

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAME = "koordinator-webhook-service.koordinator-system.svc"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return make(NAME, NOW)


@pytest.fixture(scope="module")
def other() -> Certificates:
    return make(NAME, NOW)


def test_certificates_have_koordinators_properties(certificates: Certificates) -> None:
    ca, cert = x509.load_pem_x509_certificate(certificates.ca_cert), x509.load_pem_x509_certificate(certificates.cert)
    assert certificates.key.startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    assert certificates.ca_key.startswith(b"-----BEGIN RSA")
    assert ca.subject.rfc4514_string() == "CN=webhook-cert-ca"
    assert cert.subject.rfc4514_string() == f"CN={NAME}"
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", NAME]
    assert cert.not_valid_before_utc == ca.not_valid_before_utc
    assert ca.not_valid_after_utc == cert.not_valid_after_utc == NOW + YEARS_10
    assert 0 < cert.serial_number < 2**63
    assert problem(certificates, NAME, NOW) is None


def test_an_ip_address_is_an_ip_address_in_the_certificate() -> None:
    pair = make("127.0.0.1", NOW)
    names = x509.load_pem_x509_certificate(pair.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [str(address) for address in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert problem(pair, "127.0.0.1", NOW) is None
    assert problem(pair, "127.0.0.2", NOW) == "cert.pem is not for 127.0.0.2"


AGES = {
    "new": (timedelta(), None),
    "six months and a day left": (YEARS_10 - 184 * DAY, None),
    "less than six months left": (YEARS_10 - 182 * DAY, "cert.pem expires on"),
    "from the future": (-DAY, "cert.pem is not valid before"),
}


@pytest.mark.parametrize(("age", "message"), AGES.values(), ids=AGES)
def test_validity_periods(certificates: Certificates, age: timedelta, message: str | None) -> None:
    reason = problem(certificates, NAME, NOW + age)
    assert reason is None if message is None else reason is not None and reason.startswith(message)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("key", "key.pem does not match cert.pem"),
        ("ca_cert", "cert.pem was not issued by ca-cert.pem"),
        ("cert", "key.pem does not match cert.pem"),
    ],
)
def test_parts_that_do_not_match(certificates: Certificates, other: Certificates, part: str, message: str) -> None:
    assert problem(replace(certificates, **{part: getattr(other, part)}), NAME, NOW) == message


@pytest.mark.parametrize("part", ["key", "cert", "ca_cert"])
def test_malformed_parts_are_named(certificates: Certificates, part: str) -> None:
    changes: dict[str, Any] = {part: b"-----BEGIN"}
    assert "is not a PEM" in str(problem(replace(certificates, **changes), NAME, NOW))


def test_a_valid_ca_is_kept_and_a_replaced_one_is_trusted_temporarily(certificates: Certificates) -> None:
    soon = NOW + YEARS_10 - 400 * DAY
    kept = make(NAME, soon, certificates)
    assert kept.ca_cert == certificates.ca_cert and kept.cert != certificates.cert and not kept.previous_ca
    late = NOW + YEARS_10 - 300 * DAY
    new = make(NAME, late, certificates)
    assert new.ca_cert != certificates.ca_cert and new.previous_ca == certificates.ca_cert
    assert certificates.ca_cert.strip() in new.bundle and new.ca_cert.strip() in new.bundle
    assert new.without_expired_ca(late.timestamp() + PREVIOUS_CA_TTL_S - 1) == new
    assert not new.without_expired_ca(late.timestamp() + PREVIOUS_CA_TTL_S + 1).previous_ca
    assert Certificates.of(new.data()) == new


def test_the_directory_is_replaced_atomically_and_is_private(
    certificates: Certificates, other: Certificates, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "certs")
    assert store.current() is None
    store.directory.mkdir()
    store.directory.chmod(0o777)  # as an emptyDir is: of root, and the process may not change its mode
    (store.directory / "tls.crt").write_text("a plain file of old")
    store.replace(certificates)
    assert store.current() == certificates
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o777
    assert stat.S_IMODE((store.directory / "tls.key").resolve().parent.stat().st_mode) == 0o700
    for name in FILES:
        assert (store.directory / name).is_symlink()
        assert stat.S_IMODE((store.directory / name).stat().st_mode) == 0o600
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        store.directory / "tls.crt", store.directory / "tls.key"
    )
    store.replace(other.after(certificates.ca_cert, 7.0))
    assert store.current() == other.after(certificates.ca_cert, 7.0)
    store.replace(other)
    assert store.current() == other
    assert len(list(store.directory.glob("..certs-*"))) == 1
    (store.directory / "..data" / "key.pem").unlink()
    assert store.current() is None


BUNDLE = b"PEM"
ENCODED = base64.b64encode(BUNDLE).decode()
PATHS = ("/mutate-pod", "/mutate-node-status", "/mutate-reservation")
KIND = configurations.MUTATING.kind


def target(*paths: str, **env: str) -> ConfigurationTarget:
    return ConfigurationTarget(WebhookEnv.read(env), 9876, paths or PATHS, BUNDLE)


def configuration(webhooks: list[Any], **annotations: str) -> WebhookConfiguration:
    return WebhookConfiguration(metadata=ObjectMeta(resource_version="7", annotations=annotations), webhooks=webhooks)


def test_an_empty_configuration_gets_the_webhooks_of_the_served_paths() -> None:
    body = configurations.patch(KIND, configuration([]), target("/mutate-pod"))
    assert body is not None and body["metadata"]["resourceVersion"] == "7"
    assert [entry["name"] for entry in body["webhooks"]] == ["mpod-create.koordinator.sh", "mpod-update.koordinator.sh"]
    ours = {
        "name": "koordinator-webhook-service",
        "namespace": "koordinator-system",
        "path": "/mutate-pod",
        "port": 443,
    }
    for entry in body["webhooks"]:
        assert entry["clientConfig"] == {"service": ours, "caBundle": ENCODED}


def test_an_up_to_date_configuration_is_not_changed() -> None:
    webhooks = configurations.desired(KIND, target())
    assert configurations.patch(KIND, configuration(webhooks), target()) is None


def test_the_template_of_koordinators_manager_is_removed() -> None:
    webhooks = configurations.desired(KIND, target())
    body = configurations.patch(KIND, configuration(webhooks, template="[]"), target())
    assert body is not None and body["metadata"]["annotations"] == {"template": None}


def test_a_webhook_is_removed_and_restored_with_its_gate() -> None:
    webhooks = configurations.desired(KIND, target())
    off = configurations.patch(KIND, configuration(webhooks), target("/mutate-pod"))
    assert off is not None and len(off["webhooks"]) == 2
    on = configurations.patch(KIND, configuration(off["webhooks"]), target())
    assert on is not None and on["webhooks"] == webhooks


def test_with_a_host_webhooks_are_called_by_url() -> None:
    body = configurations.patch(KIND, configuration([]), target(WEBHOOK_HOST="10.1.2.3"))
    assert body is not None
    assert body["webhooks"][0]["clientConfig"] == {"url": "https://10.1.2.3:9876/mutate-pod", "caBundle": ENCODED}


def test_no_webhook_blocks_writes_by_default() -> None:
    for entries in (registrations.mutating, registrations.validating):
        assert {entry["failurePolicy"] for entry in entries(WebhookEnv.read({}))} == {"Ignore"}


POLICIES = {
    "PODS": {"mpod-create", "mpod-update", "vpod"},
    "NODES": {"vnode"},
    "NODE_STATUS": {"mnode-status"},
    "CONFIGMAPS": {"vconfigmap"},
    "RESERVATIONS": {"mreservation-create"},
    "PODMIGRATIONJOBS": {"vpodmigrationjob"},
    "DRAINNODES": {"vdrain"},
    "ELASTICQUOTAS": {"melasticquota", "velasticquota"},
}


@pytest.mark.parametrize(("variable", "names"), POLICIES.items(), ids=POLICIES)
def test_a_failure_policy_is_set_per_resource(variable: str, names: set[str]) -> None:
    env = WebhookEnv.read({f"WEBHOOK_CONFIGURATION_FAILURE_POLICY_{variable}": "Fail"})
    entries = [*registrations.mutating(env), *registrations.validating(env)]
    assert {entry["name"].split(".")[0] for entry in entries if entry["failurePolicy"] == "Fail"} == names


def test_pods_of_the_cluster_and_of_the_manager_are_exempt() -> None:
    env = WebhookEnv.read({"POD_NAMESPACE": "ours"})
    for entry in (*registrations.mutating(env), *registrations.validating(env)):
        if "pods" in entry["rules"][0]["resources"][0]:
            assert entry["namespaceSelector"]["matchExpressions"] == [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "ours"]},
            ]
