"""Pods of every Koordinator class at every Kubernetes level, and the odd ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.process.fleet import Need, PodSpec

ALL = CPUSet(os.sched_getaffinity(0))
OWN = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": str(max(ALL))})}
"""The scheduler gave the pod the last CPU."""
BATCH = Need(batch_cpu=(200, 300), batch_memory=(64, 128))
ASKING = {
    KubeQOS.GUARANTEED: Need(cpu=(1000, 1000), memory=(128, 128)),
    KubeQOS.BURSTABLE: Need(cpu=(250, 750), memory=(64, 192)),
    KubeQOS.BESTEFFORT: Need(),
}


def annotated(**annotations: Any) -> dict[str, str]:
    return {f"koordinator.sh/{key}": json.dumps(value) for key, value in annotations.items()}


def every_class() -> Iterator[PodSpec]:
    """Every class at every level, and the odd ones."""
    for kube, need in ASKING.items():
        for qos in ("LSE", "LSR", "LS", "BE", "SYSTEM", ""):
            yield PodSpec(f"{qos.lower() or 'none'}-{kube.value.lower()}", kube, qos, (need,))
    burstable, best_effort, need = KubeQOS.BURSTABLE, KubeQOS.BESTEFFORT, ASKING[KubeQOS.BURSTABLE]
    yield PodSpec("batch", best_effort, "BE", (BATCH, replace(BATCH, batch_cpu=(500, 1000))))
    yield PodSpec("batch-half-limited", best_effort, "BE", (BATCH, Need(batch_cpu=(100, None))))
    yield PodSpec("batch-elsewhere", burstable, "BE", (replace(BATCH, memory=(16, None)),))
    yield PodSpec("two", burstable, "LS", (need, replace(need, cpu=(100, None))))
    yield PodSpec("steps-back", burstable, "LS", (need,), annotated(cpuQOS={"enable": True, "groupIdentity": -1}))
    yield PodSpec("no-burst", burstable, "LS", (need,), annotated(cpuBurst={"policy": "none"}))
    yield PodSpec("small-burst", burstable, "LS", (need,), annotated(cpuBurst={"cpuBurstPercent": 50}))
    yield PodSpec("unprotected", burstable, "LS", (need,), annotated(memoryQOS={"policy": "none"}))
    yield PodSpec("automatic", burstable, "LS", (need,), annotated(memoryQOS={"policy": "auto"}))
    yield PodSpec("own-memory", burstable, "LS", (need,), annotated(memoryQOS={"minLimitPercent": 100}))
