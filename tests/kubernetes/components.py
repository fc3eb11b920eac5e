"""A real Kubernetes on this machine: etcd, the control plane, containerd, koord-runtime-proxy, kubelet and kube-proxy.

Everything runs as plain processes in the namespaces of enter.sh, whose end also ends them. Paths are those of a real
node.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from control.standalone.containerd.archive import Image, busybox_layer, write_archive
from control.standalone.containerd.config import may_protect

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NODE = "node-a"
ADDRESS = "10.88.0.1"
SERVER = f"https://{ADDRESS}:6443"
SERVICES, SERVICE_ADDRESS = "10.96.0.0/16", "10.96.0.1"
PODS = "10.89.0.0/16"
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
RUNC_WRAPPER = Path("/etc/containerd/runc")
CONTAINERD = Path("/run/containerd/containerd.sock")
PROXY = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
NRI_TIMEOUT = "30s"
"""containerd waits 2 s for a plugin by default, and then disconnects it: too short on a busy machine."""
PAUSE_IMAGE = "localhost/pause:koord"
ETCD = "http://127.0.0.1:2379"
POD_SECURITY_DEFAULT = "baseline"
"""The level of namespaces without a label."""
START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Component:
    """A process of the cluster: its command line and a check that it serves."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    environment: Mapping[str, str]


class Kubernetes:
    """All components below `folder`; `programs` holds the six commands of Kubernetes."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.kubeconfig = folder / "admin.kubeconfig"
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "controller-manager", "scheduler", "proxy")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.components = {component.name: component for component in self._components()}

    def start(self) -> None:
        """Start every component and wait until each serves and the node is Ready."""
        self._write_files()
        for name in self.components:
            self.start_component(name)
        wait_for(self._node_ready, f"node {NODE} is Ready")

    def start_component(self, name: str) -> None:
        component = self.components[name]
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                component.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **component.environment},
            )
        wait_for(lambda: self._serves(component), f"{name} serves (log: {self.log(name)})")

    def kill(self, name: str) -> None:
        self._end(name, signal.SIGKILL)

    def stop(self) -> None:
        for name in reversed(self.components):
            if name in self.processes:
                self._end(name, signal.SIGTERM)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Kubernetes' own kubectl as cluster admin. With `check`, a failure raises with what it printed."""
        done = subprocess.run(
            [str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=text, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done

    def import_image(self, archive: Path) -> None:
        command = ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True)

    def _serves(self, component: Component) -> bool:
        status = self.processes[component.name].poll()
        text = self.log(component.name).read_text(errors="replace")
        assert status is None, f"{component.name} ended with status {status}: {text[-3000:]}"
        return component.ready()

    def _end(self, name: str, number: int) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _node_ready(self) -> bool:
        query = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", NODE, "-o", query, check=False).stdout == "True"

    def _components(self) -> list[Component]:
        pki, data = self.folder / "pki", self.folder / "data"

        def kubernetes(name: str, *flags: str, ready: Callable[[], bool]) -> Component:
            return Component(name, (str(self.programs / name), *flags), ready, {})

        return [
            Component(
                "etcd",
                (
                    "etcd", f"--data-dir={data / 'etcd'}", f"--listen-client-urls={ETCD}",
                    f"--advertise-client-urls={ETCD}", "--listen-peer-urls=http://127.0.0.1:2380",
                    "--unsafe-no-fsync",
                ),
                lambda: answers(f"{ETCD}/health"),
                {},
            ),
            kubernetes(
                "kube-apiserver",
                f"--etcd-servers={ETCD}", f"--advertise-address={ADDRESS}", "--secure-port=6443",
                f"--tls-cert-file={pki / 'server.crt'}", f"--tls-private-key-file={pki / 'server.key'}",
                f"--client-ca-file={pki / 'ca.crt'}", f"--token-auth-file={pki / 'tokens.csv'}",
                f"--kubelet-client-certificate={pki / 'admin.crt'}", f"--kubelet-client-key={pki / 'admin.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki / 'accounts.key'}",
                f"--service-account-signing-key-file={pki / 'accounts.key'}",
                f"--service-cluster-ip-range={SERVICES}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
                f"--admission-control-config-file={self.folder / 'admission.yaml'}",
                "--kubelet-preferred-address-types=InternalIP",
                ready=lambda: answers(f"{SERVER}/readyz"),
            ),
            kubernetes(
                "kube-controller-manager",
                f"--kubeconfig={self._kubeconfig('controller-manager')}", f"--root-ca-file={pki / 'ca.crt'}",
                f"--service-account-private-key-file={pki / 'accounts.key'}", "--use-service-account-credentials",
                f"--cluster-signing-cert-file={pki / 'ca.crt'}", f"--cluster-signing-key-file={pki / 'ca.key'}",
                f"--authentication-kubeconfig={self._kubeconfig('controller-manager')}",
                f"--authorization-kubeconfig={self._kubeconfig('controller-manager')}", "--leader-elect=false",
                ready=lambda: answers("https://127.0.0.1:10257/healthz"),
            ),
            kubernetes(
                "kube-scheduler",
                f"--kubeconfig={self._kubeconfig('scheduler')}", "--leader-elect=false",
                f"--authentication-kubeconfig={self._kubeconfig('scheduler')}",
                f"--authorization-kubeconfig={self._kubeconfig('scheduler')}", "--secure-port=10261",
                ready=lambda: answers("https://127.0.0.1:10261/healthz"),
            ),
            Component(
                "containerd", ("containerd", "--config", str(CONTAINERD_CONFIG)),
                lambda: CONTAINERD.exists() and self._images_imported(), {},
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
                "--config=/var/lib/kubelet/config.yaml", f"--kubeconfig={self._kubeconfig('kubelet')}",
                f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", "--v=2",
                ready=lambda: answers("http://127.0.0.1:10248/healthz"),
            ),
            kubernetes(
                "kube-proxy",
                f"--kubeconfig={self._kubeconfig('proxy')}", "--proxy-mode=iptables", f"--cluster-cidr={PODS}",
                f"--hostname-override={NODE}", "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
                ready=lambda: answers("http://127.0.0.1:10256/livez"),
            ),
        ]  # fmt: skip

    def _images_imported(self) -> bool:
        archive = self.folder / "images.tar"
        if not archive.exists():
            busybox = Image(("docker.io/library/busybox:latest",), busybox_layer(), ("sh",))
            pause = Image((PAUSE_IMAGE,), busybox_layer(), ("sleep", "infinity"))
            write_archive(archive, [busybox, pause])
        command = ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", "images", "import", str(archive)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _write_files(self) -> None:
        pki = self.folder / "pki"
        pki.mkdir(parents=True)
        (self.folder / "data").mkdir()
        write_certificates(pki)
        users = {
            "admin": ("admin", "system:masters"),
            "controller-manager": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            "proxy": ("system:kube-proxy", ""),
        }
        rows = (f'{self.tokens[name]},{user},{name},"{groups}"' for name, (user, groups) in users.items())
        (pki / "tokens.csv").write_text("\n".join(rows) + "\n")
        (self.folder / "admission.yaml").write_text(yaml.safe_dump(pod_security_default()))
        for name, token in self.tokens.items():
            self._write_kubeconfig(self._kubeconfig(name), {"token": token})
        self._write_kubeconfig(
            self._kubeconfig("kubelet"),
            {"client-certificate": str(pki / "kubelet.crt"), "client-key": str(pki / "kubelet.key")},
        )
        write_node_configuration(pki)

    def use_nri(self) -> None:
        """Replace containerd by one with NRI, and let the kubelet use it directly. Pods keep running."""
        for name in ("kubelet", "koord-runtime-proxy", "containerd"):
            self._end(name, signal.SIGTERM)
        del self.components["koord-runtime-proxy"]
        programs = ROOT / "build/nri-containerd/usr/bin"
        assert (programs / "containerd").exists(), f"no containerd in {programs}: run scripts/nri_containerd.sh"
        path = f"{programs}:{os.environ['PATH']}"
        self.components["containerd"] = replace(
            self.components["containerd"],
            argv=(str(programs / "containerd"), "--config", str(CONTAINERD_CONFIG)),
            environment={"PATH": path},
        )
        CONTAINERD_CONFIG.write_text(
            CONTAINERD_CONFIG.read_text()
            + '[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n'
            + f'plugin_registration_timeout = "{NRI_TIMEOUT}"\nplugin_request_timeout = "{NRI_TIMEOUT}"\n'
        )
        write_kubelet_configuration(self.folder / "pki", CONTAINERD)
        for name in ("containerd", "kubelet"):
            self.start_component(name)

    def _kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def _write_kubeconfig(self, path: Path, user: Mapping[str, str]) -> None:
        cluster = {"server": SERVER, "certificate-authority": str(self.folder / "pki/ca.crt")}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": dict(user)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))


def pod_security_default() -> dict[str, Any]:
    """Configuration of admission: namespaces without labels get POD_SECURITY_DEFAULT."""
    defaults = {"enforce": POD_SECURITY_DEFAULT, "enforce-version": "latest"}
    plugin = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": defaults, "exemptions": {"namespaces": ["kube-system"]},
    }  # fmt: skip
    return {
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": plugin}],
    }  # fmt: skip


