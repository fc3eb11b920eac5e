"""When a pod of a node or of a workload was moved last, also by an earlier leader.

A move is recorded before the eviction is requested, so that a process that is killed in between leaves the node and the
workload alone for too long, and never moves a second pod too early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from control.descheduler.framework.leasenote import MAX_ENTRIES, LeaseNote
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError

log = get_logger(__name__)

MAX_MOVES = 4096
"""Nodes and workloads; of more, the earliest ones are forgotten. The next leader knows the latest `MAX_ENTRIES`."""


class RecentMoves:
    """Times by node name or UID of a workload; all profiles share one. `note` None: lost at a restart."""

    def __init__(self, clock: Clock, note: LeaseNote[float] | None) -> None:
        self._clock = clock
        self._note = note
        self._moved: dict[str, float] = {}
        """key -> Unix seconds"""
        self._is_read = note is None
        self.keep_s = 0.0
        """The longest cool-down of all profiles."""

    async def read(self) -> None:
        """Read what an earlier leader recorded, once. Raises KubeError; then no pod may move."""
        if self._is_read or self._note is None:
            return
        now = self._clock.now()  # a time in the future, of a process with another clock, counts as now
        recorded = {key: min(at, now) for key, at in (await self._note.read()).items()}
        self._moved = {**latest(recorded, MAX_ENTRIES), **self._moved}
        self._is_read = True

    def within(self, key: str, seconds: float) -> bool:
        """Whether the last move is more recent than this. If the clock was set back since, the time begins again."""
        now, at = self._clock.now(), self._moved.get(key)
        if at is None:
            return False
        self._moved[key] = min(at, now)
        return now - at < seconds

    def add(self, keys: Sequence[str]) -> None:
        """A move that is only pretended."""
        now = self._clock.now()
        recent = {key: at for key, at in self._moved.items() if now - at < self.keep_s} | dict.fromkeys(keys, now)
        self._moved = latest(recent, MAX_MOVES)

    async def record(self, keys: Sequence[str]) -> Mapping[str, float]:
        """A pod is about to move; returns the state before. Raises KubeError if it cannot be recorded."""
        before = self._moved
        self.add(keys)
        try:
            await self._write()
        except KubeError:
            self._moved = before
            raise
        return before

    async def undo(self, before: Mapping[str, float]) -> None:
        """The pod does not move."""
        self._moved = dict(before)
        try:
            await self._write()
        except KubeError as error:
            log.warning("A refused move remains recorded until the next one", err=error)

    async def _write(self) -> None:
        if self._note is not None:
            await self._note.write({key: int(at) for key, at in latest(self._moved, MAX_ENTRIES).items()})


def latest(moved: Mapping[str, float], number: int) -> dict[str, float]:
    """The latest moves, earliest first."""
    return dict(sorted(moved.items(), key=lambda each: each[1])[-number:])
