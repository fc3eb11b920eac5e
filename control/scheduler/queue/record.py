"""What the queue keeps of a pod, from the moment it is first seen until it is bound or deleted."""

from __future__ import annotations

from enum import Enum

from control.scheduler.state.pods import PodInfo


class Place(Enum):
    """Where a pod is. `OUT`: taken for an attempt, perhaps being bound; it comes back or is deleted."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    ERROR_BACKOFF = "error"
    WAITING = "unschedulable"
    OUT = "out"


class Record:
    """One pod. Times are monotonic seconds."""

    __slots__ = ("entry", "errors", "gated_by", "pending_by", "place", "pod", "rejected_by", "rejections", "timestamp")

    def __init__(self, pod: PodInfo, timestamp: float) -> None:
        self.pod = pod
        self.timestamp = timestamp
        """When it was added, or when its last attempt failed."""
        self.place = Place.OUT
        self.entry: list[object] = []
        """Its entry in the lane that it is in; belongs to the lane."""
        self.rejections = 0
        """Attempts that ended because a plugin said no."""
        self.errors = 0
        """Attempts in a row that ended with an error."""
        self.rejected_by: frozenset[str] = frozenset()
        """Plugins that said no in the last attempt, those in `pending_by` included."""
        self.pending_by: frozenset[str] = frozenset()
        """Those of them that said Pending: when they wake the pod, it does not serve its backoff."""
        self.gated_by = ""
        """The plugin whose PreEnqueue keeps it out; empty while none does."""

    @property
    def wakers(self) -> frozenset[str]:
        """Plugins whose events may help: the gate's alone while there is one."""
        return frozenset((self.gated_by,)) if self.gated_by else self.rejected_by

    def backoff(self, initial: float, longest: float) -> float:
        """Seconds to wait after the last failure: doubled with each, from `initial` up to `longest`."""
        failures = self.errors or self.rejections
        if not failures:
            return 0.0
        return float(min(longest, initial * 2 ** min(failures - 1, 62)))
