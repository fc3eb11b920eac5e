"""Pods with CPUs of their own and pods that want one NUMA node, for the scheduler's benchmark."""

from __future__ import annotations

import json

from koordlet.api.core import Pod
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.numaworld import lsr

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}


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
