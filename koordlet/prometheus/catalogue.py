"""Every family that koordlet exports: name, type, labels, registry and what the value is (spec 02 §10).

All names begin with `koordlet_`. `node` is the first label of every family that says so. A family that is not in this
table cannot be exported, and docs/metrics.md is held to it by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INTERNAL: Literal["internal"] = "internal"
"""koordlet's own health: /internal-metrics."""
EXTERNAL: Literal["external"] = "external"
"""What users look at: /external-metrics."""

POD = ("pod_uid", "pod_name", "pod_namespace")
CONTAINER = (*POD, "container_id", "container_name")
GPU = ("gpu_minor", "gpu_device_uuid")
CULPRIT = ("culprit_kind", "culprit_namespace", "culprit_pod", "culprit")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family without its `koordlet_` prefix."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    side: Literal["internal", "external"] = INTERNAL
    type: Literal["gauge", "counter", "histogram"] = "gauge"
    unit: str = ""
    node_label: bool = True

    @property
    def full_name(self) -> str:
        """As Prometheus shows it."""
        return f"koordlet_{self.name}"

    @property
    def all_labels(self) -> tuple[str, ...]:
        """`node` first, where it belongs."""
        return ("node", *self.labels) if self.node_label else self.labels

    @property
    def shared(self) -> int:
        """How many of its first labels say whose the figure is, as in other families."""
        return next((len(whose) for whose in (CONTAINER, POD) if self.labels[: len(whose)] == whose), 0)


