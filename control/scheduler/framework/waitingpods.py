"""Pods held at Permit until every plugin that requested a wait has allowed them (spec 05 §3.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from control.scheduler.framework.status import SUCCESS, PluginStatus, unschedulable
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import Clock

MAX_WAIT_S = 15 * 60.0


@dataclass
class _HeldPod:
    pod: PodInfo
    deadlines: dict[str, tuple[float, float]]
    """plugin -> (monotonic deadline, requested seconds)"""
    settled: asyncio.Future[PluginStatus]


class WaitingPods:
    """The held pods of all profiles. `park`, `allow` and `reject` are synchronous; the binding task calls `wait`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, _HeldPod] = {}

    def __len__(self) -> int:
        return len(self._held)

    def park(self, pod: PodInfo, timeouts: Mapping[str, float]) -> None:
        """Hold the pod until every plugin in `timeouts` (seconds, at most 15 min) allows it."""
        now = self._clock.monotonic()
        limited = {plugin: min(seconds, MAX_WAIT_S) for plugin, seconds in timeouts.items()}
        deadlines = {plugin: (now + seconds, seconds) for plugin, seconds in limited.items()}
        self._held[pod.uid] = _HeldPod(pod, deadlines, asyncio.get_running_loop().create_future())

    def waiting_pods(self) -> Iterable[PodInfo]:
        return [held.pod for held in self._held.values() if not held.settled.done()]

    def waiting(self, uid: str) -> PodInfo | None:
        held = self._held.get(uid)
        return held.pod if held is not None and not held.settled.done() else None

    def allow(self, uid: str, plugin: str) -> None:
        held = self._held.get(uid)
        if held is None or held.settled.done():
            return
        held.deadlines.pop(plugin, None)
        if not held.deadlines:
            held.settled.set_result(SUCCESS)

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        held = self._held.get(uid)
        if held is None or held.settled.done():
            return False
        held.settled.set_result(unschedulable(message, plugin=plugin))
        return True

    def leave(self, uid: str) -> None:
        """Drop a held pod without settling it; no task waits for it."""
        self._held.pop(uid, None)

    async def wait(self, uid: str) -> PluginStatus:
        """Wait until the pod is allowed or rejected or its first deadline passes. Returns at once if it is not held."""
        held = self._held.get(uid)
        if held is None:
            return SUCCESS
        try:
            while not held.settled.done():
                plugin, (deadline, requested) = min(held.deadlines.items(), key=lambda item: item[1][0])
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    text = f"rejected due to timeout after waiting {_duration(requested)} at plugin {plugin}"
                    return unschedulable(text, plugin=plugin)
                try:
                    async with self._clock.timeout(left):
                        await asyncio.shield(held.settled)
                except TimeoutError:
                    continue
            return held.settled.result()
        finally:
            del self._held[uid]


def _duration(seconds: float) -> str:
    """Formatted like a Go duration: `30s`, `10m0s`."""
    whole, part = divmod(seconds, 1)
    minutes, rest = divmod(int(whole), 60)
    tail = f"{rest + part:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail
