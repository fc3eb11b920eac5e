"""Admission and scheduling by one tree under load: manager and scheduler as processes (spec 06 §5, spec 04 §17).

QUOTA_LOAD=large: 50 namespaces, 1,000 quotas, 20,000 pods; four to ten minutes on two idle cores. QUOTA_PODS: another
number of pods.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordlet.api import names
from tests import waiting
from tests.control.quota.quotacluster import LARGE, SMALL, quota_cluster

IS_LARGE = os.environ.get("QUOTA_LOAD") == "large"
PART = 1000
"""Pods between two lines of output."""
WAIT_S = 1200.0 if IS_LARGE else 120.0


async def until(check: Any) -> Any:
    """The API server runs in this process: a check that takes long must not take all of its time."""

    async def slower() -> Any:
        begun = time.monotonic()
        result = await check()
        if not result:
            await asyncio.sleep(4 * (time.monotonic() - begun))
        return result

    return await waiting.until(slower, WAIT_S)


@pytest.mark.timeout(3 * 3600 if IS_LARGE else 600)
async def test_no_pod_is_admitted_that_the_tree_forbids_and_none_waits_that_it_admits(tmp_path: Path) -> None:
    size = LARGE if IS_LARGE else SMALL
    size = replace(size, pods=int(os.environ.get("QUOTA_PODS", size.pods)))
    async with quota_cluster(tmp_path, size, seed=7) as world:
        begun = time.monotonic()

        def note(text: str) -> None:
            print(f"{time.monotonic() - begun:7.1f} s  {text}")

        await world.start_manager(until)
        await world.plant()
        await world.start_scheduler()
        await until(lambda: world.submit("first", world.leaves[-1], dry_run=True))
        for leaf in world.leaves:
            await until(partial(world.knows, leaf))
        note(f"{len(world.quotas)} quotas, {world.cores} cores")

        # A burst of pods in random order: each leaf gets exactly what its max allows.
        each = size.pods // size.leaves
        burst = [(f"p{at}", quota) for quota in world.leaves for at in range(each)]
        world.rng.shuffle(burst)
        for first in range(0, len(burst), PART):
            await world.each(world.submit(f"{quota}-{name}", quota) for name, quota in burst[first : first + PART])
            note(f"submitted {min(first + PART, len(burst))} pods")
        allowed = world.quotas[world.leaves[0]].max["cpu"] // 1000
        exceeding = {world.refused[quota] for quota in world.leaves}
        assert min(exceeding) >= each - allowed
        assert world.timeouts or exceeding == {each - allowed}
        expected = await until(world.settled)
        assert not expected.exceeded()
        running = [pod for pod in await world.pods() if pod.spec.node_name]
        waiting = len(expected.pods) - len(running)
        note(f"{len(running)} pods run, {waiting} wait, {world.timeouts} timeouts")
        assert len(running) <= world.cores
        assert waiting > 0, "the test must be about scarcity"

        # Pods end: waiting ones get their room, and admission gets their share of child-request.
        gone = world.rng.sample(running, len(running) * 2 // 5)
        await world.each(world.delete(pod) for pod in gone)
        note(f"deleted {len(gone)} pods")
        assert not (await until(world.settled)).exceeded()
        note("settled")
        await until(lambda: _agree(world))
        note("child-request is exact")
        refused = world.refused.total()
        await world.each(
            world.submit(f"again-{pod.metadata.name}", pod.metadata.labels[names.LABEL_QUOTA_NAME]) for pod in gone
        )
        assert world.refused.total() == refused, "what was deleted may be submitted again"
        note(f"submitted {len(gone)} pods again")
        assert not await world.submit("too-many", world.leaves[0])
        assert not (await until(world.settled)).exceeded()

        # Without waiting pods child-request is what runs.
        await world.each([world.delete(pod) for pod in await world.pods() if not pod.spec.node_name])
        await until(lambda: _agree(world))
        expected = await world.expected()
        assert all(pod.assigned for pod in expected.pods)
        assert all(expected.own(name, "cpu", assigned=False) == expected.used(name, "cpu") for name in world.leaves)
        note("child-request is what runs")


async def _agree(world: Any) -> bool:
    return not await world.wrong()
