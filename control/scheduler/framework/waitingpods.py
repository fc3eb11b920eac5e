"""Pods parked at Permit until every plugin that asked to wait has allowed them (spec 05 §3.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from control.scheduler.framework.status import SUCCESS, Status, unschedulable
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import Clock

MAX_WAIT = 15 * 60.0


@dataclass
class _Parked:
    pod: PodInfo
    deadlines: dict[str, tuple[float, float]]
    """plugin -> (monotonic deadline, seconds asked for)"""
    settled: asyncio.Future[Status]


class WaitingPods:
    """See the module text. `park`, `allow` and `reject` are synchronous; `wait` is the binding task's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parked: dict[str, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, pod: PodInfo, timeouts: Mapping[str, float]) -> None:
        """Hold the pod until every plugin in `timeouts` (seconds, at most 15 min) allows it."""
        now = self._clock.monotonic()
        deadlines = {plugin: (now + min(s, MAX_WAIT), min(s, MAX_WAIT)) for plugin, s in timeouts.items()}
        self._parked[pod.uid] = _Parked(pod, deadlines, asyncio.get_running_loop().create_future())

    def waiting_pods(self) -> Iterable[PodInfo]:
        return [parked.pod for parked in self._parked.values() if not parked.settled.done()]

    def waiting(self, uid: str) -> PodInfo | None:
        parked = self._parked.get(uid)
        return parked.pod if parked is not None and not parked.settled.done() else None

    def allow(self, uid: str, plugin: str) -> None:
        parked = self._parked.get(uid)
        if parked is None or parked.settled.done():
            return
        parked.deadlines.pop(plugin, None)
        if not parked.deadlines:
            parked.settled.set_result(SUCCESS)

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        parked = self._parked.get(uid)
        if parked is None or parked.settled.done():
            return False
        parked.settled.set_result(unschedulable(message, plugin=plugin))
        return True

    def leave(self, uid: str) -> None:
        """The pod is not parked any more, and nobody waits for what becomes of it."""
        self._parked.pop(uid, None)

    async def wait(self, uid: str) -> Status:
        """Until the pod is allowed, rejected, or its first deadline passes; at once when it was never parked."""
        parked = self._parked.get(uid)
        if parked is None:
            return SUCCESS
        try:
            while not parked.settled.done():
                plugin, (deadline, asked) = min(parked.deadlines.items(), key=lambda item: item[1][0])
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    text = f"rejected due to timeout after waiting {_seconds(asked)} at plugin {plugin}"
                    return unschedulable(text, plugin=plugin)
                try:
                    async with self._clock.timeout(left):
                        await asyncio.shield(parked.settled)
                except TimeoutError:
                    continue
            return parked.settled.result()
        finally:
            del self._parked[uid]


def _seconds(seconds: float) -> str:
    """As Go prints a duration: `30s`, `10m0s`."""
    whole, part = divmod(seconds, 1)
    minutes, rest = divmod(int(whole), 60)
    tail = f"{rest + part:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail
