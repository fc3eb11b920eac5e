"""Certificates: made, judged, stored; and the webhook configurations that are written from them."""

from __future__ import annotations

import base64
import json
import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from control.manager.options import WebhookEnv
from control.manager.webhookserver import configurations
from control.manager.webhookserver.certificates import FILES, PREVIOUS_CA_TTL_S, YEARS_10, Certificates, make, problem
from control.manager.webhookserver.certstore import FileStore
from control.manager.webhookserver.configurations import BadTemplate, ConfigurationTarget, WebhookConfiguration
from koordlet.api.meta import ObjectMeta

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAME = "koordinator-webhook-service.koordinator-system.svc"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def made() -> Certificates:
    return make(NAME, NOW)


@pytest.fixture(scope="module")
def other() -> Certificates:
    return make(NAME, NOW)


def test_certificates_have_koordinators_properties(made: Certificates) -> None:
    ca, cert = x509.load_pem_x509_certificate(made.ca_cert), x509.load_pem_x509_certificate(made.cert)
    assert made.key.startswith(b"-----BEGIN RSA PRIVATE KEY-----") and made.ca_key.startswith(b"-----BEGIN RSA")
    assert ca.subject.rfc4514_string() == "CN=webhook-cert-ca"
    assert cert.subject.rfc4514_string() == f"CN={NAME}"
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", NAME]
    assert cert.not_valid_before_utc == ca.not_valid_before_utc
    assert ca.not_valid_after_utc == cert.not_valid_after_utc == NOW + YEARS_10
    assert 0 < cert.serial_number < 2**63
    assert problem(made, NAME, NOW) is None


def test_an_ip_address_is_an_ip_address_in_the_certificate() -> None:
    found = make("127.0.0.1", NOW)
    names = x509.load_pem_x509_certificate(found.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [str(one) for one in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert problem(found, "127.0.0.1", NOW) is None
    assert problem(found, "127.0.0.2", NOW) == "cert.pem is not for 127.0.0.2"


AGES = {
    "new": (timedelta(), None),
    "six months and a day left": (YEARS_10 - 184 * DAY, None),
    "less than six months left": (YEARS_10 - 182 * DAY, "cert.pem expires on"),
    "from the future": (-DAY, "cert.pem is not valid before"),
}


@pytest.mark.parametrize(("age", "message"), AGES.values(), ids=AGES)
def test_validity_periods(made: Certificates, age: timedelta, message: str | None) -> None:
    found = problem(made, NAME, NOW + age)
    assert found is None if message is None else found is not None and found.startswith(message)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("key", "key.pem does not match cert.pem"),
        ("ca_cert", "cert.pem was not issued by ca-cert.pem"),
        ("cert", "key.pem does not match cert.pem"),
    ],
)
def test_parts_that_do_not_match(made: Certificates, other: Certificates, part: str, message: str) -> None:
    assert problem(replace(made, **{part: getattr(other, part)}), NAME, NOW) == message


@pytest.mark.parametrize("part", ["key", "cert", "ca_cert"])
def test_malformed_parts_are_named(made: Certificates, part: str) -> None:
    assert "is not a PEM" in str(problem(replace(made, **{part: b"-----BEGIN"}), NAME, NOW))


def test_a_valid_ca_is_kept_and_a_replaced_one_is_trusted_temporarily(made: Certificates) -> None:
    soon = NOW + YEARS_10 - 400 * DAY
    kept = make(NAME, soon, made)
    assert kept.ca_cert == made.ca_cert and kept.cert != made.cert and not kept.previous_ca
    late = NOW + YEARS_10 - 300 * DAY
    new = make(NAME, late, made)
    assert new.ca_cert != made.ca_cert and new.previous_ca == made.ca_cert
    assert made.ca_cert.strip() in new.bundle and new.ca_cert.strip() in new.bundle
    assert new.without_expired_ca(late.timestamp() + PREVIOUS_CA_TTL_S - 1) == new
    assert not new.without_expired_ca(late.timestamp() + PREVIOUS_CA_TTL_S + 1).previous_ca
    assert Certificates.of(new.data()) == new


def test_the_directory_is_replaced_atomically_and_is_private(
    made: Certificates, other: Certificates, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "certs")
    assert store.current() is None
    store.directory.mkdir()
    store.directory.chmod(0o777)  # as an emptyDir is: of root, and the process may not change its mode
    (store.directory / "tls.crt").write_text("a plain file of old")
    store.replace(made)
    assert store.current() == made
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o777
    assert stat.S_IMODE((store.directory / "tls.key").resolve().parent.stat().st_mode) == 0o700
    for name in FILES:
        assert (store.directory / name).is_symlink()
        assert stat.S_IMODE((store.directory / name).stat().st_mode) == 0o600
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        store.directory / "tls.crt", store.directory / "tls.key"
    )
    store.replace(other.after(made.ca_cert, 7.0))
    assert store.current() == other.after(made.ca_cert, 7.0)
    store.replace(other)
    assert store.current() == other
    assert len(list(store.directory.glob("..certs-*"))) == 1
    (store.directory / "..data" / "key.pem").unlink()
    assert store.current() is None


def service(name: str, path: str, **more: Any) -> dict[str, Any]:
    config = {"service": {"name": "theirs", "namespace": "elsewhere", "path": path, "port": 443}, "caBundle": "b2xk"}
    return {"name": name, "clientConfig": config, "failurePolicy": "Fail", "unknown": {"to": "us"}, **more}


TEMPLATE = [service("pods", "/mutate-pod"), service("nodes", "/mutate-node-status")]
BUNDLE = b"PEM"
ENCODED = base64.b64encode(BUNDLE).decode()


def target(*paths: str, **env: str) -> ConfigurationTarget:
    return ConfigurationTarget(WebhookEnv.read(env), 9876, paths, BUNDLE)


def configuration(webhooks: list[Any], template: str | None = None) -> WebhookConfiguration:
    annotations = {} if template is None else {configurations.TEMPLATE: template}
    return WebhookConfiguration(metadata=ObjectMeta(resource_version="7", annotations=annotations), webhooks=webhooks)


def test_the_first_pass_stores_the_template_and_sets_the_client_configuration() -> None:
    body = configurations.patch(configuration(TEMPLATE), target("/mutate-pod", "/mutate-node-status"))
    assert body is not None
    assert json.loads(body["metadata"]["annotations"]["template"]) == TEMPLATE
    assert body["metadata"]["resourceVersion"] == "7"
    for entry, given in zip(body["webhooks"], TEMPLATE, strict=True):
        path = given["clientConfig"]["service"]["path"]
        ours = {"name": "koordinator-webhook-service", "namespace": "koordinator-system", "path": path, "port": 443}
        assert entry["clientConfig"] == {"service": ours, "caBundle": ENCODED}
        assert (entry["unknown"], entry["failurePolicy"]) == ({"to": "us"}, "Fail")


def test_an_up_to_date_configuration_is_not_changed() -> None:
    where = target("/mutate-pod", "/mutate-node-status")
    webhooks, template = configurations.desired(configuration(TEMPLATE), where)
    assert configurations.patch(configuration(webhooks, template), where) is None


def test_a_webhook_is_removed_and_restored_with_its_gate() -> None:
    text = json.dumps(TEMPLATE)
    off = configurations.patch(configuration(TEMPLATE, text), target("/mutate-pod"))
    assert off is not None and [entry["name"] for entry in off["webhooks"]] == ["pods"]
    on = configurations.patch(configuration(off["webhooks"], text), target("/mutate-pod", "/mutate-node-status"))
    assert on is not None and [entry["name"] for entry in on["webhooks"]] == ["pods", "nodes"]


def test_with_a_host_webhooks_are_called_by_url() -> None:
    body = configurations.patch(configuration(TEMPLATE), target("/mutate-pod", WEBHOOK_HOST="10.1.2.3"))
    assert body is not None
    assert body["webhooks"][0]["clientConfig"] == {"url": "https://10.1.2.3:9876/mutate-pod", "caBundle": ENCODED}


def test_the_failure_policy_of_the_pod_webhooks_can_be_set() -> None:
    where = target("/mutate-pod", "/mutate-node-status", WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS="Ignore")
    webhooks, _ = configurations.desired(configuration(TEMPLATE), where)
    assert [entry["failurePolicy"] for entry in webhooks] == ["Ignore", "Fail"]


@pytest.mark.parametrize("text", ["{", "{}", "[1]"], ids=["no JSON", "no list", "no webhooks"])
def test_a_malformed_template(text: str) -> None:
    with pytest.raises(BadTemplate, match="annotation template"):
        configurations.patch(configuration([], text), target())
