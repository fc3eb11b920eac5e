"""The pages of a descheduler that does not lead: it is healthy, and its pages are served (spec 07 §1.2)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from control.descheduler.process.options import DeschedulerOptions
from control.descheduler.process.process import Descheduler
from koordlet.app.flags import read
from koordlet.kube import ClientConfig
from tests.ports import free_port

Follower = Callable[..., Awaitable[Descheduler]]


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Follower]:
    """`await follower(enableProfiling=False)`: one without an API server; it never leads."""
    async with AsyncExitStack() as stack:
        stack.callback(logging.getLogger().setLevel, logging.getLogger().level)

        async def start(*flags: str, **fields: Any) -> Descheduler:
            path = tmp_path / "config.yaml"
            kind = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
            path.write_text(yaml.safe_dump({**kind, **fields}))
            options = read(DeschedulerOptions, [f"--config={path}", "--secure-port=0", *flags])
            process = Descheduler(options, config=ClientConfig(server=f"http://127.0.0.1:{free_port()}"))
            task = asyncio.create_task(process.run())

            async def stop() -> None:
                process.runner.stop()
                assert await task == 0

            stack.push_async_callback(stop)
            return process

        yield start


async def asked(port: int, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
    """The answer, as soon as the port is served."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                async with session.request(method, f"http://127.0.0.1:{port}{path}", data=body) as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)


async def test_health_and_metrics_may_have_addresses_of_their_own(follower: Follower) -> None:
    health, metrics = free_port(), free_port()
    process = await follower(healthzBindAddress=f"127.0.0.1:{health}", metricsBindAddress=f":{metrics}")
    assert await asked(health, "/healthz") == await asked(metrics, "/healthz") == (200, "ok")
    assert not process.leading
    assert "descheduler_loop_duration_seconds_count 0.0" in (await asked(metrics, "/metrics"))[1]
    document = json.loads((await asked(health, "/configz"))[1])["componentconfig"]
    assert (document["healthzBindAddress"], document["metricsBindAddress"]) == (
        f"127.0.0.1:{health}",
        f"0.0.0.0:{metrics}",
    )
    # the address of all interfaces has no page that shows or changes settings without authorization
    assert [(await asked(metrics, path))[0] for path in ("/configz", "/debug/flags")] == [404, 404]
    assert (await asked(metrics, "/metrics", "DELETE"))[0] == 405


@pytest.mark.parametrize(("profiling", "status"), [(True, 200), (False, 404)])
async def test_switches_are_served_with_profiling_only(follower: Follower, profiling: bool, status: int) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    process = await follower(enableProfiling=profiling, healthzBindAddress=address, metricsBindAddress=address)
    assert (await asked(port, "/debug/flags/v", "PUT", "2"))[0] == status
    process.metrics.planned.labels("LowNodeLoad", "p").inc()
    sample = 'descheduler_dry_run_evictions_total{profile="p",strategy="LowNodeLoad"} '
    assert f"{sample}1.0" in (await asked(port, "/metrics"))[1]
    assert await asked(port, "/metrics", "DELETE") == (200, "metrics reset\n")
    assert f"{sample}0.0" in (await asked(port, "/metrics"))[1]
