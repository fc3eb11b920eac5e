"""koordlet verifies the kubelet before it sends its token."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from control.standalone.apiserver.tls import ensure_pki, kubelet_serving_certificate
from control.standalone.kubelet.server.certs import serving_certificate
from koordlet.app.http import server_tls
from koordlet.statesinformer.pods.kubelet import KubeletClient, KubeletError
from koordlet.statesinformer.pods.kubelettls import KubeletVerification, kubelet_context


@asynccontextmanager
async def kubelet(cert: Path, key: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """(URL, received Authorization headers)"""
    received: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(request.headers.get("Authorization", ""))
        return web.json_response({"items": []})

    app = web.Application()
    app.router.add_get("/pods/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls(cert, key)).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", received
    finally:
        await runner.cleanup()


def client(url: str, authority: str, kubelet_dir: Path, cluster: Path | None = None) -> KubeletClient:
    async def headers() -> dict[str, str]:
        return {"Authorization": "Bearer s3cret"}

    return KubeletClient(lambda: url, headers, tls=KubeletVerification(authority, kubelet_dir, cluster), timeout=60.0)


async def test_the_kubelets_own_certificate_verifies_it(tmp_path: Path) -> None:
    cert, key = serving_certificate(tmp_path / "pki", "n1", "127.0.0.1")
    assert cert.name == "kubelet.crt"
    async with kubelet(cert, key) as (url, received):
        kubelet_client = client(url, "", tmp_path)
        assert await kubelet_client.pods() == []
        await kubelet_client.close()
        assert received == ["Bearer s3cret"]


async def test_an_expired_certificate_of_the_kubelet_still_verifies_it(tmp_path: Path) -> None:
    """A kubelet does not renew its self-signed certificate while it runs."""
    cert, key = serving_certificate(tmp_path / "pki", "n1", "127.0.0.1", datetime.now(UTC) - timedelta(days=400))
    async with kubelet(cert, key) as (url, received):
        kubelet_client = client(url, "", tmp_path)
        await kubelet_client.pods()
        await kubelet_client.close()
        assert len(received) == 1


async def test_a_stranger_on_the_kubelets_port_gets_no_token(tmp_path: Path) -> None:
    serving_certificate(tmp_path / "pki", "n1", "127.0.0.1")
    async with kubelet(*serving_certificate(tmp_path / "stranger", "n1", "127.0.0.1")) as (url, received):
        kubelet_client = client(url, "", tmp_path)
        with pytest.raises(KubeletError, match="CERTIFICATE_VERIFY_FAILED"):
            await kubelet_client.pods()
        await kubelet_client.close()
        assert received == []


async def test_a_new_certificate_of_the_kubelet_is_read(tmp_path: Path) -> None:
    serving_certificate(tmp_path / "pki", "n1", "127.0.0.1")
    async with kubelet(*serving_certificate(tmp_path / "next", "n1", "127.0.0.1")) as (url, received):
        kubelet_client = client(url, "", tmp_path)
        with pytest.raises(KubeletError):
            await kubelet_client.pods()
        (tmp_path / "pki/kubelet-server-current.pem").write_bytes((tmp_path / "next/kubelet.crt").read_bytes())
        await kubelet_client.pods()
        await kubelet_client.close()
        assert len(received) == 1


async def test_an_authority_verifies_the_address(tmp_path: Path) -> None:
    pki = ensure_pki(tmp_path / "ca", ("127.0.0.1",))
    right = kubelet_serving_certificate(tmp_path / "ca", tmp_path / "right", "n1", "127.0.0.1")
    other = kubelet_serving_certificate(tmp_path / "ca", tmp_path / "other", "n2", "10.0.0.2")
    for files, message in ((right, ""), (other, "IP address mismatch")):
        async with kubelet(*files) as (url, received):
            kubelet_client = client(url, str(pki.ca_file), tmp_path)
            if message:
                with pytest.raises(KubeletError, match=message):
                    await kubelet_client.pods()
            else:
                await kubelet_client.pods()
            await kubelet_client.close()
            assert bool(received) is not bool(message)


async def test_a_certificate_left_over_does_not_hide_the_pods(tmp_path: Path) -> None:
    """`kubelet.crt` is of before the cluster issued the kubelet's certificate; the cluster's authority verifies it."""
    serving_certificate(tmp_path / "pki", "n1", "127.0.0.1")
    pki = ensure_pki(tmp_path / "ca", ("127.0.0.1",))
    issued = kubelet_serving_certificate(tmp_path / "ca", tmp_path / "issued", "n1", "127.0.0.1")
    elsewhere = kubelet_serving_certificate(tmp_path / "ca", tmp_path / "elsewhere", "n2", "10.0.0.2")
    for files, verified in ((issued, True), (elsewhere, False)):
        async with kubelet(*files) as (url, received):
            kubelet_client = client(url, "", tmp_path, pki.ca_file)
            with pytest.raises(KubeletError, match=r"not verified by .*kubelet\.crt; --kubelet-certificate-authority"):
                await kubelet_client.pods()
            if verified:
                assert await kubelet_client.pods() == []
            else:
                with pytest.raises(KubeletError, match="not verified by the cluster's authority"):
                    await kubelet_client.pods()
            await kubelet_client.close()
            assert bool(received) is verified


async def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    kubelet_client = client("https://127.0.0.1:1", str(tmp_path / "none.crt"), tmp_path)
    with pytest.raises(KubeletError, match="cannot load certificates"):
        await kubelet_client.pods()


def test_a_kubelet_without_certificate_files_is_not_verified(tmp_path: Path) -> None:
    assert kubelet_context(None, tmp_path).verify_mode == ssl.CERT_NONE
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/kubelet.crt").write_text("damaged")
    with pytest.raises(OSError):
        kubelet_context(None, tmp_path)
