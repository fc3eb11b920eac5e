"""koord-scheduler's command line: Koordinator's flags with their defaults, and kube-scheduler's (spec 05 §1.1).

Read once at the start. A flag overrides the configuration file. Flags of kube-scheduler without a meaning here are
accepted, so that manifests need no change.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions
from koordlet.app.servertls import TLS_VERSIONS
from koordlet.kube.delegated import PUBLIC

_AUDIT_LABELS = ("priority", "event_type", "outcome", "le")
_UNUSED = "accepted, without effect"


@dataclass
class SchedulerOptions(LoggingOptions):
    """The command line flags."""

    config: str = flag("", "KubeSchedulerConfiguration file; default: kube-scheduler's defaults")
    write_config_to: str = flag("", "write the effective configuration to this file and exit")
    kubeconfig: str = flag("", "kubeconfig file; default: from the configuration, in-cluster, or KUBECONFIG")
    master: str = flag("", "URL of the API server, overrides the kubeconfig")
    port: int = flag(10251, "port of the HTTP pages; 0: disabled", minimum=0)
    address: str = flag("0.0.0.0", "IP address of the HTTP pages")
    feature_gates: dict[str, bool] = flag({}, "A=true,B=false; AllAlpha and AllBeta set all gates of a stage")
    leader_elect: str = flag("", "true or false: schedule only while holding the lease")
    leader_elect_lease_duration: str = flag("", "duration of the lease (15s)")
    leader_elect_renew_deadline: str = flag("", "time limit for renewing the lease (10s)")
    leader_elect_retry_period: str = flag("", "interval between attempts to acquire or renew the lease (2s)")
    leader_elect_resource_lock: str = flag("", "type of the lock object", choices=("", "leases"))
    leader_elect_resource_name: str = flag("", "name of the lease (kube-scheduler)")
    leader_elect_resource_namespace: str = flag("", "namespace of the lease (kube-system)")
    pod_max_in_unschedulable_pods_duration: Duration = flag(
        "5m",
        "unschedulable pods are retried after this time without an event",
    )
    controller_plugins: list[str] = flag(["*"], "plugins whose controllers run; -name excludes one, * means all others")
    enable_network_topology_manager: bool = flag(
        False, "accepted, without effect: the network topology is read when a gang needs it", unused=True
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
    bind_address: str = flag("0.0.0.0", "IP address of the secure port")
    secure_port: int = flag(10259, "port of the HTTPS pages for authorized callers; 0: disabled", minimum=0)
    cert_dir: str = flag("", "accepted, without effect: generated certificates are not stored", unused=True)
    tls_cert_file: str = flag("", "certificate of the secure port; default: generated at each start")
    tls_private_key_file: str = flag("", "private key of the certificate")
    tls_cipher_suites: str = flag("", "accepted, without effect: OpenSSL's defaults are used", unused=True)
    tls_min_version: str = flag(
        "",
        "minimum TLS version: VersionTLS12 (default) or VersionTLS13",
        choices=tuple(TLS_VERSIONS),
    )
    client_ca_file: str = flag("", "CA of client certificates for the secure port")
    http2_max_streams_per_connection: int = flag(0, "accepted, without effect: HTTP/1.1 is used", unused=True)
    authentication_kubeconfig: str = flag("", "kubeconfig for authenticating callers; default: the scheduler's own")
    authentication_skip_lookup: bool = flag(
        False, "accepted, without effect: only --client-ca-file is used", unused=True
    )
    authentication_token_webhook_cache_ttl: Duration = flag("10s", "how long the user of a token is cached")
    authentication_tolerate_lookup_failure: bool = flag(
        True, "accepted, without effect: nothing is looked up at the start", unused=True
    )
    authorization_kubeconfig: str = flag("", "kubeconfig for authorizing callers; default: the scheduler's own")
    authorization_always_allow_paths: list[str] = flag(
        list(PUBLIC), "paths of the secure port that need no authorization"
    )
    authorization_webhook_cache_authorized_ttl: Duration = flag("10s", "how long an allowed authorization is cached")
    authorization_webhook_cache_unauthorized_ttl: Duration = flag("10s", "how long a denied authorization is cached")
    requestheader_client_ca_file: str = flag("", _UNUSED, unused=True)
    requestheader_allowed_names: str = flag("", _UNUSED, unused=True)
    requestheader_username_headers: str = flag("", _UNUSED, unused=True)
    requestheader_group_headers: str = flag("", _UNUSED, unused=True)
    requestheader_extra_headers_prefix: str = flag("", _UNUSED, unused=True)
    permit_port_sharing: bool = flag(False, _UNUSED, unused=True)
    permit_address_sharing: bool = flag(False, _UNUSED, unused=True)
    requestheader_uid_headers: list[str] = flag([], _UNUSED, unused=True)
    tls_sni_cert_key: list[str] = flag([], "accepted, without effect: --tls-cert-file is used", unused=True)
    disable_http2_serving: bool = flag(False, "accepted: only HTTP/1.1 is served")
    allow_metric_labels: str = flag("", _UNUSED, unused=True)
    allow_metric_labels_manifest: str = flag("", _UNUSED, unused=True)
    disabled_metrics: list[str] = flag([], _UNUSED, unused=True)
    emulated_version: list[str] = flag([], _UNUSED, unused=True)
    emulation_forward_compatible: bool = flag(False, _UNUSED, unused=True)
    min_compatibility_version: list[str] = flag([], _UNUSED, unused=True)
    log_flush_frequency: Duration = flag("5s", "accepted, without effect: every line is written at once", unused=True)
    log_json_info_buffer_size: str = flag("0", "see --log-flush-frequency", unused=True)
    log_json_split_stream: bool = flag(False, "accepted, without effect: logs go to standard error", unused=True)
    log_text_info_buffer_size: str = flag("0", "see --log-flush-frequency", unused=True)
    log_text_split_stream: bool = flag(False, "accepted, without effect: logs go to standard error", unused=True)
    show_hidden_metrics_for_version: str = flag("", "accepted, without effect: no metrics are hidden", unused=True)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise FlagError(f"--port: {self.port} must be between 0 and 65535, inclusive")
        if not 0 <= self.secure_port <= 65535:
            raise FlagError(f"--secure-port: {self.secure_port} must be between 0 and 65535, inclusive")
        for name, address in (("address", self.address), ("bind-address", self.bind_address)):
            try:
                ipaddress.ip_address(address or "0.0.0.0")
            except ValueError as error:
                raise FlagError(f'--{name}: "{address}" is not an IP address') from error
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise FlagError("--tls-cert-file and --tls-private-key-file: give both, or none")
        if self.leader_elect not in ("", "true", "false"):
            raise FlagError(f'--leader-elect: "{self.leader_elect}" is neither true nor false')
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
