"""LowNodeLoad alone and together with InterferenceAware in a simulated cluster: delayed services, hot nodes, moves.

A few pods are noisy: they load a resource that their CPU usage does not show, such as memory bandwidth. A part of the
prod pods is sensitive to that. A sensitive pod loses P / (1 + P) of its time to noisy pods with the total pressure P on
its node; koordlet reports it as delayed from LOST_LIMIT on. The scheduler avoids nodes with delayed services, and knows
neither noisy nor sensitive pods.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.interferenceaware.plugin import InterferenceMoves
from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.delays import Delay
from koordlet.api.core import Pod
from tests.scale.figures import Figure
from tests.scale.simulatedcluster import SimulatedCluster, cluster

HIGH_PERCENT = 65
NOISY_SHARE, SENSITIVE_SHARE = 0.02, 0.15
LOST_LIMIT = 0.2
PERIOD_S = 120.0
PASSES = 120
"""Four hours."""
LOAD_ARGS: dict[str, Any] = {
    "lowThresholds": {"cpu": 45, "memory": 55},
    "highThresholds": {"cpu": HIGH_PERCENT, "memory": 80},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
}
MOVE_ARGS: dict[str, Any] = {"maxMovesPerPass": 5}


class NoEvents:
    """Takes the place of an EventRecorder."""

    def warning(self, about: Pod, reason: str, message: str) -> None:
        """Events are not measured."""


@dataclass
class Interference:
    """The noisy and the sensitive pods of a cluster."""

    simulated: SimulatedCluster
    pressure: dict[str, float] = field(default_factory=dict)
    sensitive: set[str] = field(default_factory=set)

    def choose(self) -> None:
        rng = self.simulated.rng
        for key, record in self.simulated.world.state.pods.items():
            if rng.random() < NOISY_SHARE:
                self.pressure[key] = rng.uniform(0.3, 1.5)
            elif record.pod.spec.priority_class_name == "koord-prod" and rng.random() < SENSITIVE_SHARE:
                self.sensitive.add(key)

    def report(self) -> set[str]:
        """Every node reports its delays now; returns the nodes with delayed services."""
        troubled = set()
        for node in self.simulated.world.state.nodes.values():
            load = node.load
            assert load is not None
            load.updated = self.simulated.world.clock.now()
            load.delays = self.delays(node)
            if load.delays:
                troubled.add(node.name)
        return troubled

    def delays(self, node: NodeRecord) -> list[Delay]:
        """Of the sensitive pods, caused by all noisy ones."""
        keys = [pod.key for pod in node.pods.values()]
        noisy = {key: self.pressure[key] for key in keys if key in self.pressure}
        total = sum(noisy.values())
        lost = total / (1 + total)
        if lost < LOST_LIMIT:
            return []
        culprit = max(noisy, key=lambda key: (noisy[key], key))
        share = noisy[culprit] / total
        services = [key for key in keys if key in self.sensitive]
        return [Delay(key, "main", "cpu", culprit, share, lost, 0.9) for key in services]

    def delayed(self) -> int:
        return sum(len(self.delays(node)) for node in self.simulated.world.state.nodes.values())


@dataclass(frozen=True)
class Outcome:
    """After four hours."""

    delayed_before: int
    delayed: int
    hot: int
    deviation: float
    moves: Counter[str]
    """by pod"""
    returned: int
    """Moves of a pod to a node that it had left."""


def play(nodes: int, seed: int, *, interference: bool) -> Outcome:
    simulated = cluster(nodes, 20 * nodes, seed)
    world = simulated.world
    world.events = NoEvents()
    trouble = Interference(simulated)
    trouble.choose()
    plugins: list[BalancePlugin] = [world.plugin(LowNodeLoad, LOAD_ARGS)]
    if interference:
        plugins.append(world.plugin(InterferenceMoves, MOVE_ARGS))
    before, moves = trouble.delayed(), Counter[str]()
    left: dict[str, set[str]] = defaultdict(set)
    returned = 0
    for _ in range(PASSES):
        troubled = trouble.report()
        evicted_before = len(world.evictor.evicted)
        world.limiter.reset()
        for plugin in plugins:
            asyncio.run(plugin.balance(world.state.ready_nodes()))
        evicted = world.evictor.evicted[evicted_before:]
        moves.update(record.key for record, _ in evicted)
        for record, _ in evicted:
            left[record.key].add(record.node)
        simulated.move(evicted, troubled if interference else ())
        returned += sum(world.state.pods[record.key].node in left[record.key] for record, _ in evicted)
        asyncio.run(world.clock.advance(PERIOD_S))
    loads = simulated.loads()
    hot = sum(load > HIGH_PERCENT for load in loads)
    return Outcome(before, trouble.delayed(), hot, statistics.pstdev(loads), moves, returned)


def compared(nodes: int, seed: int) -> list[Figure]:
    alone, both = play(nodes, seed, interference=False), play(nodes, seed, interference=True)
    return [
        Figure("services_delayed_before", alone.delayed_before, "pods"),
        Figure("services_delayed_lownodeload", alone.delayed, "pods"),
        Figure("services_delayed_both", both.delayed, "pods", alone.delayed / 2),
        Figure("hot_nodes_lownodeload", alone.hot, "nodes", 0),
        Figure("hot_nodes_both", both.hot, "nodes", 0),
        Figure("load_deviation_lownodeload", alone.deviation, "percent"),
        Figure("load_deviation_both", both.deviation, "percent"),
        Figure("moves_lownodeload", alone.moves.total(), "pods"),
        Figure("moves_both", both.moves.total(), "pods"),
        Figure("most_moves_of_a_pod_both", max(both.moves.values(), default=0), "moves", 4),
        Figure("moves_back_both", both.returned, "moves", 0),
    ]
