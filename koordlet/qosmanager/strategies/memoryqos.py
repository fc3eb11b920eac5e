"""Memory QoS: protection, throttling, reclaim watermarks and OOM order by class and pod (spec 03 §3.5). Pure.

Only enabled features produce settings: a disabled class, or a pod with policy `none`, keeps what the kubelet set.
Percentages are of requests and limits in bytes, rounded down; memory.high is rounded down to whole pages.

Stock kernels have neither watermarks nor priorities. There, `memoryreclaim` implements the watermarks (without
`memory.reclaim` too: a memory.high at the mark, for best effort only, because it slows a container down), and a
priority of 1 to 12 protects that many twelfths of the request by memory.low, so that other cgroups are reclaimed first.
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
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
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
"""File -> field; watermarks are for pods and containers, the other files for QoS directories too."""
VENDOR_FILE = "memory.wmark_ratio"
"""A kernel with this file has all of the vendor's files."""
MAX_OOM_PRIORITY = 12
WATERMARKS = tuple(file for file in STATIC if "wmark" in file)
MAINLINE = ("memory.oom.group",)
KUBE_CLASSES = {"Guaranteed": "lsr_class", "Burstable": "ls_class", "BestEffort": "be_class"}


@dataclass(frozen=True, slots=True)
class MemoryAmounts:
    """Bytes requested and allowed; `limit` is UNLIMITED without one."""

    request: int
    limit: int


def amounts_of_container(pod: PodView, container: Container) -> MemoryAmounts:
    """The container's request and limit: batch-memory in BE pods, memory in others."""
    name = RESOURCE_BATCH_MEMORY if pod.raw_qos == BE else MEMORY
    request, limit = container.resources.requests.get(name), container.resources.limits.get(name)
    return MemoryAmounts(
        0 if request is None else max(request.value(), 0),
        UNLIMITED if limit is None else limit.value(),
    )


def amounts_of_pod(pod: PodView, spec: Pod) -> MemoryAmounts:
    """Kubernetes' sums; for BE pods the sums of containers and sidecars, unlimited if one of them is."""
    if pod.raw_qos != BE:
        request, limit = pod_requests(spec).get(MEMORY), pod_limits(spec).get(MEMORY)
        return MemoryAmounts(0 if request is None else request.value(), UNLIMITED if limit is None else limit.value())
    sidecars = [container for container in spec.spec.init_containers if container.is_sidecar]
    amounts = [amounts_of_container(pod, container) for container in [*spec.spec.containers, *sidecars]]
    unlimited = any(amount.limit == UNLIMITED for amount in amounts)
    total_limit = UNLIMITED if unlimited else sum(amount.limit for amount in amounts)
    return MemoryAmounts(sum(amount.request for amount in amounts), total_limit)


def config_of(pod: PodView, strategy: ResourceQOSStrategy) -> MemoryQOS | None:
    """The pod's enabled configuration; None if nothing is enabled. Unset fields are not written."""
    qos_class = CLASS_OF.get(pod.meta.qos)
    if qos_class is None or pod.meta.pod is None:
        return None
    class_config = _memory(strategy, qos_class)
    base = class_config if class_config is not None and class_config.enable else None
    try:
        own = MEMORY_QOS.get(pod.meta.pod.metadata.annotations)
    except WireError as error:
        name = f"{pod.meta.namespace}/{pod.meta.name}"
        log.once(f"{pod.meta.uid}:{error}", "Malformed annotation ignored", pod=name, error=str(error))
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


def protection(amounts: MemoryAmounts, config: MemoryQOS) -> dict[str, int]:
    """memory.min and memory.low of a pod or container."""
    values = {}
    if config.min_limit_percent is not None:
        values["memory.min"] = amounts.request * config.min_limit_percent // 100
    if config.low_limit_percent is not None:
        low = amounts.request * config.low_limit_percent // 100
        values["memory.low"] = max(low, values.get("memory.min", 0)) if low > 0 else low
    return values


