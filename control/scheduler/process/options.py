"""koord-scheduler's command line: Koordinator's flags with their defaults, and kube-scheduler's (spec 05 §1.1).

Read once at the start. A flag overrides the configuration file. Flags of kube-scheduler without a meaning here are
accepted, so that manifests need no change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from control.component.options import UNUSED, ComponentOptions
from koordlet.app.flags import Duration, FlagError, flag

_AUDIT_LABELS = ("priority", "event_type", "outcome", "le")


@dataclass
class SchedulerOptions(ComponentOptions):
    """The command line flags."""

    config: str = flag("", "KubeSchedulerConfiguration file; default: kube-scheduler's defaults")
    leader_elect_resource_name: str = flag("", "name of the lease (kube-scheduler)")
    leader_elect_resource_namespace: str = flag("", "namespace of the lease (kube-system)")
    pod_max_in_unschedulable_pods_duration: Duration = flag(
        "5m",
        "unschedulable pods are retried after this time without an event",
    )
    controller_plugins: list[str] = flag(["*"], "plugins whose controllers run; -name excludes one, * means all others")
    enable_network_topology_manager: bool = flag(
        False, "write the tree of network domains into the status of the ClusterNetworkTopology"
    )
    scheduler_monitor_period: Duration = flag(
        "10s", "how often attempts in progress are checked for timeouts", minimum=0.1
    )
    scheduling_timeout: Duration = flag("30s", "attempts that take longer are logged and counted", minimum=0.1)
    scheduling_drop_unhandled_timeout: Duration = flag(
        "5s", "accepted, without effect: every pod taken from the queue is tried", unused=True
    )
    debug_scores: int = flag(0, "number of best nodes to log for each pod; 0: none", minimum=0)
    s: int = flag(0, "short for --debug-scores", minimum=0)
    debug_filters: bool = flag(False, "log why nodes do not fit")
    f: bool = flag(False, "short for --debug-filters")
    debug_diagnosis: bool = flag(False, "log a diagnosis of each unschedulable pod")
    d: bool = flag(False, "short for --debug-diagnosis")
    debug_diagnosis_blocking: bool = flag(False, "log diagnoses inside the scheduling cycle")
    debug_diagnosis_queue_size: int = flag(1000, "maximum number of queued diagnoses", minimum=1)
    debug_diagnosis_worker_count: int = flag(10, "number of tasks that log diagnoses", minimum=1)
    sync_barrier_pod_namespace: str = flag("kube-system", "namespace of the sync barrier pod")
    sync_barrier_pod_name: str = flag("koord-scheduler-sync-barrier", "name of the sync barrier pod")
    sync_hard_timeout: Duration = flag("1m", "maximum wait for the sync barrier")
    enable_workload_auditor: bool = flag(False, "audit the scheduling events of workloads")
    workload_auditor_metric_labels: str = flag(
        "", "labels added to the auditor's metrics: metricLabel=podLabel,…, or podLabel for both"
    )
    workload_auditor_victim_reschedule_duration: Duration = flag(
        "10s",
        "log a warning if a workload is retried later after its victims are gone",
    )
    workload_auditor_victim_deletion_duration: Duration = flag(
        "30s", "log a warning if victims take longer to terminate"
    )
    workload_auditor_victim_deleting_retries: int = flag(3, "log a warning after more attempts while victims terminate")
    workload_auditor_scheduling_event_interval: Duration = flag(
        "5m",
        "log a warning after a longer time between two events of a workload",
    )
    async_log: bool = flag(False, "accepted, without effect: logging never blocks", unused=True)
    async_log_queue_length: int = flag(10000, "accepted, without effect: logging never blocks", unused=True)
    kube_api_qps: float = flag(0.0, "requests per second to the API server; 0: from the configuration")
    kube_api_burst: int = flag(0, "burst of requests to the API server; 0: from the configuration")
    kube_api_content_type: str = flag("", "accepted, without effect: JSON is used", unused=True)
    profiling: bool = flag(True, "serve /debug/flags, and on the secure port /debug/pprof/")
    contention_profiling: bool = flag(True, "accepted, without effect: there are no locks", unused=True)
    secure_port: int = flag(10259, "port of the HTTPS pages for authorized callers; 0: disabled", minimum=0)
    authentication_kubeconfig: str = flag("", "kubeconfig for authenticating callers; default: the scheduler's own")
    authentication_skip_lookup: bool = flag(
        False, "accepted, without effect: only --client-ca-file is used", unused=True
    )
    authentication_tolerate_lookup_failure: bool = flag(
        True, "accepted, without effect: nothing is looked up at the start", unused=True
    )
    authorization_kubeconfig: str = flag("", "kubeconfig for authorizing callers; default: the scheduler's own")
    requestheader_client_ca_file: str = flag("", UNUSED, unused=True)
    requestheader_allowed_names: str = flag("", UNUSED, unused=True)
    requestheader_username_headers: str = flag("", UNUSED, unused=True)
    requestheader_group_headers: str = flag("", UNUSED, unused=True)
    requestheader_extra_headers_prefix: str = flag("", UNUSED, unused=True)
    requestheader_uid_headers: list[str] = flag([], UNUSED, unused=True)
    disable_http2_serving: bool = flag(False, "accepted: only HTTP/1.1 is served")
    emulated_version: list[str] = flag([], UNUSED, unused=True)
    emulation_forward_compatible: bool = flag(False, UNUSED, unused=True)
    min_compatibility_version: list[str] = flag([], UNUSED, unused=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = [label for label, _ in self.audit_labels()]
        if "" in labels or any(not name for _, name in self.audit_labels()):
            raise FlagError(f'--workload-auditor-metric-labels: "{self.workload_auditor_metric_labels}" lacks a name')
        if len({*labels, *_AUDIT_LABELS}) < len(labels) + len(_AUDIT_LABELS):
            raise FlagError("--workload-auditor-metric-labels: two labels of a series would have one name")
        self.debug_scores = self.debug_scores or self.s
        self.debug_filters = self.debug_filters or self.f
        self.debug_diagnosis = self.debug_diagnosis or self.d

    def audit_labels(self) -> list[tuple[str, str]]:
        """(label of the auditor's metrics, pod label), by `--workload-auditor-metric-labels`."""
        pairs = []
        for part in filter(None, (part.strip() for part in self.workload_auditor_metric_labels.split(","))):
            label, equals, name = (word.strip() for word in part.partition("="))
            pairs.append((label, name) if equals else (re.sub(r"[^a-zA-Z0-9_]", "_", label), label))
        return pairs


def enabled(name: str, items: Sequence[str]) -> bool:
    """Whether `--controller-plugins` enables a plugin's controllers: by the first `name` or `-name`, else by `*`."""
    for item in items:
        if item in (name, f"-{name}"):
            return item == name
    return "*" in items