def write_certificates(pki: Path) -> None:
    """A CA, the API server's certificate, and client certificates of the admin and the kubelet."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)

    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test-ca"
    )
    openssl("genrsa", "-out", "accounts.key", "2048")
    names = ["DNS:kubernetes", "DNS:kubernetes.default.svc", "DNS:localhost"]
    names += [f"IP:{address}" for address in (ADDRESS, SERVICE_ADDRESS, "127.0.0.1")]
    for name, subject in (
        ("server", "/CN=kube-apiserver"),
        ("admin", "/O=system:masters/CN=admin"),
        ("kubelet", f"/O=system:nodes/CN=system:node:{NODE}"),
    ):
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject
        )
        (pki / f"{name}.ext").write_text(f"subjectAltName={','.join(names)}\n" if name == "server" else "")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext",
        )  # fmt: skip


def write_node_configuration(pki: Path) -> None:
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
    ranges = [[{"subnet": PODS}]]
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


def answers(url: str) -> bool:
    """Whether a GET without credentials returns 200."""
    command = ["curl", "--silent", "--insecure", "--fail", "--output", "/dev/null", "--max-time", "2", url]
    return subprocess.run(command, check=False).returncode == 0


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = START_TIMEOUT_S) -> None:
    """Wait until the condition holds; `what` says what did not happen, after the last attempt if it is a function."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.2)
