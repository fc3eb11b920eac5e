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
    kubeconfig: str = flag("", "kubeconfig of the API server; empty: KUBECONFIG or in-cluster")
    node_name: str = flag("", "name of the Node object; empty: the hostname")
    hostname_override: str = flag("", "same as node-name, as a kubelet spells it")
    root_dir: str = flag("/var/lib/koord-kubelet", "state, logs and serving certificate")
    cgroup_driver: str = flag("cgroupfs", "naming of cgroups", choices=tuple(d.value for d in Driver))
    runtime_endpoint: str = flag(
        "",
        "CRI socket of the container runtime; empty: plain processes of this host",
        name="container-runtime-endpoint",
    )
    cgroup_mount: str = flag("/sys/fs/cgroup", "where cgroups are mounted")
    cgroup_root: str = flag("", "parent directory of the kubepods cgroups; empty: none")
    port: int = flag(10250, "port of the HTTPS endpoints; 0: any free one", minimum=0)
    bind_address: str = flag("127.0.0.1", "address of the HTTPS endpoints")
    address: str = flag("", "the node's InternalIP; empty: the bind address", name="node-ip")
    read_only_port: int = flag(0, "port of plain-HTTP /pods, /stats, /metrics; 0: off", minimum=0)
    healthz_port: int = flag(0, "port of plain-HTTP /healthz; 0: off", minimum=0)
    privileged_namespaces: list[str] = flag(
        [], "pods there may use hostPath, hostPID, hostIPC, privileged and more capabilities; nowhere else"
    )
    max_pods: int = flag(110, "number of pods that the node accepts", minimum=1)
    kube_reserved: dict[str, str] = flag({}, "resources not allocatable to pods: cpu=200m,memory=500Mi")
    system_reserved: dict[str, str] = flag({}, "resources not allocatable to pods: cpu=200m,memory=500Mi")
    eviction_memory: str = flag("100Mi", "memory subtracted from allocatable (memory.available<…)")
    eviction_disk: int = flag(
        10, "percent of the disk subtracted from allocatable", name="eviction-disk-percent", minimum=0
    )
    enforce_allocatable: bool = flag(True, "limit the kubepods cgroup to allocatable", name="enforce-node-allocatable")
    node_labels: dict[str, str] = flag({}, "labels to register with")
    status_period: Duration = flag(
        "10s", "period of the Node's heartbeat", name="node-status-update-frequency", minimum=0.1
    )
    lease_seconds: int = flag(
        40, "lease duration; renewed at a quarter of it", name="node-lease-duration-seconds", minimum=4
    )
    tls_cert_file: str = flag("", "serving certificate; empty: a self-signed one in --root-dir")
    tls_key_file: str = flag("", "key of the serving certificate", name="tls-private-key-file")
    client_ca_file: str = flag("", "certificates of this authority authenticate callers; empty: none do")
    token_auth_file: str = flag("", "CSV file of accepted bearer tokens: token,user,uid,groups")
    authorization_mode: str = flag(
        "Webhook",
        "authorization of authenticated callers: by SubjectAccessReview, or always allowed",
        choices=("Webhook", "AlwaysAllow"),
    )
    log_max_size: str = flag("10Mi", "size at which a container's log is rotated", name="container-log-max-size")
    log_max_files: int = flag(5, "log files kept per container", name="container-log-max-files", minimum=2)
    cleanup_on_exit: bool = flag(False, "on SIGTERM terminate all pods, remove all created cgroups")
    cleanup: bool = flag(False, "terminate all pods of --root-dir, remove their cgroups, and exit")
    owner_dir: str = flag("", "state directory written into the cgroups' owner mark; empty: no mark")
    owner_pin_dir: str = flag("", "directory of koordlet's pinned BPF maps, for the owner mark")
    kube_api_qps: float = flag(50.0, "requests per second to the API server")
    kube_api_burst: int = flag(100, "burst of requests to the API server")

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
            "x509": {"clientCAFile": options.client_ca_file} if options.client_ca_file else {},
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
