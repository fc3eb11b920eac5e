"""Figures as batches for the metric cache: names and labels of spec 02 §4.3. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koordlet.metriccache import Batch
from koordlet.metriccache.ring import Key
from koordlet.metricsadvisor.usage.pressure import TOTALS, WIRE, PressureReading
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.metricsadvisor.usage.snapshot import UsageSnapshot
from koordlet.statesinformer.pods.model import SubjectKind

LEVEL = {SubjectKind.POD: "pod", SubjectKind.CONTAINER: "container", SubjectKind.HOST_APP: "host_application"}


def use_batch(usage: UsageSnapshot, *, page_cache: bool) -> Batch:
    """One tick of use: node, system, QoS classes, BestEffort, pods, containers, host applications."""
    batch = Batch(usage.at)
    node = usage.node
    if node is not None:
        batch.add("node_cpu_usage", node.cores)
        batch.add("node_memory_usage", node.memory)
        if page_cache:
            batch.add("node_memory_usage_with_page_cache", node.memory_with_page_cache)
        for number, use in node.numa.items():
            batch.add("node_numa_cpu_usage", use.cores, str(number))
            batch.add("node_numa_memory_usage", use.memory, str(number))
    if usage.system is not None:
        batch.add("sys_cpu_usage", usage.system.cores)
        batch.add("sys_memory_usage", usage.system.memory)
    for number, use in usage.system_numa.items():
        batch.add("sys_numa_cpu_usage", use.cores, str(number))
        batch.add("sys_numa_memory_usage", use.memory, str(number))
    for qos, use in usage.qos.items():
        batch.add("qos_cpu_usage", use.cores, qos)
        batch.add("qos_memory_usage", use.memory, qos)
    best_effort = usage.best_effort
    if best_effort is not None:
        values = {"usage": best_effort.usage, "request": best_effort.request, "real-limit": best_effort.real_limit}
        for allocation, value in values.items():
            if value is not None:
                batch.add("node_be", value, "cpu", allocation)
    for kind, level in LEVEL.items():
        rows, keys = usage.workloads.row_arrays[kind], usage.workloads.series[kind]
        columns = {"cpu_usage": usage.use.cores, "memory_usage": usage.use.memory}
        if kind is not SubjectKind.HOST_APP:
            columns["cpu_throttled"] = usage.use.throttled
        if page_cache and kind is not SubjectKind.HOST_APP:  # hostapps.py commits theirs: the kernel's charge
            columns["memory_usage_with_page_cache"] = usage.use.memory_with_page_cache
        for name, column in columns.items():
            if len(rows):
                _extend(batch, f"{level}_{name}", keys, column[rows])
    return batch


def _extend(batch: Batch, kind: str, keys: Sequence[Key], values: Floats) -> None:
    absent = np.isnan(values)
    if absent.any():
        keys, values = [key for key, gone in zip(keys, absent.tolist(), strict=True) if not gone], values[~absent]
    batch.extend(kind, keys, values)


def pressure_batch(reading: PressureReading) -> Batch:
    """avg10 of pods and containers, and whether the kernel has `full` for cpu."""
    batch, subjects = Batch(reading.at), reading.workloads.subjects
    for kind, level in ((SubjectKind.POD, "pod"), (SubjectKind.CONTAINER, "container")):
        rows = reading.workloads.row_arrays[kind]
        kept = [subjects[row] for row in reading.workloads.rows[kind]]
        keys: list[Key] = [(s.pod_uid,) if kind is SubjectKind.POD else (s.pod_uid, s.key) for s in kept]
        for resource, degree, _ in TOTALS:
            averages = reading.column(resource, degree, "avg10")[rows]
            _extend(batch, f"{level}_psi", [(*key, WIRE[resource], "10", degree) for key in keys], averages)
        _extend(batch, f"{level}_psi_cpu_full_supported", keys, reading.full_supported("cpu")[rows])
    return batch
