"""Two replicas: the leader is killed while gangs wait at Permit and are being bound; the other takes over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.config.shipped import SCHEDULER, configuration
from koordlet.api.core import Lease
from koordlet.api.names import KOORDINATOR_NAMESPACE
from tests.waiting import until

ROOT = Path(__file__).parents[4]
P = "gang.scheduling.koordinator.sh/"
GANGS, SIZE, SINGLES = 8, 4, 8


async def started(world: Any, name: str) -> asyncio.subprocess.Process:
    path = world.tmp / "config.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", f"--config={path}", f"--kubeconfig={world.server.kubeconfig_path}",
        "--port=0", "--secure-port=0", "--kube-api-qps=15", "--kube-api-burst=5", "--leader-elect-lease-duration=9s",
        "--leader-elect-renew-deadline=7s", "--leader-elect-retry-period=200ms",
        cwd=ROOT, env={**os.environ, "HOME": "/nonexistent", "POD_NAME": name},
    )  # fmt: skip


async def test_no_pod_is_lost_or_bound_twice_and_no_gang_stays_in_part(world: Any) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name, cpu="14")
    for number in range(SIZE):  # interleaved: turns begin while members of others still come
        for gang in range(GANGS):
            notes = {P + "name": f"g{gang}", P + "min-available": str(SIZE)}
            await world.pod(f"g{gang}-{number}", annotations=notes)
    for number in range(SINGLES):
        await world.pod(f"single-{number}")

    async def leader() -> str:
        lease = await world.admin.list(Lease, KOORDINATOR_NAMESPACE)
        current = next((held_lease for held_lease in lease if held_lease.metadata.name == SCHEDULER), None)
        return (current.spec.holder_identity or "").partition("_")[0] if current is not None else ""

    async def several(least: int) -> bool:
        return sum(map(bool, (await world.placed()).values())) >= least

    total = GANGS * SIZE + SINGLES
    replicas = {name: await started(world, name) for name in ("first", "second")}
    try:
        await until(lambda: several(3))
        lost = replicas.pop(await leader())
        lost.send_signal(signal.SIGKILL)
        await lost.wait()
        assert not await several(total), "everything was bound before the leader was killed"
        await until(lambda: several(total))
        assert await leader() in replicas
    finally:
        for process in replicas.values():
            process.send_signal(signal.SIGTERM)
        ends = [await process.wait() for process in replicas.values()]
    assert ends == [0]
    placed = await world.placed()
    assert max(Counter(placed.values()).values()) <= 14
    bound = Counter(
        line["objectRef"]["name"]
        for line in map(json.loads, world.audit.read_text().splitlines())
        if line["objectRef"].get("subresource") == "binding" and line["responseStatus"]["code"] == 201
    )
    assert bound == dict.fromkeys(placed, 1)
