"""What holding back means for each resource: which settings of the culprit pod, and how much 100 % is. Pure.

Levers only ever bound: what a pod's own limits allow is never exceeded, so they stand above batch resources.
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
from koordlet.qosmanager.throttling.level import FREE, Squeeze
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.system.cgroup.codecs import UNLIMITED, milli_to_quota

CPU_QUOTA, MEMORY_HIGH, MEMORY_LIMIT = "cpu.cfs_quota_us", "memory.high", "memory.limit_in_bytes"
LEAST_MILLI = 100
"""A culprit that uses less counts as using this much: its share of the blame comes in bursts."""
LEAST_QUOTA_US = 2_000
LEAST_BYTES = 16 << 20
GLIDE_BYTES = 128 << 20
"""Below what a culprit has, for one write: the kernel reclaims that much before the write returns, and koordlet has one
loop."""
PAGE = os.sysconf("SC_PAGE_SIZE")
REASON = "InterferenceAction"


class Lever(Protocol):
    """One resource. `base` is what 100 % is, None while it is not measured; `problem` says why this kernel or node
    can't, empty where it can; `words` what is left."""

    def base(self, view: NodeView, pod: PodView) -> int | None: ...

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str: ...

    def updates(
        self, view: NodeView, pod: PodView, held: Squeeze, action: InterferenceAction
    ) -> Iterator[DesiredSetting]: ...

    def words(self, view: NodeView, held: Squeeze) -> str: ...


class CpuLever:
    """The pod's CFS quota, and those of its containers that have a larger one. `suppress`: CPU suppress runs."""

    def __init__(self, *, suppress: bool = True) -> None:
        self._suppress = suppress

    def whole(self, view: NodeView) -> bool:
        """Whether best effort as a whole has a quota (CPU suppress): then no pod has one of its own, as the kernel
        refuses a parent that has less than a child, and the whole is held back instead."""
        settings = view.slo.resource_used_threshold_with_be
        by_quota = settings is not None and settings.enable and settings.cpu_suppress_policy == CFS_QUOTA_POLICY
        return self._suppress and bool(by_quota)

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Milli-cores it used last."""
        return None if pod.cpu is None else max(pod.cpu, LEAST_MILLI)

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """Every kernel has quotas."""
        return ""

    def updates(
        self, view: NodeView, pod: PodView, held: Squeeze, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """None where best effort as a whole is held back."""
        if self.whole(view):
            return
        quota, about = _quota(held), about_pod(pod.meta.namespace, pod.meta.name)
        specs = {} if pod.meta.pod is None else {one.name: one for one in pod.meta.pod.spec.containers}
        own = [_own_quota(view, spec) for spec in specs.values()]
        whole = min(quota, sum(own)) if own and min(own) > 0 else quota
        yield DesiredSetting(Setting(CPU_QUOTA, pod.meta.cgroup_dir), whole, REASON, about=about)
        for meta in pod.meta.containers:
            spec = specs.get(meta.name)
            if spec is not None and meta.running and _own_quota(view, spec) > whole:
                yield DesiredSetting(Setting(CPU_QUOTA, meta.cgroup_dir), whole, REASON, about=about)

    def words(self, view: NodeView, held: Squeeze) -> str:
        """`quota 76000 us`, or what all of best effort gets."""
        if self.whole(view):
            return f"best effort as a whole gets {held.level} % of its quota"
        return f"quota {_quota(held)} us"


def _quota(held: Squeeze) -> int:
    return max(milli_to_quota(held.value), LEAST_QUOTA_US)


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
        return None if charged is None else max(charged, LEAST_BYTES)

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """`high` was asked for, and the kernel has none."""
        if action.policy == HIGH and not self._supports(MEMORY_HIGH, pod.meta.cgroup_dir):
            return "this kernel has no memory.high; policy limit bounds growth"
        return ""

    def updates(
        self, view: NodeView, pod: PodView, held: Squeeze, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """Whole pages. What is far above its goal gets there in steps of GLIDE_BYTES, one a round."""
        high = action.policy != LIMIT and self._supports(MEMORY_HIGH, pod.meta.cgroup_dir)
        if high or action.policy != HIGH:
            setting = Setting(MEMORY_HIGH if high else MEMORY_LIMIT, pod.meta.cgroup_dir)
            goal = max(held.value, (_charged(pod) or 0) - GLIDE_BYTES)
            limits = [_own_limit(one) for one in pod.meta.pod.spec.containers] if pod.meta.pod is not None else []
            most = sum(limits) if limits and min(limits) > 0 else goal
            value = min(goal, most) // PAGE * PAGE
            yield DesiredSetting(setting, value, REASON, about=about_pod(pod.meta.namespace, pod.meta.name))

    def words(self, view: NodeView, held: Squeeze) -> str:
        """`203 MiB`"""
        return f"{held.value >> 20} MiB"


def target_percent(cpu: list[Squeeze]) -> int:
    """How much of its CPU budget best effort keeps while these are held back: the lowest level."""
    return min((held.level for held in cpu), default=100)


class NetworkLever:
    """The pod's traffic class on the node's interface, or that of all best effort where it has none of its own: its
    limit shrinks (`netqos` asks how far). Bounds what leaves the node, and with it what its peers are asked to send.
    `why_not`: why no classes are made, empty where they are."""

    def __init__(self, why_not: Callable[[NodeView], str]) -> None:
        self._why_not = why_not

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Percent of the class's own limit."""
        return FREE

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """Nothing is shaped here."""
        return self._why_not(view)

    def updates(
        self, view: NodeView, pod: PodView, held: Squeeze, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """The classes are `netqos`'s."""
        yield from ()

    def words(self, view: NodeView, held: Squeeze) -> str:
        """`30 % of its class's limit`"""
        return f"{held.level} % of its class's limit"
