"""A control plane, kube-scheduler and many worlds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from koordlet.app.tasks import end_tasks
from tests.kubernetes.oracle.controlplane import ControlPlane
from tests.kubernetes.oracle.oracle import Oracle, Tally
from tests.kubernetes.oracle.schedulerlog import SchedulerLog
from tests.kubernetes.oracle.worlds import make_world

PATIENT_S = 0.5
"""Settling time when a world that differed is played again."""


async def run_worlds(folder: Path, programs: Path, seeds: Iterable[int]) -> Tally:
    """Play all worlds. A world that differs is played again with more patience, and counts if it differs again."""
    tally = Tally()
    async with ControlPlane(folder, programs) as plane:
        await plane.start_scheduler()
        assert plane.log is not None
        log = SchedulerLog(plane.log)
        following = asyncio.create_task(log.follow())
        try:
            oracle = Oracle(plane, log)
            await oracle.prepare()
            for seed in seeds:
                if await oracle.run(make_world(seed), tally):
                    tally.counts["played again"] += 1
                    tally.differences += await oracle.run(make_world(seed), Tally(), PATIENT_S)
        except BaseException:
            (folder / "kube-scheduler.tail").write_text("\n".join(log.tail))
            raise
        finally:
            await end_tasks(following)
    return tally
