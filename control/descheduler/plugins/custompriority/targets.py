"""The target nodes of CustomPriority: what fits where, and what is left after placements that are only planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from control.descheduler.framework.fit import Amounts, FitMask, FitTable
from control.descheduler.plugins.custompriority.args import EvictionClass
from control.descheduler.state.cluster import PODS, NodeRecord
from control.descheduler.state.pods import PodRecord

TRACKED: Final = ("cpu", "memory", PODS)
"""Resources whose amounts are reserved on target nodes while a drain is planned, besides those with a threshold."""


class TargetNodes:
    """Target nodes in the order in which they are tried."""

    def __init__(self, nodes: Sequence[tuple[NodeRecord, EvictionClass]], *, node_fit: bool) -> None:
        self._nodes = [node for node, _ in nodes]
        self._fit = FitTable(self._nodes) if node_fit else None
        self._rejecting = [
            (row, target_class.reject_threshold)
            for row, (_, target_class) in enumerate(nodes)
            if target_class.reject_threshold
        ]
        limited = (name for _, thresholds in self._rejecting for name in thresholds)
        self._tracked = {name: at for at, name in enumerate(dict.fromkeys((*TRACKED, *limited)))}
        """Resource -> its row in `remaining`."""
        self.remaining: Amounts = np.array(
            [
                [node.allocatable.get(name, 0) - requested_on(node, name) for node in self._nodes]
                for name in self._tracked
            ],
            dtype=np.int64,
        ).reshape(len(self._tracked), len(self._nodes))
        """[tracked resource, target]: allocatable minus requests minus planned placements."""

    def __len__(self) -> int:
        return len(self._nodes)

    def fits_any(self, pod: PodRecord) -> bool:
        """Whether the pod fits a target as it is now, without planned placements."""
        return bool(self._allowed(pod, self.remaining).any())

    def place(self, pod: PodRecord, remaining: Amounts) -> bool:
        """Take the room of the pod from `remaining` on the first target that it fits; False if there is none."""
        request = np.array([_request(pod, name) for name in self._tracked], dtype=np.int64)
        mask = self._allowed(pod, remaining) & (remaining >= request[:, np.newaxis]).all(axis=0)
        target = int(mask.argmax())
        if not mask[target]:
            return False
        remaining[:, target] -= request
        return True

    def _allowed(self, pod: PodRecord, remaining: Amounts) -> FitMask:
        if self._fit is not None:
            mask = self._fit.mask(pod.placement).copy()
        else:
            mask = np.ones(len(self._nodes), dtype=np.bool_)
        for row, thresholds in self._rejecting:
            allocatable = self._nodes[row].allocatable
            mask[row] &= not any(
                allocatable.get(name, 0) - int(remaining[self._tracked[name], row]) + _request(pod, name)
                > percent * 0.01 * allocatable.get(name, 0)
                for name, percent in thresholds.items()
            )
        return mask


def requested_on(node: NodeRecord, resource: str) -> int:
    """What the pods of the node request; of `pods` their number."""
    return len(node.active_pods()) if resource == PODS else node.requested.get(resource, 0)


def _request(pod: PodRecord, resource: str) -> int:
    return 1 if resource == PODS else pod.requests.get(resource, 0)
