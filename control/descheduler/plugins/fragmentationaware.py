"""FragmentationAware: moves one pod per pass from nodes whose resources are unevenly requested (spec 07 §8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from control.component.errors import duplicate, invalid, required
from control.descheduler.framework.fit import FitTable
from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.selectionargs import SelectionArgs
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.app.loopslice import yield_to_loop


class FragmentationAwareArgs(SelectionArgs):
    """Arguments of FragmentationAware."""

    resources: list[str] = msgspec.field(default_factory=lambda: ["cpu", "memory"])
    imbalance_threshold: float = 0.15
    min_improvement_threshold: float = 0.02

    def check(self, path: str) -> list[str]:
        errors = super().check(path)
        errors += resource_list_errors(self.resources, f"{path}.resources")
        for name, threshold in (
            ("imbalanceThreshold", self.imbalance_threshold),
            ("minImprovementThreshold", self.min_improvement_threshold),
        ):
            if not 0 <= threshold < math.inf:
                errors.append(invalid(f"{path}.{name}", threshold, "must be a number greater than or equal to 0"))
        return errors


def resource_list_errors(resources: Sequence[str], path: str) -> list[str]:
    """The errors of a list of resource names: it must not be empty, and names occur once."""
    errors = [] if resources else [required(path)]
    for index, name in enumerate(resources):
        if name in resources[:index]:
            errors.append(duplicate(f"{path}[{index}]", name))
    return errors


def imbalance(requested: Mapping[str, int], allocatable: Mapping[str, int], resources: Sequence[str]) -> float:
    """Population standard deviation of the requested shares; resources without allocatable do not count."""
    shares = [requested.get(name, 0) / allocatable[name] for name in resources if allocatable.get(name, 0) > 0]
    if len(shares) < 2:
        return 0.0
    mean = sum(shares) / len(shares)
    return math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))


class FragmentationAware(BalancePlugin):
    """See the module text."""

    name = "FragmentationAware"
    args_type = FragmentationAwareArgs
    _args: FragmentationAwareArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args = self._args
        if args.paused:
            return
        selected = args.selected(nodes)
        table = FitTable(selected)
        for row, node in enumerate(selected):
            await yield_to_loop()
            before = imbalance(node.requested, node.allocatable, args.resources)
            if before <= args.imbalance_threshold:
                continue
            best, after = self._best(node, row, before, table)
            if best is None or self._handle.evictor.pre_eviction_filter(best) is not None:
                continue
            reason = f"fragmentation reduction: stdBefore={before:.4f} stdAfter={after:.4f} gain={before - after:.4f}"
            await self._handle.evictor.evict(best, reason, dry_run=args.dry_run)

    def _best(self, node: NodeRecord, row: int, before: float, table: FitTable) -> tuple[PodRecord | None, float]:
        """The pod whose removal leaves the lowest imbalance, and that imbalance; of equal pods the first."""
        args = self._args
        best: PodRecord | None = None
        lowest = before
        for pod in node.active_pods():
            left = {name: node.requested.get(name, 0) - pod.requests.get(name, 0) for name in args.resources}
            after = imbalance(left, node.allocatable, args.resources)
            if before - after <= args.min_improvement_threshold or after >= lowest:
                continue
            if self._evictable(pod, row, table):
                best, lowest = pod, after
        return best, lowest

    def _evictable(self, pod: PodRecord, row: int, table: FitTable) -> bool:
        args = self._args
        if not args.considers(pod) or self._handle.evictor.filter(pod) is not None:
            return False
        if not args.node_fit:
            return True
        mask = table.mask(pod.placement)
        return bool(mask.sum() > int(mask[row]))