def stock_protection(amounts: MemoryAmounts, config: MemoryQOS) -> dict[str, int]:
    """As `protection`, but memory.low is at least the priority's share of the request."""
    values = protection(amounts, config)
    if config.priority_enable == 1 and config.priority:
        priority = min(max(config.priority, 0), MAX_OOM_PRIORITY)
        values["memory.low"] = max(amounts.request * priority // MAX_OOM_PRIORITY, values.get("memory.low", 0))
    return values


def high(amounts: MemoryAmounts, config: MemoryQOS, node_memory: int, least: int) -> int | None:
    """memory.high of a container, at least `least`; INT64_MAX for no throttling, None if not configured."""
    percent = config.throttling_percent
    if percent is None:
        return None
    if percent == 0:
        return INT64_MAX
    top = amounts.limit if amounts.limit > 0 else node_memory
    value = (amounts.request * 100 + (top - amounts.request) * percent) // 100 // PAGE * PAGE
    return max(value, least) if value > 0 else value


def watermark(amounts: MemoryAmounts, config: MemoryQOS) -> int | None:
    """The limit's `wmarkRatio` in whole pages; None without a limit or a ratio."""
    if amounts.limit <= 0 or not config.wmark_ratio:
        return None
    return amounts.limit * config.wmark_ratio // 100 // PAGE * PAGE


def page_cache(config: MemoryQOS, limit: int) -> dict[str, int]:
    """Settings of the vendor kernels' page cache limit."""
    size: int | None = None
    if config.page_cache_limit_size is not None:
        size = config.page_cache_limit_size if limit <= 0 else min(config.page_cache_limit_size, limit)
    elif config.page_cache_limit_percent is not None and limit > 0:
        size = limit * config.page_cache_limit_percent // 100
    values: dict[str, int] = {}
    if size is not None:
        values = {"memory.pagecache_limit.size": size, "memory.pagecache_limit.enable": int(size > 0)}
        if size > 0:
            values["memory.pagecache_limit.sync"] = int(bool(config.page_cache_reclaim_sync))
    if config.page_cache_enable is not None:
        values["memory.pagecache_limit.enable"] = int(config.page_cache_enable)
    return values


def static(config: MemoryQOS, *, watermarks: bool, vendor: bool) -> dict[str, int]:
    """Files that take a configured value unchanged."""
    files = [file for file in STATIC if (watermarks or file not in WATERMARKS) and (vendor or file in MAINLINE)]
    return {file: value for file in files if (value := getattr(config, STATIC[file])) is not None}


class MemoryQOSReconcile(Strategy):
    """The strategy."""

    name = "memoryqos"

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None:
            return None
        vendor = VENDOR_FILE in view.memory_files
        updates: list[DesiredSetting] = []
        sums: dict[str, dict[str, int]] = {kube: {} for kube in view.qos_dirs}
        for pod in view.pods:
            config = config_of(pod, strategy) if pod.active else None
            if config is None or pod.meta.pod is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            whole = amounts_of_pod(pod, pod.meta.pod)
            protected = _protection(whole, config, vendor=vendor)
            _add(sums.get(pod.meta.kube_qos), protected)
            values = {**protected, **static(config, watermarks=True, vendor=vendor)}
            if vendor:
                values |= page_cache(config, whole.limit)
            updates += _updates(pod.meta.cgroup_dir, values, about)
            updates += _containers(view, pod, config, about)
        for file in ("memory.min", "memory.low"):  # the directory of all pods contains those of all classes
            protections = [amounts[file] for amounts in sums.values() if file in amounts]
            if protections and "Guaranteed" in sums:
                sums["Guaranteed"][file] = sum(protections)
        for kube, directory in view.qos_dirs.items():
            class_config = _memory(strategy, KUBE_CLASSES[kube])
            fixed: dict[str, int] = {}
            if class_config is not None and class_config.enable:
                fixed = static(class_config, watermarks=False, vendor=vendor)
            updates += _updates(directory, {**sums[kube], **fixed}, None)
        return QoSDecision(tuple(updates))


def _containers(view: NodeView, pod: PodView, config: MemoryQOS, about: About) -> Iterator[DesiredSetting]:
    specs = {} if pod.meta.pod is None else {container.name: container for container in pod.meta.pod.spec.containers}
    vendor = VENDOR_FILE in view.memory_files
    high_at_watermark = pod.best_effort and view.memory_files == {"memory.high"}
    for meta in pod.meta.containers:
        spec = specs.get(meta.name)
        if spec is None or not meta.running:
            continue
        amounts = amounts_of_container(pod, spec)
        values: dict[str, int] = {
            **_protection(amounts, config, vendor=vendor),
            **static(config, watermarks=True, vendor=vendor),
        }
        top = high(amounts, config, view.allocatable(MEMORY), values.get("memory.min", 0))
        if high_at_watermark and (mark := watermark(amounts, config)) is not None:
            top = mark if top is None else min(top, mark)
        if top is not None:
            values["memory.high"] = top
        yield from _updates(meta.cgroup_dir, values, about)


def _protection(amounts: MemoryAmounts, config: MemoryQOS, *, vendor: bool) -> dict[str, int]:
    return protection(amounts, config) if vendor else stock_protection(amounts, config)


def _updates(directory: str, values: Mapping[str, Value], about: About | None) -> Iterable[DesiredSetting]:
    return [DesiredSetting(Setting(file, directory), value, REASON, about=about) for file, value in values.items()]


def _add(sums: dict[str, int] | None, amounts: Mapping[str, int]) -> None:
    if sums is not None:
        for file, amount in amounts.items():
            sums[file] = sums.get(file, 0) + amount


def _memory(strategy: ResourceQOSStrategy, qos_class: str) -> MemoryQOS | None:
    config: ResourceQOS | None = getattr(strategy, qos_class)
    return None if config is None else config.memory_qos
