"""The catalogue of series: name, labels, unit and how far back anybody reads (spec 02 §4.3).

A sample carries exactly its kind's labels; a query may fix any subset. Names and label names are Koordinator's.
"""

from __future__ import annotations

from dataclasses import dataclass


class SeriesError(ValueError):
    """A sample or a query that does not fit its kind: unknown name, wrong labels, or a time out of order."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One family of series."""

    name: str
    labels: tuple[str, ...]
    unit: str
    long: bool = False
    """Whether aggregated windows (30 minutes by default) are read; the others serve the report window alone."""
    brief: bool = False
    """Nobody averages them: the last minute is kept, and more as soon as somebody asks (`MetricCache.retain`)."""


NODE: tuple[str, ...] = ()
NUMA = ("numa_node_id",)
POD = ("pod_uid",)
CONTAINER = ("container_id",)
POD_CONTAINER = ("pod_uid", "container_id")
HOST_APP = ("host_app_name",)
GPU = ("gpu_minor", "gpu_device_uuid")

CORES, BYTES, RATIO, PERCENT, MILLICORES, COUNT = "cores", "bytes", "ratio", "percent", "millicores", "count"
SECONDS_PER_SECOND, SECONDS = "seconds/second", "seconds"


def _kinds() -> tuple[Kind, ...]:
    psi = ("psi_resource", "psi_precision", "psi_degree")
    return (
        Kind("node_cpu_usage", NODE, CORES, long=True),
        Kind("node_memory_usage", NODE, BYTES, long=True),
        Kind("node_memory_usage_with_page_cache", NODE, BYTES, long=True),
        Kind("node_numa_cpu_usage", NUMA, CORES),
        Kind("node_numa_memory_usage", NUMA, BYTES),
        Kind("node_gpu_core_usage", GPU, PERCENT, long=True),
        Kind("node_gpu_memory_usage", GPU, BYTES, long=True),
        Kind("sys_cpu_usage", NODE, CORES, long=True),
        Kind("sys_memory_usage", NODE, BYTES, long=True),
        Kind("sys_numa_cpu_usage", NUMA, CORES),
        Kind("sys_numa_memory_usage", NUMA, BYTES),
        Kind("node_be", ("be_resource", "be_allocation"), MILLICORES),
        Kind("pod_cpu_usage", POD, CORES),
        Kind("pod_memory_usage", POD, BYTES),
        Kind("pod_memory_usage_with_page_cache", POD, BYTES),
        Kind("container_cpu_usage", CONTAINER, CORES),
        Kind("container_memory_usage", CONTAINER, BYTES),
        Kind("container_memory_usage_with_page_cache", CONTAINER, BYTES),
        Kind("pod_gpu_core_usage", (*POD, *GPU), PERCENT),
        Kind("pod_gpu_memory_usage", (*POD, *GPU), BYTES),
        Kind("container_gpu_core_usage", (*CONTAINER, *GPU), PERCENT),
        Kind("container_gpu_memory_usage", (*CONTAINER, *GPU), BYTES),
        Kind("pod_cpu_throttled", POD, RATIO),
        Kind("container_cpu_throttled", CONTAINER, RATIO),
        Kind("host_application_cpu_usage", HOST_APP, CORES),
        Kind("host_application_memory_usage", HOST_APP, BYTES),
        Kind("host_application_memory_usage_with_page_cache", HOST_APP, BYTES),
        Kind("container_cpi", (*POD_CONTAINER, "cpi_resource"), COUNT),
        Kind("container_psi", (*POD_CONTAINER, *psi), PERCENT),
        Kind("pod_psi", (*POD, *psi), PERCENT),
        Kind("container_psi_cpu_full_supported", POD_CONTAINER, COUNT),
        Kind("pod_psi_cpu_full_supported", POD, COUNT),
        Kind("resctrl_resource_llc", ("qos", "cache_id"), BYTES),
        Kind("resctrl_resource_mb", ("qos", "cache_id", "resctrl_mb_type"), "bytes/second"),
        Kind("node_memory_with_hot_page_usage", NODE, BYTES, long=True),
        Kind("pod_memory_with_hot_page_usage", POD, BYTES),
        Kind("container_memory_with_hot_page_usage", CONTAINER, BYTES),
        Kind("host_application_memory_with_hot_page_usage", HOST_APP, BYTES),
        Kind("node_memory_cold_page_size", NODE, BYTES),
        Kind("pod_memory_cold_page_size", POD, BYTES),
        Kind("container_memory_cold_page_size", CONTAINER, BYTES),
        Kind("host_application_memory_cold_page_size", HOST_APP, BYTES),
        # Ours: QoS-class roll-ups and what the probes tell (spec 02 §11.1).
        Kind("qos_cpu_usage", ("qos",), CORES),
        Kind("qos_memory_usage", ("qos",), BYTES),
        Kind("container_sched_wait", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_sched_throttled", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_sched_latency_p50", CONTAINER, SECONDS, brief=True),
        Kind("container_sched_latency_p99", CONTAINER, SECONDS, brief=True),
        Kind("container_mem_stall", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_mem_stall_p99", CONTAINER, SECONDS, brief=True),
        Kind("container_block_io_read", CONTAINER, "bytes/second", brief=True),
        Kind("container_block_io_write", CONTAINER, "bytes/second", brief=True),
        Kind("container_block_io_wait", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_block_io_throttled", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_block_io_p99", CONTAINER, SECONDS, brief=True),
        Kind("container_net_retransmits", CONTAINER, "segments/second", brief=True),
        Kind("container_net_softirq", CONTAINER, SECONDS_PER_SECOND, brief=True),
        Kind("container_psi_stall", (*CONTAINER, "psi_resource", "psi_degree"), SECONDS_PER_SECOND, brief=True),
        Kind("pod_psi_stall", (*POD, "psi_resource", "psi_degree"), SECONDS_PER_SECOND, brief=True),
    )


KINDS = _kinds()
BY_NAME = {kind.name: kind for kind in KINDS}
