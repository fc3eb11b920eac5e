"""koord-scheduler's command line: Koordinator's flags with their defaults, and kube-scheduler's (spec 05 §1.1).

Read once at start; everybody else gets an `SchedulerOptions`. What stands in the configuration file loses against a
flag that was given. Flags of kube-scheduler that have no meaning here are accepted, so that manifests can stay as they
are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from control.delegated import PUBLIC, TLS_VERSIONS
from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions

_AUDIT_LABELS = ("priority", "event_type", "outcome", "le")
_UNUSED = "accepted, without effect"


@dataclass
class SchedulerOptions(LoggingOptions):
    """Everything that can be told on the command line."""

    config: str = flag("", "KubeSchedulerConfiguration file; none: kube-scheduler's defaults")
    write_config_to: str = flag("", "write the effective configuration to this file and end")
    kubeconfig: str = flag("", "kubeconfig file; else of the configuration, in-cluster, KUBECONFIG")
    master: str = flag("", "URL of the API server, instead of the kubeconfig's")
    port: int = flag(10251, "port of the pages; 0: none", minimum=0)
    address: str = flag("0.0.0.0", "IP address that the pages are served on")
    feature_gates: dict[str, bool] = flag({}, "A=true,B=false; AllAlpha and AllBeta set whole stages")
    leader_elect: str = flag("", "true or false: schedule only while holding the lease")
    leader_elect_lease_duration: str = flag("", "how long a lease lasts (15s)")
    leader_elect_renew_deadline: str = flag("", "time to renew it in (10s)")
    leader_elect_retry_period: str = flag("", "pause between attempts (2s)")
    leader_elect_resource_lock: str = flag("", "kind of lock", choices=("", "leases"))
    leader_elect_resource_name: str = flag("", "name of the lease (kube-scheduler)")
    leader_elect_resource_namespace: str = flag("", "its namespace (kube-system)")
    pod_max_in_unschedulable_pods_duration: Duration = flag(
        "5m", "how long a pod waits for an event before it is tried anyway"
    )
    controller_plugins: list[str] = flag(["*"], "plugins whose controllers run; -name: not, *: all others")
    enable_network_topology_manager: bool = flag(False, "build the tree of network topology")
    scheduler_monitor_period: Duration = flag("10s", "how often slow cycles and bindings are looked for", minimum=0.1)
    scheduling_timeout: Duration = flag("30s", "an attempt that takes longer is told", minimum=0.1)
    scheduling_drop_unhandled_timeout: Duration = flag(
        "5s", "a pod taken from the queue without an attempt is forgotten after"
    )
    debug_scores: int = flag(0, "log the best nodes of each pod; 0: none", minimum=0)
    s: int = flag(0, "short for --debug-scores", minimum=0)
    debug_filters: bool = flag(False, "log why nodes don't fit")
    f: bool = flag(False, "short for --debug-filters")
    debug_diagnosis: bool = flag(False, "log what is known of each failed pod")
    d: bool = flag(False, "short for --debug-diagnosis")
    debug_diagnosis_blocking: bool = flag(False, "log it inside the cycle")
    debug_diagnosis_queue_size: int = flag(1000, "failures kept to be logged", minimum=1)
    debug_diagnosis_worker_count: int = flag(10, "tasks that log them", minimum=1)
    sync_barrier_pod_namespace: str = flag("kube-system", "namespace of the barrier pod")
    sync_barrier_pod_name: str = flag("koord-scheduler-sync-barrier", "name of the barrier pod")
    sync_hard_timeout: Duration = flag("1m", "how long the barrier is waited for")
    enable_workload_auditor: bool = flag(False, "follow workloads through preemption")
    workload_auditor_metric_labels: str = flag("", "pod labels in its metrics")
    workload_auditor_victim_reschedule_duration: Duration = flag("10s", "within which a victim counts as rescheduled")
    workload_auditor_victim_deletion_duration: Duration = flag("30s", "within which a victim should be gone")
    workload_auditor_victim_deleting_retries: int = flag(3, "attempts")
    workload_auditor_scheduling_event_interval: Duration = flag("5m", "between two events of one workload")
    async_log: bool = flag(False, "accepted: logging never waits")
    async_log_queue_length: int = flag(10000, "accepted: logging never waits")
    kube_api_qps: float = flag(0.0, "requests a second to the API server; 0: of the configuration")
    kube_api_burst: int = flag(0, "requests at once; 0: of the configuration")
    kube_api_content_type: str = flag("", "accepted: JSON is spoken")
    profiling: bool = flag(True, "serve /debug/flags")
    contention_profiling: bool = flag(True, "accepted: there are no locks")
    bind_address: str = flag("0.0.0.0", "IP address of the secure port")
    secure_port: int = flag(10259, "port of the same pages over TLS, for those who may; 0: none", minimum=0)
    cert_dir: str = flag("", "accepted: a certificate that is made is kept nowhere")
    tls_cert_file: str = flag("", "certificate of the secure port; none: one is made at each start")
    tls_private_key_file: str = flag("", "its key")
    tls_cipher_suites: str = flag("", "accepted: OpenSSL's own choice is taken")
    tls_min_version: str = flag("", "VersionTLS12 (default) or VersionTLS13", choices=tuple(TLS_VERSIONS))
    client_ca_file: str = flag("", "CA whose certificates say who calls the secure port")
    http2_max_streams_per_connection: int = flag(0, "accepted: HTTP/1.1 is spoken")
    authentication_kubeconfig: str = flag("", "with which callers are looked up; none: the scheduler's own")
    authentication_skip_lookup: bool = flag(
        False, "accepted: no CA is looked up in the cluster, only --client-ca-file counts"
    )
    authentication_token_webhook_cache_ttl: Duration = flag("10s", "how long it is remembered whose a token is")
    authentication_tolerate_lookup_failure: bool = flag(True, "accepted: nothing is looked up at the start")
    authorization_kubeconfig: str = flag("", "with which it is asked who may; none: the scheduler's own")
    authorization_always_allow_paths: list[str] = flag(list(PUBLIC), "paths of the secure port that everybody may ask")
    authorization_webhook_cache_authorized_ttl: Duration = flag("10s", "how long a yes is remembered")
    authorization_webhook_cache_unauthorized_ttl: Duration = flag("10s", "how long a no is remembered")
    requestheader_client_ca_file: str = flag("", _UNUSED)
    requestheader_allowed_names: str = flag("", _UNUSED)
    requestheader_username_headers: str = flag("", _UNUSED)
    requestheader_group_headers: str = flag("", _UNUSED)
    requestheader_extra_headers_prefix: str = flag("", _UNUSED)
    permit_port_sharing: bool = flag(False, _UNUSED)
    permit_address_sharing: bool = flag(False, _UNUSED)
    show_hidden_metrics_for_version: str = flag("", "accepted: nothing is hidden")

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
        labels = [re.sub(r"[^a-zA-Z0-9_]", "_", one.strip()) for one in self.workload_auditor_metric_labels.split(",")]
        if len({*labels, *_AUDIT_LABELS}) < len(labels) + len(_AUDIT_LABELS):
            raise FlagError("--workload-auditor-metric-labels: two labels of a series would have one name")
        self.debug_scores = self.debug_scores or self.s
        self.debug_filters = self.debug_filters or self.f
        self.debug_diagnosis = self.debug_diagnosis or self.d


def enabled(name: str, items: Sequence[str]) -> bool:
    """Whether `--controller-plugins` lets a plugin's controllers run: the first `name` or `-name` decides, else `*`."""
    for item in items:
        if item in (name, f"-{name}"):
            return item == name
    return "*" in items
