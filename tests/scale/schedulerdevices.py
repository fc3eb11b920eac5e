"""Nodes with 128 CPUs, 4 NUMA nodes, 8 GPUs and 4 RDMA NICs, and pods with devices, for the scheduler's benchmark."""

from __future__ import annotations

import json
from typing import Any

from control.scheduler.plugins.deviceshare.book import DeviceBook
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from koordlet.api.core import Pod
from tests.control.scheduler.build import node
from tests.control.scheduler.plugins.deviceworld import GPU_MEMORY, device, gpu, rdma, with_devices
from tests.control.scheduler.plugins.numaworld import topology
from tests.scale.schedulerprofile import Bench

SHAPE = (2, 2, 16, 2)
"""Sockets, NUMA nodes of a socket, cores, threads."""
LSR = {"koordinator.sh/qosClass": "LSR"}
_GPUS = 8
_AMOUNTS: dict[str, Any] = {
    "nvidia.com__gpu": str(_GPUS),
    "koordinator.sh__gpu": str(100 * _GPUS),
    "koordinator.sh__gpu_core": str(100 * _GPUS),
    "koordinator.sh__gpu_memory": str(_GPUS * GPU_MEMORY),
    "koordinator.sh__gpu_memory_ratio": str(100 * _GPUS),
    "koordinator.sh__rdma": "400",
}


def add_machines(bench: Bench) -> None:
    """128 CPUs on 4 NUMA nodes, each with two GPUs and a NIC on one PCIe switch."""
    gpus = [gpu(minor, minor // 2, str(minor // 2)) for minor in range(_GPUS)]
    devices = [*gpus, *(rdma(minor, minor, str(minor)) for minor in range(4))]
    for number in range(bench.nodes):
        name = f"node-{number}"
        bench.cluster.table.set_node(node(name, cpu="128", memory="512Gi", pods=256, **_AMOUNTS))
        bench.reports.tell(topology(name, SHAPE, memory="128Gi"))
        bench.reports.tell(device(name, devices))
    NumaBook.of(bench.cluster.handle).sync()
    DeviceBook.of(bench.cluster.handle).sync()


def shared(count: int) -> list[Pod]:
    """Parts of a GPU, three sizes in turn."""
    return [
        with_devices({"koordinator.sh/gpu": str((20, 30, 50)[number % 3])}, cpu="1", memory="1Gi")
        for number in range(count)
    ]


def joint(count: int) -> list[Pod]:
    """All GPUs of a node with a virtual function on each of their PCIe switches."""
    return [
        with_devices(
            {"nvidia.com/gpu": str(_GPUS), "koordinator.sh/rdma": "1"},
            joint={"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
            hint={"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}},
            cpu="8",
            memory="8Gi",
        )
        for _ in range(count)
    ]


def aligned(count: int) -> list[Pod]:
    """A GPU, CPUs and memory of one NUMA node."""
    key = "scheduling.koordinator.sh/numa-topology-spec"
    policy = {key: json.dumps({"numaTopologyPolicy": "SingleNUMANode"})}
    return [
        with_devices({"nvidia.com/gpu": "1"}, cpu="8", memory="8Gi", annotations=policy, labels=LSR, priority=9000)
        for _ in range(count)
    ]
