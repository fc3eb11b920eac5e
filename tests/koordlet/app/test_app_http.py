"""The pages every binary serves."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from koordlet.app.health import HealthChecks
from koordlet.app.http import HttpServer, ListenError, listen, server_tls, split_address
from tests.certificates import self_signed_files


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[HttpServer]]]:
    servers = []

    async def begin(**options: Any) -> HttpServer:
        server = HttpServer("127.0.0.1:0", **options)
        await server.start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        await server.stop()


async def fetch(url: str, **options: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as answer:
        return answer.status, await answer.text()


async def test_health_pages(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    health = HealthChecks()
    problem: list[str] = ["not synced yet"]
    health.check("pods", lambda: problem[0] if problem else None)
    health.check("store", lambda: None, live=True)
    server = await serve(health=health)
    assert await fetch(server.url + "/healthz") == (200, "ok")
    status, text = await fetch(server.url + "/readyz")
    assert status == 503
    assert text.splitlines() == [
        "[+]ping ok", "[-]pods failed: not synced yet", "[+]store ok", "readyz check failed",
    ]  # fmt: skip
    assert await fetch(server.url + "/readyz?exclude=pods") == (200, "ok")
    assert (await fetch(server.url + "/readyz/store"))[0] == 200
    assert (await fetch(server.url + "/readyz/nothing"))[0] == 404
    problem.clear()
    status, text = await fetch(server.url + "/readyz?verbose")
    assert status == 200 and text.endswith("readyz check passed\n")
    problem.append("kubelet away")
    assert "[-]pods failed: kubelet away" in (await fetch(server.url + "/readyz"))[1]


async def test_failing_checks_give_their_reason(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    def broken() -> None:
        raise OSError("disk gone")

    async def hanging() -> str:
        return "slow disk"

    health = HealthChecks()
    health.check("a", broken, live=True)
    health.check("b", hanging)
    server = await serve(health=health)
    status, text = await fetch(server.url + "/healthz")
    assert status == 503 and "[-]a failed: OSError: disk gone" in text and "]b" not in text
    status, text = await fetch(server.url + "/readyz", headers={"Accept": "application/json"})
    assert status == 503 and '"reason": "slow disk"' in text


async def test_names_of_checks_are_unique() -> None:
    health = HealthChecks()
    health.check("a", lambda: None)
    with pytest.raises(ValueError, match='"a" already exists'):
        health.check("a", lambda: None)


async def test_metrics_on_several_paths(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    internal, external = CollectorRegistry(), CollectorRegistry()
    Counter("inside", "h", registry=internal).inc()
    Counter("outside", "h", registry=external).inc()
    server = await serve(
        registries={
            "/internal-metrics": internal, "/external-metrics": external, "/metrics": (internal, external),
        }
    )  # fmt: skip
    _, both = await fetch(server.url + "/metrics")
    assert both.index("inside_total 1.0") < both.index("outside_total 1.0")
    _, text = await fetch(server.url + "/external-metrics")
    assert "outside_total" in text and "inside_total" not in text


async def test_a_registry_that_fails_fails_the_scrape(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    class Broken:
        def collect(self) -> None:
            raise OSError("no kernel")

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Broken())  # type: ignore[arg-type]
    server = await serve(registries={"/metrics": registry})
    status, text = await fetch(server.url + "/metrics")
    assert status == 500 and "no kernel" in text


async def test_extra_routes(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    async def events(request: web.Request) -> web.Response:
        return web.Response(text="[]")

    server = await serve(routes=[web.get("/events", events)])
    assert await fetch(server.url + "/events") == (200, "[]")


async def test_taken_address_is_named(serve: Callable[..., Awaitable[HttpServer]]) -> None:
    server = await serve()
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await HttpServer(f"127.0.0.1:{server.port}").start()


async def test_a_listener_of_before_is_used_and_closed() -> None:
    """Connections wait in its queue until the server starts."""
    listener = listen("127.0.0.1:0")
    server = HttpServer("127.0.0.1:0", listener=listener)
    port = listener.getsockname()[1]
    request = asyncio.ensure_future(fetch(f"http://127.0.0.1:{port}/healthz"))
    await server.start()
    assert (server.port, await request) == (port, (200, "ok"))
    await server.stop()
    assert listener.fileno() == -1


async def test_all_addresses_are_both_families() -> None:
    server = HttpServer(":0")
    await server.start()
    try:
        for host in ("127.0.0.1", "[::1]"):
            assert await fetch(f"http://{host}:{server.port}/healthz") == (200, "ok")
    finally:
        await server.stop()


async def test_tls(serve: Callable[..., Awaitable[HttpServer]], tmp_path: Path) -> None:
    cert, key = self_signed_files(tmp_path, "localhost")
    server = await serve(tls=server_tls(cert, key))
    context = ssl.create_default_context(cafile=str(cert))
    assert server.url.startswith("https://")
    assert await fetch(f"https://localhost:{server.port}/healthz", ssl=context) == (200, "ok")
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("text", "pair"),
    [(":9316", (None, 9316)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))],
)
def test_addresses(text: str, pair: tuple[str | None, int]) -> None:
    assert split_address(text) == pair


@pytest.mark.parametrize("text", ["", "9316", "a:b", "::1:80", "h:70000", "h:"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="invalid address"):
        split_address(text)
