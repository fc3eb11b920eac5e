"""A real Kubernetes on this machine: etcd, the control plane, and a node (node.py).

Everything runs as plain processes in the namespaces of enter.sh, whose end also ends them. Paths are those of a real
node.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.node import (
    CONTAINERD,
    CONTAINERD_CONFIG,
    ROOT,
    NodeSpec,
    node_components,
    write_kubelet_configuration,
    write_node_configuration,
)
from tests.kubernetes.processes import Component, Processes, answers, wait_for

BIN = Path(sys.executable).parent
NODE = "node-a"
ADDRESS = "10.88.0.1"
SERVER = f"https://{ADDRESS}:6443"
SERVICES, SERVICE_ADDRESS = "10.96.0.0/16", "10.96.0.1"
FIRST_NODE = NodeSpec(NODE, ADDRESS, "10.89.0.0/17")
NRI_TIMEOUT = "30s"
"""containerd waits 2 s for a plugin by default, and then disconnects it: too short on a busy machine."""
ETCD = "http://127.0.0.1:2379"
POD_SECURITY_DEFAULT = "baseline"
"""The level of namespaces without a label."""


class Kubernetes(Processes):
    """All components below `folder`; `programs` holds the six commands of Kubernetes."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.programs = programs
        self.kubeconfig = folder / "admin.kubeconfig"
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "controller-manager", "scheduler", "proxy")}
        self.folder = folder
        control_plane = self._control_plane(folder / "pki", folder / "data")
        super().__init__(folder, [*control_plane, *node_components(FIRST_NODE, folder, programs)])

    def start(self) -> None:
        """Start every component and wait until each serves and the node is Ready."""
        self._write_files()
        for name in self.components:
            self.start_component(name)
        wait_for(lambda: self.node_ready(NODE), f"node {NODE} is Ready")

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Kubernetes' own kubectl as cluster admin. With `check`, a failure raises with what it printed."""
        done = subprocess.run(
            [str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=text, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done

    def node_ready(self, name: str) -> bool:
        query = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", name, "-o", query, check=False).stdout == "True"

    def _control_plane(self, pki: Path, data: Path) -> list[Component]:
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
        ]  # fmt: skip

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
        self.admit(FIRST_NODE)
        write_node_configuration(FIRST_NODE, pki)

    def admit(self, node: NodeSpec) -> None:
        """Write the credentials with which the node's kubelet registers."""
        pki = self.folder / "pki"
        sign(pki, node.kubelet, f"/O=system:nodes/CN=system:node:{node.name}")
        user = {"client-certificate": f"{pki / node.kubelet}.crt", "client-key": f"{pki / node.kubelet}.key"}
        self._write_kubeconfig(self._kubeconfig(node.kubelet), user)

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
    """A CA, and the certificates of the API server and the admin."""
    openssl(
        pki, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
        "-subj", "/CN=test-ca",
    )  # fmt: skip
    openssl(pki, "genrsa", "-out", "accounts.key", "2048")
    names = ["DNS:kubernetes", "DNS:kubernetes.default.svc", "DNS:localhost"]
    names += [f"IP:{address}" for address in (ADDRESS, SERVICE_ADDRESS, "127.0.0.1")]
    sign(pki, "server", "/CN=kube-apiserver", names)
    sign(pki, "admin", "/O=system:masters/CN=admin")


def sign(pki: Path, name: str, subject: str, names: list[str] | None = None) -> None:
    """A key and a certificate by the CA; `names`: the subject's alternative names."""
    key, request = f"{name}.key", f"{name}.csr"
    openssl(pki, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", subject)
    (pki / f"{name}.ext").write_text(f"subjectAltName={','.join(names)}\n" if names else "")
    openssl(
        pki, "x509", "-req", "-in", request, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext",
    )  # fmt: skip


def openssl(pki: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)
