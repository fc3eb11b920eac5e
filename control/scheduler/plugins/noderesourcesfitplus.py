"""NodeResourcesFitPlus: scores each resource with its own strategy and weight (spec 05 §13.1).

Pod requests are the standard ones, including overhead in milli-cores and sidecars (spec 05 §17, D9).
Containers without requests count with 100 m cpu and 200 MiB memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from control.scheduler.config.args import NodeResourcesFitPlusArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Plugin, Reads
from control.scheduler.state.columns import IntArray, Rows, count
from control.scheduler.state.credit import nonzero_key
from control.scheduler.state.pods import PodInfo, Shape

MOST_ALLOCATED: Final = "MostAllocated"
_NATIVE: Final = frozenset(("cpu", "memory", "ephemeral-storage"))


@dataclass(frozen=True, slots=True)
class _Considered:
    """One scored resource of a shape. `nonzero`: index in `table.nonzero`, -1 for resources without defaults."""

    column: int
    nonzero: int
    request: int
    most: bool
    weight: int


class NodeResourcesFitPlus(Plugin):
    """See the module text."""

    name: ClassVar[str] = "NodeResourcesFitPlus"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: NodeResourcesFitPlusArgs | None, handle: Handle) -> None:
        super().__init__(args or NodeResourcesFitPlusArgs(), handle)
        self.args: NodeResourcesFitPlusArgs
        self._memo = f"{self.name}/{handle.profile}"

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        considered = self._considered(pod.shape)
        length = count(rows, self.table.size)
        weights = sum(resource.weight for resource in considered)
        if not weights:
            return np.full(length, 0 if considered else MAX_SCORE, np.int64)
        total = np.zeros(length, np.int64)
        table = self.table
        for resource in considered:
            capacity = table.allocatable[resource.column, rows]
            used = (table.requested[resource.column] if resource.nonzero < 0 else table.nonzero[resource.nonzero])[rows]
            used_with_pod = used + resource.request
            if state.credit is not None:
                key = resource.column if resource.nonzero < 0 else nonzero_key(resource.nonzero)
                used_with_pod -= state.credit.column(key, rows)
            if resource.most:
                part = np.minimum(used_with_pod, capacity)
            else:
                part = np.maximum(capacity - used_with_pod, 0)
            total += part * MAX_SCORE // np.maximum(capacity, 1) * resource.weight
        return total // weights

    def _considered(self, shape: Shape) -> tuple[_Considered, ...]:
        considered: tuple[_Considered, ...] | None = shape.memo.get(self._memo)
        if considered is None:
            with_defaults = {**shape.requests, "cpu": shape.nonzero_cpu, "memory": shape.nonzero_memory}
            considered = shape.memo[self._memo] = tuple(
                _Considered(
                    column=self.table.resource(name),
                    nonzero=("cpu", "memory").index(name) if name in ("cpu", "memory") else -1,
                    request=with_defaults[name],
                    most=how.type == MOST_ALLOCATED,
                    weight=how.weight,
                )
                for name, how in self.args.resources.items()
                if shape.requests.get(name, 0) > 0 and (name in _NATIVE or "/" in name)
            )
        return considered
