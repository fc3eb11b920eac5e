"""Clients of the proxy's page that are silent or slow."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from runtimeproxy import page
from runtimeproxy.page import MetricsPage

PATIENCE_S = 60.0


async def healthy() -> str | None:
    return None


async def test_silent_clients_do_not_keep_probes_out() -> None:
    served = MetricsPage("127.0.0.1", 0, CollectorRegistry(), healthy)
    await served.start()
    silent = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(page._MAX_CONNECTIONS + 1):
                silent.append(await asyncio.open_connection("127.0.0.1", served.port))
            assert await silent[0][0].read() == b"", "the oldest made room"
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.readline()).endswith(b"200 OK\r\n")
            writer.close()
            assert len(served._open) <= page._MAX_CONNECTIONS
    finally:
        for _, each in silent:
            each.close()
        await served.stop()
