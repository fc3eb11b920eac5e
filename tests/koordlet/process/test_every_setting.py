"""The cross-check: pods of every class and level under a real koordlet, every writable file of every cgroup compared
with a table that is computed independently (`expected.py`); then feature after feature is switched off, and koordlet
stopped, until everything is what the kubelet had set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.koordlet.process.classes import ALL, OWN, every_class
from tests.koordlet.process.expected import Memory, Policy, documents, expected, unseen
from tests.koordlet.process.fleet import Fleet, differences, walk
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

CPUS = len(ALL)
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
        "ls": Memory(minimum=20, low=10, throttling=80, priority=6),
        "be": Memory(throttling=60, oom_group=1),
        "system": Memory(low=30),
    },
    pools=str(ALL),
)
FIRST, LAST = min(ALL), max(ALL)


@dataclass(frozen=True)
class Step:
    """`reserved`: the node keeps its first CPU. `pinned`: the LSR pod got the last one from the scheduler."""

    name: str
    policy: Policy
    reserved: bool = False
    pinned: bool = False


STEPS = (
    Step("everything", FULL),
    Step("reserved-cpu", replace(FULL, pools=str(ALL - {FIRST}), free_cpus=str(ALL - {FIRST})), reserved=True),
    Step("pinned-pod", replace(FULL, pools=str(ALL - {LAST})), pinned=True),
    Step("no-memory-qos", replace(FULL, memory={})),
    Step("no-burst", replace(FULL, memory={}, burst=False)),
    Step("no-identities", replace(FULL, memory={}, burst=False, idle=False)),
    Step("no-suppression", replace(FULL, memory={}, burst=False, idle=False, quota_percent=None)),
    Step("everything-again", FULL),
)


class Play:
    """One koordlet that goes through the steps; each may come alone."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tree = scene, scene.fleet.tree
        self.before = walk(self.tree)
        self.touched: set[str] = set()
        """Files that the table changed anywhere."""

    def reach(self, step: Step) -> list[str]:
        """What differs from the step's table once nothing does, or after many rounds."""
        scene = self.scene
        if scene.koordlet is None:
            scene.start()
        reservation = json.dumps({"reservedCPUs": str(FIRST)}) if step.reserved else None
        scene.annotate({"node.koordinator.sh/reservation": reservation})
        scene.fleet.annotate("lsr-guaranteed", OWN if step.pinned else {})
        scene.publish()
        scene.ask(documents(step.policy))
        expected_settings = expected(self.before, scene.fleet, step.policy)
        self.touched |= {place[1] for place, text in expected_settings.items() if text != self.before[place]}
        last = None
        while True:
            left = differences(expected_settings, walk(self.tree), unseen(scene.fleet, step.policy))
            runs = scene.runs("qos")
            if last is None and scene.decides():
                last = runs + ROUNDS
            if not left or (last is not None and runs > last):
                return left
            time.sleep(0.2)


@pytest.fixture(scope="module")
def play(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    pods = Fleet(trees())
    pods.add(*every_class())
    scene = Scene(pods, views(pods.tree), tmp_path_factory.mktemp("cluster"))
    try:
        scene.open(documents(FULL), cpus=CPUS, memory_mib=MEMORY_MIB)
        yield Play(scene)
    finally:
        scene.close()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_file_of_every_group_has_the_value_of_the_table(play: Play, step: Step) -> None:
    left = play.reach(step)
    assert not left, "\n".join(left)


def test_the_table_has_all_that_this_kernel_offers(play: Play) -> None:
    """Nothing passes for want of a difference."""
    play.reach(STEPS[0])
    v1 = {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "memory.limit_in_bytes"}
    v2 = {"cpu.weight", "cpu.max", "cpu.max.burst", "memory.max", "cpuset.cpus"}
    v2 |= {"memory.min", "memory.low", "memory.high", "memory.oom.group"}
    assert play.touched >= {"cpu.idle"} | (v2 if play.tree.v2 else v1)


def test_a_stop_leaves_what_the_kubelet_had_set(play: Play) -> None:
    play.reach(STEPS[0])
    assert play.scene.stop() == 0
    left = differences(play.before, walk(play.tree))
    assert not left, "\n".join(left)
