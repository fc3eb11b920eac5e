"""koord-manager's metrics pages: who may read them, and clients that hold connections."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from koordlet.app.connections import ConnectionLimits
from scripts.install import monitoring

PATHS = ("/metrics", "/internal-metrics", "/external-metrics", "/all-metrics")


async def status(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as response:
        return response.status


async def test_metrics_are_for_prometheus_and_health_is_for_all(cluster: Any, manager: Any) -> None:
    await cluster.install(*monitoring.access())
    running = await manager("--page-authorization=delegated")
    pages, health = (running.manager.pages[name].url for name in ("metrics", "probes"))
    assert (pages[:6], health[:5]) == ("https:", "http:")
    reader, other = [await cluster.token(name) for name in (monitoring.METRICS_READER, "default")]
    for path in PATHS:
        assert [await status(pages + path, token) for token in (reader, other, "", "x.y.z")] == [200, 403, 403, 401]
    assert [await status(health + path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 404]


async def test_an_address_of_this_host_needs_no_credentials(cluster: Any, manager: Any) -> None:
    running = await manager()
    assert await status(f"{running.manager.pages['metrics'].url}/all-metrics") == 200


@pytest.mark.parametrize("page", ["metrics", "probes", "pprof"])
async def test_connections_are_limited(cluster: Any, manager: Any, page: str) -> None:
    running = await manager("--enable-pprof")
    guard = running.manager.pages[page]._guard
    assert guard is not None and guard.limits.connections == ConnectionLimits().connections
