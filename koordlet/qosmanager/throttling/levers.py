"""How each resource is throttled: the culprit pod's settings, and its use that is 100 %. Pure.

A lever only lowers bounds: the pod's own limits are never exceeded, so levers outrank batch resources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from koordlet.api.core import Container
from koordlet.api.names import RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY
from koordlet.api.sloconfig.interferenceactions import HIGH, LIMIT, InterferenceAction
from koordlet.api.sloconfig.threshold import CFS_QUOTA_POLICY
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.throttling.state import FULL, ThrottleState
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.system.cgroup.codecs import UNLIMITED, milli_to_quota

CPU_QUOTA, MEMORY_HIGH, MEMORY_LIMIT = "cpu.cfs_quota_us", "memory.high", "memory.limit_in_bytes"
MIN_BASE_MILLI = 100
"""A culprit that uses less counts as using this much: it delays others in bursts."""
MIN_QUOTA_US = 2_000
MIN_BASE_BYTES = 16 << 20
MAX_REDUCTION_BYTES = 128 << 20
"""Reduction of a memory limit in one write: the kernel reclaims that much before the write returns, and koordlet has a
single event loop."""
PAGE = os.sysconf("SC_PAGE_SIZE")
REASON = "InterferenceAction"


class Lever(Protocol):
    """One resource. `base`: the pod's use that is 100 %, None while it is not measured. `problem`: why this kernel or
    node cannot throttle the pod, empty if it can. `text`: the setting in force."""

    def base(self, view: NodeView, pod: PodView) -> int | None: ...

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str: ...

    def updates(
        self, view: NodeView, pod: PodView, state: ThrottleState, action: InterferenceAction
    ) -> Iterator[DesiredSetting]: ...

    def text(self, view: NodeView, state: ThrottleState) -> str: ...


class CpuLever:
    """The pod's CFS quota, and those of its containers that have a larger one. `suppress`: CPU suppress runs."""

    def __init__(self, *, suppress: bool = True) -> None:
        self._suppress = suppress

    def whole(self, view: NodeView) -> bool:
        """Whether best effort as a whole has a quota (CPU suppress). Then no pod gets a quota of its own, as the kernel
        refuses a parent with less than a child, and the whole is throttled instead."""
        settings = view.slo.resource_used_threshold_with_be
        by_quota = settings is not None and settings.enable and settings.cpu_suppress_policy == CFS_QUOTA_POLICY
        return self._suppress and bool(by_quota)

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Milli-cores that it used recently: in the last tick, or within the short evidence if that is more."""
        recent = 0.0 if view.interference is None else view.interference.recent_cores.get(pod.meta.uid, 0.0)
        return None if pod.cpu is None else max(pod.cpu, int(recent * 1000), MIN_BASE_MILLI)

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """Every kernel has quotas."""
        return ""

    def updates(
        self, view: NodeView, pod: PodView, state: ThrottleState, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """None where best effort as a whole is throttled."""
        if self.whole(view):
            return
        quota, about = _quota(state), about_pod(pod.meta.namespace, pod.meta.name)
        specs = (
            {} if pod.meta.pod is None else {container.name: container for container in pod.meta.pod.spec.containers}
        )
        own = [_own_quota(view, spec) for spec in specs.values()]
        whole = min(quota, sum(own)) if own and min(own) > 0 else quota
        yield DesiredSetting(Setting(CPU_QUOTA, pod.meta.cgroup_dir), whole, REASON, about=about)
        for meta in pod.meta.containers:
            spec = specs.get(meta.name)
            if spec is not None and meta.running and _own_quota(view, spec) > whole:
                yield DesiredSetting(Setting(CPU_QUOTA, meta.cgroup_dir), whole, REASON, about=about)

    def text(self, view: NodeView, state: ThrottleState) -> str:
        """`quota 76000 us`, or the percentage for all of best effort."""
        if self.whole(view):
            return f"best effort as a whole gets {state.level} % of its quota"
        return f"quota {_quota(state)} us"


def _quota(state: ThrottleState) -> int:
    return max(milli_to_quota(state.value), MIN_QUOTA_US)


def _own_quota(view: NodeView, container: Container) -> int:
    """Microseconds; UNLIMITED without a limit."""
    batch = container.resources.limits.get(RESOURCE_BATCH_CPU)
    return view.quota_of(container) if batch is None else milli_to_quota(batch.value())


def _own_limit(container: Container) -> int:
    """Bytes; UNLIMITED without a limit."""
    limits = container.resources.limits
    amount = limits.get(RESOURCE_BATCH_MEMORY, limits.get("memory"))
    return UNLIMITED if amount is None else amount.value()


def _charged(pod: PodView) -> int | None:
    return pod.memory if pod.charged is None else pod.charged


class MemoryLever:
    """The pod's `memory.high`, which slows it down and reclaims; on cgroup v1 its limit, which stops its growth."""

    def __init__(self, supports: Supports) -> None:
        self._supports = supports

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Bytes it is charged for, page cache included."""
        charged = _charged(pod)
        return None if charged is None else max(charged, MIN_BASE_BYTES)

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """Policy `high` on a kernel without memory.high."""
        if action.policy == HIGH and not self._supports(MEMORY_HIGH, pod.meta.cgroup_dir):
            return "this kernel has no memory.high; policy limit bounds growth"
        return ""

    def updates(
        self, view: NodeView, pod: PodView, state: ThrottleState, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """Whole pages. A pod far above its goal gets there in steps of MAX_REDUCTION_BYTES, one per round."""
        high = action.policy != LIMIT and self._supports(MEMORY_HIGH, pod.meta.cgroup_dir)
        if high or action.policy != HIGH:
            setting = Setting(MEMORY_HIGH if high else MEMORY_LIMIT, pod.meta.cgroup_dir)
            goal = max(state.value, (_charged(pod) or 0) - MAX_REDUCTION_BYTES)
            limits = (
                [_own_limit(container) for container in pod.meta.pod.spec.containers]
                if pod.meta.pod is not None
                else []
            )
            most = sum(limits) if limits and min(limits) > 0 else goal
            value = min(goal, most) // PAGE * PAGE
            yield DesiredSetting(setting, value, REASON, about=about_pod(pod.meta.namespace, pod.meta.name))

    def text(self, view: NodeView, state: ThrottleState) -> str:
        """`203 MiB`"""
        return f"{state.value >> 20} MiB"


class NetworkLever:
    """The limit of the pod's traffic class on the node's interface, or of best effort's class if the pod has none of
    its own; `netqos` reads the level and sets it. This bounds the traffic that leaves the node, and indirectly the
    traffic that its peers send in response. `why_not`: why there are no classes, empty if there are."""

    def __init__(self, why_not: Callable[[NodeView], str]) -> None:
        self._why_not = why_not

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Percent of the class's own limit."""
        return FULL

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """Traffic is not shaped on this node."""
        return self._why_not(view)

    def updates(
        self, view: NodeView, pod: PodView, state: ThrottleState, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """None: `netqos` sets up the classes."""
        yield from ()

    def text(self, view: NodeView, state: ThrottleState) -> str:
        """`30 % of its class's limit`"""
        return f"{state.level} % of its class's limit"
