"""What plugins gave to single pods (CPUs, devices, a share of a reservation): applied while the pod is counted.

The table calls its listeners when a pod is assumed, before Reserve decides what the pod gets. So an allocation is made
at Reserve (`assign`), and the listener applies known allocations only:

    cpus = Allocations(read=from_annotation, apply=take_or_release)     # in the plugin's constructor
    table.listen(cpus)
    cpus.assign(pod, chosen)        # at Reserve: applied at once
    cpus.unreserve(pod)             # at Unreserve

In a trial the pod is removed and added again, and so is its allocation. Annotations are read only from pods that are
bound: those of a pending pod are its owner's. When the API server confirms a binding, the annotation of the bound pod
replaces what was assigned; after a restart it is the only source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from control.scheduler.state.pods import PodInfo

A = TypeVar("A")


class Allocations(Generic[A]):
    """See the module text. A `PodListener`."""

    def __init__(self, read: Callable[[PodInfo], A | None], apply: Callable[[int, PodInfo, A, int], None]) -> None:
        """`read(pod)`: the allocation in the annotations of a bound pod, None without one; it must not raise.
        `apply(row, pod, allocation, sign)`: take (1) or release (-1) it."""
        self._read = read
        self._apply = apply
        self._assigned: dict[str, A] = {}
        """By uid: made here and not confirmed yet."""
        self._applied: dict[str, tuple[int, A]] = {}
        """By uid: (row, allocation)."""

    def __len__(self) -> int:
        """Number of applied allocations."""
        return len(self._applied)

    def of(self, uid: str) -> A | None:
        """The allocation of a counted pod."""
        applied = self._applied.get(uid)
        return None if applied is None else applied[1]

    def assign(self, pod: PodInfo, allocation: A) -> None:
        """The pod, which is counted, gets `allocation`."""
        self.release(pod)
        self._assigned[pod.uid] = allocation
        self._take(pod.row, pod, allocation)

    def unreserve(self, pod: PodInfo) -> None:
        """Release what was assigned, unless the pod is bound all the same: its binding was confirmed before the call
        failed, or another scheduler bound it. A confirmed allocation lasts as long as the pod is counted."""
        if pod.assumed:
            self.release(pod)

    def release(self, pod: PodInfo) -> None:
        """The pod does not get what was assigned."""
        if self._assigned.pop(pod.uid, None) is not None:
            self.pod_removed(pod.row, pod)

    def pod_added(self, row: int, pod: PodInfo) -> None:
        allocation = self._assigned.get(pod.uid) if pod.assumed else self._read(pod)
        if allocation is not None:
            self._take(row, pod, allocation)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        if not pod.assumed:
            self._assigned.pop(pod.uid, None)  # confirmed or deleted
        applied = self._applied.pop(pod.uid, None)
        if applied is not None:
            self._apply(applied[0], pod, applied[1], -1)

    def _take(self, row: int, pod: PodInfo, allocation: A) -> None:
        self._applied[pod.uid] = (row, allocation)
        self._apply(row, pod, allocation, 1)
