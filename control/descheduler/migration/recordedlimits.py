"""The object limiter's state in an annotation of the lease, so that a restart does not allow more evictions.

An eviction is recorded before it is requested: a process that is killed in between has counted an eviction that did not
happen, and its successor never evicts a pod too early. Without leader election the state ends with the process.
"""

from __future__ import annotations

import asyncio

from control.descheduler.framework.leasenote import MAX_ENTRIES, LeaseNote
from control.descheduler.migration.decide.objectlimiter import ObjectLimiter, RecordedBucket
from koordlet.api.core import Pod
from koordlet.app.clock import Clock
from koordlet.kube import KubeError


class RecordedLimits:
    """See the module text."""

    def __init__(self, limiter: ObjectLimiter, clock: Clock, note: LeaseNote[RecordedBucket] | None) -> None:
        self._limiter = limiter
        self._clock = clock
        self._note = note
        self._is_read = False
        self._writing = asyncio.Lock()
        """One write at a time, so that an earlier state never replaces a later one."""

    def lead(self) -> None:
        """This process becomes the leader: another one may have evicted since the last reading."""
        self._is_read = False

    async def read(self) -> None:
        """Read what the last leader recorded, once. Raises KubeError; then no pod may be evicted."""
        if self._is_read or self._note is None:
            return
        self._limiter.restore(await self._note.read(), self._clock.monotonic(), self._clock.now())
        self._is_read = True

    async def count(self, pod: Pod, replicas: int) -> None:
        """A pod is about to be evicted. `replicas`: of its workload. Raises KubeError if it cannot be recorded."""
        self._limiter.track(pod, replicas, self._clock.monotonic())
        if self._note is None:
            return
        try:
            async with self._writing:
                await self._note.write(self._limiter.recorded(self._clock.monotonic(), self._clock.now(), MAX_ENTRIES))
        except KubeError:
            self.undo(pod)
            raise

    def undo(self, pod: Pod) -> None:
        """The eviction was refused. The record follows with the next eviction; until then it allows too little."""
        self._limiter.restore_token(pod, self._clock.monotonic())
