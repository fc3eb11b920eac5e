"""Nodes with NUMA zones and pods with CPUs of their own, for the scheduler's benchmark."""

from __future__ import annotations

import json

from control.scheduler.plugins.nodenumaresource.book import NumaBook
from koordlet.api.core import Pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plugins.numaworld import lsr, topology
from tests.scale.schedulerprofile import Bench

SHAPE = (2, 2, 16, 2)
"""128 CPUs on 4 NUMA nodes."""
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}


def add_topologies(bench: Bench) -> None:
    for number in range(bench.nodes):
        name = f"node-{number}"
        bench.cluster.table.set_node(node(name, cpu="128", memory="512Gi", pods=256))
        bench.reports.tell(topology(name, SHAPE, memory="128Gi"))
    NumaBook.of(bench.cluster.handle).sync()


def full_cores(count: int) -> list[Pod]:
    """LSR pods, three sizes in turn."""
    spec = {"requiredCPUBindPolicy": "FullPCPUs"}
    return [lsr(str(4 << number % 3), memory="4Gi", spec=spec) for number in range(count)]


def single_zone(count: int) -> list[Pod]:
    """Pods that want all resources from one NUMA zone, every second of them with CPUs of its own."""
    key = "scheduling.koordinator.sh/numa-topology-spec"
    return [
        lsr("8", memory="8Gi", numa=SINGLE)
        if number % 2
        else pod(cpu="4", memory="8Gi", annotations={key: json.dumps(SINGLE)})
        for number in range(count)
    ]
