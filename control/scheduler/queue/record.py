"""The queue's data about a pod, from when it is first seen until it is bound or deleted."""

from __future__ import annotations

from enum import Enum

from control.scheduler.state.pods import PodInfo


class QueuePlace(Enum):
    """The part of the queue that a pod is in. `OUT`: taken for an attempt or being bound; it is requeued or deleted."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    ERROR_BACKOFF = "error"
    WAITING = "unschedulable"
    OUT = "out"


class QueuedPod:
    """A pod in the queue. Times are monotonic seconds."""

    __slots__ = ("entry", "errors", "gated_by", "pending_by", "place", "pod", "rejected_by", "rejections", "timestamp")

    def __init__(self, pod: PodInfo, timestamp: float) -> None:
        self.pod = pod
        self.timestamp = timestamp
        """When the pod was added, or when its last attempt failed."""
        self.place = QueuePlace.OUT
        self.entry: list[object] = []
        """The entry in the heap of its lane. Only the lane uses it."""
        self.rejections = 0
        """Number of attempts that plugins rejected."""
        self.errors = 0
        """Number of consecutive attempts that ended with an error."""
        self.rejected_by: frozenset[str] = frozenset()
        """Plugins that rejected the last attempt, including those in `pending_by`."""
        self.pending_by: frozenset[str] = frozenset()
        """The plugins among them that returned Pending. When they wake the pod, it skips its backoff."""
        self.gated_by = ""
        """The plugin whose PreEnqueue rejects the pod; empty if none does."""

    @property
    def wakers(self) -> frozenset[str]:
        """Plugins whose events may help; only the gating plugin while the pod is gated."""
        return frozenset((self.gated_by,)) if self.gated_by else self.rejected_by

    def backoff(self, initial: float, longest: float) -> float:
        """Seconds to wait after the last failure: doubled with each failure, from `initial` up to `longest`."""
        failures = self.errors or self.rejections
        if not failures:
            return 0.0
        return float(min(longest, initial * 2 ** min(failures - 1, 62)))
