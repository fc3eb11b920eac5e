"""The cgroup values of pods and containers; pure.

All values are computed as v1 values (shares, quota, bytes), as kubelet does. `files_v1` and `files_v2` convert a
`CgroupValues` to file contents; v2 weights are computed from shares by the formula of spec 03 §1.4. A field that is
`None` is not written, so that the kernel's default (no limit) applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from control.standalone.kubelet.cgroups.naming import QosClass
from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod, pod_limits, pod_requests, qos_class
from koordlet.api.encoding.quantity import Quantity

MIN_SHARES = 2
MAX_SHARES = 262144
PERIOD_US = 100_000
GUARANTEED_OOM_SCORE_ADJ = -997
SANDBOX_OOM_SCORE_ADJ = -998
MIN_QUOTA_US = 1_000


@dataclass(frozen=True, slots=True)
class CgroupValues:
    """The values of one directory. Quota and period are in microseconds, memory in bytes."""

    shares: int | None = None
    quota: int | None = None
    memory: int | None = None
    oom_group: bool = False
    """v2 only: the OOM killer kills the whole container, not one of its processes."""
    no_swap: bool = False
    """A container may not swap: swap.max 0 on v2, memsw = memory limit on v1."""


def shares_of(milli: int) -> int:
    """cpu.shares for a request in milli-cores."""
    return max(MIN_SHARES, min(MAX_SHARES, milli * 1024 // 1000)) if milli > 0 else MIN_SHARES


def quota_of(milli: int) -> int | None:
    """CFS quota for a limit in milli-cores; None: no limit. The kernel rejects less than 1 ms."""
    return max(MIN_QUOTA_US, milli * PERIOD_US // 1000) if milli > 0 else None


def weight_of(shares: int) -> int:
    return max(1, min(10000, 1 + (shares - 2) * 9999 // 262142))


def _milli(quantity: Quantity | None) -> int:
    return quantity.milli_value() if quantity is not None else 0


def _bytes(quantity: Quantity | None) -> int | None:
    return quantity.value() if quantity else None


def pod_values(pod: ParsedPod) -> CgroupValues:
    """Values of the pod's directory: a limit is set only when every container declares one."""
    qos = qos_class(pod)
    if qos is QosClass.BESTEFFORT:
        return CgroupValues(shares=MIN_SHARES)
    requests, limits = pod_requests(pod), pod_limits(pod)
    containers = pod.all_containers()
    cpu_declared = all(bool(c.limit("cpu")) for c in containers)
    memory_declared = all(bool(c.limit("memory")) for c in containers)
    return CgroupValues(
        shares=shares_of(_milli(requests.get("cpu"))),
        quota=quota_of(_milli(limits.get("cpu"))) if cpu_declared else None,
        memory=_bytes(limits.get("memory")) if memory_declared else None,
    )


def container_values(container: ContainerSpec) -> CgroupValues:
    return CgroupValues(
        shares=shares_of(_milli(container.request("cpu"))),
        quota=quota_of(_milli(container.limit("cpu"))),
        memory=_bytes(container.limit("memory")),
        oom_group=True,
        no_swap=True,
    )


def sandbox_values() -> CgroupValues:
    return CgroupValues(shares=MIN_SHARES)


def qos_values(qos: QosClass, pods: Iterable[ParsedPod]) -> CgroupValues:
    """Values of a QoS class's parent: Burstable has the shares of its pods' requests, BestEffort the minimum."""
    if qos is QosClass.BESTEFFORT:
        return CgroupValues(shares=MIN_SHARES)
    milli = sum(_milli(pod_requests(p).get("cpu")) for p in pods if qos_class(p) is qos)
    return CgroupValues(shares=shares_of(milli))


def root_values(allocatable_milli: int, allocatable_memory: int) -> CgroupValues:
    """Values of the kubepods root: capacity minus reservations, hard eviction thresholds not subtracted."""
    return CgroupValues(shares=shares_of(allocatable_milli), memory=allocatable_memory)


def oom_score_adj(pod: ParsedPod, container: ContainerSpec, memory_capacity: int) -> int:
    """oom_score_adj: 1000 for BestEffort, 3..999 by memory request for Burstable, -997 for Guaranteed."""
    qos = qos_class(pod)
    if pod.node_critical or qos is QosClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if qos is QosClass.BESTEFFORT:
        return 1000

    def by_request(c: ContainerSpec) -> int:
        request = c.request("memory")
        return 1000 - 1000 * (request.value() if request else 0) // memory_capacity

    adj = by_request(container)
    if container.sidecar:  # not killed before the main containers
        adj = min(adj, max(by_request(c) for c in pod.containers))
    return max(1000 + GUARANTEED_OOM_SCORE_ADJ, min(adj, 999))


def files_v1(values: CgroupValues) -> dict[str, dict[str, str]]:
    """Controller -> file -> text, in the order in which the files have to be written."""
    out: dict[str, dict[str, str]] = {}
    if values.shares is not None:
        out.setdefault("cpu", {})["cpu.shares"] = str(values.shares)
    if values.quota is not None:
        out.setdefault("cpu", {}).update({"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(values.quota)})
    if values.memory is not None:
        out["memory"] = {"memory.limit_in_bytes": str(values.memory)}
        if values.no_swap:
            out["memory"]["memory.memsw.limit_in_bytes"] = str(values.memory)
    return out


def files_v2(values: CgroupValues) -> dict[str, str]:
    """file -> text."""
    out: dict[str, str] = {}
    if values.shares is not None:
        out["cpu.weight"] = str(weight_of(values.shares))
    if values.quota is not None:
        out["cpu.max"] = f"{values.quota} {PERIOD_US}"
    if values.memory is not None:
        out["memory.max"] = str(values.memory)
    if values.no_swap:
        out["memory.swap.max"] = "0"
    if values.oom_group:
        out["memory.oom.group"] = "1"
    return out


OPTIONAL_FILES: Mapping[str, str] = {
    "memory.swap.max": "absent without swap accounting",
    "memory.memsw.limit_in_bytes": "absent without swap accounting",
    "memory.oom.group": "cgroup v2 since Linux 4.19",
}
"""Files that a kernel may lack, with the reason; they are skipped then."""
