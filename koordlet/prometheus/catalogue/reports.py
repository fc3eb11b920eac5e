"""What koordlet reports to the API server and clients, and koordlet's own state."""

from __future__ import annotations

from koordlet.prometheus.family import CONTAINER, external, internal

FAMILIES = (
    internal("start_time", "Unix time at which koordlet started.", ("node",), node_label=False, unit="seconds"),
    internal("collect_node_cpu_info_status", "Readings of the CPU layout, by outcome.", ("status",), type="counter"),
    internal("collect_node_numa_info_status", "Readings of the NUMA layout, by outcome.", ("status",), type="counter"),
    internal(
        "collect_node_local_storage_info_status",
        "Readings of local disks and mounts, by outcome.",
        ("status",),
        type="counter",
    ),
    internal("cpuset_share_pool_cpu_cores", "CPUs shared by latency-sensitive pods."),
    internal("cpuset_be_share_pool_cpu_cores", "CPUs that BestEffort pods may use."),
    internal("cpuset_share_pool_info", "1 for each CPU shared by latency-sensitive pods.", ("cpu",)),
    internal("cpuset_be_share_pool_info", "1 for each CPU that BestEffort pods may use.", ("cpu",)),
    internal(
        "kubelet_request_duration_seconds",
        "Duration of requests to the kubelet.",
        ("verb", "path", "code"),
        node_label=False,
        type="histogram",
    ),
    internal(
        "kubelet_own_delay_seconds_total",
        "Time by which koordlet's own work delayed the reading of kubelet answers.",
        node_label=False,
    ),
    internal("kubelet_decoded_bytes_total", "JSON of new and changed pods in kubelet answers.", node_label=False),
    internal(
        "kubelet_postponed_pods_total",
        "Pods in kubelet answers that change too fast, so that their earlier state was used.",
        node_label=False,
    ),
    external("node_resource_allocatable", "Allocatable batch and mid resources of the node.", ("resource", "unit")),
    external(
        "container_resource_requests",
        "Batch and mid requests of a container: milli-cores or bytes.",
        ("resource", "unit", *CONTAINER),
    ),
    external(
        "container_resource_limits",
        "Batch and mid limits of a container: milli-cores or bytes.",
        ("resource", "unit", *CONTAINER),
    ),
    internal(
        "node_metric_node_usage", "nodeUsage of the last NodeMetric report: cores or bytes.", ("resource", "unit")
    ),
    internal(
        "node_metric_system_usage", "systemUsage of the last NodeMetric report: cores or bytes.", ("resource", "unit")
    ),
    internal(
        "pod_resources_calls_total",
        "Calls of the pod-resources API (gate PodResourcesProxy), by gRPC status.",
        ("method", "code"),
    ),
    internal("pod_resources_proxy_up", "1 while the pod-resources API is served.", ("reason",)),
    internal(
        "probe_up", "1 if a probe provides metrics; source: where its data comes from.", ("probe", "source", "reason")
    ),
    internal("host_feature_supported", "1 if the host has a feature that koordlet uses.", ("feature", "reason")),
    internal("metric_cache_bytes", "Memory used by the metric cache."),
    internal("metric_cache_series", "Series in the metric cache.", ("kind",)),
    internal("metric_cache_lost_samples_total", "Samples rejected because the cache was full."),
    internal(
        "collector_failures_total",
        "Collector runs without a result, by cause; cause=series: the metric cache rejected the samples.",
        ("collector", "cause"),
    ),
    internal(
        "audit_events_total",
        "Audit events: outcome=written, or dropped because they could not be written.",
        ("outcome",),
    ),
    internal("audit_written_bytes_total", "Bytes written to the audit log."),
    internal("pleg_events_total", "Cgroups of pods and containers added or deleted, by kind.", ("kind",)),
    internal("pleg_overflows_total", "Overflows of the inotify queue of pod directories."),
    internal("pleg_handler_failures_total", "Failed handlers of pod events."),
    internal("pleg_directories", "Pod directories: how=watched or polled.", ("how",)),
    internal("state_callback_failures_total", "Failed callbacks of state changes.", ("type", "callback")),
    internal("node_metric_reports_total", "NodeMetric reports, by outcome.", ("status",)),
    internal(
        "node_topology_reports_total",
        "Rounds of the NodeResourceTopology reporter: status=created, updated, failed, or skipped (nothing to report).",
        ("status",),
    ),
    internal(
        "device_reports_total",
        "Rounds of the Device reporter: status=created, updated, failed, or skipped (nothing to report).",
        ("status",),
    ),
    internal(
        "resource_slice_reports_total",
        "Rounds that wrote ResourceSlices: status=created, updated, deleted, failed, or skipped (nothing to report).",
        ("status",),
    ),
    internal(
        "collector_up",
        "1 if an optional collector provides metrics; source: where its data comes from; reason: why it does not.",
        ("collector", "source", "reason"),
    ),
    internal("pods", "Monitored pods, by QoS class.", ("qos",)),
    internal("cgroup_files_open", "Open file descriptors of kernel files."),
    internal(
        "node_metric_numa_node_usage",
        "nodeUsage of a NUMA node in the last NodeMetric report: cores or bytes.",
        ("numa_node_id", "resource", "unit"),
    ),
    internal(
        "node_metric_numa_system_usage",
        "systemUsage of a NUMA node in the last NodeMetric report: cores or bytes.",
        ("numa_node_id", "resource", "unit"),
    ),
    internal(
        "node_metric_early_reports_total",
        "Reports of NodeMetric before the end of the interval: reason=prediction (changed) or age.",
        ("reason",),
    ),
)
