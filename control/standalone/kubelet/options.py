"""Flags of the stand-in kubelet, with the real kubelet's names where it has the flag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from control.standalone.kubelet.cgroups.naming import Driver
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions

KUBELET_VERSION = "v1.34.0-standin"


@dataclass
class KubeletOptions(LoggingOptions):
    kubeconfig: str = flag("kubeconfig", "", "kubeconfig of the API server; empty: KUBECONFIG or in-cluster")
    node_name: str = flag("node-name", "", "name of the Node object; empty: the hostname")
    hostname_override: str = flag("hostname-override", "", "same as node-name, as a kubelet spells it")
    root_dir: str = flag("root-dir", "/var/lib/koord-kubelet", "state, logs and serving certificate")
    cgroup_driver: str = flag("cgroup-driver", "cgroupfs", "naming of cgroups", choices=tuple(d.value for d in Driver))
    runtime_endpoint: str = flag(
        "container-runtime-endpoint", "", "CRI socket of the container runtime; empty: plain processes of this host"
    )
    cgroup_mount: str = flag("cgroup-mount", "/sys/fs/cgroup", "where cgroups are mounted")
    cgroup_root: str = flag("cgroup-root", "", "parent directory of the kubepods cgroups; empty: none")
    port: int = flag("port", 10250, "port of the HTTPS endpoints; 0: any free one", minimum=0)
    bind_address: str = flag("bind-address", "127.0.0.1", "address of the HTTPS endpoints")
    address: str = flag("node-ip", "", "the node's InternalIP; empty: the bind address")
    read_only_port: int = flag("read-only-port", 0, "port of plain-HTTP /pods, /stats, /metrics; 0: off", minimum=0)
    healthz_port: int = flag("healthz-port", 0, "port of plain-HTTP /healthz; 0: off", minimum=0)
    max_pods: int = flag("max-pods", 110, "number of pods that the node accepts", minimum=1)
    kube_reserved: dict[str, str] = flag(
        "kube-reserved", {}, "resources not allocatable to pods: cpu=200m,memory=500Mi"
    )
    system_reserved: dict[str, str] = flag(
        "system-reserved", {}, "resources not allocatable to pods: cpu=200m,memory=500Mi"
    )
    eviction_memory: str = flag("eviction-memory", "100Mi", "memory subtracted from allocatable (memory.available<…)")
    eviction_disk: int = flag("eviction-disk-percent", 10, "percent of the disk subtracted from allocatable", minimum=0)
    enforce_allocatable: bool = flag("enforce-node-allocatable", True, "limit the kubepods cgroup to allocatable")
    node_labels: dict[str, str] = flag("node-labels", {}, "labels to register with")
    status_period: Duration = flag("node-status-update-frequency", "10s", "period of the Node's heartbeat", minimum=0.1)
    lease_seconds: int = flag(
        "node-lease-duration-seconds", 40, "lease duration; renewed at a quarter of it", minimum=4
    )
    token_auth_file: str = flag("token-auth-file", "", "CSV file of accepted bearer tokens: token,user,uid,groups")
    authorization_mode: str = flag(
        "authorization-mode",
        "Webhook",
        "authorization of authenticated callers: by SubjectAccessReview, or always allowed",
        choices=("Webhook", "AlwaysAllow"),
    )
    log_max_size: str = flag("container-log-max-size", "10Mi", "size at which a container's log is rotated")
    log_max_files: int = flag("container-log-max-files", 5, "log files kept per container", minimum=2)
    cleanup_on_exit: bool = flag("cleanup-on-exit", False, "on SIGTERM terminate all pods, remove all created cgroups")
    cleanup: bool = flag("cleanup", False, "terminate all pods of --root-dir, remove their cgroups, and exit")
    owner_dir: str = flag("owner-dir", "", "state directory written into the cgroups' owner mark; empty: no mark")
    owner_pin_dir: str = flag("owner-pin-dir", "", "directory of koordlet's pinned BPF maps, for the owner mark")
    kube_api_qps: float = flag("kube-api-qps", 50.0, "requests per second to the API server")
    kube_api_burst: int = flag("kube-api-burst", 100, "burst of requests to the API server")

    @property
    def node(self) -> str:
        return self.node_name or self.hostname_override

    @property
    def root(self) -> Path:
        return Path(self.root_dir)

    @property
    def ip(self) -> str:
        if self.address:
            return self.address
        return "127.0.0.1" if self.bind_address in ("", "0.0.0.0", "::") else self.bind_address


def amounts(flag_name: str, texts: dict[str, str]) -> dict[str, Quantity]:
    """Quantities of a name=quantity flag; `FlagError` names the flag and the resource."""
    return {name: amount(f"{flag_name} {name}", text) for name, text in texts.items()}


def amount(where: str, text: str) -> Quantity:
    try:
        return Quantity(text)
    except QuantityError as error:
        raise FlagError(f"invalid value for --{where}: {error}") from error


def kubelet_configuration(options: KubeletOptions, node: str, port: int) -> dict[str, object]:
    """The content of /configz: the fields of a KubeletConfiguration that apply to this kubelet."""
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": True,
        "address": options.bind_address,
        "port": port,
        "readOnlyPort": options.read_only_port,
        "healthzPort": options.healthz_port,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "x509": {},
            "webhook": {"enabled": True, "cacheTTL": "2m0s"},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": options.authorization_mode},
        "nodeStatusUpdateFrequency": f"{options.status_period:g}s",
        "nodeStatusReportFrequency": "5m0s",
        "nodeLeaseDurationSeconds": options.lease_seconds,
        "cgroupRoot": f"/{options.cgroup_root.strip('/')}" if options.cgroup_root else "/",
        "cgroupsPerQOS": True,
        "cgroupDriver": options.cgroup_driver,
        "cpuManagerPolicy": "none",
        "cpuManagerReconcilePeriod": "10s",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "maxPods": options.max_pods,
        "podPidsLimit": -1,
        "cpuCFSQuota": True,
        "cpuCFSQuotaPeriod": "100ms",
        "kubeReserved": options.kube_reserved,
        "systemReserved": options.system_reserved,
        "enforceNodeAllocatable": ["pods"] if options.enforce_allocatable else ["none"],
        "evictionHard": {
            "memory.available": options.eviction_memory,
            "nodefs.available": f"{options.eviction_disk}%",
        },
        "containerLogMaxSize": options.log_max_size,
        "containerLogMaxFiles": options.log_max_files,
        "failSwapOn": False,
        "hairpinMode": "none",
        "registerNode": True,
        "podsPerCore": 0,
        "containerRuntimeEndpoint": options.runtime_endpoint or f"process://{node}",
        "featureGates": {},
    }
