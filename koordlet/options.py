"""koordlet's command line: Koordinator's flags with their defaults (spec 02 §1.5), and ours.

Flags of parts that are not built yet are not here: a flag that does nothing would lie. Those of parts that will never
be are in `oldflags`, and say so when they are given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.http import split_address
from koordlet.oldflags import OldFlags
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
class Options(OldFlags):
    """Everything that can be told on the command line."""

    addr: str = flag("addr", ":9316", "address of metrics, health and /top")
    enable_pprof: bool = flag("enable-pprof", False, "serve profiles of the process")
    pprof_addr: str = flag("pprof-addr", ":9317", "address of /debug/pprof/")
    config: str = flag("config", "", "YAML file of flags and values; the command line wins", config_file=True)
    kubeconfig: str = flag("kubeconfig", "", "kubeconfig file; else KUBECONFIG, in-cluster, ~/.kube/config")
    kube_api_qps: float = flag("kube-api-qps", 20.0, "requests a second to the API server", minimum=0.1)
    kube_api_burst: int = flag("kube-api-burst", 30, "requests at once to the API server", minimum=1)
    feature_gates: dict[str, bool] = flag("feature-gates", {}, "A=true,B=false; AllAlpha and AllBeta set whole stages")
    node_name: str = flag("node-name", "", "name of this Node; default: environment variable NODE_NAME")
    standalone: bool = flag("standalone", False, "watch this host without API server and kubelet")

    cgroup_root_dir: str = flag("cgroup-root-dir", "", "where cgroups are mounted; default by agent_mode")
    sys_root_dir: str = flag("sys-root-dir", "", "where sysfs is mounted; default by agent_mode")
    sys_fs_root_dir: str = flag("sys-fs-root-dir", "", "parent of resctrl and bpf; default by agent_mode")
    proc_root_dir: str = flag("proc-root-dir", "", "where procfs is mounted; default by agent_mode")
    var_run_root_dir: str = flag("var-run-root-dir", "", "the host's /var/run; default by agent_mode")
    run_root_dir: str = flag("run-root-dir", "", "the host's /run; default by agent_mode")
    var_lib_kubelet_dir: str = flag("var-lib-kubelet-dir", "", "the kubelet's directory; default by agent_mode")

    audit_log_dir: str = flag("audit-log-dir", "/var/log/koordlet", "where the audit log is kept")
    audit_verbose: int = flag("audit-verbose", 3, "audit events up to this level; 0: all of them", minimum=0)
    audit_max_disk_space_mb: int = flag("audit-max-disk-space-mb", 16, "size of the audit log", minimum=1)
    audit_max_concurrent_readers: int = flag(
        "audit-max-concurrent-readers", 4, "clients that can page through the audit log at once", minimum=1
    )
    audit_max_events_limit: int = flag("audit-max-events-limit", 2048, "audit events on one page", minimum=1)

    discover_interval: Duration = flag(
        "discover-interval", "3s", "how often --standalone looks for cgroups, beside what the kernel tells", minimum=0.1
    )
    kubelet_preferred_address_type: str = flag(
        "kubelet-preferred-address-type", "InternalIP", "type of the node address at which the kubelet is asked"
    )
    kubelet_sync_interval: Duration = flag("kubelet-sync-interval", "10s", "how often pods are read", minimum=0.1)
    kubelet_sync_timeout: Duration = flag("kubelet-sync-timeout", "3s", "time for one request", minimum=0.1)
    kubelet_insecure_tls: bool = flag("kubelet-insecure-tls", False, "plain HTTP on the kubelet's read-only port")
    kubelet_read_only_port: int = flag("kubelet-read-only-port", 10255, "the kubelet's read-only port")
    kubelet_token_file: str = flag(
        "kubelet-token-file", "", "bearer token for the kubelet; default: the credential for the API server"
    )
    enable_pod_taskids: bool = flag("enable-pod-taskids", False, "also keep the threads of every container")
    enable_node_metric_report: bool = flag("enable-node-metric-report", True, "report NodeMetric")
    node_topology_sync_interval: Duration = flag(
        "node-topology-sync-interval", "3s", "how often NodeResourceTopology and Device are told; 0 or less: never"
    )
    disable_query_kubelet_config: bool = flag(
        "disable-query-kubelet-config", False, "do not ask the kubelet for its CPU policies (/configz)"
    )

    collect_res_used_interval: Duration = flag(
        "collect-res-used-interval", "1s", "how often use of node, pods and containers is read", minimum=1
    )
    collect_sys_metric_outdated_interval: Duration = flag(
        "collect-sys-metric-outdated-interval", "10s", "age at which an input of system usage is too old", minimum=1
    )
    collect_node_cpu_info_interval: Duration = flag(
        "collect-node-cpu-info-interval", "60s", "how often CPU and NUMA layout are read", minimum=1
    )
    psi_collector_interval: Duration = flag("psi-collector-interval", "10s", "how often pressure is read", minimum=1)
    collect_node_storage_info_interval: Duration = flag(
        "collect-node-storage-info-interval", "1s", "how often disks and mounts are looked at", minimum=1
    )
    cpi_collector_interval: Duration = flag("cpi-collector-interval", "60s", "how often CPI is counted", minimum=1)
    collect_cpi_timewindow: Duration = flag("collect-cpi-timewindow", "10s", "how long CPI is counted", minimum=1)
    coldpage_collector_interval: Duration = flag(
        "coldpage-collector-interval", "5s", "how often cold memory is read", minimum=1
    )
    cold_page_window: Duration = flag(
        "cold-page-window", "5m", "rest that makes page cache cold, where the kernel keeps no ages", minimum=1
    )
    resctrl_collector_interval: Duration = flag(
        "resctrl-collector-interval", "10s", "how often cache occupancy and memory bandwidth are read", minimum=1
    )
    enable_resctrl_collector: bool = flag(
        "enable-resctrl-collector", False, "read LLC occupancy and memory bandwidth (needs gate ResctrlCollector too)"
    )
    gpu_health_recovery: bool = flag(
        "gpu-health-recovery", False, "take an unhealthy GPU for healthy again once it has answered for ten minutes"
    )
    enable_pagecache_collector: bool = flag("enable-pagecache-collector", False, "also keep use with page cache")
    sched_latency_interval: Duration = flag(
        "sched-latency-interval", "1s", "how often the schedule-latency probe is read", minimum=1
    )
    sched_latency_window: Duration = flag(
        "sched-latency-window", "10s", "window of the latency percentiles and culprits in /top", minimum=1
    )

    prediction_checkpoint_filepath: str = flag(
        "prediction-checkpoint-filepath", "/prediction-checkpoints", "directory of its own for what predictions learned"
    )
    prediction_cold_start_duration: Duration = flag(
        "prediction-cold-start-duration", "24h", "a younger pod counts with its requests", minimum=0
    )
    prediction_safety_margin_percent: int = flag(
        "prediction-safety-margin-percent", 10, "added to every predicted peak", minimum=0
    )
    prediction_cpu_histogram_decay_halflife: Duration = flag(
        "prediction-cpu-histogram-decay-halflife", "12h", "time in which a CPU sample loses half its weight", minimum=1
    )
    prediction_memory_histogram_decay_halflife: Duration = flag(
        "prediction-memory-histogram-decay-halflife", "24h", "the same for a memory sample", minimum=1
    )
    prediction_training_interval: Duration = flag(
        "prediction-training-interval", "1m", "how often predictions learn", minimum=1
    )
    prediction_model_expiration_duration: Duration = flag(
        "prediction-model-expiration-duration", "30m", "a model that learned nothing for so long is dropped", minimum=1
    )
    prediction_model_checkpoint_interval: Duration = flag(
        "prediction-model-checkpoint-interval", "10m", "how often a model is saved", minimum=1
    )
    prediction_model_checkpoint_max_per_step: int = flag(
        "prediction-model-checkpoint-max-per-step", 12, "models saved in one minute", minimum=1
    )
    prediction_peak_model: str = flag(
        "prediction-peak-model",
        "histogram",
        "how a peak is computed: p95/p98, mean + N sigma, or the greater",
        choices=PEAK_MODELS,
    )
    prediction_sigmas: float = flag(
        "prediction-sigmas", 3.0, "standard deviations above the mean (peak models nsigma and max)", minimum=0
    )
    mem_stall_interval: Duration = flag(
        "mem-stall-interval", "1s", "how often the memory-stall probe is read", minimum=1
    )
    mem_stall_window: Duration = flag(
        "mem-stall-window", "10s", "window of memory stalls, their percentiles and culprits", minimum=1
    )
    oom_interval: Duration = flag("oom-interval", "1s", "how often out-of-memory kills are looked for", minimum=1)
    block_io_interval: Duration = flag("block-io-interval", "2s", "how often the block-I/O probe is read", minimum=1)
    block_io_window: Duration = flag(
        "block-io-window", "10s", "window of block-I/O rates, percentiles and culprits", minimum=1
    )
    net_stall_interval: Duration = flag(
        "net-stall-interval", "2s", "how often the network-stall probe is read", minimum=1
    )
    net_stall_window: Duration = flag("net-stall-window", "5s", "window of network stalls and culprits", minimum=1)

    metric_cache_max_series: int = flag("metric-cache-max-series", 16384, "series kept of one kind", minimum=16)
    tsdb_retention_duration: Duration = flag(
        "tsdb-retention-duration", "12h", "the longest window NodeMetric may ask the metric cache for", minimum=60
    )
    tsdb_max_bytes: int = flag("tsdb-max-bytes", 104857600, "memory of the metric cache, in bytes", minimum=1 << 20)
    state_dir: str = flag("state-dir", "/var/run/koordlet", "snapshots of the metric cache")
    snapshot_interval: Duration = flag("snapshot-interval", "1m", "how often the metric cache is saved", minimum=1)

    cgroup_stats: str = flag(
        "cgroup-stats", "auto", "how cgroups' figures are read: auto (one BPF walk) or files", choices=("auto", "files")
    )
    probes: str = flag("probes", "auto", "where schedule latency comes from", choices=PROBE_MODES)
    bpf_pin_dir: str = flag("bpf-pin-dir", "/sys/fs/bpf/koordlet", "where BPF maps are pinned; empty: nowhere")
    keep_pins: bool = flag("keep-pins", False, "leave BPF programs pinned and counting at stop, for a quick restart")
    mount_bpffs: bool = flag("mount-bpffs", True, "mount a BPF file system if there is none")

    reconcile_interval_seconds: int = flag(
        "reconcile-interval-seconds", 1, "how often QoS strategies decide; 0 switches them off", minimum=0
    )
    cpu_suppress_interval_seconds: int = flag(
        "cpu-suppress-interval-seconds", 1, "how often CPU suppress decides; 0 switches it off", minimum=0
    )
    cpu_evict_interval_seconds: int = flag(
        "cpu-evict-interval-seconds", 1, "how often CPU evictions are decided; 0 switches them off", minimum=0
    )
    memory_evict_interval_seconds: int = flag(
        "memory-evict-interval-seconds", 1, "how often memory evictions are decided; 0 switches them off", minimum=0
    )
    cpu_evict_cool_time_seconds: int = flag(
        "cpu-evict-cool-time-seconds", 20, "pause after a CPU eviction, and after the start", minimum=0
    )
    memory_evict_cool_time_seconds: int = flag(
        "memory-evict-cool-time-seconds", 4, "pause after a memory eviction", minimum=0
    )
    runtime_hooks_reconcile_interval: Duration = flag(
        "runtime-hooks-reconcile-interval", "10s", "how often what pods get by class is decided; 0 switches it off",
        minimum=0,
    )  # fmt: skip
    disable_unset_cpu_quota: bool = flag(
        "disable-unset-cpu-quota", False, "leave the CPU quota of pods with CPUs of their own as the kubelet set it"
    )
    runtime_hooks_network: str = flag("runtime-hooks-network", "unix", "network of the hook server", choices=("unix",))
    runtime_hooks_addr: str = flag(
        "runtime-hooks-addr", "", "socket of the hook server as this process sees it; default by agent_mode"
    )
    runtime_hooks_host_endpoint: str = flag(
        "runtime-hooks-host-endpoint", "/var/run/koordlet/koordlet.sock", "the same socket as the host sees it"
    )
    runtime_hooks_config_path: str = flag(
        "runtime-hooks-config-path", "", "where hook servers register with a runtime proxy; default by agent_mode"
    )
    runtime_hooks_failure_policy: str = flag(
        "runtime-hooks-failure-policy", "Ignore", "what a runtime does when koordlet can't be asked",
        choices=FAILURE_POLICIES,
    )  # fmt: skip
    runtime_hooks_plugin_failure_policy: str = flag(
        "runtime-hooks-plugin-failure-policy", "Ignore", "what a failing hook plugin means: left out, or an error",
        choices=FAILURE_POLICIES,
    )  # fmt: skip
    runtime_hooks_disable_stages: list[str] = flag(
        "runtime-hooks-disable-stages", [], "hook stages that are not registered"
    )
    runtime_hooks_settle_timeout: Duration = flag(
        "runtime-hooks-settle-timeout", "1s", "how long a hook waits until the kernel holds what its pod gets",
        minimum=0,
    )  # fmt: skip
    enable_nri_runtime_hook: bool = flag(
        "enable-nri-runtime-hook", True, "be a plugin of the container runtime where it speaks NRI"
    )
    runtime_hooks_nri_socket_path: str = flag(
        "runtime-hooks-nri-socket-path", "nri/nri.sock", "the runtime's NRI socket, below the host's /var/run"
    )
    runtime_hooks_nri_plugin_name: str = flag(
        "runtime-hooks-nri-plugin-name", "koordlet_nri", "the name by which koordlet registers"
    )
    runtime_hooks_nri_plugin_index: str = flag(
        "runtime-hooks-nri-plugin-index", "00", "two digits: its place among the runtime's plugins"
    )
    runtime_hooks_nri_connect_timeout: Duration = flag(
        "runtime-hooks-nri-connect-timeout", "6s", "time to connect and register; a connection that lasts it is good",
        minimum=0.1,
    )  # fmt: skip
    runtime_hooks_nri_backoff_duration: Duration = flag(
        "runtime-hooks-nri-backoff-duration", "1s", "pause before connecting again", minimum=0.1
    )
    runtime_hooks_nri_backoff_cap: Duration = flag(
        "runtime-hooks-nri-backoff-cap", "1m", "the longest such pause", minimum=0.1
    )
    runtime_hooks_nri_backoff_steps: int = flag(
        "runtime-hooks-nri-backoff-steps", 2147483647, "how often the pause grows", minimum=0
    )
    runtime_hooks_nri_backoff_factor: float = flag(
        "runtime-hooks-nri-backoff-factor", 2.0, "how much it grows", minimum=1
    )
    pod_resources_proxy_path: str = flag(
        "pod-resources-proxy-path",
        "/var/run/koordlet/pod-resources",
        "directory of the socket that answers the kubelet's pod-resources API with the scheduler's devices in it",
    )
    xpu_device_infos_dir: str = flag(
        "xpu-device-infos-dir",
        "/var/run/koordlet/xpu-device-infos/",
        "directory of files in which other programs describe accelerators (gate Accelerators)",
    )
    xpu_enforce_collect_from_device_infos: bool = flag(
        "xpu-enforce-collect-from-device-infos", False, "never take GPUs from NVML into the Device object"
    )
    default_runtime_type: str = flag(
        "default-runtime-type", "containerd", "the container runtime, as container ids name it", choices=RUNTIME_TYPES
    )
    hami_core_library_directory_path: str = flag(
        "hami-core-library-directory-path", "/usr/local/vgpu/libvgpu.so", "library that bounds shared GPUs"
    )
    resource_force_update_seconds: int = flag(
        "resource-force-update-seconds", 60, "how often a setting that should hold is looked at again", minimum=1
    )

    def roots(self) -> Roots:
        """The kernel's file systems, by agent_mode and then by flag. `--standalone` runs on the host itself."""
        base = Roots.host() if self.standalone else Roots.from_env()
        given = {
            "cgroup": self.cgroup_root_dir,
            "sys": self.sys_root_dir,
            "sys_fs": self.sys_fs_root_dir,
            "proc": self.proc_root_dir,
            "var_run": self.var_run_root_dir,
            "run": self.run_root_dir,
            "var_lib_kubelet": self.var_lib_kubelet_dir,
        }
        paths: dict[str, Any] = {name: Path(value) for name, value in given.items() if value}
        return replace(base, **paths)

    def check(self, environment_node_name: str) -> None:
        """What one flag alone cannot tell; FlagError says what to do."""
        if self.kubelet_insecure_tls and not self.disable_query_kubelet_config:
            raise FlagError("--kubelet-insecure-tls needs --disable-query-kubelet-config: no /configz on that port")
        if self.collect_cpi_timewindow >= self.cpi_collector_interval:
            raise FlagError("--collect-cpi-timewindow must be shorter than --cpi-collector-interval")
        unknown = sorted(set(self.runtime_hooks_disable_stages) - set(HOOK_STAGES))
        if unknown:
            known = ", ".join(HOOK_STAGES)
            raise FlagError(f"--runtime-hooks-disable-stages: no stage {unknown[0]!r}; there are {known}")
        for name, address in (("addr", self.addr), ("pprof-addr", self.pprof_addr)):
            try:
                split_address(address)
            except ValueError as error:
                raise FlagError(f"--{name}: {error}") from error
        self.node_name = self.node_name or environment_node_name
        if not self.node_name and not self.standalone:
            raise FlagError("the name of this Node is not known: set NODE_NAME or --node-name, or use --standalone")
