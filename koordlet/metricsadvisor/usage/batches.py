"""Pictures as batches for the metric cache: names and labels of spec 02 §4.3. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from koordlet.metriccache import Batch
from koordlet.metriccache.ring import Key
from koordlet.metricsadvisor.stalls.latency import SubjectLatency
from koordlet.metricsadvisor.usage.picture import Picture
from koordlet.metricsadvisor.usage.pressure import TOTALS, WIRE, PressureReading
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.statesinformer.pods.model import SubjectKind

LEVEL = {SubjectKind.POD: "pod", SubjectKind.CONTAINER: "container", SubjectKind.HOST_APP: "host_application"}


def use_batch(picture: Picture, *, page_cache: bool) -> Batch:
    """One tick of use: node, system, QoS classes, BestEffort, pods, containers, host applications."""
    batch = Batch(picture.at)
    node = picture.node
    if node is not None:
        batch.add("node_cpu_usage", node.cores)
        batch.add("node_memory_usage", node.memory)
        if page_cache:
            batch.add("node_memory_usage_with_page_cache", node.memory_with_page_cache)
        for number, use in node.numa.items():
            batch.add("node_numa_cpu_usage", use.cores, str(number))
            batch.add("node_numa_memory_usage", use.memory, str(number))
    if picture.system is not None:
        batch.add("sys_cpu_usage", picture.system.cores)
        batch.add("sys_memory_usage", picture.system.memory)
    for number, use in picture.system_numa.items():
        batch.add("sys_numa_cpu_usage", use.cores, str(number))
        batch.add("sys_numa_memory_usage", use.memory, str(number))
    for qos, use in picture.qos.items():
        batch.add("qos_cpu_usage", use.cores, qos)
        batch.add("qos_memory_usage", use.memory, qos)
    best_effort = picture.best_effort
    if best_effort is not None:
        values = {"usage": best_effort.usage, "request": best_effort.request, "real-limit": best_effort.real_limit}
        for allocation, value in values.items():
            if value is not None:
                batch.add("node_be", value, "cpu", allocation)
    for kind, level in LEVEL.items():
        rows, keys = picture.workloads.row_arrays[kind], picture.workloads.series[kind]
        columns = {"cpu_usage": picture.use.cores, "memory_usage": picture.use.memory}
        if kind is not SubjectKind.HOST_APP:
            columns["cpu_throttled"] = picture.use.throttled
        if page_cache and kind is not SubjectKind.HOST_APP:  # theirs is what the kernel charges: hostapps.py
            columns["memory_usage_with_page_cache"] = picture.use.memory_with_page_cache
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
    """avg10 of pods and containers, and whether the kernel gives `full` for cpu."""
    batch, subjects = Batch(reading.at), reading.workloads.subjects
    for kind, level in ((SubjectKind.POD, "pod"), (SubjectKind.CONTAINER, "container")):
        rows = reading.workloads.row_arrays[kind]
        whose = [subjects[row] for row in reading.workloads.rows[kind]]
        keys: list[Key] = [(s.pod_uid,) if kind is SubjectKind.POD else (s.pod_uid, s.key) for s in whose]
        for resource, degree, _ in TOTALS:
            averages = reading.column(resource, degree, "avg10")[rows]
            _extend(batch, f"{level}_psi", [(*key, WIRE[resource], "10", degree) for key in keys], averages)
        _extend(batch, f"{level}_psi_cpu_full_supported", keys, reading.full_supported("cpu")[rows])
    return batch


def stall_batch(reading: PressureReading, stalls: Mapping[tuple[str, str], Mapping[str, float]]) -> Batch:
    """Shares of time stalled: (resource, degree) -> subject key -> share, of pods and containers."""
    batch = Batch(reading.at)
    levels = {SubjectKind.POD: "pod", SubjectKind.CONTAINER: "container"}
    kinds = {s.key: f"{levels[s.kind]}_psi_stall" for s in reading.workloads.subjects if s.kind in levels}
    for (resource, degree), shares in stalls.items():
        for key, share in shares.items():
            if key in kinds:
                batch.add(kinds[key], share, key, WIRE[resource], degree)
    return batch


def latency_batch(at: float, latencies: Mapping[str, SubjectLatency]) -> Batch:
    """Schedule latency by subject key."""
    batch = Batch(at)
    keys = [(key,) for key in latencies]
    batch.extend("container_sched_wait", keys, np.array([one.wait for one in latencies.values()]))
    batch.extend("container_sched_throttled", keys, np.array([one.throttled for one in latencies.values()]))
    waited = [((key,), one.p50, one.p99) for key, one in latencies.items() if one.p50 is not None]
    for index, name in ((1, "container_sched_latency_p50"), (2, "container_sched_latency_p99")):
        batch.extend(name, [row[0] for row in waited], np.array([row[index] for row in waited], dtype=float))
    return batch
