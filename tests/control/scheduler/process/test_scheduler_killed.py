"""The next scheduler sees everything that a killed one left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.config.shipped import configuration
from tests.waiting import until

ROOT = Path(__file__).parents[4]


async def started(world: Any) -> asyncio.subprocess.Process:
    path = world.tmp / "config.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", f"--config={path}", f"--kubeconfig={world.server.kubeconfig_path}",
        "--port=0", "--secure-port=0", "--kube-api-qps=10", "--kube-api-burst=5", "--leader-elect-lease-duration=8s",
        "--leader-elect-renew-deadline=7s", "--leader-elect-retry-period=200ms",
        cwd=ROOT, env={**os.environ, "HOME": "/nonexistent"},
    )  # fmt: skip


async def test_the_next_one_goes_on_and_no_node_is_overcommitted(world: Any) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name, cpu="10")
    for number in range(36):
        await world.pod(f"p{number:02d}")

    async def several(least: int) -> list[str] | None:
        nodes = [node for node in (await world.placed()).values() if node]
        return nodes if len(nodes) >= least else None

    first = await started(world)
    try:
        await until(lambda: several(3))
    finally:
        first.send_signal(signal.SIGKILL)
        await first.wait()
    assert len(await several(3) or ()) < 30
    second = await started(world)
    try:
        await until(lambda: several(30))
        counter = Counter(node for node in (await world.placed()).values() if node)
        assert counter == {"n1": 10, "n2": 10, "n3": 10}
        await world.delete_pod(next(name for name, node in (await world.placed()).items() if node))
        await until(lambda: several(30))
    finally:
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
