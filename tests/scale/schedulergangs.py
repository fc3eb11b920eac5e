"""Gangs placed in process, for the scheduler's benchmark: queue, cycles, Permit and immediate bindings."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.loop import Loop, Reporter
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import SUCCESS, PluginStatus
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.queue import QueueProfile, SchedulingQueue
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import pod
from tests.scale.schedulerprofile import Bench, narrowed, open_bench

PROFILE = "koord-scheduler"
P = "gang.scheduling.koordinator.sh/"


class Taker(Plugin):
    """Binds immediately, and accepts PreBind's writes."""

    name = "Taker"

    async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        return SUCCESS

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
        return SUCCESS


class Counting(Reporter):
    """Number of bound pods."""

    def __init__(self) -> None:
        self.bound = 0

    def scheduled(self, placement: Placement, seconds: float) -> None:
        self.bound += 1


@dataclass(frozen=True)
class Placed:
    """`seconds`: from the first pod's arrival to the last binding; `cpu`: of this process; `turns`: of each gang."""

    bound: int
    seconds: float
    cpu: float
    turns: list[float]


def members(gangs: int, size: int) -> list[Pod]:
    """Pods of all gangs, interleaved, as controllers create them."""
    pods = []
    for member in range(size):
        for gang in range(gangs):
            notes = {P + "name": f"gang-{gang}", P + "min-available": str(size)}
            pods.append(pod(f"gang-{gang}-{member}", cpu="500m", memory="512Mi", annotations=notes))
    return pods


async def place(nodes: int, gangs: int, size: int, rng: random.Random) -> Placed:
    bench = open_bench(nodes, rng)
    loop, plugin, counting = _with_gangs(bench)
    pods = members(gangs, size)
    turns: list[float] = []
    begun, cpu = time.perf_counter(), time.process_time()
    for member in pods:
        loop.queue.add(bench.cluster.info(member))
        plugin.events.pod_added(member)
    while run := loop.queue.pop_run(64):
        for info in run:
            at = time.perf_counter()
            loop.work([info])
            turns.append(time.perf_counter() - at)
            await asyncio.sleep(0)
    while len(loop.binders[PROFILE]):  # noqa: ASYNC110 (a poll with a pause would be measured)
        await asyncio.sleep(0)
    return Placed(counting.bound, time.perf_counter() - begun, time.process_time() - cpu, turns)


def _with_gangs(bench: Bench) -> tuple[Loop, Coscheduling, Counting]:
    """The benchmark's profile, with Coscheduling in its place of the shipped profile."""
    handle, old = bench.cluster.handle, bench.cycle
    gang = Coscheduling.name
    registry: dict[str, Any] = {**PLUGINS, Taker.name: Taker}
    points = narrowed(dict.fromkeys(("preFilter", "filter", "preScore", "score", "reserve", "permit"), bench.plugins))
    for point in ("preEnqueue", "preFilter", "postFilter", "preScore", "score", "reserve", "permit", "preBind"):
        points[point] = [*points.get(point, ()), gang]
    points |= {"queueSort": ["PrioritySort"], "bind": ["Taker"], "postBind": [gang]}
    points["preBind"] = [*points["preBind"], "Taker"]
    framework = Framework(handle, points, registry, args={gang: CoschedulingArgs()}, weights=bench.weights)
    plugin = framework.plugins[gang]
    assert isinstance(plugin, Coscheduling)
    assert framework.sort is not None
    profile = QueueProfile.of(framework.sort, framework.pre_enqueue, framework.plugins.values())
    queue = SchedulingQueue({PROFILE: profile}, time.monotonic)
    counting = Counting()
    loop = Loop({PROFILE: Cycle(framework, old.cache, old.waiting, queue=queue)}, old.cache, queue, reporter=counting)
    return loop, plugin, counting
