"""What every group must hold under a NodeSLO, computed from the specification's tables (spec 03 §3.2, §3.4, §3.5,
§4.5-§4.7, §4.15) and the table of stock-kernel equivalents in docs/enforcement.md: the second source that the
cross-check compares the kernel with. It knows nothing of koordlet's strategies and imports none of them.

Limits: idle pods only (nothing throttled, nothing that grows), a node whose budget for best effort is its minimum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from koordlet.system.cgroup.naming import KubeQOS, kubepods_dir, qos_dir
from tests.koordlet.process.fleet import MIB, PAGE, Fleet, Need, Pod, State, kernel_text, shares

KUBE_CLASS = {KubeQOS.GUARANTEED: "lsr", KubeQOS.BURSTABLE: "ls", KubeQOS.BESTEFFORT: "be"}
CLASS = {"LSE": "lsr", "LSR": "lsr", "LS": "ls", "BE": "be", "SYSTEM": "system"}
DesiredText = tuple[str, str, int | str]
"""(directory, resource in v1 terms, value)"""


@dataclass(frozen=True)
class Memory:
    """Memory QoS of one class."""

    minimum: int = 0
    low: int = 0
    throttling: int = 0
    oom_group: int | None = 0
    """None for not said."""
    priority: int = 0
    """Of twelve; 0 for switched off."""


@dataclass(frozen=True)
class Policy:
    """What is switched on, and what the node is."""

    cpus: int
    memory_mib: int
    quota_percent: int | None = None
    """Suppress by quota, at this share of the node."""
    idle: bool = False
    """Best effort has identity -1."""
    burst: bool = False
    memory: dict[str, Memory] = field(default_factory=dict)
    batch: bool = True
    pools: str = ""
    """CPUs that are not pinned to any pod."""
    free_cpus: str = ""
    """What best effort may use when CPUs are reserved; empty for all."""


def expected(before: State, fleet: Fleet, policy: Policy) -> State:
    """`before` with everything that the policy asks for over it, as far as the kernel has the file."""
    settings, files = dict(before), {file for _, file in before}
    for directory, resource, value in desired_settings(fleet, policy):
        if isinstance(value, str):
            file, text = resource, value
        else:
            _, file, text = kernel_text(fleet.tree.v2, resource, value)
        if file in files:
            assert (directory, file) in settings, f"{directory}/{file} should hold {text} and is not there"
            settings[directory, file] = text
    return settings


def unseen(fleet: Fleet, policy: Policy) -> set[tuple[str, str]]:
    """Weights of idle groups: the kernel forgets them meanwhile."""
    weight = "cpu.weight" if fleet.tree.v2 else "cpu.shares"
    idle = {directory for directory, resource, _ in desired_settings(fleet, policy) if resource == "cpu.idle"}
    return {(directory, weight) for directory in idle}


def desired_settings(fleet: Fleet, policy: Policy) -> Iterator[DesiredText]:
    """All that is set."""
    best_effort = qos_dir(fleet.driver, KubeQOS.BESTEFFORT)
    if policy.quota_percent is not None:
        yield best_effort, "cpu.cfs_quota_us", policy.cpus * policy.quota_percent * 1000
    if policy.free_cpus:
        yield best_effort, "cpuset.cpus", policy.free_cpus
    if policy.idle:
        yield best_effort, "cpu.idle", 1
    for pod in fleet.pods.values():
        yield from _cpu(pod, policy)
        yield from _batch(pod, policy)
        yield from _burst(pod, policy)
        yield from _memory_of_pod(pod, policy)
        if policy.free_cpus and pod.spec.kube is KubeQOS.BESTEFFORT:
            for directory in pod.dirs:
                yield directory, "cpuset.cpus", policy.free_cpus
    yield from _memory_of_classes(fleet, policy)


# --- CPU


def _identity(pod: Pod) -> int:
    """§4.5, -1 for best effort. Only that shows on a stock kernel."""
    if pod.spec.qos:
        name = CLASS[pod.spec.qos]
        if name == "system":
            name = KUBE_CLASS[pod.spec.kube]
    else:
        name = KUBE_CLASS[pod.spec.kube]
    own = json.loads(pod.spec.annotations.get("koordinator.sh/cpuQOS", "null"))
    if own is not None and pod.spec.qos == "LS":
        return int(own.get("groupIdentity", 2)) if own.get("enable") else 0
    return -1 if name == "be" else 2


def _cpu(pod: Pod, policy: Policy) -> Iterator[DesiredText]:
    below_idle = pod.spec.kube is KubeQOS.BESTEFFORT
    if policy.idle and _identity(pod) < 0 and not below_idle:
        yield pod.dir, "cpu.idle", 1
    status = json.loads(pod.spec.annotations.get("scheduling.koordinator.sh/resource-status", "{}"))
    own = status.get("cpuset")
    if own or pod.spec.qos == "LS" or pod.spec.kube is not KubeQOS.BESTEFFORT:
        for directory in (*pod.container_dirs, pod.sandbox_dir):
            yield directory, "cpuset.cpus", own or policy.pools
    if own and pod.spec.qos in ("LSE", "LSR", ""):
        for directory in (pod.dir, *pod.container_dirs):
            yield directory, "cpu.cfs_quota_us", -1


def _batch(pod: Pod, policy: Policy) -> Iterator[DesiredText]:
    """§4.7."""
    needs = pod.spec.containers
    if pod.spec.qos != "BE" or not policy.batch or all(n.batch_cpu == n.batch_memory == (None, None) for n in needs):
        return
    groups = [(pod.dir, needs), *((d, (need,)) for d, need in zip(pod.container_dirs, needs, strict=True))]
    for directory, of in groups:
        limits, memory = [need.batch_cpu[1] for need in of], [need.batch_memory[1] for need in of]
        yield directory, "cpu.shares", shares(sum(need.batch_cpu[0] or 0 for need in of))
        bound = policy.quota_percent is None and None not in limits
        yield directory, "cpu.cfs_quota_us", sum(limit or 0 for limit in limits) * 100 if bound else -1
        unlimited = None in memory
        yield directory, "memory.limit_in_bytes", -1 if unlimited else sum(container or 0 for container in memory) * MIB


def _burst(pod: Pod, policy: Policy) -> Iterator[DesiredText]:
    """§3.4 with policy auto and 1000 percent: mainline kernels take the quota at most."""
    own = json.loads(pod.spec.annotations.get("koordinator.sh/cpuBurst", "{}"))
    bursts = policy.burst and own.get("policy", "auto") in ("auto", "cpuBurstOnly")
    if not bursts or pod.spec.qos in ("LSE", "LSR", "BE"):
        return
    limits = [need.cpu[1] for need in pod.spec.containers]
    quotas = [0 if limit is None else limit * 100 for limit in limits]
    percent = own.get("cpuBurstPercent", 1000)
    values = [min(quota * percent // 100, quota) for quota in quotas]
    for directory, value in zip(pod.container_dirs, values, strict=True):
        if value:
            yield directory, "cpu.cfs_burst_us", value
    if None not in limits and sum(values):
        yield pod.dir, "cpu.cfs_burst_us", sum(values)


# --- memory


def _config(pod: Pod, policy: Policy) -> Memory | None:
    name = CLASS.get(pod.spec.qos) or KUBE_CLASS[pod.spec.kube]
    base = policy.memory.get(name)
    own = json.loads(pod.spec.annotations.get("koordinator.sh/memoryQOS", "{}"))
    match own.pop("policy", None):
        case "none":
            return None
        case "auto":
            base = Memory()
    if base is None and not own:
        return None
    base = base or Memory(oom_group=None)
    return Memory(
        own.get("minLimitPercent", base.minimum),
        own.get("lowLimitPercent", base.low),
        own.get("throttlingPercent", base.throttling),
        own.get("oomKillGroup", base.oom_group),
        own.get("priority", base.priority),
    )


def _amounts(pod: Pod, need: Need) -> tuple[int, int]:
    """(request, limit) in bytes; -1 for no limit."""
    request, limit = need.batch_memory if pod.spec.qos == "BE" else need.memory
    if request is None and pod.spec.qos != "BE":
        request = limit  # as the API server fills it in
    return (request or 0) * MIB, -1 if limit is None else limit * MIB


def _protection(request: int, config: Memory) -> tuple[int, int]:
    minimum, low = request * config.minimum // 100, request * config.low // 100
    return minimum, max(low if low == 0 else max(low, minimum), request * config.priority // 12)


def _memory_of_pod(pod: Pod, policy: Policy) -> Iterator[DesiredText]:
    """§3.5, what stock kernels have of it."""
    config = _config(pod, policy)
    if config is None:
        return
    amounts = [_amounts(pod, need) for need in pod.spec.containers]
    minimum, low = _protection(sum(request for request, _ in amounts), config)
    yield from ((pod.dir, "memory.min", minimum), (pod.dir, "memory.low", low))
    if config.oom_group is not None:
        for directory in (pod.dir, *pod.container_dirs):
            yield directory, "memory.oom.group", config.oom_group
    for directory, (request, limit) in zip(pod.container_dirs, amounts, strict=True):
        minimum, low = _protection(request, config)
        top = limit if limit > 0 else policy.memory_mib * MIB
        high = (request * 100 + (top - request) * config.throttling) // 100 // PAGE * PAGE
        if config.throttling == 0:
            high = 2**63 - 1
        yield from ((directory, "memory.min", minimum), (directory, "memory.low", low))
        yield directory, "memory.high", max(high, minimum) if high > 0 else high


def _memory_of_classes(fleet: Fleet, policy: Policy) -> Iterator[DesiredText]:
    sums: dict[KubeQOS, list[int]] = {qos: [0, 0] for qos in KubeQOS}
    for pod in fleet.pods.values():
        config = _config(pod, policy)
        if config is not None:
            request = sum(_amounts(pod, need)[0] for need in pod.spec.containers)
            for place, amount in enumerate(_protection(request, config)):
                sums[pod.spec.kube][place] += amount
    sums[KubeQOS.GUARANTEED] = [sum(amounts) for amounts in zip(*sums.values(), strict=True)]
    for qos, (minimum, low) in sums.items():
        directory = qos_dir(fleet.driver, qos) or kubepods_dir(fleet.driver)
        yield from ((directory, "memory.min", minimum), (directory, "memory.low", low))
        config = policy.memory.get(KUBE_CLASS[qos])
        if config is not None and config.oom_group is not None:
            yield directory, "memory.oom.group", config.oom_group


def documents(policy: Policy) -> dict[str, Any]:
    """The NodeSLO that asks for the policy."""
    threshold: dict[str, Any] = {"enable": policy.quota_percent is not None}
    if policy.quota_percent is not None:
        threshold |= {
            "cpuSuppressPolicy": "cfsQuota",
            "cpuSuppressThresholdPercent": policy.quota_percent,
            "cpuSuppressMinPercent": policy.quota_percent,
        }
    classes: dict[str, Any] = {}
    for name in ("lsr", "ls", "be", "system"):
        memory = policy.memory.get(name)
        classes[f"{name}Class"] = {
            "cpuQOS": {"enable": policy.idle},
            "memoryQOS": {"enable": False} if memory is None else {
                "enable": True,
                "minLimitPercent": memory.minimum,
                "lowLimitPercent": memory.low,
                "throttlingPercent": memory.throttling,
                "oomKillGroup": memory.oom_group,
                "priorityEnable": int(memory.priority > 0),
                "priority": memory.priority,
            },
        }  # fmt: skip
    return {
        "resourceUsedThresholdWithBE": threshold,
        "cpuBurstStrategy": {"policy": "auto" if policy.burst else "none", "cpuBurstPercent": 1000},
        "resourceQOSStrategy": classes,
    }