def _koordinator() -> tuple[Family, ...]:
    psi = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
    return (
        Family("start_time", "Unix time at which koordlet started.", ("node",), unit="seconds", node_label=False),
        Family(
            "collect_node_cpu_info_status",
            "Readings of the CPU layout, by outcome.",
            ("status",),
            type="counter",
        ),
        Family(
            "collect_node_numa_info_status",
            "Readings of the NUMA layout, by outcome.",
            ("status",),
            type="counter",
        ),
        Family(
            "collect_node_local_storage_info_status",
            "Looks at local disks and mounts, by outcome.",
            ("status",),
            type="counter",
        ),
        Family("node_used_cpu_cores", "CPU used on the node.", unit="cores"),
        Family("node_used_memory_bytes", "Memory used on the node, page cache excluded.", unit="bytes"),
        Family("be_suppress_be_used_cpu_cores", "CPU used below the BestEffort cgroup.", unit="cores"),
        Family("cpuset_share_pool_cpu_cores", "CPUs that latency-sensitive pods share.", unit="cores"),
        Family("cpuset_be_share_pool_cpu_cores", "CPUs that BestEffort pods may share.", unit="cores"),
        Family("cpuset_share_pool_info", "1 for each CPU that latency-sensitive pods share.", ("cpu",)),
        Family("cpuset_be_share_pool_info", "1 for each CPU that BestEffort pods may share.", ("cpu",)),
        Family(
            "kubelet_request_duration_seconds",
            "Requests to the kubelet.",
            ("verb", "path", "code"),
            type="histogram",
            unit="seconds",
            node_label=False,
        ),
        Family(
            "host_application_resource_usage",
            "Use of a host application: cores or bytes.",
            ("host_application_name", "resource", "priority_class", "qos"),
        ),
        Family(
            "node_resource_allocatable",
            "Allocatable batch and mid resources of the node.",
            ("resource", "unit"),
            EXTERNAL,
        ),
        Family(
            "container_resource_requests",
            "Batch and mid requests of a container: milli-cores or bytes.",
            ("resource", "unit", *CONTAINER),
            EXTERNAL,
        ),
        Family(
            "container_resource_limits",
            "Batch and mid limits of a container: milli-cores or bytes.",
            ("resource", "unit", *CONTAINER),
            EXTERNAL,
        ),
        Family(
            "be_suppress_cpu_cores",
            "Cores that best-effort pods may use: type=cpuset or type=cfsQuota.",
            ("type",),
            unit="cores",
        ),
        Family(
            "be_suppress_ls_used_cpu_cores",
            "CPU that all pods but best-effort ones used when it was decided what best effort may use.",
            unit="cores",
        ),
        Family(
            "node_slo_problems", "Fields of NodeSLO that are not in force, because their section is not.", ("section",)
        ),
        Family("settings", "Kernel settings that an owner wants and has.", ("owner",)),
        Family("setting_problems", "Kernel settings that do not hold what they should."),
        Family(
            "container_oom_score_adj",
            "oom_score_adj that the pod asks for and processes of the container have.",
            ("pod_name", "pod_namespace", "pod_uid", "container_name"),
        ),
        Family(
            "container_core_sched_cookie",
            "1 for the core scheduling cookie that a container has.",
            (
                "pod_name",
                "pod_namespace",
                "pod_uid",
                "container_name",
                "container_id",
                "core_sched_group",
                "core_sched_cookie",
            ),
        ),
        Family(
            "core_sched_cookie_manage_status",
            "Cookies given to containers in the last five minutes, by group and outcome.",
            ("core_sched_group", "status"),
            type="counter",
        ),
        Family("pod_eviction", "Evictions of pods.", ("reason",), type="counter"),
        Family(
            "pod_eviction_detail",
            "Evictions of the last five minutes by pod.",
            ("pod_namespace", "pod_name", "reason"),
            type="counter",
        ),
        Family(
            "container_scaled_cfs_burst_us",
            "CFS burst that CPU burst gave the container.",
            ("pod_namespace", "pod_name", "container_id", "container_name"),
            unit="microseconds",
        ),
        Family(
            "container_scaled_cfs_quota_us",
            "CFS quota that CPU burst raised for the container.",
            ("pod_namespace", "pod_name", "container_id", "container_name"),
            unit="microseconds",
        ),
        Family(
            "resource_update_duration_milliseconds",
            "Time that writing one kernel setting took.",
            ("type", "status"),
            type="histogram",
            unit="milliseconds",
            node_label=False,
        ),
        Family(
            "runtime_hook_invoked_duration_milliseconds",
            "Time that one hook took to answer.",
            ("hook", "stage", "status"),
            type="histogram",
            unit="milliseconds",
        ),
        Family(
            "runtime_hook_reconciler_invoked_duration_milliseconds",
            "Time that writing one setting of what follows pods took: level=kubeqos, pod, container, hostapp, node.",
            ("level", "resource_type", "status"),
            type="histogram",
            unit="milliseconds",
        ),
        Family(
            "container_cpi",
            "Cycles and instructions of the container in the last window of counting.",
            (*CONTAINER, "cpi_field"),
            EXTERNAL,
            unit="count",
        ),
        Family(
            "resctrl_llc_occupancy",
            "Last-level cache that a QoS group holds.",
            ("cache_id", "qos"),
            EXTERNAL,
            unit="bytes",
        ),
        Family(
            "resctrl_memory_bandwidth",
            "Memory traffic of a QoS group: mb_type=mbm_local_bytes to its own NUMA node, mbm_total_bytes to all.",
            ("cache_id", "qos", "mb_type"),
            EXTERNAL,
            unit="bytes/second",
        ),
        Family(
            "container_psi",
            "Share of time in which tasks of the container were stalled.",
            (*CONTAINER, *psi),
            EXTERNAL,
            unit="percent",
        ),
        Family(
            "pod_psi",
            "Share of time in which tasks of the pod were stalled.",
            (*POD, *psi),
            EXTERNAL,
            unit="percent",
        ),
        Family(
            "node_metric_node_usage",
            "nodeUsage of the last NodeMetric report: cores or bytes.",
            ("resource", "unit"),
        ),
        Family(
            "node_metric_system_usage",
            "systemUsage of the last NodeMetric report: cores or bytes.",
            ("resource", "unit"),
        ),
    )


def _ours() -> tuple[Family, ...]:
    return (
        Family(
            "node_stolen_cpu_cores",
            "CPUs that were wanted and that a hypervisor gave to others (steal of /proc/stat).",
            unit="cores",
        ),
        Family(
            "resource_actions_total",
            "Writes that are done once (memory.reclaim): outcome=done, partly, gone, failed, later.",
            ("owner", "resource", "outcome"),
            type="counter",
        ),
        Family(
            "resource_update_problems_total",
            "Settings that could not be applied: invalid and unsupported ones, and refusals of the kernel (failed).",
            ("owner", "resource", "kind"),
            type="counter",
        ),
        Family(
            "runtime_hook_calls_total",
            "Hook calls: status=answered, failed, or late where its settings were not waited for.",
            ("protocol", "stage", "status"),
            type="counter",
        ),
        Family("runtime_hook_protocol_up", "1 while hooks are served by this protocol.", ("protocol", "reason")),
        Family(
            "pod_resources_calls_total",
            "Calls of the pod-resources API (gate PodResourcesProxy), by gRPC's status.",
            ("method", "code"),
            type="counter",
        ),
        Family("pod_resources_proxy_up", "1 while the pod-resources API is served.", ("reason",)),
        Family("runtime_hook_newborn_pods", "Pods that a hook told of and the kubelet does not show yet."),
        Family("container_cpu_usage_cores", "CPU used by the container.", CONTAINER, EXTERNAL, unit="cores"),
        Family(
            "container_memory_usage_bytes",
            "Memory used by the container, page cache excluded.",
            CONTAINER,
            EXTERNAL,
            unit="bytes",
        ),
        Family(
            "container_cpu_throttled_ratio",
            "Share of the last periods in which the container's quota ran out.",
            CONTAINER,
            EXTERNAL,
            unit="ratio",
        ),
        Family("pod_cpu_usage_cores", "CPU used by the pod.", POD, EXTERNAL, unit="cores"),
        Family(
            "pod_memory_usage_bytes",
            "Memory used by the pod, page cache excluded.",
            POD,
            EXTERNAL,
            unit="bytes",
        ),
        Family("qos_cpu_usage_cores", "CPU used by all pods of a QoS class.", ("qos",), EXTERNAL, unit="cores"),
        Family(
            "qos_memory_usage_bytes",
            "Memory used by all pods of a QoS class, page cache excluded.",
            ("qos",),
            EXTERNAL,
            unit="bytes",
        ),
        Family("system_cpu_usage_cores", "CPU used outside pods and host applications.", (), EXTERNAL, unit="cores"),
        Family(
            "system_memory_usage_bytes",
            "Memory used outside pods and host applications.",
            (),
            EXTERNAL,
            unit="bytes",
        ),
        Family("node_capacity_cpu_cores", "CPUs of the node that are online.", (), EXTERNAL, unit="cores"),
        Family("node_capacity_memory_bytes", "Memory of the node.", (), EXTERNAL, unit="bytes"),
        Family("node_memory_cold_bytes", "Page cache at rest on the node.", (), EXTERNAL, unit="bytes"),
        Family("pod_memory_cold_bytes", "The pod's page cache at rest.", POD, EXTERNAL, unit="bytes"),
        Family("container_memory_cold_bytes", "The container's page cache at rest.", CONTAINER, EXTERNAL, unit="bytes"),
        Family("node_gpu_memory_bytes", "Memory of a GPU.", GPU, EXTERNAL, unit="bytes"),
        Family("node_gpu_used_memory_bytes", "Memory of a GPU in use, by its own count.", GPU, EXTERNAL, unit="bytes"),
        Family(
            "node_gpu_used_core_ratio",
            "Part of a GPU's multiprocessors that its processes had, summed over them: may be over 1.",
            GPU,
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "container_gpu_used_memory_bytes",
            "Memory of a GPU that the container's processes hold.",
            (*CONTAINER, *GPU),
            EXTERNAL,
            unit="bytes",
        ),
        Family(
            "container_gpu_used_core_ratio",
            "Part of a GPU's multiprocessors that the container's processes had, summed over them.",
            (*CONTAINER, *GPU),
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "gpu_healthy",
            "1 for a GPU without fault, 0 with one, which reason names; absent while nobody watches it.",
            (*GPU, "reason"),
            EXTERNAL,
        ),
        Family(
            "gpu_xid_errors_total",
            "Xid errors that the driver told of, those of programs too.",
            ("gpu_device_uuid", "xid"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "container_psi_stall_seconds_total",
            "Time in which some or all tasks of the container were stalled.",
            (*CONTAINER, "psi_resource_type", "psi_degree"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "pod_psi_stall_seconds_total",
            "Time in which some or all tasks of the pod were stalled.",
            (*POD, "psi_resource_type", "psi_degree"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "sched_latency_seconds",
            "Time from runnable to running: reason=wakeup after a wake-up, reason=preempted after losing the CPU.",
            (*CONTAINER, "qos", "reason"),
            EXTERNAL,
            "histogram",
            "seconds",
        ),
        Family(
            "sched_latency_wait_seconds_total",
            "Time that tasks spent runnable without running because something else ran.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "sched_latency_throttled_seconds_total",
            "Time that tasks spent runnable without running because their own quota had run out.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "sched_latency_culprit_wait_seconds_total",
            "Time that the container waited while the culprit held the CPU.",
            (*CONTAINER, "qos", *CULPRIT),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "sched_latency_lost_total",
            "Observations that did not fit a map, by map.",
            ("map",),
            type="counter",
        ),
        Family(
            "mem_stall_seconds",
            "Time that one task was held up for want of memory, all kinds of stall together.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "histogram",
            "seconds",
        ),
        Family(
            "mem_stall_kind_seconds_total",
            "Time that tasks were held up for want of memory: kind=direct, own_limit, ancestor (reclaim), compaction, "
            "refault, swapin, throttle, other.",
            (*CONTAINER, "qos", "kind"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "mem_stall_culprit_share",
            "Share of the pressure that made the container reclaim, by whose allocations pressed; of the last window.",
            (*CONTAINER, "qos", *CULPRIT),
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "mem_stall_lost_total",
            "Stalls that did not fit a map, by map.",
            ("map",),
            type="counter",
        ),
        Family(
            "oom_kills_total",
            "Tasks of the container killed for want of memory: scope=limit (a memory cgroup's), node, unknown.",
            (*CONTAINER, "qos", "scope"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "oom_events_missed_total",
            "Kills forgotten by the kernel's ring before they were read.",
            type="counter",
        ),
        Family(
            "block_io_bytes_total",
            "Bytes read, written or discarded by completed requests: direction=read, write, discard.",
            (*CONTAINER, "qos", "device", "direction"),
            EXTERNAL,
            "counter",
            "bytes",
        ),
        Family(
            "block_io_operations_total",
            "Completed requests: direction=read, write, discard, flush.",
            (*CONTAINER, "qos", "device", "direction"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "block_io_seconds",
            "Time of requests: stage=queue from arrival until issued to the disk, stage=device until completed.",
            (*CONTAINER, "qos", "device", "stage"),
            EXTERNAL,
            "histogram",
            "seconds",
        ),
        Family(
            "block_io_wait_seconds_total",
            "Time from the arrival of requests until the disk turned to them.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "block_io_throttled_seconds_total",
            "Time in which I/O was held back by the container's own limit.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "block_io_culprit_wait_seconds_total",
            "Time that the container's requests waited while the disk worked for the culprit.",
            (*CONTAINER, "qos", *CULPRIT),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family("block_io_lost_total", "Observations that did not fit a map, by map.", ("map",), type="counter"),
        Family(
            "net_retransmits_total",
            "TCP segments sent again; of a pod as a whole when its containers can't be told apart.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "net_receive_queue_full_total",
            "Packets dropped because a socket's receive queue was full.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "net_softirq_seconds_total",
            "Time that network softirqs took while the container had the CPU.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "net_softirq_caused_seconds_total",
            "Time that network softirqs spent on packets for the container or pod, whoever was interrupted.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "net_softirq_culprit_seconds_total",
            "Time that network softirqs took from the container for the culprit's packets.",
            (*CONTAINER, "qos", *CULPRIT),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "net_backlog_bytes",
            "Bytes received and not yet read, mean over the TCP segments that arrived in the last window.",
            (*CONTAINER, "qos"),
            EXTERNAL,
            unit="bytes",
        ),
        Family("net_stall_lost_total", "Observations that did not fit a map, by map.", ("map",), type="counter"),
        Family(
            "probe_up",
            "1 where a probe is loaded and feeds metrics; source says from where.",
            ("probe", "source", "reason"),
        ),
        Family("host_feature_supported", "1 where the host has a feature that koordlet uses.", ("feature", "reason")),
        Family("metric_cache_bytes", "Memory that the metric cache holds.", unit="bytes"),
        Family("metric_cache_series", "Series in the metric cache.", ("kind",)),
        Family(
            "metric_cache_lost_samples_total",
            "Samples refused because the cache was full.",
            type="counter",
        ),
        Family(
            "collector_failures_total",
            "Collector runs that could not produce a figure, by cause; series: the metric cache refused what was read.",
            ("collector", "cause"),
            type="counter",
        ),
        Family(
            "audit_events_total",
            "Audit events by outcome: written to the log, or dropped because it could not be written.",
            ("outcome",),
            type="counter",
        ),
        Family("audit_written_bytes_total", "Bytes written to the audit log.", type="counter", unit="bytes"),
        Family("pleg_events_total", "Pods and containers seen to come and go, by kind.", ("kind",), type="counter"),
        Family("pleg_overflows_total", "Times the kernel lost events of pod directories.", type="counter"),
        Family("pleg_directories", "Directories of pods, by how they are followed: watched or polled.", ("how",)),
        Family(
            "state_callback_failures_total",
            "Reactions to changed state that failed.",
            ("type", "callback"),
            type="counter",
        ),
        Family("node_metric_reports_total", "NodeMetric reports, by outcome.", ("status",), type="counter"),
        Family(
            "node_topology_reports_total",
            "Rounds of NodeResourceTopology that wrote (created, updated), failed to, or had nothing to say (skipped).",
            ("status",),
            type="counter",
        ),
        Family(
            "device_reports_total",
            "Rounds of the Device object that wrote (created, updated), failed to, or had nothing to say (skipped).",
            ("status",),
            type="counter",
        ),
        Family(
            "collector_up",
            "1 where an optional collector gives figures; source says from where, reason why not.",
            ("collector", "source", "reason"),
        ),
        Family("pods", "Pods that koordlet watches, by QoS class.", ("qos",)),
        Family("cgroup_files_open", "Descriptors of kernel files kept open."),
    )


def _prediction() -> tuple[Family, ...]:
    predictor = ("predictor", "resource", "unit")
    return (
        Family(
            "node_metric_numa_node_usage",
            "nodeUsage of a NUMA node in the last NodeMetric report: cores or bytes.",
            ("numa_node_id", "resource", "unit"),
        ),
        Family(
            "node_metric_numa_system_usage",
            "systemUsage of a NUMA node in the last NodeMetric report: cores or bytes.",
            ("numa_node_id", "resource", "unit"),
        ),
        Family(
            "node_metric_early_reports_total",
            "NodeMetric reports made before their time because the prediction moved or the last one was old.",
            ("reason",),
            type="counter",
        ),
        Family(
            "node_predicted_resource_reclaimable",
            "What of the requests of Prod pods can be lent, by predictor: cores or bytes.",
            predictor,
        ),
        Family(
            "node_predicted_resource_peak", "Peak of Prod pods and system, by predictor: cores or bytes.", predictor
        ),
        Family(
            "node_priority_resource_reclaimable",
            "prodReclaimable of the last NodeMetric report: cores or bytes.",
            ("priority", "resource", "unit"),
            EXTERNAL,
        ),
        Family(
            "node_resource_priority_reclaimable_status",
            "0 if the last prediction of what can be lent succeeded, else 1.",
            ("priority",),
            EXTERNAL,
        ),
        Family("prediction_training_steps_total", "Times that predictions learned something.", type="counter"),
        Family("prediction_models", "Models of pods, priority classes, node and system."),
        Family(
            "prediction_peak_error_ratio",
            "Peak of the node as predicted an hour ago over the greatest sample since, less 1, by way of computing it.",
            ("model", "resource"),
        ),
        Family(
            "prediction_peak_exceeded_total",
            "Hours in which the node used more than the peak predicted at their beginning.",
            ("model", "resource"),
            type="counter",
        ),
    )


def _interference() -> tuple[Family, ...]:
    track = (*CONTAINER, "resource", "cause")
    return (
        Family(
            "interference_state",
            "Trouble: 1 suspected, 2 interfered, 3 recovering, none while quiet; cause: neighbour or self.",
            track,
            EXTERNAL,
        ),
        Family(
            "interference_score", "How bad it is; 1 is the threshold; absent while 0.", track, EXTERNAL, unit="ratio"
        ),
        Family(
            "interference_lost_ratio",
            "Part of the time that the container wanted to get on and could not; absent while 0; for cache cycles "
            "per instruction.",
            track,
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "interference_culprit_share",
            "Part of an interfered container's waiting that a culprit caused; five culprits at most.",
            (*CONTAINER, "resource", *CULPRIT),
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "interference_containers",
            "Containers that are suspected, interfered or recovering.",
            ("resource", "cause", "state"),
            EXTERNAL,
        ),
        Family(
            "interference_detections_total",
            "Alarms that began.",
            ("resource", "cause"),
            EXTERNAL,
            "counter",
        ),
        Family(
            "interference_seconds_total",
            "Time with an alarm on, summed over containers.",
            ("resource", "cause"),
            EXTERNAL,
            "counter",
            "seconds",
        ),
        Family(
            "interference_action_level",
            "What is left to a best-effort pod that is held back because it hurts a service, of what it had.",
            (*POD, "resource"),
            EXTERNAL,
            unit="ratio",
        ),
        Family(
            "interference_action_steps_total",
            "Steps of holding culprits back: tighten, release, free.",
            ("resource", "step"),
            EXTERNAL,
            "counter",
        ),
        Family("interference_strategy_error", "1 while NodeSLO's interferenceStrategy is malformed and not in force."),
    )


FAMILIES = (*_koordinator(), *_ours(), *_prediction(), *_interference())
CATALOGUE = {family.name: family for family in FAMILIES}
