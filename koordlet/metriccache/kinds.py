"""The catalogue of series: name, labels, unit and retention (spec 02 §4.3).

A sample has exactly its kind's labels; a query may fix any subset. Names and label names are Koordinator's.
"""

from __future__ import annotations

from dataclasses import dataclass


class SeriesError(ValueError):
    """A sample or a query that does not fit its kind: unknown name, wrong labels, or a time out of order."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """One family of series."""

    name: str
    labels: tuple[str, ...]
    unit: str
    long: bool = False
    """Whether aggregated windows (30 minutes by default) are read; otherwise only the report window is."""


NODE: tuple[str, ...] = ()
NUMA = ("numa_node_id",)
POD = ("pod_uid",)
CONTAINER = ("container_id",)
POD_CONTAINER = ("pod_uid", "container_id")
HOST_APP = ("host_app_name",)
GPU = ("gpu_minor", "gpu_device_uuid")

CORES, BYTES, RATIO, PERCENT, MILLICORES, COUNT = "cores", "bytes", "ratio", "percent", "millicores", "count"


def _kinds() -> tuple[MetricKind, ...]:
    psi = ("psi_resource", "psi_precision", "psi_degree")
    return (
        MetricKind("node_cpu_usage", NODE, CORES, long=True),
        MetricKind("node_memory_usage", NODE, BYTES, long=True),
        MetricKind("node_memory_usage_with_page_cache", NODE, BYTES, long=True),
        MetricKind("node_numa_cpu_usage", NUMA, CORES),
        MetricKind("node_numa_memory_usage", NUMA, BYTES),
        MetricKind("node_gpu_core_usage", GPU, PERCENT, long=True),
        MetricKind("node_gpu_memory_usage", GPU, BYTES, long=True),
        MetricKind("sys_cpu_usage", NODE, CORES, long=True),
        MetricKind("sys_memory_usage", NODE, BYTES, long=True),
        MetricKind("sys_numa_cpu_usage", NUMA, CORES),
        MetricKind("sys_numa_memory_usage", NUMA, BYTES),
        MetricKind("node_be", ("be_resource", "be_allocation"), MILLICORES),
        MetricKind("pod_cpu_usage", POD, CORES),
        MetricKind("pod_memory_usage", POD, BYTES),
        MetricKind("pod_memory_usage_with_page_cache", POD, BYTES),
        MetricKind("container_cpu_usage", CONTAINER, CORES),
        MetricKind("container_memory_usage", CONTAINER, BYTES),
        MetricKind("container_memory_usage_with_page_cache", CONTAINER, BYTES),
        MetricKind("pod_gpu_core_usage", (*POD, *GPU), PERCENT),
        MetricKind("pod_gpu_memory_usage", (*POD, *GPU), BYTES),
        MetricKind("container_gpu_core_usage", (*CONTAINER, *GPU), PERCENT),
        MetricKind("container_gpu_memory_usage", (*CONTAINER, *GPU), BYTES),
        MetricKind("pod_cpu_throttled", POD, RATIO),
        MetricKind("container_cpu_throttled", CONTAINER, RATIO),
        MetricKind("host_application_cpu_usage", HOST_APP, CORES),
        MetricKind("host_application_memory_usage", HOST_APP, BYTES),
        MetricKind("host_application_memory_usage_with_page_cache", HOST_APP, BYTES),
        MetricKind("container_cpi", (*POD_CONTAINER, "cpi_resource"), COUNT),
        MetricKind("container_psi", (*POD_CONTAINER, *psi), PERCENT),
        MetricKind("pod_psi", (*POD, *psi), PERCENT),
        MetricKind("container_psi_cpu_full_supported", POD_CONTAINER, COUNT),
        MetricKind("pod_psi_cpu_full_supported", POD, COUNT),
        MetricKind("resctrl_resource_llc", ("qos", "cache_id"), BYTES),
        MetricKind("resctrl_resource_mb", ("qos", "cache_id", "resctrl_mb_type"), "bytes/second"),
        MetricKind("node_memory_with_hot_page_usage", NODE, BYTES, long=True),
        MetricKind("pod_memory_with_hot_page_usage", POD, BYTES),
        MetricKind("container_memory_with_hot_page_usage", CONTAINER, BYTES),
        MetricKind("host_application_memory_with_hot_page_usage", HOST_APP, BYTES),
        MetricKind("node_memory_cold_page_size", NODE, BYTES),
        MetricKind("pod_memory_cold_page_size", POD, BYTES),
        MetricKind("container_memory_cold_page_size", CONTAINER, BYTES),
        MetricKind("host_application_memory_cold_page_size", HOST_APP, BYTES),
        # Not in Koordinator: sums by QoS class.
        MetricKind("qos_cpu_usage", ("qos",), CORES),
        MetricKind("qos_memory_usage", ("qos",), BYTES),
    )


KINDS = _kinds()
BY_NAME = {kind.name: kind for kind in KINDS}
