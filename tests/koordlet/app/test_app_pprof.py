"""Profiles: what they show, and that a process goes on without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from koordlet.app.pprof import ProfileServer


@pytest.fixture
async def profiles() -> AsyncIterator[ProfileServer]:
    server = ProfileServer("127.0.0.1:0")
    await server.start()
    yield server
    await server.stop()


async def page(profiles: ProfileServer, name: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{profiles.server.port}/debug/pprof/{name}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_pages(profiles: ProfileServer) -> None:
    waiting = asyncio.create_task(asyncio.sleep(600), name="a-task-that-waits")
    try:
        assert "profile" in (await page(profiles, ""))[1]
        assert "a-task-that-waits" in (await page(profiles, "goroutine"))[1]
        assert "builtins.dict" in (await page(profiles, "heap"))[1]
        assert "function calls" in (await page(profiles, "profile?seconds=0.05"))[1]
        assert (await page(profiles, "profile?seconds=x"))[0] == 400
    finally:
        waiting.cancel()


async def test_the_process_runs_without_profiles_if_the_address_is_in_use(
    profiles: ProfileServer, caplog: pytest.LogCaptureFixture
) -> None:
    second = ProfileServer(f"127.0.0.1:{profiles.server.port}")
    await second.start()
    assert "Profiles are not served" in caplog.text
    await second.stop()
    assert (await page(profiles, ""))[0] == 200
