"""Memory QoS: protection, throttling, reclaim watermarks and OOM order by class and pod (spec 03 §3.5). Pure.

Only what is switched on is asked for: a class that is off, or a pod whose annotation says `none`, has what the kubelet
set. Percentages are of requests and limits in bytes, rounded down; limits of memory.high to whole pages.

Stock kernels have neither watermarks nor priorities. There the watermarks are `memoryreclaim`'s (where `memory.reclaim`
is missing too: a memory.high at the mark, for best effort only, as it slows a container down), and a priority of 1 to
12 protects that many twelfths of the request by memory.low, so that reclaim takes from the others first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from koordlet.api.annotations.pod import MEMORY_QOS
from koordlet.api.core import Container, Pod, pod_limits, pod_requests
from koordlet.api.encoding.wire import WireError
from koordlet.api.names import RESOURCE_BATCH_MEMORY
from koordlet.api.sloconfig.defaults import KOORDLET_QOS
from koordlet.api.sloconfig.resourceqos import MemoryQOS, ResourceQOS, ResourceQOSStrategy
from koordlet.app.logging import get_logger
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import Decision, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting, Value
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cgroup.validators import INT64_MAX

log = get_logger(__name__)

PAGE = os.sysconf("SC_PAGE_SIZE")
REASON = "cgroup reconcile"
BE, MEMORY = "BE", "memory"
CLASS_OF = {"LSE": "lsr_class", "LSR": "lsr_class", "LS": "ls_class", "BE": "be_class", "SYSTEM": "system_class"}
STATIC = {
    "memory.wmark_ratio": "wmark_ratio",
    "memory.wmark_scale_factor": "wmark_scale_permill",
    "memory.wmark_min_adj": "wmark_min_adj",
    "memory.use_priority_oom": "priority_enable",
    "memory.priority": "priority",
    "memory.oom.group": "oom_kill_group",
}
"""File -> field; the watermarks are for pods and containers, the rest for QoS directories too."""
VENDOR = "memory.wmark_ratio"
"""Kernels with this file have all of the vendor's."""
HIGHEST_PRIORITY = 12
WATERMARKS = tuple(file for file in STATIC if "wmark" in file)
MAINLINE = ("memory.oom.group",)
KUBE_CLASSES = {"Guaranteed": "lsr_class", "Burstable": "ls_class", "BestEffort": "be_class"}


@dataclass(frozen=True, slots=True)
class Amounts:
    """Bytes asked for and allowed; `limit` UNLIMITED without one."""

    request: int
    limit: int


def amounts_of_container(pod: PodView, container: Container) -> Amounts:
    """What the container asks for: batch-memory in BE pods, memory in others."""
    name = RESOURCE_BATCH_MEMORY if pod.raw_qos == BE else MEMORY
    request, limit = container.resources.requests.get(name), container.resources.limits.get(name)
    return Amounts(
        0 if request is None else max(request.value(), 0),
        UNLIMITED if limit is None else limit.value(),
    )


def amounts_of_pod(pod: PodView, spec: Pod) -> Amounts:
    """Kubernetes' own sums; for BE pods those of containers and sidecars, unlimited as soon as one is."""
    if pod.raw_qos != BE:
        request, limit = pod_requests(spec).get(MEMORY), pod_limits(spec).get(MEMORY)
        return Amounts(0 if request is None else request.value(), UNLIMITED if limit is None else limit.value())
    sidecars = [container for container in spec.spec.init_containers if container.is_sidecar]
    each = [amounts_of_container(pod, container) for container in [*spec.spec.containers, *sidecars]]
    unlimited = any(one.limit == UNLIMITED for one in each)
    return Amounts(sum(one.request for one in each), UNLIMITED if unlimited else sum(one.limit for one in each))


def config_of(pod: PodView, strategy: ResourceQOSStrategy) -> MemoryQOS | None:
    """What is switched on for the pod; None for nothing. Unset fields are not written."""
    qos_class = CLASS_OF.get(pod.meta.qos)
    if qos_class is None or pod.meta.pod is None:
        return None
    given = _memory(strategy, qos_class)
    base = given if given is not None and given.enable else None
    try:
        own = MEMORY_QOS.get(pod.meta.pod.metadata.annotations)
    except WireError as error:
        log.once(f"{pod.meta.uid}:{error}", "annotation ignored", pod=f"{pod.meta.namespace}/{pod.meta.name}",
                 error=str(error))  # fmt: skip
        own = None
    if own is None:
        return base
    if own.policy == "none":
        return None
    if own.policy == "auto":
        base = _memory(KOORDLET_QOS, qos_class)
    fields = {
        name: value for name in own.__struct_fields__ if name != "policy" and (value := getattr(own, name)) is not None
    }
    if base is None and not fields:
        return None
    return msgspec.structs.replace(base or MemoryQOS(), **fields)


def protection(amounts: Amounts, config: MemoryQOS) -> dict[str, int]:
    """memory.min and memory.low of a pod or container."""
    found = {}
    if config.min_limit_percent is not None:
        found["memory.min"] = amounts.request * config.min_limit_percent // 100
    if config.low_limit_percent is not None:
        low = amounts.request * config.low_limit_percent // 100
        found["memory.low"] = max(low, found.get("memory.min", 0)) if low > 0 else low
    return found


