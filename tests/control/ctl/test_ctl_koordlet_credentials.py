"""koordctl at a koordlet that authorizes its callers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from control.ctl.views.koordletclient import KoordletUnreachable, credentials, fetch_top
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.top import Top
from koordlet.app.http import HttpServer
from koordlet.app.selfsigned import self_signed
from koordlet.app.servertls import server_context


@pytest.fixture
async def protected(tmp_path: Path) -> AsyncIterator[HttpServer]:
    """Serves /top to the token `good`; its certificate is also in tmp_path."""
    pem = tmp_path / "server.pem"
    pem.write_bytes(self_signed(("127.0.0.1",)))

    async def top(request: web.Request) -> web.Response:
        status = {"Bearer good": 200, "Bearer other": 403}.get(request.headers.get("Authorization", ""), 401)
        return web.Response(status=status, body=encode(Top(node="n1")))

    server = HttpServer("127.0.0.1:0", routes=[web.get("/top", top)], tls=server_context(pem, pem))
    await server.start()
    yield server
    await server.stop()


async def test_a_verified_server_gets_the_token(
    protected: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOORDLET_TOKEN", "good")
    with pytest.raises(KoordletUnreachable, match=r"certificate|does not respond"):
        await fetch_top(protected.url)
    monkeypatch.setenv("KOORDLET_CA_FILE", str(tmp_path / "server.pem"))
    assert (await fetch_top(protected.url)).node == "n1"
    monkeypatch.delenv("KOORDLET_CA_FILE")
    monkeypatch.setenv("KOORDLET_INSECURE_TLS", "true")
    assert (await fetch_top(protected.url)).node == "n1"


@pytest.mark.parametrize("token", ["", "other"])
async def test_a_refusal_names_the_remedy(protected: HttpServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORDLET_TOKEN", token)
    monkeypatch.setenv("KOORDLET_INSECURE_TLS", "true")
    with pytest.raises(KoordletUnreachable, match="refuses the request") as caught:
        await fetch_top(protected.url)
    assert "koordinator-view-pages" in caught.value.hint


def test_plain_http_gets_no_token() -> None:
    assert credentials("http://n:1/top", {"KOORDLET_TOKEN": "secret"}) == ({}, True)
    assert credentials("https://n:1/top", {"KOORDLET_TOKEN": "secret"}) == ({"Authorization": "Bearer secret"}, True)


def test_an_unusable_authority_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("x")
    with pytest.raises(KoordletUnreachable, match="KOORDLET_CA_FILE"):
        credentials("https://n:1/top", {"KOORDLET_CA_FILE": str(tmp_path / "ca")})
    assert issubclass(ssl.SSLError, OSError)
