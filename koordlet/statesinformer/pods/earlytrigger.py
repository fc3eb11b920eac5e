"""Pod events run a periodic task early, with a rate limit (spec 02 §3.4).

A new pod's directory exists before the kubelet is next polled, so the kubelet is queried immediately. A new container's
id is in the kubelet's answer only after the kubelet's own poll, so that query is delayed. Over the rate limit the
kubelet is queried at its regular period; the cgroup tree, whose reading loads only koordlet, is read after the delay.
Tenants choose the length of the kubelet's answer and the number of events: a long answer, which takes koordlet 1 to
2.5 ms per MiB, uses up more of the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.kube.ratelimit import TokenBucket
from koordlet.statesinformer.pods.pleg import PodEvent, PodEventKind

MAX_TRIGGERS_PER_S = 5.0
BURST = 10
MAX_BYTES_PER_S = 1 << 20
"""Of answers to early queries, so that they take about 1 ms per second in the long run. 110 ordinary pods have 1 to 2
MiB."""
BURST_BYTES = 64 << 20
KUBELET_DELAY_S = 2.0
"""Time after which the kubelet reports a container that was started."""


class EarlyTrigger:
    """`now` and `later` call `trigger` (a `Periodic`'s), at most `MAX_TRIGGERS_PER_S` times per second."""

    def __init__(
        self,
        trigger: Callable[[], object],
        *,
        delay_s: float = KUBELET_DELAY_S,
        length: Callable[[], int] = lambda: 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`length`: bytes that a triggered run will read, by the last one."""
        self._trigger = trigger
        self._delay_s = delay_s
        self._length = length
        self._bucket = TokenBucket(MAX_TRIGGERS_PER_S, BURST, clock=clock)
        self._bytes = TokenBucket(MAX_BYTES_PER_S, BURST_BYTES, clock=clock)
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    def now(self) -> bool:
        """Trigger; False if the rate limit is reached."""
        allowed = self._bucket.try_take() and self._bytes.try_take(self._length())
        if allowed:
            self._trigger()
        return allowed

    def later(self) -> None:
        """Trigger after the delay. Calls before then are merged, and cause one more trigger a delay later."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._due)
        else:
            self._again = True

    async def close(self) -> None:
        """Cancel the pending trigger."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._again = False

    def on_added(self, event: PodEvent) -> None:
        """For a task that queries the kubelet. Deletions are found by its regular polls."""
        if event.kind is PodEventKind.POD_ADDED:
            self.now()
        elif event.kind is PodEventKind.CONTAINER_ADDED:
            self.later()

    def on_any(self, _: PodEvent) -> None:
        """For a task that reads the cgroup tree and must run after the last of many events."""
        if not self.now():
            self.later()

    def _due(self) -> None:
        self._timer = None
        if not self.now() or self._again:
            self._again = False
            self.later()
