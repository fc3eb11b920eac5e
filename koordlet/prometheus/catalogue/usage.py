"""Resource use, capacity and pressure of the node, its pods and containers."""

from __future__ import annotations

from koordlet.prometheus.family import CONTAINER, GPU, POD, external, internal

PSI = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")

FAMILIES = (
    internal("node_used_cpu_cores", "CPU used on the node."),
    internal("node_used_memory_bytes", "Memory used on the node, excluding page cache."),
    internal(
        "host_application_resource_usage",
        "Resource use of a host application: cores or bytes.",
        ("host_application_name", "resource", "priority_class", "qos"),
    ),
    external(
        "container_cpi",
        "Cycles and instructions of the container in the last CPI measurement.",
        (*CONTAINER, "cpi_field"),
        unit="count",
    ),
    external(
        "external_advisor_figure",
        "Figure of the container from an exporter of --external-advisors; a higher value is worse.",
        (*CONTAINER, "advisor", "figure"),
        unit="",
    ),
    external("resctrl_llc_occupancy", "Last-level cache occupied by a QoS group.", ("cache_id", "qos"), unit="bytes"),
    external(
        "resctrl_memory_bandwidth",
        "Memory bandwidth of a QoS group: mb_type=mbm_local_bytes (own NUMA node) or mbm_total_bytes (all).",
        ("cache_id", "qos", "mb_type"),
        unit="bytes/second",
    ),
    external(
        "container_psi",
        "Percentage of time in which tasks of the container were stalled.",
        (*CONTAINER, *PSI),
        unit="percent",
    ),
    external("pod_psi", "Percentage of time in which tasks of the pod were stalled.", (*POD, *PSI), unit="percent"),
    internal(
        "node_stolen_cpu_cores",
        "CPU time that the hypervisor gave to other guests while it was requested (steal of /proc/stat).",
    ),
    external("container_cpu_usage_cores", "CPU used by the container.", CONTAINER),
    external("container_memory_usage_bytes", "Memory used by the container, excluding page cache.", CONTAINER),
    external(
        "container_cpu_throttled_ratio",
        "Share of the last CFS periods in which the container was throttled.",
        CONTAINER,
    ),
    external("pod_cpu_usage_cores", "CPU used by the pod.", POD),
    external("pod_memory_usage_bytes", "Memory used by the pod, excluding page cache.", POD),
    external("qos_cpu_usage_cores", "CPU used by all pods of a QoS class.", ("qos",)),
    external("qos_memory_usage_bytes", "Memory used by all pods of a QoS class, excluding page cache.", ("qos",)),
    external("system_cpu_usage_cores", "CPU used outside pods and host applications."),
    external("system_memory_usage_bytes", "Memory used outside pods and host applications."),
    external("node_capacity_cpu_cores", "Online CPUs of the node."),
    external("node_capacity_memory_bytes", "Memory of the node."),
    external("node_memory_cold_bytes", "Cold page cache of the node."),
    external("pod_memory_cold_bytes", "Cold page cache of the pod.", POD),
    external("container_memory_cold_bytes", "Cold page cache of the container.", CONTAINER),
    external("node_gpu_memory_bytes", "Memory of a GPU.", GPU),
    external("node_gpu_used_memory_bytes", "Used memory of a GPU, as reported by the GPU.", GPU),
    external(
        "node_gpu_used_core_ratio",
        "Share of a GPU's multiprocessors used by its processes; a sum over processes that may exceed 1.",
        GPU,
    ),
    external("container_gpu_used_memory_bytes", "GPU memory used by the container's processes.", (*CONTAINER, *GPU)),
    external(
        "container_gpu_used_core_ratio",
        "Share of a GPU's multiprocessors used by the container's processes; a sum over processes.",
        (*CONTAINER, *GPU),
    ),
    external(
        "gpu_healthy",
        "1 for a healthy GPU, 0 for an unhealthy one (reason: its fault); absent while GPU health is not monitored.",
        (*GPU, "reason"),
    ),
    external(
        "gpu_xid_errors_total",
        "Xid errors reported by the driver, including those caused by programs.",
        ("gpu_device_uuid", "xid"),
    ),
    external(
        "container_psi_stall_seconds_total",
        "Time in which some or all tasks of the container were stalled.",
        (*CONTAINER, "psi_resource_type", "psi_degree"),
    ),
    external(
        "pod_psi_stall_seconds_total",
        "Time in which some or all tasks of the pod were stalled.",
        (*POD, "psi_resource_type", "psi_degree"),
    ),
)
