"""Looking again at once, but not too often: pod events bring a periodic task forward (spec 02 §3.4).

A new pod's directory is there before the kubelet's next answer is due, so it is asked right away. A new container's id
appears in the answer only after the kubelet has looked itself, so that waits a moment. Over the limit the kubelet is
not asked earlier than it would be anyway; the cgroup tree, which costs only us, is read a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.kube.ratelimit import TokenBucket
from koordlet.statesinformer.pods.pleg import PodEvent, PodEventKind

PER_SECOND = 5.0
BURST = 10
KUBELET_SECONDS = 2.0
"""After this long the kubelet has seen a container that was started."""


class Prompt:
    """`now` and `later` call `trigger` (a `Periodic`'s), PER_SECOND times a second at most."""

    def __init__(
        self, trigger: Callable[[], object], *, delay: float = KUBELET_SECONDS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._trigger, self._delay = trigger, delay
        self._bucket = TokenBucket(PER_SECOND, BURST, clock=clock)
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    def now(self) -> bool:
        """Trigger; False when the limit is reached."""
        allowed = self._bucket.try_take()
        if allowed:
            self._trigger()
        return allowed

    def later(self) -> None:
        """Trigger in a moment; calls before then collapse into it, and one more follows for them."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._due)
        else:
            self._again = True

    async def close(self) -> None:
        """Forget what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._again = None, False

    def on_kubelet_pods(self, event: PodEvent) -> None:
        """For a task that asks the kubelet: additions matter, what is gone its answers will tell."""
        if event.kind is PodEventKind.POD_ADDED:
            self.now()
        elif event.kind is PodEventKind.CONTAINER_ADDED:
            self.later()

    def on_any(self, _: PodEvent) -> None:
        """For a task that reads the cgroup tree, which must not miss the last of many events."""
        if not self.now():
            self.later()

    def _due(self) -> None:
        self._timer = None
        if not self.now() or self._again:
            self._again = False
            self.later()
