"""The Node object that this kubelet registers and keeps up to date; pure.

Only the kubelet's own fields are written. Resources that others put into the status (batch-cpu by koord-manager,
devices) remain, because updates are patches of single keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone.kubelet.node.machine import MachineCapacity
from control.standalone.objectmeta import timestamp
from koordlet.api.encoding.quantity import BINARY_SI, Quantity

CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


@dataclass(frozen=True, slots=True)
class NodeResources:
    """`absolute`: capacity minus reservations, the limit of the kubepods cgroup. `allocatable`: `absolute` minus the
    hard eviction thresholds, the amount that the scheduler may assign."""

    capacity: dict[str, Quantity]
    allocatable: dict[str, Quantity]
    absolute: dict[str, Quantity]


class ReservationError(ValueError):
    """A reservation exceeds the capacity or names an unknown resource."""


def _huge_name(size: int) -> str:
    return f"hugepages-{Quantity.of(size, BINARY_SI)}"


def resources(
    machine: MachineCapacity,
    max_pods: int,
    kube_reserved: Mapping[str, Quantity],
    system_reserved: Mapping[str, Quantity],
    eviction_memory: int,
    eviction_disk_percent: int,
) -> NodeResources:
    """Capacity and allocatable as kubelet computes them. Raises `ReservationError`."""
    capacity = {
        "cpu": Quantity.of(machine.cpus),
        "memory": Quantity.of(machine.memory, BINARY_SI),
        "ephemeral-storage": Quantity.of(machine.disk, BINARY_SI),
        "pods": Quantity.of(max_pods),
    }
    for page, size in machine.hugepages.items():
        capacity[_huge_name(page)] = Quantity.of(size, BINARY_SI)
    absolute = dict(capacity)
    for reserved in (kube_reserved, system_reserved):
        for name, amount in reserved.items():
            if name not in ("cpu", "memory", "ephemeral-storage", "pid"):
                raise ReservationError(f"cannot reserve {name!r}: one of cpu, memory, ephemeral-storage, pid")
            if name == "pid":
                continue
            if absolute[name] < amount:
                raise ReservationError(f"cannot reserve {amount} of {name}: only {absolute[name]} is available")
            absolute[name] = absolute[name] - amount
    huge = sum(machine.hugepages.values())
    allocatable = dict(absolute)
    eviction_thresholds = {
        "memory": eviction_memory + huge,
        "ephemeral-storage": machine.disk * eviction_disk_percent // 100,
    }
    for name, size in eviction_thresholds.items():
        left = max(0, allocatable[name].value() - size)
        allocatable[name] = Quantity.of(left, BINARY_SI if name == "memory" else allocatable[name].fmt)
    return NodeResources(capacity, allocatable, absolute)


def _texts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def labels(machine: MachineCapacity, hostname: str, extra: Mapping[str, str]) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": hostname,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine.arch,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": machine.arch,
        "node.kubernetes.io/instance-type": "standalone",
        **extra,
    }


def node_conditions(old: Mapping[str, Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """The four conditions with the heartbeat `now`; a transition time changes only with its status."""
    out = []
    for kind, status, reason, message in CONDITIONS:
        old_condition = old.get(kind, {})
        since = old_condition.get("lastTransitionTime") if old_condition.get("status") == status else None
        out.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": since or timestamp(now),
            }
        )
    return out


def node_status(
    machine: MachineCapacity,
    amounts: NodeResources,
    *,
    address: str,
    hostname: str,
    port: int,
    kubelet_version: str,
    runtime_version: str,
    conditions: list[dict[str, Any]],
) -> dict[str, Any]:
    """The kubelet's part of `status`."""
    return {
        "capacity": _texts(amounts.capacity),
        "allocatable": _texts(amounts.allocatable),
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": hostname},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "machineID": machine.machine_id,
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": machine.os_image,
            "containerRuntimeVersion": runtime_version,
            "kubeletVersion": kubelet_version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine.arch,
        },
        "conditions": conditions,
    }


def lease(node_name: str, node_uid: str, now: float, seconds: int) -> dict[str, Any]:
    fraction = int(now % 1 * 1_000_000)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": node_name,
            "namespace": "kube-node-lease",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid},
            ],
        },
        "spec": {
            "holderIdentity": node_name,
            "leaseDurationSeconds": seconds,
            "renewTime": f"{timestamp(now).removesuffix('Z')}.{fraction:06d}Z",
        },
    }
