"""What answers in place of koordlet or the scheduler is hostile: its pages are bounded, redirects are not followed."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from control.ctl.errors import CtlError
from control.ctl.views import bounded
from control.ctl.views.koordletclient import fetch_top
from control.ctl.views.output import formatted
from control.ctl.views.schedulerclient import fetch_page

CONTROLS = "a\x9b31mb\x7f\u202ec"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A server whose /top is a bomb of 64 MiB in 64 KiB, and whose /moved leads to it."""
    bomb = gzip.compress(b"\0" * (64 << 20))

    async def top(_: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    async def moved(_: web.Request) -> web.Response:
        raise web.HTTPFound("/top")

    app = web.Application()
    app.router.add_get("/top", top)
    app.router.add_get("/moved", moved)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_a_compressed_bomb_is_not_read_to_its_end(url: str) -> None:
    with pytest.raises(CtlError, match="more than 32 MiB"):
        await fetch_top(url)
    with pytest.raises(CtlError, match="more than 32 MiB"):
        await fetch_page(url, "/top", dict[str, str])


async def test_redirects_are_not_followed(url: str) -> None:
    with pytest.raises(CtlError, match="HTTP 302"):
        await fetch_page(url, "/moved", dict[str, str])


async def test_a_page_within_the_limit_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_BODY_BYTES", 128 << 20)
    with pytest.raises(CtlError, match="is it a koordlet"):
        await fetch_top(url)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_control_characters_are_escaped_in_data(output: str) -> None:
    text = formatted({"name": CONTROLS}, output)
    assert not set(text) & {"\x9b", "\x7f", "\u202e"}
    assert "\\" in text
