"""Binding of a placed pod: wait at Permit, PreBind, one patch, Bind (spec 05 §3.5-9, §5.7). One task per pod.

When a step fails, the pod is unreserved in every plugin, forgotten, and requeued; nothing remains claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Protocol

import msgspec

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.expectednode import ExpectedNode
from control.scheduler.cycle.extenders import Extenders
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error
from control.scheduler.state.pods import POD, PodInfo
from koordlet.api.core import Pod
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

Expect = Callable[[PodInfo, str], Awaitable[None]]
CurrentPod = Callable[[PodInfo], "Pod | None"]
"""The last known version of a subject, or None; see `ScheduledKind.current`."""


class BindingOutcomes(Protocol):
    """Receives the results of bindings."""

    def binding(self, placement: Placement) -> None:
        """The pod is permitted: events no longer matter to it (spec 05 §3.3-3)."""

    def bound(self, placement: Placement) -> None: ...

    def not_bound(self, placement: Placement, status: PluginStatus) -> None:
        """The claim is released; the pod is to be requeued."""


class BindTimings(Protocol):
    """Receives the durations of the steps of bindings."""

    def permit_waited(self, status: PluginStatus, seconds: float) -> None: ...

    def took(self, plugin: str, point: str, status: PluginStatus, seconds: float) -> None:
        """A call at PreBind, Bind or PostBind, for a pod whose cycle was measured."""


class Binder:
    """Binding tasks of one profile."""

    def __init__(
        self,
        cycle: Cycle,
        outcomes: BindingOutcomes,
        current: CurrentPod | None,
        timings: BindTimings | None,
        extenders: Extenders | None,
        expect: Expect | None,
    ) -> None:
        """Without `current` the pod is not checked again before it is bound. `expect(pod, node)` nominates a pod whose
        PreBind takes time, see `expectednode`."""
        self._cycle = cycle
        self._outcomes = outcomes
        self._current = current
        self._timings = timings
        self._extenders = extenders
        self._expect = expect
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Bindings in progress."""
        return len(self._tasks)

    def start(self, placement: Placement) -> None:
        """Bind in the background."""
        task = asyncio.create_task(self.run(placement), name=f"bind:{placement.pod.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel the bindings in progress. Those that reached the API server count; the next start sees them."""
        await end_tasks(*self._tasks)

    async def run(self, placement: Placement) -> None:
        try:
            status = await self._bind(placement)
        except Exception as failure:
            log.exception("Binding failed", pod=placement.pod.key, node=placement.node, err=failure)
            status = error(f"{type(failure).__name__}: {failure}")
        if not status.ok:
            self._cycle.release(placement)
            self._outcomes.not_bound(placement, status)
            return
        self._outcomes.bound(placement)
        for plugin in self._cycle.framework.post_bind:
            begun = perf_counter()
            try:
                await plugin.post_bind(placement.state, placement.pod, placement.row)
                self._took(placement, plugin.name, "PostBind", SUCCESS, begun)
            except Exception as failure:  # the pod is bound in any case
                log.exception("PostBind failed", pod=placement.pod.key, plugin=plugin.name, err=failure)

    async def _bind(self, placement: Placement) -> PluginStatus:
        pod, state, framework = placement.pod, placement.state, self._cycle.framework
        if placement.parked:
            begun = perf_counter()
            status = await self._cycle.waiting.wait(pod.uid)
            if self._timings is not None:
                self._timings.permit_waited(status, perf_counter() - begun)
            if not status.ok and placement.bindings is None:  # a job placed at once was permitted as a whole
                return status
        self._outcomes.binding(placement)
        original, status = self._checked(pod)
        if original is None:
            return status
        placement.phase = "PreBind"
        if self._expect is None or pod.subject != POD:
            status = await self._prepare(placement, original)
        else:
            async with ExpectedNode(partial(self._expect, pod, placement.node)):
                status = await self._prepare(placement, original)
        if not status.ok:
            return status
        placement.phase = "Bind"
        extender = self._extenders.binder(pod) if self._extenders is not None and pod.subject == POD else None
        if extender is not None:
            return await extender.bind(pod, placement.node)
        for plugin in framework.bind:
            begun = perf_counter()
            status = await plugin.bind(state, pod, placement.node)
            self._took(placement, plugin.name, "Bind", status, begun)
            if status.code is not Code.SKIP:
                return status.by(plugin.name)
        return error("no bind plugin took the pod")

    def _checked(self, pod: PodInfo) -> tuple[Pod | None, PluginStatus]:
        """The current version of the pod, unless it must not be bound any more (gate DynamicSchedulerCheck)."""
        if self._current is None:
            return pod.pod, SUCCESS
        now = self._current(pod)
        if now is None or now.metadata.uid != pod.uid:
            return None, error(f"pod {pod.key} is gone")
        if now.spec.scheduler_name != pod.shape.scheduler:
            return None, error("schedulerName unmatched")
        if now.metadata.deletion_timestamp is not None:
            return None, error("pod is being deleted")
        return now, SUCCESS

    async def _prepare(self, placement: Placement, original: Pod) -> PluginStatus:
        """PreBind on a copy, then one patch with the changes."""
        framework = self._cycle.framework
        if not framework.pre_bind:
            return SUCCESS
        changed = _copy(original)
        for plugin in framework.pre_bind:
            begun = perf_counter()
            status = await plugin.pre_bind(placement.state, placement.pod, placement.row, changed)
            self._took(placement, plugin.name, "PreBind", status, begun)
            if not status.ok and not status.skipped:
                return status.by(plugin.name)
        if changed == original:
            return SUCCESS
        for patcher in framework.patchers:
            status = await patcher.apply_patch(placement.state, placement.pod, original, changed)
            if not status.skipped:
                return status.by(patcher.name)
        return error("plugins changed the pod, but none that sends the change (DefaultPreBind) is enabled at preBind")

    def _took(self, placement: Placement, plugin: str, point: str, status: PluginStatus, begun: float) -> None:
        if placement.state.measured and self._timings is not None:
            self._timings.took(plugin, point, status, perf_counter() - begun)


def _copy(pod: Pod) -> Pod:
    """A copy whose labels, annotations and spec fields may be replaced."""
    meta = msgspec.structs.replace(
        pod.metadata, labels=dict(pod.metadata.labels), annotations=dict(pod.metadata.annotations)
    )
    return msgspec.structs.replace(pod, metadata=meta, spec=msgspec.structs.replace(pod.spec))
