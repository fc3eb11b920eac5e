"""Resource use, capacity and pressure of the node, its pods and containers."""

from __future__ import annotations

from koordlet.prometheus.family import CONTAINER, EXTERNAL, GPU, POD, Family

PSI = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")

FAMILIES = (
    Family("node_used_cpu_cores", "CPU used on the node.", unit="cores"),
    Family("node_used_memory_bytes", "Memory used on the node, excluding page cache.", unit="bytes"),
    Family(
        "host_application_resource_usage",
        "Resource use of a host application: cores or bytes.",
        ("host_application_name", "resource", "priority_class", "qos"),
    ),
    Family(
        "container_cpi",
        "Cycles and instructions of the container in the last CPI measurement.",
        (*CONTAINER, "cpi_field"),
        side=EXTERNAL,
        unit="count",
    ),
    Family(
        "resctrl_llc_occupancy",
        "Last-level cache occupied by a QoS group.",
        ("cache_id", "qos"),
        side=EXTERNAL,
        unit="bytes",
    ),
    Family(
        "resctrl_memory_bandwidth",
        "Memory bandwidth of a QoS group: mb_type=mbm_local_bytes (own NUMA node) or mbm_total_bytes (all).",
        ("cache_id", "qos", "mb_type"),
        side=EXTERNAL,
        unit="bytes/second",
    ),
    Family(
        "container_psi",
        "Percentage of time in which tasks of the container were stalled.",
        (*CONTAINER, *PSI),
        side=EXTERNAL,
        unit="percent",
    ),
    Family(
        "pod_psi",
        "Percentage of time in which tasks of the pod were stalled.",
        (*POD, *PSI),
        side=EXTERNAL,
        unit="percent",
    ),
    Family(
        "node_stolen_cpu_cores",
        "CPU time that the hypervisor gave to other guests while it was requested (steal of /proc/stat).",
        unit="cores",
    ),
    Family("container_cpu_usage_cores", "CPU used by the container.", CONTAINER, side=EXTERNAL, unit="cores"),
    Family(
        "container_memory_usage_bytes",
        "Memory used by the container, excluding page cache.",
        CONTAINER,
        side=EXTERNAL,
        unit="bytes",
    ),
    Family(
        "container_cpu_throttled_ratio",
        "Share of the last CFS periods in which the container was throttled.",
        CONTAINER,
        side=EXTERNAL,
        unit="ratio",
    ),
    Family("pod_cpu_usage_cores", "CPU used by the pod.", POD, side=EXTERNAL, unit="cores"),
    Family("pod_memory_usage_bytes", "Memory used by the pod, excluding page cache.", POD, side=EXTERNAL, unit="bytes"),
    Family("qos_cpu_usage_cores", "CPU used by all pods of a QoS class.", ("qos",), side=EXTERNAL, unit="cores"),
    Family(
        "qos_memory_usage_bytes",
        "Memory used by all pods of a QoS class, excluding page cache.",
        ("qos",),
        side=EXTERNAL,
        unit="bytes",
    ),
    Family("system_cpu_usage_cores", "CPU used outside pods and host applications.", side=EXTERNAL, unit="cores"),
    Family("system_memory_usage_bytes", "Memory used outside pods and host applications.", side=EXTERNAL, unit="bytes"),
    Family("node_capacity_cpu_cores", "Online CPUs of the node.", side=EXTERNAL, unit="cores"),
    Family("node_capacity_memory_bytes", "Memory of the node.", side=EXTERNAL, unit="bytes"),
    Family("node_memory_cold_bytes", "Cold page cache of the node.", side=EXTERNAL, unit="bytes"),
    Family("pod_memory_cold_bytes", "Cold page cache of the pod.", POD, side=EXTERNAL, unit="bytes"),
    Family("container_memory_cold_bytes", "Cold page cache of the container.", CONTAINER, side=EXTERNAL, unit="bytes"),
    Family("node_gpu_memory_bytes", "Memory of a GPU.", GPU, side=EXTERNAL, unit="bytes"),
    Family(
        "node_gpu_used_memory_bytes", "Used memory of a GPU, as reported by the GPU.", GPU, side=EXTERNAL, unit="bytes"
    ),
    Family(
        "node_gpu_used_core_ratio",
        "Share of a GPU's multiprocessors used by its processes; a sum over processes that may exceed 1.",
        GPU,
        side=EXTERNAL,
        unit="ratio",
    ),
    Family(
        "container_gpu_used_memory_bytes",
        "GPU memory used by the container's processes.",
        (*CONTAINER, *GPU),
        side=EXTERNAL,
        unit="bytes",
    ),
    Family(
        "container_gpu_used_core_ratio",
        "Share of a GPU's multiprocessors used by the container's processes; a sum over processes.",
        (*CONTAINER, *GPU),
        side=EXTERNAL,
        unit="ratio",
    ),
    Family(
        "gpu_healthy",
        "1 for a healthy GPU, 0 for an unhealthy one (reason: its fault); absent while GPU health is not monitored.",
        (*GPU, "reason"),
        side=EXTERNAL,
    ),
    Family(
        "gpu_xid_errors_total",
        "Xid errors reported by the driver, including those caused by programs.",
        ("gpu_device_uuid", "xid"),
        side=EXTERNAL,
        type="counter",
    ),
    Family(
        "container_psi_stall_seconds_total",
        "Time in which some or all tasks of the container were stalled.",
        (*CONTAINER, "psi_resource_type", "psi_degree"),
        side=EXTERNAL,
        type="counter",
        unit="seconds",
    ),
    Family(
        "pod_psi_stall_seconds_total",
        "Time in which some or all tasks of the pod were stalled.",
        (*POD, "psi_resource_type", "psi_degree"),
        side=EXTERNAL,
        type="counter",
        unit="seconds",
    ),
)
