"""Hooks of pods, for both protocols: who is exempt from them, and in which order they run (spec 08 §7, §11.1).

An after hook holds nobody up, but the next hook of the same pod waits for it, for as long as a hook may take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from runtimeproxy.hooks.dispatch import LIMIT_SECONDS, Dispatcher
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import PodInfo


@dataclass(frozen=True, slots=True)
class SkipRule:
    """Pods with this label are exempt from hooks (flags of spec 08 §7)."""

    key: str = "runtimeproxy.koordinator.sh/skip-hookserver"
    value: str = "true"

    def exempts(self, pod: PodInfo) -> bool:
        return bool(self.key) and pod.labels.get(self.key) == self.value


class PodHooks:
    """One a process, on one loop. `limit`: seconds that a call waits at most for what is not its own hook."""

    def __init__(
        self, dispatcher: Dispatcher, skip: SkipRule, metrics: ProxyMetrics, *, limit: float = LIMIT_SECONDS
    ) -> None:
        self._dispatcher, self._skip, self._metrics, self._limit = dispatcher, skip, metrics, limit
        self._after: dict[str, asyncio.Future[None]] = {}
        """By pod id, the last after hook that is not over."""

    async def ask(
        self, pod: PodInfo, pod_id: str, hook: Hook, request: HookRequest, deadline: float | None = None
    ) -> HookResponse | None:
        """A before hook's answer, after the pod's after hooks; None: the call goes on unchanged. Raises HookRefused."""
        if self._skip.exempts(pod):
            self.unhooked("skip-label", hook)
            return None
        earlier = self._after.get(pod_id)
        if earlier is not None and self.handles(hook):
            await asyncio.wait([earlier], timeout=self.patience(deadline))
        return (await self._dispatcher.dispatch(hook, request, deadline)).accepted()

    def tell(self, pod: PodInfo, pod_id: str, hook: Hook, request: HookRequest) -> Coroutine[Any, Any, None] | None:
        """An after hook, to be run as a task at once; None when there is none."""
        if self._skip.exempts(pod) or not self.handles(hook):
            return None
        earlier = self._after.get(pod_id)
        over = self._after[pod_id] = asyncio.get_running_loop().create_future()
        return self._tell(hook, request, pod_id, earlier, over)

    async def _tell(
        self,
        hook: Hook,
        request: HookRequest,
        pod_id: str,
        earlier: asyncio.Future[None] | None,
        over: asyncio.Future[None],
    ) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier], timeout=self._limit)
            await self._dispatcher.dispatch(hook, request)  # failures are counted and logged there
        finally:
            over.set_result(None)
            if self._after.get(pod_id) is over:
                del self._after[pod_id]

    def handles(self, hook: Hook) -> bool:
        """Whether a server is registered for the hook."""
        return self._dispatcher.handles(hook)

    def patience(self, deadline: float | None) -> float:
        """Seconds; `deadline` is the caller's, in `time.monotonic()` seconds."""
        return self._limit if deadline is None else max(0.0, min(self._limit, deadline - time.monotonic()))

    def unhooked(self, reason: str, hook: Hook | None = None) -> None:
        """Count a call that no server is asked about although one is registered for it."""
        if hook is None or self.handles(hook):
            self._metrics.unhooked.labels(reason).inc()
