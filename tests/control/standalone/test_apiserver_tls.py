"""Keys and certificates of the data directory: made once, renewed before expiry, errors that name damaged files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from control.standalone.apiserver.tls import PkiError, ensure_pki, kubelet_serving_certificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    first = ensure_pki(tmp_path, ("127.0.0.1",), NOW)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    ensure_pki(tmp_path, ("127.0.0.1",), NOW)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    for key in (first.ca_key_file, first.key_file, first.sa_key_file, first.kubelet_client_key_file):
        assert key.stat().st_mode & 0o777 == 0o600


def test_the_serving_certificate_follows_addresses_and_time(tmp_path: Path) -> None:
    pki = ensure_pki(tmp_path, ("127.0.0.1",), NOW)
    ca, cert = pki.ca_file.read_bytes(), pki.cert_file.read_bytes()
    ensure_pki(tmp_path, ("10.1.2.3", "api.example.com"), NOW)
    moved = pki.cert_file.read_bytes()
    assert moved != cert
    names = x509.load_pem_x509_certificate(moved).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "api.example.com" in names.get_values_for_type(x509.DNSName)
    assert "10.1.2.3" in [str(a) for a in names.get_values_for_type(x509.IPAddress)]
    ensure_pki(tmp_path, ("10.1.2.3", "api.example.com"), NOW + timedelta(days=340))
    assert pki.cert_file.read_bytes() != moved
    assert pki.ca_file.read_bytes() == ca


def test_the_certificate_of_a_kubelet_is_kept_and_renewed(tmp_path: Path) -> None:
    ensure_pki(tmp_path, ("127.0.0.1",), NOW)
    folder = tmp_path / "kubelet"
    cert, key = kubelet_serving_certificate(tmp_path, folder, "n1", "127.0.0.1", NOW)
    first = cert.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert x509.load_pem_x509_certificate(first).subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    assert kubelet_serving_certificate(tmp_path, folder, "n1", "127.0.0.1", NOW)[0].read_bytes() == first
    assert kubelet_serving_certificate(tmp_path, folder, "n2", "127.0.0.1", NOW)[0].read_bytes() != first
    with pytest.raises(PkiError, match=r"ca\.crt"):
        kubelet_serving_certificate(tmp_path / "none", folder, "n1", "127.0.0.1", NOW)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "apiserver.key"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    ensure_pki(tmp_path, ("127.0.0.1",), NOW)
    (tmp_path / name).write_text("not PEM")
    with pytest.raises(PkiError, match=name):
        ensure_pki(tmp_path, ("127.0.0.1",), NOW)
