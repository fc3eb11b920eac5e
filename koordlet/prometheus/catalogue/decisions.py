"""Settings, evictions, runtime hooks, interference and predictions."""

from __future__ import annotations

from koordlet.prometheus.family import CONTAINER, CULPRIT, POD, external, internal

TRACK = (*CONTAINER, "resource", "cause")

FAMILIES = (
    internal("be_suppress_be_used_cpu_cores", "CPU used in the BestEffort cgroup."),
    internal("be_suppress_cpu_cores", "CPU available to best-effort pods: type=cpuset or type=cfsQuota.", ("type",)),
    internal(
        "be_suppress_ls_used_cpu_cores",
        "CPU used by all pods except best-effort ones at the last decision of CPU suppress.",
    ),
    internal("node_slo_problems", "Fields of NodeSLO that are not in force, by section.", ("section",)),
    internal("settings", "Kernel settings that an owner manages.", ("owner",)),
    internal("setting_problems", "Kernel settings whose value differs from the desired one."),
    internal(
        "container_oom_score_adj",
        "oom_score_adj desired by the pod and set for the container's processes.",
        ("pod_name", "pod_namespace", "pod_uid", "container_name"),
    ),
    internal(
        "container_core_sched_cookie",
        "1 for the container's core scheduling cookie.",
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
    internal(
        "core_sched_cookie_manage_status",
        "Cookies assigned to containers in the last five minutes, by group and outcome.",
        ("core_sched_group", "status"),
        type="counter",
    ),
    internal("pod_eviction", "Evictions of pods.", ("reason",), type="counter"),
    internal(
        "pod_eviction_detail",
        "Evictions in the last five minutes, by pod.",
        ("pod_namespace", "pod_name", "reason"),
        type="counter",
    ),
    internal(
        "container_scaled_cfs_burst_us",
        "CFS burst that CPU burst set for the container.",
        ("pod_namespace", "pod_name", "container_id", "container_name"),
    ),
    internal(
        "container_scaled_cfs_quota_us",
        "CFS quota that CPU burst set for the container.",
        ("pod_namespace", "pod_name", "container_id", "container_name"),
    ),
    internal(
        "resource_update_duration_milliseconds",
        "Time to write one kernel setting.",
        ("type", "status"),
        node_label=False,
        type="histogram",
    ),
    internal(
        "runtime_hook_invoked_duration_milliseconds",
        "Time to answer one hook call.",
        ("hook", "stage", "status"),
        type="histogram",
    ),
    internal(
        "runtime_hook_reconciler_invoked_duration_milliseconds",
        "Time to write one setting of a reconciler: level=kubeqos, pod, container, hostapp, node.",
        ("level", "resource_type", "status"),
        type="histogram",
    ),
    internal(
        "resource_actions_total",
        "One-time writes (memory.reclaim): outcome=done, partly, gone, failed, later.",
        ("owner", "resource", "outcome"),
    ),
    internal(
        "resource_update_problems_total",
        "Settings that were not applied: kind=invalid, unsupported, or failed (rejected by the kernel).",
        ("owner", "resource", "kind"),
    ),
    internal(
        "runtime_hook_calls_total",
        "Hook calls: status=answered, failed, or late if the answer did not wait for the pod's settings.",
        ("protocol", "stage", "status"),
    ),
    internal("runtime_hook_protocol_up", "1 while this protocol serves hooks.", ("protocol", "reason")),
    internal(
        "runtime_hook_newborn_pods", "Announced pods: a hook reported them and the kubelet does not list them yet."
    ),
    internal(
        "node_predicted_resource_reclaimable",
        "Part of the requests of Prod pods that can be overcommitted, by predictor: cores or bytes.",
        ("predictor", "resource", "unit"),
    ),
    internal(
        "node_predicted_resource_peak",
        "Predicted peak of Prod pods and system, by predictor: cores or bytes.",
        ("predictor", "resource", "unit"),
    ),
    external(
        "node_priority_resource_reclaimable",
        "prodReclaimable of the last NodeMetric report: cores or bytes.",
        ("priority", "resource", "unit"),
    ),
    external(
        "node_resource_priority_reclaimable_status",
        "0 if the last prediction of reclaimable resources succeeded, else 1.",
        ("priority",),
    ),
    internal("prediction_training_steps_total", "Training steps of prediction models."),
    internal("prediction_models", "Prediction models of pods, priority classes, node and system."),
    internal(
        "prediction_peak_error_ratio",
        "Node peak predicted an hour ago / greatest sample since - 1, by peak model.",
        ("model", "resource"),
        unit="",
    ),
    internal(
        "prediction_peak_exceeded_total",
        "Hours in which the node used more than the peak predicted at their beginning.",
        ("model", "resource"),
    ),
    external(
        "interference_state",
        "1 suspected, 2 interfered, 3 recovering; absent while normal; cause: neighbour or self.",
        TRACK,
    ),
    external(
        "interference_score", "Severity relative to the threshold, which is 1; absent while 0.", TRACK, unit="ratio"
    ),
    external(
        "interference_lost_ratio",
        "Share of time that the container lost; absent while 0; for cache: increase of cycles per instruction.",
        TRACK,
    ),
    external(
        "interference_culprit_share",
        "Share of an interfered container's waiting that is attributed to a culprit; at most five culprits.",
        (*CONTAINER, "resource", *CULPRIT),
    ),
    external(
        "interference_containers",
        "Containers that are suspected, interfered or recovering.",
        ("resource", "cause", "state"),
    ),
    external("interference_detections_total", "Detected interferences.", ("resource", "cause")),
    external("interference_seconds_total", "Duration of interferences, summed over containers.", ("resource", "cause")),
    external(
        "interference_action_level",
        "Throttle level of a culprit pod: share of the resource it had that it may still use.",
        (*POD, "resource"),
        unit="ratio",
    ),
    external("interference_action_steps_total", "Throttling steps: step=tighten, release, free.", ("resource", "step")),
    internal("interference_strategy_error", "1 while NodeSLO's interferenceStrategy is malformed and not in force."),
)
