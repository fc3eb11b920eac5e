"""A scheduler that is killed at random moments while quotas and pods change: the next one rebuilds the same figures.

QUOTA_KILLS: how often it is killed (default 3).
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from control.quota.amounts import from_list
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.quantity import Quantity
from tests import waiting
from tests.control.quota.quotacluster import Expected, QuotaCluster, Size, quota_cluster

SIZE = Size(2, (2, 4, 8), 48)
KILLS = int(os.environ.get("QUOTA_KILLS", "3"))
CHANGES = 40
"""Between two kills."""


async def change(world: QuotaCluster, number: int) -> None:
    """A pod more, a pod less, or another max of a leaf."""
    rng, leaf = world.rng, world.rng.choice(world.leaves)
    step = rng.choice(("submit", "submit", "delete", "max"))
    if step == "submit":
        await world.submit(f"c{number}", leaf)
    elif step == "delete":
        pods: list[Pod] = await world.pods()
        if pods:
            await world.delete(rng.choice(pods))
    else:
        high = rng.randint(1, 8)
        body = {"spec": {"max": {"cpu": str(high)}}}
        await world.cluster.admin.patch(ElasticQuota, leaf, world.space(leaf), body=body)


async def read_limits(world: QuotaCluster) -> None:
    """The limits that the API server has now."""
    for quota in await world.cluster.admin.list(ElasticQuota):
        name = quota.metadata.name
        if name in world.quotas:
            known = world.quotas[name]
            world.quotas[name] = type(known)(name, known.parent, known.min, from_list(quota.spec.max), known.weight)


def figures(page: Any) -> Any:
    """Without the number of changes that this process saw."""
    return {
        name: {key: value for key, value in quota.items() if key != "runtimeVersion"} for name, quota in page.items()
    }


def differences(page: Any, expected: Expected) -> list[str]:
    """What the page states otherwise than what follows from the API server's objects."""
    wrong = []
    for name in expected.quotas:
        quota = page.get(name, {})
        stated = {
            key: Quantity(quota.get(key, {}).get("cpu", "0")).milli_value() for key in ("used", "request", "runtime")
        }
        derived = {
            "used": expected.used(name, "cpu"),
            "request": expected.request(name, "cpu"),
            "runtime": expected.runtime(name, "cpu"),
        }
        if stated != derived:
            wrong.append(f"{name}: {stated}, {derived} expected")
    return wrong


async def test_figures_after_kills_follow_from_the_objects_alone(tmp_path: Path) -> None:
    seed = int(os.environ.get("QUOTA_SEED", "3"))
    async with quota_cluster(tmp_path, SIZE, seed) as world:
        moments = random.Random(seed)
        await world.plant()
        number = 0
        for _ in range(KILLS):
            process = await world.start_scheduler()
            await waiting.until(world.page)
            until_kill = moments.randrange(CHANGES)
            for at in range(CHANGES):
                await change(world, number)
                number += 1
                await asyncio.sleep(moments.random() * 0.02)  # anywhere between, and in the middle of, its writes
                if at == until_kill:
                    assert process.returncode is None, world.log("scheduler")
                    process.kill()
                    await process.wait()

        process = await world.start_scheduler()
        await read_limits(world)

        async def agrees() -> bool:
            page, expected = await world.page(), await world.expected()
            return page is not None and not expected.stuck() and not differences(page, expected)

        await waiting.until(agrees)
        before = figures(await world.page())
        process.kill()
        await process.wait()
        await world.start_scheduler()
        after = figures(await waiting.until(world.page))
        assert after == before
        assert any(quota["used"].get("cpu", "0") != "0" for quota in after.values())
