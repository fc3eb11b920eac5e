"""koord-manager's command line and environment: Koordinator's flags and defaults (spec 04 §1.1), and additional ones.

Both are read once at start. `selected` evaluates the list flags that enable controllers and plug-ins.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.api.encoding import times
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.http import split_address
from koordlet.app.logging import LoggingOptions, get_logger
from koordlet.app.pageoptions import PageOptions

log = get_logger(__name__)

CONTROLLERS = (
    *("colocationprofile", "nodemetric", "noderesource", "nodeslo", "peers", "queue", "queuejobs", "quotaprofile"),
    "recommender",
)
NODERESOURCE_PLUGINS = (
    "MidResource",
    "BatchResource",
    "CPUNormalization",
    "ResourceAmplification",
    "GPUDeviceResource",
    "RDMADeviceResource",
)


@dataclass
class ManagerOptions(PageOptions, LoggingOptions):
    """The command line."""

    kubeconfig: str = flag("", "kubeconfig file; else KUBECONFIG, in-cluster, ~/.kube/config")
    metrics_addr: str = flag(":8080", "address of the metrics pages")
    health_probe_addr: str = flag(":8000", "address of /healthz and /readyz")
    enable_leader_election: bool = flag(True, "run controllers only while holding the lease")
    leader_election_namespace: str = flag(KOORDINATOR_NAMESPACE, "namespace of the lease; empty: the manager's own")
    leader_elect_resource_lock: str = flag("leases", "kind of lock", choices=("leases",))
    leader_elect_lease_duration: Duration = flag("15s", "duration of the lease", minimum=1)
    leader_elect_renew_deadline: Duration = flag(
        "10s", "time without renewal after which the leader stops", minimum=0.1
    )
    leader_elect_retry_period: Duration = flag("2s", "pause between attempts to take or renew the lease", minimum=0.05)
    namespace: str = flag("", "watch only this namespace; empty: all")
    webhook_bind_address: str = flag("0.0.0.0", "address of the webhook server")
    webhook_client_ca_file: str = flag(
        "", "CA of the API servers' client certificates; webhook clients without one are refused"
    )
    enable_pprof: bool = flag(False, "serve profiles")
    pprof_addr: str = flag("127.0.0.1:8090", "address of /debug/pprof/")
    sync_period: str = flag("", "interval between full resyncs of all objects; empty or 0: never")
    rest_config_qps: int = flag(30, "requests per second to the API server; applied if > 0")
    rest_config_burst: int = flag(50, "burst of requests to the API server; applied if > 0")
    feature_gates: dict[str, bool] = flag({}, "A=true,B=false; AllAlpha and AllBeta set all gates of a stage")
    disable_no_deepcopy: bool = flag(False, "no effect", deprecated="cached objects are shared")
    controllers: list[str] = flag(list(CONTROLLERS), "controllers to run; -name: disable, *: all others")
    noderesource_plugins: list[str] = flag(
        list(NODERESOURCE_PLUGINS), "plug-ins of noderesource; -name: disable, *: all others"
    )
    config_namespace: str = flag(KOORDINATOR_NAMESPACE, "namespace of the SLO ConfigMap")
    slo_config_name: str = flag("slo-controller-config", "name of the SLO ConfigMap")
    node_strategy_name_need_check: str = flag("false", "true: names of node strategies must be unique")
    strict_parity: bool = flag(
        False, "reproduce Koordinator's results also where the default differs (docs/manager.md)"
    )

    colocation_profile_reconcile_by_default: bool = flag(
        False, "apply all profiles, not only labelled ones, to pending pods"
    )
    colocation_profile_reconcile_interval: Duration = flag("30s", "interval between reconciles of a profile")
    colocation_profile_force_update_pod_duration: Duration = flag(
        "5m", "time after which a profile is applied again to a pod"
    )
    colocation_profile_expire_pod_cache_duration: Duration = flag(
        "10m", "interval of purging the cache of updated pods"
    )
    colocation_profile_update_pod_qps: float = flag(10.0, "pod updates per second by the profile controller")
    colocation_profile_update_pod_qps_burst: int = flag(100, "burst of pod updates by the profile controller")
    peer_comparison_interval: Duration = flag(
        "30s", "interval between comparisons of replicas (gate PeerComparison)", minimum=0.1
    )
    job_queue_start_timeout: Duration = flag(
        "10m", "time from the admission of a queued job until a pod is ready (gate JobQueueing)", minimum=0.1
    )
    job_queue_backoff: Duration = flag(
        "1m", "backoff of a job that was not running in time; doubled each time, up to 1h", minimum=0.1
    )
    recommender_sample_interval: Duration = flag("1m", "interval between usage samples of workloads", minimum=0.1)
    recommender_cpu_percentile: float = flag(0.95, "share of CPU samples that a recommendation covers", minimum=0)
    recommender_memory_percentile: float = flag(0.98, "share of memory samples that a recommendation covers", minimum=0)
    recommender_safety_margin_percent: int = flag(10, "percentage added to a recommended amount", minimum=0)
    recommender_cpu_half_life: Duration = flag("12h", "age at which a CPU sample has half its weight", minimum=60)
    recommender_memory_half_life: Duration = flag("24h", "age at which a memory sample has half its weight", minimum=60)
    recommender_minimum_history: Duration = flag("24h", "history required before a recommendation is applied")
    recommender_status_interval: Duration = flag("10m", "interval of status writes while no amount changes by 5 %")
    recommender_eviction_share: float = flag(
        0.5, "share of a workload's pods that may be unavailable in update mode Auto"
    )
    recommender_eviction_minimum_replicas: int = flag(
        2, "replicas below which update mode Auto evicts no pod", minimum=1
    )
    recommender_eviction_minimum_age: Duration = flag("10m", "age below which update mode Auto does not evict a pod")
    trusted_key_users: list[str] = flag([], "additional users that may set the trusted keys of pods (docs/security.md)")
    trusted_key_groups: list[str] = flag([], "additional groups whose members may set the trusted keys of pods")
    pod_enhanced_validator_config_namespace: str = flag(KOORDINATOR_NAMESPACE, "namespace of the validator's ConfigMap")
    pod_enhanced_validator_config_name: str = flag("pod-enhanced-validator-config", "name of the validator's ConfigMap")
    pod_enhanced_validator_reconcile_interval: Duration = flag(
        "5m", "interval between reloads of the validator's ConfigMap"
    )
    quota_update_max_retries: int = flag(3, "attempts to write a quota; at least 3")
    quota_update_retry_jitter: Duration = flag("0s", "pause between attempts to write a quota")
    quota_update_max_total_jitter: Duration = flag("1s", "limit of the sum of these pauses")
    quota_update_conflict_fresh_get: bool = flag(False, "read the quota from the API server after a conflict")
    binding_admission_user_name: str = flag("", "the only user that may bind pods")
    binding_admission_dry_run: bool = flag(False, "only count bindings that would be refused")
    binding_admission_namespaces: str = flag("", "namespaces to check; *: all, empty: none")
    binding_admission_exclude_namespaces: str = flag("kube-system", "namespaces not checked")
    binding_admission_bypass_labels: str = flag("koordinator.sh/binding-admission-bypass", "labels of pods not checked")
    binding_admission_bypass_annotations: str = flag("", "annotations of pods not checked")

    def __post_init__(self) -> None:
        self.check_pages()
        for name, address in (
            ("metrics-addr", self.metrics_addr),
            ("health-probe-addr", self.health_probe_addr),
            ("pprof-addr", self.pprof_addr),
        ):
            try:
                split_address(address)
            except ValueError as error:
                raise FlagError(f"--{name}: {error}") from error
        for name, share in (
            ("recommender-cpu-percentile", self.recommender_cpu_percentile),
            ("recommender-memory-percentile", self.recommender_memory_percentile),
            ("recommender-eviction-share", self.recommender_eviction_share),
        ):
            if not 0 <= share <= 1:
                raise FlagError(f"--{name}: {share:g} is not between 0 and 1")

    @property
    def resync_seconds(self) -> float | None:
        """`--sync-period`; None when it is not set. An invalid duration is logged once and ignored."""
        if not self.sync_period:
            return None
        try:
            return times.Duration(self.sync_period).seconds or None
        except ValueError as error:
            log.once("sync-period", "Ignoring --sync-period", value=self.sync_period, err=error)
            return None


def selected(name: str, items: Sequence[str]) -> bool:
    """Whether a list flag enables `name`: the first `name` or `-name` decides, else `*` (spec 04 §1.3)."""
    for item in items:
        if item == name:
            return True
        if item == f"-{name}":
            return False
    return "*" in items


FAILURE_POLICIES = {
    "PODS": "pods",
    "NODES": "nodes",
    "NODE_STATUS": "nodes/status",
    "CONFIGMAPS": "configmaps",
    "RESERVATIONS": "reservations",
    "PODMIGRATIONJOBS": "podmigrationjobs",
    "DRAINNODES": "drainnodes drainnodegroups",
    "ELASTICQUOTAS": "elasticquotas",
}
"""Suffix of WEBHOOK_CONFIGURATION_FAILURE_POLICY_… -> resource of the webhooks whose failurePolicy it sets."""


@dataclass(frozen=True)
class WebhookEnv:
    """The webhook server's environment variables (spec 04 §1.1)."""

    port: int = 9876
    cert_dir: Path = Path("/var/run/koordinator-webhook-certs")
    cert_writer: str = ""
    host: str = ""
    namespace: str = KOORDINATOR_NAMESPACE
    secret_name: str = "koordinator-webhook-certs"
    service_name: str = "koordinator-webhook-service"
    mutating_name: str = "koordinator-mutating-webhook-configuration"
    validating_name: str = "koordinator-validating-webhook-configuration"
    failure_policies: Mapping[str, str] = field(default_factory=dict)
    """Resource of a webhook -> failurePolicy; Ignore where it is missing."""
    timeout_seconds: int = 10
    """How long the API server waits for an answer; 1 to 30."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WebhookEnv:
        """From the environment. Raises FlagError for an invalid port, failurePolicy or timeout."""
        port = environ.get("WEBHOOK_PORT") or "9876"
        if not port.isdecimal() or int(port) > 65535:
            raise FlagError(f'environment variable WEBHOOK_PORT: "{port}" is not a port')
        timeout = environ.get("WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS") or "10"
        if not timeout.isdecimal() or not 1 <= int(timeout) <= 30:
            raise FlagError(
                f'environment variable WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS: "{timeout}" is not in 1 to 30'
            )
        policies = {}
        for suffix, resource in FAILURE_POLICIES.items():
            name = f"WEBHOOK_CONFIGURATION_FAILURE_POLICY_{suffix}"
            policy = environ.get(name) or "Ignore"
            if policy not in ("Ignore", "Fail"):
                raise FlagError(f'environment variable {name}: "{policy}" is neither Ignore nor Fail')
            policies[resource] = policy
        return cls(
            port=int(port),
            cert_dir=Path(environ.get("WEBHOOK_CERT_DIR") or cls.cert_dir),
            cert_writer=environ.get("WEBHOOK_CERT_WRITER", ""),
            host=environ.get("WEBHOOK_HOST", ""),
            namespace=environ.get("POD_NAMESPACE") or cls.namespace,
            secret_name=environ.get("SECRET_NAME") or cls.secret_name,
            service_name=environ.get("SERVICE_NAME") or cls.service_name,
            mutating_name=environ.get("MUTATING_WEBHOOK_NAME") or cls.mutating_name,
            validating_name=environ.get("VALIDATING_WEBHOOK_NAME") or cls.validating_name,
            failure_policies=policies,
            timeout_seconds=int(timeout),
        )

    @property
    def dns_name(self) -> str:
        """The DNS name of the server certificate."""
        return self.host or f"{self.service_name}.{self.namespace}.svc"

    @property
    def to_files(self) -> bool:
        """Whether certificates are stored only in `cert_dir` and not in a Secret."""
        return self.cert_writer == "fs" or (not self.cert_writer and bool(self.host))

    @property
    def url_host(self) -> str:
        """`host` in the form used in a URL: an IPv6 address in brackets."""
        try:
            return f"[{self.host}]" if ipaddress.ip_address(self.host).version == 6 else self.host
        except ValueError:
            return self.host
