"""koordlet's command line: Koordinator's flags with their defaults (spec 02 §1.5), and additional ones.

Flags of features that are not implemented yet are missing: a flag without effect would be misleading. Those of
Koordinator's features that koordlet does not need are in `koordlet.ignoredflags`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.http import split_address
from koordlet.app.pageoptions import PageOptions, is_loopback
from koordlet.ignoredflags import IgnoredFlags
from koordlet.system.roots import Roots

PEAK_MODELS = ("histogram", "nsigma", "max")
FAILURE_POLICIES = ("Fail", "Ignore")
RUNTIME_TYPES = ("containerd", "docker", "pouch", "cri-o")
HOOK_STAGES = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
    "PreRemoveRunPodSandbox",
)
PROBE_MODES = ("auto", "core", "bcc", "off")


@dataclass
class KoordletOptions(PageOptions, IgnoredFlags):
    """All flags of koordlet."""

    addr: str = flag(":9316", "address of metrics, health and /top")
    syscall_filter: bool = flag(True, "refuse system calls that koordlet does not make (seccomp)")
    enable_pprof: bool = flag(False, "serve profiles of the process")
    pprof_addr: str = flag(":9317", "address of /debug/pprof/")
    config: str = flag("", "YAML file of flags and values; the command line has precedence", config_file=True)
    kubeconfig: str = flag("", "kubeconfig file; else KUBECONFIG, in-cluster, ~/.kube/config")
    kube_api_qps: float = flag(20.0, "requests per second to the API server", minimum=0.1)
    kube_api_burst: int = flag(30, "burst of requests to the API server", minimum=1)
    feature_gates: dict[str, bool] = flag({}, "A=true,B=false; AllAlpha and AllBeta set all gates of a stage")
    node_name: str = flag("", "name of this Node; default: environment variable NODE_NAME")
    standalone: bool = flag(False, "monitor this host without API server and kubelet")

    cgroup_root_dir: str = flag("", "mount point of cgroups; default by agent_mode")
    sys_root_dir: str = flag("", "mount point of sysfs; default by agent_mode")
    sys_fs_root_dir: str = flag("", "parent directory of resctrl and bpf; default by agent_mode")
    proc_root_dir: str = flag("", "mount point of procfs; default by agent_mode")
    proc_sys_root_dir: str = flag("", "where sysctls can be written; default: sys below the mount point of procfs")
    dev_root_dir: str = flag("", "the host's /dev; default /dev")
    var_run_root_dir: str = flag("", "the host's /var/run; default by agent_mode")
    run_root_dir: str = flag("", "the host's /run; default by agent_mode")
    var_lib_kubelet_dir: str = flag("", "the kubelet's directory; default by agent_mode")

    audit_log_dir: str = flag("/var/log/koordlet", "directory of the audit log")
    audit_verbose: int = flag(3, "record audit events up to this level; 0: all", minimum=0)
    audit_max_disk_space_mb: int = flag(16, "maximum size of the audit log in MiB", minimum=1)
    audit_max_concurrent_readers: int = flag(4, "clients that can page through the audit log concurrently", minimum=1)
    audit_max_events_limit: int = flag(2048, "audit events per page", minimum=1)

    discover_interval: Duration = flag(
        "3s", "how often --standalone searches for cgroups, in addition to kernel events", minimum=0.1
    )
    kubelet_preferred_address_type: str = flag("InternalIP", "type of the node address at which the kubelet is queried")
    kubelet_sync_interval: Duration = flag("10s", "how often pods are read from the kubelet", minimum=0.1)
    kubelet_sync_timeout: Duration = flag("3s", "timeout of a request to the kubelet", minimum=0.1)
    kubelet_insecure_tls: bool = flag(False, "plain HTTP on the kubelet's read-only port")
    kubelet_read_only_port: int = flag(10255, "the kubelet's read-only port")
    kubelet_certificate_authority: str = flag(
        "", "PEM file that verifies the kubelet; default: the kubelet's certificate in its directory"
    )
    kubelet_token_file: str = flag("", "bearer token for the kubelet; default: the credential for the API server")
    enable_pod_taskids: bool = flag(False, "also read the thread ids of all containers")
    enable_node_metric_report: bool = flag(True, "report NodeMetric")
    node_metric_min_report_interval: Duration = flag(
        "30s", "least time between two reports of NodeMetric, whatever its spec says", minimum=1
    )
    node_topology_sync_interval: Duration = flag(
        "3s", "how often NodeResourceTopology and Device are reported; 0 or less: never"
    )
    disable_query_kubelet_config: bool = flag(False, "do not query the kubelet for its CPU policies (/configz)")

    collect_res_used_interval: Duration = flag(
        "1s", "how often resource use of node, pods and containers is read", minimum=1
    )
    collect_sys_metric_outdated_interval: Duration = flag("10s", "maximum age of the inputs of system usage", minimum=1)
    collect_node_cpu_info_interval: Duration = flag("60s", "how often CPU and NUMA layout are read", minimum=1)
    psi_collector_interval: Duration = flag("10s", "how often pressure is read", minimum=1)
    collect_node_storage_info_interval: Duration = flag("1s", "how often disks and mounts are read", minimum=1)
    cpi_collector_interval: Duration = flag("60s", "how often CPI is measured", minimum=1)
    collect_cpi_timewindow: Duration = flag("10s", "duration of a CPI measurement", minimum=1)
    coldpage_collector_interval: Duration = flag("5s", "how often cold memory is read", minimum=1)
    cold_page_window: Duration = flag(
        "5m", "idle time after which page cache is cold, where the kernel tracks no page ages", minimum=1
    )
    resctrl_collector_interval: Duration = flag(
        "10s", "how often cache occupancy and memory bandwidth are read", minimum=1
    )
    enable_resctrl_collector: bool = flag(
        False, "read LLC occupancy and memory bandwidth (also needs gate ResctrlCollector)"
    )
    gpu_health_recovery: bool = flag(
        False, "consider an unhealthy GPU healthy again after it has answered for ten minutes"
    )
    external_advisors: str = flag(
        "", "JSON file of exporters in Prometheus format whose series are figures of containers"
    )
    enable_pagecache_collector: bool = flag(False, "also record memory use including page cache")
    sched_latency_interval: Duration = flag("1s", "how often the schedule-latency probe is read", minimum=1)
    sched_latency_window: Duration = flag("10s", "window of the latency percentiles and culprits in /top", minimum=1)

    prediction_checkpoint_filepath: str = flag(
        "/prediction-checkpoints", "directory of the prediction checkpoints; must not contain other files"
    )
    prediction_cold_start_duration: Duration = flag(
        "24h", "younger pods are predicted to use their requests", minimum=0
    )
    prediction_safety_margin_percent: int = flag(10, "percentage added to each predicted peak", minimum=0)
    prediction_cpu_histogram_decay_halflife: Duration = flag(
        "12h", "time in which a CPU sample loses half its weight", minimum=1
    )
    prediction_memory_histogram_decay_halflife: Duration = flag(
        "24h", "time in which a memory sample loses half its weight", minimum=1
    )
    prediction_training_interval: Duration = flag("1m", "how often prediction models are trained", minimum=1)
    prediction_model_expiration_duration: Duration = flag(
        "30m", "a model without samples for this long is dropped", minimum=1
    )
    prediction_model_checkpoint_interval: Duration = flag("10m", "how often a model is saved", minimum=1)
    prediction_model_checkpoint_max_per_step: int = flag(12, "models saved per minute", minimum=1)
    prediction_peak_model: str = flag(
        "histogram",
        "how a peak is computed: p95/p98, mean + N sigma, or the maximum of both",
        choices=PEAK_MODELS,
    )
    prediction_sigmas: float = flag(3.0, "standard deviations above the mean (peak models nsigma and max)", minimum=0)
    mem_stall_interval: Duration = flag("1s", "how often the memory-stall probe is read", minimum=1)
    mem_stall_window: Duration = flag("10s", "window of memory stalls, their percentiles and culprits", minimum=1)
    oom_interval: Duration = flag("1s", "how often out-of-memory kills are read", minimum=1)
    block_io_interval: Duration = flag("1s", "how often the block-I/O probe is read", minimum=1)
    block_io_window: Duration = flag("3s", "window of block-I/O rates, percentiles and culprits", minimum=1)
    net_stall_interval: Duration = flag("1s", "how often the network-stall probe is read", minimum=1)
    net_stall_window: Duration = flag("3s", "window of network stalls and culprits", minimum=1)

    metric_cache_max_series: int = flag(16384, "maximum number of series per metric kind", minimum=16)
    tsdb_retention_duration: Duration = flag("12h", "the longest window that NodeMetric can aggregate", minimum=60)
    tsdb_max_bytes: int = flag(104857600, "maximum memory of the metric cache in bytes", minimum=1 << 20)
    state_dir: str = flag(
        "/var/run/koordlet", "directory of metric cache snapshots and of the ledger of changed settings"
    )
    snapshot_interval: Duration = flag("1m", "how often the metric cache is saved", minimum=1)

    cgroup_stats: str = flag(
        "auto", "how cgroup statistics are read: auto (one BPF walk) or files", choices=("auto", "files")
    )
    probes: str = flag("auto", "source of schedule latency", choices=PROBE_MODES)
    bpf_pin_dir: str = flag("/sys/fs/bpf/koordlet", "directory where BPF maps are pinned; empty: not pinned")
    keep_pins: bool = flag(False, "keep BPF programs pinned and counting at stop, for a fast restart")
    mount_bpffs: bool = flag(True, "mount a BPF file system if there is none")

    reconcile_interval_seconds: int = flag(1, "how often QoS strategies run; 0 disables them", minimum=0)
    cpu_suppress_interval_seconds: int = flag(1, "how often CPU suppress runs; 0 disables it", minimum=0)
    cpu_evict_interval_seconds: int = flag(1, "how often CPU evictions are decided; 0 disables them", minimum=0)
    memory_evict_interval_seconds: int = flag(1, "how often memory evictions are decided; 0 disables them", minimum=0)
    cpu_evict_cool_time_seconds: int = flag(
        20, "seconds without CPU evictions after an eviction and after the start", minimum=0
    )
    memory_evict_cool_time_seconds: int = flag(4, "seconds without memory evictions after an eviction", minimum=0)
    runtime_hooks_reconcile_interval: Duration = flag(
        "10s",
        "how often the settings of pods are reconciled; 0 disables it",
        minimum=0,
    )
    disable_unset_cpu_quota: bool = flag(False, "keep the CPU quota that the kubelet set for pods with pinned CPUs")
    runtime_hooks_network: str = flag("unix", "network of the hook server", choices=("unix",))
    runtime_hooks_addr: str = flag("", "socket of the hook server, as a path of this process; default by agent_mode")
    runtime_hooks_host_endpoint: str = flag(
        "/var/run/koordlet/koordlet.sock", "socket of the hook server, as a path of the host"
    )
    runtime_hooks_config_path: str = flag(
        "", "directory where hook servers register with a runtime proxy; default by agent_mode"
    )
    runtime_hooks_failure_policy: str = flag(
        "Ignore",
        "whether a runtime fails or continues if koordlet cannot be called",
        choices=FAILURE_POLICIES,
    )
    runtime_hooks_plugin_failure_policy: str = flag(
        "Ignore",
        "whether a failing hook plugin is ignored or fails the call",
        choices=FAILURE_POLICIES,
    )
    runtime_hooks_disable_stages: list[str] = flag([], "hook stages that are not registered")
    runtime_hooks_settle_timeout: Duration = flag(
        "1s",
        "how long a hook waits until its pod's settings are written",
        minimum=0,
    )
    enable_nri_runtime_hook: bool = flag(True, "run as an NRI plugin of the container runtime if it supports NRI")
    runtime_hooks_nri_socket_path: str = flag("nri/nri.sock", "the runtime's NRI socket, below the host's /var/run")
    runtime_hooks_nri_plugin_name: str = flag(
        "koordlet_nri", "the name under which koordlet registers as an NRI plugin"
    )
    runtime_hooks_nri_plugin_index: str = flag("00", "two digits: the order among the runtime's NRI plugins")
    runtime_hooks_nri_connect_timeout: Duration = flag(
        "6s",
        "timeout for connecting and registering; a connection that lasts longer resets the backoff",
        minimum=0.1,
    )
    runtime_hooks_nri_backoff_duration: Duration = flag("1s", "initial delay before connecting again", minimum=0.1)
    runtime_hooks_nri_backoff_cap: Duration = flag("1m", "maximum delay before connecting again", minimum=0.1)
    runtime_hooks_nri_backoff_steps: int = flag(2147483647, "number of times that the delay grows", minimum=0)
    runtime_hooks_nri_backoff_factor: float = flag(2.0, "factor by which the delay grows", minimum=1)
    pod_resources_proxy_path: str = flag(
        "/var/run/koordlet/pod-resources",
        "directory of the socket that serves the kubelet's pod-resources API with the scheduler's devices added",
    )
    xpu_device_infos_dir: str = flag(
        "/var/run/koordlet/xpu-device-infos/",
        "directory of files that describe accelerators, written by other programs (gate Accelerators)",
    )
    xpu_enforce_collect_from_device_infos: bool = flag(False, "never report GPUs of NVML in the Device object")
    only_evict_by_api: bool = flag(
        True,
        "evict pods through the API server, so that disruption budgets hold; false: stop their containers through CRI, "
        "also while the API server is unreachable",
    )
    containerd_endpoint: str = flag(
        "", "CRI socket for --only-evict-by-api=false; default: the socket below --var-run-root-dir"
    )
    default_runtime_type: str = flag("containerd", "the container runtime as in container ids", choices=RUNTIME_TYPES)
    hami_core_library_directory_path: str = flag(
        "/usr/local/vgpu/libvgpu.so", "library that limits the use of shared GPUs"
    )
    resource_force_update_seconds: int = flag(60, "how often settings are compared with the kernel again", minimum=1)

    def roots(self) -> Roots:
        """The kernel's file systems, by agent_mode and then by flags. `--standalone` runs directly on the host."""
        base = Roots.host() if self.standalone else Roots.from_env()
        flags = {
            "cgroup": self.cgroup_root_dir,
            "sys": self.sys_root_dir,
            "sys_fs": self.sys_fs_root_dir,
            "proc": self.proc_root_dir,
            "proc_sys": self.proc_sys_root_dir or (self.proc_root_dir and f"{self.proc_root_dir}/sys"),
            "dev": self.dev_root_dir,
            "var_run": self.var_run_root_dir,
            "run": self.run_root_dir,
            "var_lib_kubelet": self.var_lib_kubelet_dir,
        }
        paths: dict[str, Any] = {name: Path(value) for name, value in flags.items() if value}
        return replace(base, **paths)

    def check(self, environment_node_name: str) -> None:
        """Check rules over several flags; raises FlagError with the remedy."""
        if self.kubelet_insecure_tls and not self.disable_query_kubelet_config:
            raise FlagError("--kubelet-insecure-tls needs --disable-query-kubelet-config: that port has no /configz")
        if self.collect_cpi_timewindow >= self.cpi_collector_interval:
            raise FlagError("--collect-cpi-timewindow must be shorter than --cpi-collector-interval")
        unknown = sorted(set(self.runtime_hooks_disable_stages) - set(HOOK_STAGES))
        if unknown:
            known = ", ".join(HOOK_STAGES)
            raise FlagError(f"--runtime-hooks-disable-stages: unknown stage {unknown[0]!r}; known stages: {known}")
        for name, address in (("addr", self.addr), ("pprof-addr", self.pprof_addr)):
            try:
                split_address(address)
            except ValueError as error:
                raise FlagError(f"--{name}: {error}") from error
        self.check_pages()
        if self.standalone:
            self._check_standalone_pages()
        self.node_name = self.node_name or environment_node_name
        if not self.node_name and not self.standalone:
            raise FlagError("the name of this Node is unknown: set NODE_NAME or --node-name, or use --standalone")

    def _check_standalone_pages(self) -> None:
        """Without an API server no caller can be authorized: pages are for this host unless a flag opens them."""
        if self.page_authorization == "delegated":
            raise FlagError("--page-authorization=delegated needs an API server; remove --standalone")
        if self.page_authorization == "auto":
            self.addr, self.pprof_addr = _own_host("addr", self.addr), _own_host("pprof-addr", self.pprof_addr)


def _own_host(name: str, addr: str) -> str:
    """An address that only this host reaches, for `:port`. Raises FlagError for an address of another interface."""
    host, port = split_address(addr)
    if host is not None and not is_loopback(addr):
        raise FlagError(
            f"--{name}={addr}: with --standalone no caller is authorized; add --page-authorization=none to serve the "
            "pages to every caller, or use 127.0.0.1"
        )
    return addr if host is not None else f"127.0.0.1:{port}"
