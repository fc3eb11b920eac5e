"""Hooks of pods, for both protocols: exemption by label, and ordering (spec 08 §7, §11.1).

Calls do not wait for a post hook, but the next hook of the same pod does, at most for the hook timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from koordlet.api.names import LABEL_QOS_CLASS
from koordlet.api.qos import BE
from runtimeproxy.hooks.dispatch import HookDispatcher
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import StoredPod


@dataclass(frozen=True, slots=True)
class SkipRule:
    """Pods with this label are exempt from hooks (flags of spec 08 §7), except best-effort pods: hooks set the limits
    of their batch resources, which a pod must not be able to decline."""

    key: str = "runtimeproxy.koordinator.sh/skip-hookserver"
    value: str = "true"

    def exempts(self, pod: StoredPod) -> bool:
        labelled = bool(self.key) and pod.labels.get(self.key) == self.value
        return labelled and pod.labels.get(LABEL_QOS_CLASS) != BE


class PodHooks:
    """One per process and event loop. `timeout`: seconds that a call waits at most for anything but its own hook."""

    def __init__(self, dispatcher: HookDispatcher, skip: SkipRule, metrics: ProxyMetrics, *, timeout: float) -> None:
        self._dispatcher = dispatcher
        self._skip = skip
        self._metrics = metrics
        self._timeout = timeout
        self._post_hooks: dict[str, asyncio.Future[None]] = {}
        """By pod id: the last post hook that has not ended."""

    async def run_pre(
        self, pod: StoredPod, pod_id: str, hook: Hook, request: HookRequest, deadline: float | None = None
    ) -> HookResponse | None:
        """Response of a pre hook, which runs after the pod's post hooks; None: the call continues unchanged. Raises
        HookRefused."""
        if self._skip.exempts(pod):
            self.unhooked("skip-label", hook)
            return None
        earlier = self._post_hooks.get(pod_id)
        if earlier is not None and self.handles(hook):
            await asyncio.wait([earlier], timeout=self.max_wait(deadline))
        return (await self._dispatcher.dispatch(hook, request, deadline)).accepted()

    def run_post(
        self, pod: StoredPod, pod_id: str, hook: Hook, request: HookRequest
    ) -> Coroutine[Any, Any, None] | None:
        """A post hook as a coroutine, which the caller must run as a task immediately; None when there is none."""
        if self._skip.exempts(pod) or not self.handles(hook):
            return None
        earlier = self._post_hooks.get(pod_id)
        finished = self._post_hooks[pod_id] = asyncio.get_running_loop().create_future()
        return self._run_post(hook, request, pod_id, earlier, finished)

    async def _run_post(
        self,
        hook: Hook,
        request: HookRequest,
        pod_id: str,
        earlier: asyncio.Future[None] | None,
        finished: asyncio.Future[None],
    ) -> None:
        try:
            if earlier is not None:
                await asyncio.wait([earlier], timeout=self._timeout)
            await self._dispatcher.dispatch(hook, request)  # failures are counted and logged there
        finally:
            finished.set_result(None)
            if self._post_hooks.get(pod_id) is finished:
                del self._post_hooks[pod_id]

    def handles(self, hook: Hook) -> bool:
        """Whether a server is registered for the hook."""
        return self._dispatcher.handles(hook)

    def max_wait(self, deadline: float | None) -> float:
        """Seconds to wait at most; `deadline` is the caller's, in `time.monotonic()` seconds."""
        return self._timeout if deadline is None else max(0.0, min(self._timeout, deadline - time.monotonic()))

    def unhooked(self, reason: str, hook: Hook | None = None) -> None:
        """Count a call that is forwarded without calling a registered hook."""
        if hook is None or self.handles(hook):
            self._metrics.unhooked.labels(reason).inc()
