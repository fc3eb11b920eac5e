"""Bounds of the webhook server: connections, and large reviews that are read and handled at a time."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from control.manager.webhookserver import limits
from control.manager.webhookserver import server as server_module
from control.manager.webhookserver.admission import AllowResponse, Response, WebhookHandler, WebhookRequest
from control.manager.webhookserver.limits import ConnectionLimit
from control.manager.webhookserver.server import WebhookServer
from control.standalone.apiserver.tls import ensure_pki
from control.standalone.kubelet.server.certs import serving_certificate
from tests.waiting import until

CLIENTS = 6
LARGE = 7_300_000 - 4096
WAITING = CLIENTS - limits.MAX_LARGE_REVIEWS


class Counting(WebhookHandler):
    """Counts the reviews in progress; large ones wait until the test lets them finish."""

    path, gate = "/validate-pod", ""
    resources = frozenset({("", "pods", "")})

    def __init__(self) -> None:
        self.large = 0
        self.finish = asyncio.Event()

    async def handle(self, request: WebhookRequest) -> Response:
        if len(bytes(request.object)) > 1_000_000:
            self.large += 1
            await self.finish.wait()
            self.large -= 1
        return AllowResponse()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 65536):
        yield body[start : start + 65536]


def review(size: int) -> bytes:
    resource = {"version": "v1", "resource": "pods"}
    request = {"uid": "u", "operation": "CREATE", "resource": resource, "object": "x" * size}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[WebhookServer, Counting, str]]:
    for name in ("MAX_TIMEOUT_S", "HANDSHAKE_S"):
        monkeypatch.setattr(server_module, name, 600.0)  # a busy machine is slow
    cert, key = serving_certificate(tmp_path, "n", "127.0.0.1")
    cert.rename(tmp_path / "tls.crt")
    key.rename(tmp_path / "tls.key")
    server, handler = WebhookServer(tmp_path, host="127.0.0.1", port=0), Counting()
    server._connections._first_request_s = 600.0
    server.register(handler)
    await server.start()
    yield server, handler, f"https://127.0.0.1:{server.port}"
    await server.stop()


async def test_a_normal_review_is_answered_while_large_ones_are_in_progress(served: Any) -> None:
    """Six clients post 7.3 MB each: one is parsed, five wait with unread bodies, and a normal review is answered."""
    server, handler, url = served
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def post(size: int, chunked: bool = False) -> int:
            body: Any = pieces(review(size)) if chunked else io.BytesIO(review(size))
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/validate-pod", data=body, headers=headers) as response:
                await response.read()
                return response.status

        attackers = [asyncio.create_task(post(LARGE, chunked=number % 2 == 1)) for number in range(CLIENTS)]
        async with asyncio.timeout(600):
            await until(lambda: handler.large and server.large_reviews.waiting == WAITING, 600)
            assert await post(100) == 200
            assert handler.large == limits.MAX_LARGE_REVIEWS
            handler.finish.set()
            assert await asyncio.gather(*attackers) == [200] * CLIENTS
        assert server.large_reviews.most_active == limits.MAX_LARGE_REVIEWS


async def test_a_client_that_sends_slowly_delays_only_its_own_address(served: Any) -> None:
    """Two bodies that never end hold both places of their address; a large review of another address is handled."""
    server, handler, url = served
    handler.finish.set()
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    never = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await never.wait()

    async with aiohttp.ClientSession(connector=connector) as session:
        headers = {"Content-Type": "application/json"}
        path = f"{url}/validate-pod"

        async def post(body: Any) -> int:
            async with session.post(path, data=body, headers=headers) as response:
                return response.status

        slow = [asyncio.create_task(post(endless())) for _ in range(limits.MAX_PLACES_PER_ADDRESS)]
        async with asyncio.timeout(600):
            await until(lambda: server.large_reviews.waiting == limits.MAX_PLACES_PER_ADDRESS, 600)
            assert await post(review(100)) == 200
            local = aiohttp.TCPConnector(ssl=False, local_addr=("127.0.0.2", 0))
            async with (
                aiohttp.ClientSession(connector=local) as other,
                other.post(path, data=io.BytesIO(review(LARGE)), headers=headers) as response,
            ):
                assert response.status == 200
            never.set()
            await asyncio.gather(*slow)


async def test_a_body_that_does_not_arrive_in_time_is_refused(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_S", 0.1)
    _, _, url = served
    never = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await never.wait()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{url}/validate-pod", data=endless(), headers=headers) as response:
            assert response.status == 408
        never.set()


async def test_refusals_are_logged_once(served: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS_PER_ADDRESS", 0)
    _, _, url = served
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        for _ in range(3):
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/validate-pod", data=review(200_000), headers=headers) as response:
                assert response.status == 503
    assert sum("Refusing a large review" in record.getMessage() for record in caplog.records) <= 1


async def test_clients_without_a_certificate_are_refused_before_their_body_is_read(tmp_path: Path) -> None:
    pki = ensure_pki(tmp_path / "ca", ("127.0.0.1",))
    cert, key = serving_certificate(tmp_path, "n", "127.0.0.1")
    cert.rename(tmp_path / "tls.crt")
    key.rename(tmp_path / "tls.key")
    server, handler = WebhookServer(tmp_path, host="127.0.0.1", port=0, client_ca=pki.ca_file), Counting()
    server.register(handler)
    await server.start()
    url = f"https://127.0.0.1:{server.port}"
    known = ssl.create_default_context()
    known.check_hostname, known.verify_mode = False, ssl.CERT_NONE
    known.load_cert_chain(pki.kubelet_client_cert_file, pki.kubelet_client_key_file)
    try:
        for tls, status in ((False, 401), (known, 200)):
            connector = aiohttp.TCPConnector(ssl=tls)
            async with aiohttp.ClientSession(connector=connector) as session:
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{url}/validate-pod", data=review(100), headers=headers) as response:
                    assert response.status == status
                async with session.get(f"{url}/healthz") as response:
                    assert response.status == 200
    finally:
        await server.stop()


async def test_more_large_reviews_than_may_wait_are_refused(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING_LARGE_REVIEWS", 0)
    _, _, url = served
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{url}/validate-pod", data=review(200_000), headers=headers) as response:
            assert response.status == 503


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    return await reader.readuntil(b"\r\n")


async def test_the_connection_that_is_idle_longest_is_closed_for_a_new_one(served: Any) -> None:
    server, _, _ = served
    server._connections._limit = 3
    async with asyncio.timeout(600):
        silent = [await _open(server.port) for _ in range(2)]
        used = await _open(server.port)
        assert (await _request(*used)).endswith(b"200 OK\r\n")
        more = await _open(server.port)
        assert (await _request(*more)).endswith(b"200 OK\r\n")
        assert await silent[0][0].read() == b"", "the oldest silent connection is closed"
    for _, writer in (*silent, used, more):
        writer.close()


async def test_a_connection_without_a_request_is_closed(served: Any) -> None:
    server, _, _ = served
    server._connections._first_request_s = 0.2
    async with asyncio.timeout(600):
        reader, writer = await _open(server.port)
        assert await reader.read() == b""
        writer.close()


def test_limits_are_consistent() -> None:
    assert limits.MAX_CONNECTIONS * limits.LARGE_BODY_BYTES <= 64 << 20, "memory of small bodies"
    assert ConnectionLimit()._limit == limits.MAX_CONNECTIONS
