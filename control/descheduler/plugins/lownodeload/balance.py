"""One phase of LowNodeLoad: which pods leave the source nodes, and when to stop (spec 07 §6.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from control.descheduler.framework.fit import Amounts, FitTable
from control.descheduler.framework.order import eviction_key, usage_score
from control.descheduler.plugins.lownodeload.args import NodePool
from control.descheduler.plugins.lownodeload.table import LoadTable
from control.descheduler.state.pods import PodRecord
from koordlet.app.loopslice import yield_to_loop


@dataclass(frozen=True)
class Dimension:
    """Node usage, or the usage of prod pods."""

    prod: bool
    usage: Amounts
    high: Amounts

    @classmethod
    def of(cls, table: LoadTable, *, prod: bool) -> Dimension:
        if prod:
            return cls(True, table.prod_usage, table.prod_high)
        return cls(False, table.usage, table.high)

    def over(self, node: int) -> bool:
        """Whether some resource of the node is over its high threshold."""
        return bool((self.usage[:, node] > self.high[:, node]).any())


class TargetSimulation:
    """Places pods on the target nodes without exceeding their high thresholds. A pod that is accepted keeps its place
    for the rest of the phase, whether or not it is evicted."""

    def __init__(self, table: LoadTable, targets: Sequence[int], dimension: Dimension) -> None:
        """`targets`: rows, in the order in which they are tried."""
        rows = list(targets)
        self._fit = FitTable([table.nodes[row] for row in rows])
        self._room = dimension.high[:, rows] - dimension.usage[:, rows]

    def accepts(self, pod: PodRecord, usage: Amounts) -> bool:
        """Take room for the pod on the first node that it fits; False if there is none."""
        mask = self._fit.mask(pod.placement) & (self._room >= usage[:, np.newaxis]).all(axis=0)
        target = int(mask.argmax()) if len(mask) else 0
        if not len(mask) or not mask[target]:
            return False
        self._room[:, target] -= usage
        return True


@dataclass(frozen=True)
class PhaseCalls:
    """What a phase needs from the plugin."""

    eligible: Callable[[PodRecord], bool]
    """Whether the pod may be evicted; called again right before its eviction."""
    evict: Callable[[PodRecord, str], Awaitable[bool]]
    """Evict a pod for a reason; False if that failed."""
    recovered: Callable[[str], object]
    """A node is not over its thresholds any more."""


@dataclass
class BalancePhase:
    """One phase: the sources of one dimension, most used first, and what the targets can take."""

    pool: NodePool
    table: LoadTable
    dimension: Dimension
    targets: Sequence[int]
    budget: Amounts
    """[resource]; decreases with every eviction."""
    node_fit: bool
    calls: PhaseCalls

    async def run(self, sources: Sequence[int]) -> None:
        """Without targets nothing happens."""
        if not self.targets:
            return
        simulation = TargetSimulation(self.table, self.targets, self.dimension) if self.node_fit else None
        for node in sources:
            await self._relieve(node, simulation)

    async def _relieve(self, node: int, simulation: TargetSimulation | None) -> None:
        table, dimension = self.table, self.dimension
        for pod in self.removable(node, simulation):
            if not dimension.over(node):
                self.calls.recovered(table.nodes[node].name)
                return
            if (self.budget <= 0).any():
                return
            await yield_to_loop()
            if not self.calls.eligible(pod) or not await self.calls.evict(pod, self.reason(node)):
                continue
            usage = table.vector(node, pod)
            if usage is None:
                continue
            self.budget -= usage
            table.usage[:, node] -= usage
            if dimension.prod or pod.is_prod:
                table.prod_usage[:, node] -= usage
        if not dimension.over(node):
            self.calls.recovered(table.nodes[node].name)

    def removable(self, node: int, simulation: TargetSimulation | None) -> list[PodRecord]:
        """The pods that may leave the node, in the order of eviction."""
        table = self.table
        pods = [
            pod for pod in table.pods[node] if (pod.is_prod or not self.dimension.prod) and self.calls.eligible(pod)
        ]
        excess = self._excess(node)
        weights = {name: self.pool.weights.get(name, 0) for name in excess}
        metrics = table.loads[node].pods

        def score(pod: PodRecord) -> float | None:
            usage = metrics.get(pod.key)
            return None if usage is None else usage_score(usage, excess, weights)

        pods.sort(key=lambda pod: eviction_key(pod, score(pod)))
        if simulation is None:
            return pods
        removable = []
        for pod in pods:
            usage = table.vector(node, pod)
            if usage is not None and simulation.accepts(pod, usage):
                removable.append(pod)
        return removable

    def _excess(self, node: int) -> dict[str, int]:
        usage, high = self.dimension.usage[:, node], self.dimension.high[:, node]
        return {
            name: int(usage[row] - high[row]) for row, name in enumerate(self.table.resources) if usage[row] > high[row]
        }

    def reason(self, node: int) -> str:
        """Why pods leave the node: the resources over their thresholds, in percent of raw allocatable."""
        table, dimension = self.table, self.dimension
        percentages = table.percentages.prod_high if dimension.prod else table.percentages.high
        kind = "prod" if dimension.prod else "node"
        items = [
            f"{kind} {name} usage({_percent(dimension.usage, table.capacity, row, node)}%)"
            f">threshold({percentages[name]:.2f}%)"
            for row, name in enumerate(table.resources)
            if dimension.usage[row, node] > dimension.high[row, node]
        ]
        return f"node is overutilized, {', '.join(items)}"


def _percent(usage: Amounts, capacity: Amounts, row: int, node: int) -> str:
    full = int(capacity[row, node])
    return f"{100 * int(usage[row, node]) / full:.2f}" if full else "0.00"