def stock_protection(amounts: Amounts, config: MemoryQOS) -> dict[str, int]:
    """As `protection`, with the priority in it: the larger of what is asked for and of its share of the request."""
    found = protection(amounts, config)
    if config.priority_enable == 1 and config.priority:
        priority = min(max(config.priority, 0), HIGHEST_PRIORITY)
        found["memory.low"] = max(amounts.request * priority // HIGHEST_PRIORITY, found.get("memory.low", 0))
    return found


def high(amounts: Amounts, config: MemoryQOS, node_memory: int, least: int) -> int | None:
    """memory.high of a container; INT64_MAX for no throttling, None when not configured."""
    percent = config.throttling_percent
    if percent is None:
        return None
    if percent == 0:
        return INT64_MAX
    top = amounts.limit if amounts.limit > 0 else node_memory
    value = (amounts.request * 100 + (top - amounts.request) * percent) // 100 // PAGE * PAGE
    return max(value, least) if value > 0 else value


def watermark(amounts: Amounts, config: MemoryQOS) -> int | None:
    """The limit's `wmarkRatio` in whole pages; None without a limit or a ratio."""
    if amounts.limit <= 0 or not config.wmark_ratio:
        return None
    return amounts.limit * config.wmark_ratio // 100 // PAGE * PAGE


def page_cache(config: MemoryQOS, limit: int) -> dict[str, int]:
    """Settings of the page cache limit, which vendor kernels have."""
    size: int | None = None
    if config.page_cache_limit_size is not None:
        size = config.page_cache_limit_size if limit <= 0 else min(config.page_cache_limit_size, limit)
    elif config.page_cache_limit_percent is not None and limit > 0:
        size = limit * config.page_cache_limit_percent // 100
    found: dict[str, int] = {}
    if size is not None:
        found = {"memory.pagecache_limit.size": size, "memory.pagecache_limit.enable": int(size > 0)}
        if size > 0:
            found["memory.pagecache_limit.sync"] = int(bool(config.page_cache_reclaim_sync))
    if config.page_cache_enable is not None:
        found["memory.pagecache_limit.enable"] = int(config.page_cache_enable)
    return found


def static(config: MemoryQOS, *, watermarks: bool, vendor: bool = True) -> dict[str, int]:
    """Files that hold a configured value as it is."""
    files = [file for file in STATIC if (watermarks or file not in WATERMARKS) and (vendor or file in MAINLINE)]
    return {file: value for file in files if (value := getattr(config, STATIC[file])) is not None}


class MemoryQOSReconcile(Strategy):
    """The strategy."""

    name = "memoryqos"
    gate = "CgroupReconcile"

    def __init__(self, supports: Supports = lambda resource, directory: True) -> None:
        """`supports` tells what the kernel has; asked of the directory of all pods only."""
        self._supports = supports
        self._vendor = self._throttles = True

    def decide(self, view: NodeView) -> Decision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None:
            return None
        root = view.qos_dirs.get("Guaranteed", "")
        self._vendor = self._supports(VENDOR, root)
        others = self._vendor or self._supports("memory.reclaim", root)
        self._throttles = not others and self._supports("memory.high", root)
        updates: list[DesiredSetting] = []
        sums: dict[str, dict[str, int]] = {kube: {} for kube in view.qos_dirs}
        for pod in view.pods:
            config = config_of(pod, strategy) if pod.active else None
            if config is None or pod.meta.pod is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            whole = amounts_of_pod(pod, pod.meta.pod)
            protected = self._protection(whole, config)
            _add(sums.get(pod.meta.kube_qos), protected)
            values = {**protected, **static(config, watermarks=True, vendor=self._vendor)}
            if self._vendor:
                values |= page_cache(config, whole.limit)
            updates += _updates(pod.meta.cgroup_dir, values, about)
            updates += self._containers(view, pod, config, about)
        for file in ("memory.min", "memory.low"):  # the directory of all pods holds them all
            told = [amounts[file] for kube, amounts in sums.items() if file in amounts]
            if told and "Guaranteed" in sums:
                sums["Guaranteed"][file] = sum(told)
        for kube, directory in view.qos_dirs.items():
            given = _memory(strategy, KUBE_CLASSES[kube])
            on = given is not None and given.enable
            fixed = static(given, watermarks=False, vendor=self._vendor) if given is not None and on else {}
            updates += _updates(directory, {**sums[kube], **fixed}, None)
        return Decision(tuple(updates))

    def _protection(self, amounts: Amounts, config: MemoryQOS) -> dict[str, int]:
        return protection(amounts, config) if self._vendor else stock_protection(amounts, config)

    def _containers(self, view: NodeView, pod: PodView, config: MemoryQOS, about: About) -> Iterator[DesiredSetting]:
        specs = (
            {} if pod.meta.pod is None else {container.name: container for container in pod.meta.pod.spec.containers}
        )
        for meta in pod.meta.containers:
            spec = specs.get(meta.name)
            if spec is None or not meta.running:
                continue
            amounts = amounts_of_container(pod, spec)
            values: dict[str, int] = {
                **self._protection(amounts, config),
                **static(config, watermarks=True, vendor=self._vendor),
            }
            top = high(amounts, config, view.allocatable(MEMORY), values.get("memory.min", 0))
            if self._throttles and pod.best_effort and (mark := watermark(amounts, config)) is not None:
                top = mark if top is None else min(top, mark)
            if top is not None:
                values["memory.high"] = top
            yield from _updates(meta.cgroup_dir, values, about)


def _updates(directory: str, values: Mapping[str, Value], about: About | None) -> Iterable[DesiredSetting]:
    return [DesiredSetting(Setting(file, directory), value, REASON, about=about) for file, value in values.items()]


def _add(sums: dict[str, int] | None, amounts: Mapping[str, int]) -> None:
    if sums is not None:
        for file, amount in amounts.items():
            sums[file] = sums.get(file, 0) + amount


def _memory(strategy: ResourceQOSStrategy, qos_class: str) -> MemoryQOS | None:
    found: ResourceQOS | None = getattr(strategy, qos_class)
    return None if found is None else found.memory_qos
