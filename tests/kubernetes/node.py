"""A node of a real Kubernetes: containerd, koord-runtime-proxy, kubelet and kube-proxy, with their usual paths."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from control.standalone.containerd.archive import Image, busybox_layer, write_archive
from control.standalone.containerd.config import may_protect
from tests.kubernetes.processes import Component, answers

ROOT = Path(__file__).resolve().parents[2]
PODS = "10.89.0.0/16"
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
RUNC_WRAPPER = Path("/etc/containerd/runc")
CONTAINERD = Path("/run/containerd/containerd.sock")
PROXY = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
PAUSE_IMAGE = "localhost/pause:koord"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    address: str
    pods: str
    """Its part of PODS."""

    @property
    def kubelet(self) -> str:
        """Name of the files with the kubelet's credentials."""
        return f"kubelet-{self.name}"


def node_components(node: NodeSpec, folder: Path, programs: Path) -> list[Component]:
    """`folder` has the cluster's credentials and images, `programs` the commands of Kubernetes."""

    def kubernetes(name: str, *flags: str, ready: Callable[[], bool]) -> Component:
        return Component(name, (str(programs / name), *flags), ready, {})

    return [
        Component(
            "containerd", ("containerd", "--config", str(CONTAINERD_CONFIG)),
            lambda: CONTAINERD.exists() and images_imported(folder / "images.tar"), {},
        ),
        Component(
            "koord-runtime-proxy",
            (
                sys.executable, "-m", "runtimeproxy", f"--koord-runtimeproxy-endpoint={PROXY}",
                f"--remote-runtime-service-endpoint={CONTAINERD}",
            ),
            PROXY.exists,
            {"PYTHONPATH": str(ROOT)},
        ),
        kubernetes(
            "kubelet",
            "--config=/var/lib/kubelet/config.yaml", f"--kubeconfig={folder / node.kubelet}.kubeconfig",
            f"--hostname-override={node.name}", f"--node-ip={node.address}", "--v=2",
            ready=lambda: answers("http://127.0.0.1:10248/healthz"),
        ),
        kubernetes(
            "kube-proxy",
            f"--kubeconfig={folder / 'proxy.kubeconfig'}", "--proxy-mode=iptables", f"--cluster-cidr={PODS}",
            f"--hostname-override={node.name}", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            ready=lambda: answers("http://127.0.0.1:10256/livez"),
        ),
    ]  # fmt: skip


def images_imported(archive: Path) -> bool:
    """Import the images of the sandbox and of test pods, which are written first if they are missing."""
    if not archive.exists():
        busybox = Image(("docker.io/library/busybox:latest",), busybox_layer(), ("sh",))
        pause = Image((PAUSE_IMAGE,), busybox_layer(), ("sleep", "infinity"))
        write_archive(archive, [busybox, pause])
    return subprocess.run(import_command(archive), capture_output=True, check=False).returncode == 0


def import_image(archive: Path) -> None:
    subprocess.run(import_command(archive), check=True, capture_output=True)


def import_command(archive: Path) -> list[str]:
    return ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", "images", "import", str(archive)]


def write_node_configuration(node: NodeSpec, pki: Path) -> None:
    """Configuration of containerd, CNI and the kubelet at their usual paths."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    CONTAINERD_CONFIG.parent.mkdir(exist_ok=True)
    CONTAINERD_CONFIG.write_text(
        f'version = 2\n[{cri}]\nsandbox_image = "{PAUSE_IMAGE}"\ndisable_apparmor = true\n'
        "restrict_oom_score_adj = true\n"
        f'[{cri}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{cri}.containerd.runtimes.runc.options]\nBinaryName = "{RUNC_WRAPPER}"\n'
        f'[{cri}.cni]\nbin_dir = "/usr/lib/cni"\nconf_dir = "/etc/cni/net.d"\n'
    )
    write_runc_wrapper()
    ranges = [[{"subnet": node.pods}]]
    bridge = {
        "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
    }  # fmt: skip
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }
    Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(network))
    Path("/etc/resolv.conf.pods").write_text("")
    write_kubelet_configuration(pki, PROXY)


def write_runc_wrapper() -> None:
    """runc, without SYS_RESOURCE for containers on a machine whose root lacks it, as root in a container often does:
    runc cannot start a container with a capability that it does not have itself."""
    removed = 's/,"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",//g; s/"CAP_SYS_RESOURCE"//g'
    lack = f"""previous=
for word in "$@"; do
  case "$previous" in
    --bundle) sed -i '{removed}' "$word"/config.json ;;
    --process) sed -i '{removed}' "$word" ;; # of an exec
  esac
  previous=$word
done
"""
    RUNC_WRAPPER.write_text(f'#!/bin/sh\n{"" if may_protect() else lack}exec runc "$@"\n')
    RUNC_WRAPPER.chmod(0o755)


def write_kubelet_configuration(pki: Path, runtime: Path) -> None:
    """`runtime`: the socket of the container runtime or of a proxy before it."""
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(pki / "ca.crt")}},
        "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False, "maxPods": 150,
        "containerRuntimeEndpoint": f"unix://{runtime}", "resolvConf": "/etc/resolv.conf.pods",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 99, "imageGCLowThresholdPercent": 98, "syncFrequency": "10s",
    }  # fmt: skip
    Path("/var/lib/kubelet/config.yaml").write_text(yaml.safe_dump(kubelet))
