"""The cross-check: pods of every class and level under a real koordlet, every writable file of every cgroup compared
with a table that is computed independently (`expected.py`); then feature after feature is switched off, and koordlet
stopped, until everything is what the kubelet had set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from koordlet.system.cpuset import CPUSet
from koordlet.system.naming import KubeQOS

from .expected import Memory, Policy, documents, expected, unseen
from .fleet import Fleet, Need, PodSpec, State, differences, walk
from .scene import Scene

pytestmark = pytest.mark.kernel

CPUS = len(os.sched_getaffinity(0))
MEMORY_MIB = 4096
ROUNDS = 15
"""Of koordlet, until which a step must be reached: NodeSLO comes by a watch, refusals are tried again after five."""
FULL = Policy(
    cpus=CPUS,
    memory_mib=MEMORY_MIB,
    quota_percent=65,
    idle=True,
    burst=True,
    memory={
        "lsr": Memory(minimum=50, low=80),
        "ls": Memory(minimum=20, low=10, throttling=80),
        "be": Memory(throttling=60, oom_group=1),
        "system": Memory(low=30),
    },
    pools=str(CPUSet(os.sched_getaffinity(0))),
)
ALL = CPUSet(os.sched_getaffinity(0))
FIRST, LAST = min(ALL), max(ALL)
OWN = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": str(LAST)})}


@dataclass(frozen=True)
class Step:
    """`reserved`: the node keeps its first CPU. `pinned`: the LSR pod got the last one from the scheduler."""

    name: str
    policy: Policy
    reserved: bool = False
    pinned: bool = False


STEPS = (
    Step("everything", FULL),
    Step("a reserved CPU", replace(FULL, pools=str(ALL - {FIRST}), free_cpus=str(ALL - {FIRST})), reserved=True),
    Step("a pinned pod", replace(FULL, pools=str(ALL - {LAST})), pinned=True),
    Step("no memory QoS", replace(FULL, memory={})),
    Step("no burst", replace(FULL, memory={}, burst=False)),
    Step("no identities", replace(FULL, memory={}, burst=False, idle=False)),
    Step("no suppression", replace(FULL, memory={}, burst=False, idle=False, quota_percent=None)),
    Step("everything again", FULL),
)
BATCH = Need(batch_cpu=(200, 300), batch_memory=(64, 128))
ASKING = {
    KubeQOS.GUARANTEED: Need(cpu=(500, 500), memory=(128, 128)),
    KubeQOS.BURSTABLE: Need(cpu=(250, 750), memory=(64, 192)),
    KubeQOS.BESTEFFORT: Need(),
}


def annotated(**annotations: Any) -> dict[str, str]:
    return {f"koordinator.sh/{key}": json.dumps(value) for key, value in annotations.items()}


def fleet() -> Iterator[PodSpec]:
    """Every class at every level, and the odd ones."""
    for kube, need in ASKING.items():
        for qos in ("LSE", "LSR", "LS", "BE", "SYSTEM", ""):
            yield PodSpec(f"{qos.lower() or 'none'}-{kube.value.lower()}", kube, qos, (need,))
    burstable, best_effort, need = KubeQOS.BURSTABLE, KubeQOS.BESTEFFORT, ASKING[KubeQOS.BURSTABLE]
    yield PodSpec("batch", best_effort, "BE", (BATCH, replace(BATCH, batch_cpu=(500, 1000))))
    yield PodSpec("batch-half-limited", best_effort, "BE", (BATCH, Need(batch_cpu=(100, None))))
    yield PodSpec("batch-elsewhere", burstable, "BE", (replace(BATCH, memory=(16, None)),))
    yield PodSpec("two", burstable, "LS", (need, replace(need, cpu=(100, None))))
    yield PodSpec("steps-back", burstable, "LS", (need,), annotated(cpuQOS={"enable": True, "groupIdentity": -1}))
    yield PodSpec("no-burst", burstable, "LS", (need,), annotated(cpuBurst={"policy": "none"}))
    yield PodSpec("small-burst", burstable, "LS", (need,), annotated(cpuBurst={"cpuBurstPercent": 50}))
    yield PodSpec("unprotected", burstable, "LS", (need,), annotated(memoryQOS={"policy": "none"}))
    yield PodSpec("automatic", burstable, "LS", (need,), annotated(memoryQOS={"policy": "auto"}))
    yield PodSpec("own-memory", burstable, "LS", (need,), annotated(memoryQOS={"minLimitPercent": 100}))


@pytest.fixture(scope="module")
def scene(tools: Any, trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tree = trees()
    pods = Fleet(tree)
    pods.add(*fleet())
    made = Scene(tools, pods, views(tree), tmp_path_factory.mktemp("cluster"))
    try:
        made.open(documents(FULL), cpus=CPUS, memory_mib=MEMORY_MIB)
        yield made
    finally:
        made.close()


@dataclass
class History:
    """Step -> what differed from the table at last; `touched`: files that the table changes anywhere."""

    left: dict[str, list[str]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def history(scene: Scene) -> History:
    """All steps, one after the other."""
    tree, found = scene.fleet.tree, History()
    before = walk(tree)
    files = {file for _, file in before}
    scene.start()
    for step in STEPS:
        reservation = json.dumps({"reservedCPUs": str(FIRST)}) if step.reserved else None
        scene.annotate({"node.koordinator.sh/reservation": reservation})
        scene.fleet.annotate("lsr-guaranteed", OWN if step.pinned else {})
        scene.publish()
        scene.ask(documents(step.policy))
        found.left[step.name] = _reach(scene, before, step.policy, files)
        wanted = expected(before, scene.fleet, step.policy, files)
        found.touched |= {file for place, file in wanted if wanted[place, file] != before[place, file]}
    assert scene.stop() == 0
    found.left["stopped"] = differences(before, walk(tree))
    return found


def _reach(scene: Scene, before: State, policy: Policy, files: set[str]) -> list[str]:
    """What differs once nothing does, or after many rounds."""
    last = None
    while True:
        left = _compare(scene, before, policy, files)
        runs = scene.runs("qos")
        if runs and last is None and scene.decides():
            last = runs + ROUNDS
        if not left or (last is not None and runs > last):
            return left
        time.sleep(0.2)


def _compare(scene: Scene, before: State, policy: Policy, files: set[str]) -> list[str]:
    wanted = expected(before, scene.fleet, policy, files)
    return differences(wanted, walk(scene.fleet.tree), unseen(scene.fleet, policy))


@pytest.mark.parametrize("step", [*(step.name for step in STEPS), "stopped"])
def test_every_file_of_every_group_is_as_the_table_says(history: History, step: str) -> None:
    assert not history.left[step], "\n".join(history.left[step])


def test_the_table_has_all_that_this_kernel_offers(history: History, scene: Scene) -> None:
    """Nothing passes for want of a difference."""
    both = {"cpu.idle", "cpuset.cpus"}
    v1 = {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "memory.limit_in_bytes"}
    v2 = {"cpu.weight", "cpu.max", "cpu.max.burst", "memory.max"}
    v2 |= {"memory.min", "memory.low", "memory.high", "memory.oom.group"}
    assert history.touched == both | (v2 if scene.fleet.tree.v2 else v1)
