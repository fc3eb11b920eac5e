"""The ValidatingAdmissionPolicies of deploy/, judged by kube-apiserver itself.

etcd and kube-apiserver suffice: no node and no controller. They listen on loopback.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.ctl.manifests import koordlet, koordletpolicy
from control.manager import manifests
from control.manifestfiles import VIEWER
from koordlet.api.encoding import crdgen
from tests.kubernetes.node import ROOT
from tests.kubernetes.processes import wait_for
from tests.ports import free_port

pytestmark = pytest.mark.kubernetes

PROGRAMS = ROOT / "build" / "kubernetes" / os.environ.get("KOORD_KUBERNETES", "v1.35") / "bin"
NAMESPACE = "koordinator-system"


class ControlPlane:
    """etcd and kube-apiserver; `kubectl` is the administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        etcd, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        (folder / "tokens.csv").write_text('admin,admin,admin,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], check=True, capture_output=True)
        store = (
            "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        server = (
            str(PROGRAMS / "kube-apiserver"), f"--etcd-servers={etcd}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", f"--cert-dir={folder}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
            "--disable-admission-plugins=ServiceAccount",
        )  # fmt: skip
        self.processes = [self._start(store), self._start(server)]

    def _start(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{Path(command[0]).name}.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ready(self) -> bool:
        assert all(process.poll() is None for process in self.processes), f"a process ended, see {self.folder}"
        return self.run("admin", "get", "--raw", "/readyz").returncode == 0

    def run(self, token: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl with a bearer token."""
        server = [f"--server=https://127.0.0.1:{self.port}", "--insecure-skip-tls-verify", f"--token={token}"]
        return subprocess.run(
            [str(PROGRAMS / "kubectl"), *server, f"--cache-dir={self.folder / 'cache'}", *arguments],
            input=text, capture_output=True, text=True, timeout=60, check=False, env={"HOME": str(self.folder)},
        )  # fmt: skip

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        done = self.run("admin", *arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, bearer: str, method: str, path: str, body: object) -> str:
        """The message of a refused request; empty for an accepted one. A PATCH is a merge patch."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": kind}
        url = f"https://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        context = ssl.create_default_context(cafile=str(self.folder / "apiserver.crt"))
        try:
            urllib.request.urlopen(request, context=context, timeout=60).close()
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["message"])
        return ""

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With deploy/koordlet's rights, its policy, and the nodes n1 and n2."""
    plane = ControlPlane(tmp_path_factory.mktemp("policies"))
    try:
        wait_for(plane.ready, "kube-apiserver serves")
        crds = [crd for name, crd in crdgen.documents().items() if "nodemetrics" in name or "devices" in name]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("n1", "n2")]
        rights = [role for each in koordlet.RIGHTS for role in each.role(koordlet.ACCOUNT)]
        objects = [namespace, *crds, *koordlet.rbac(), *rights, *nodes, *(koordlet_pod(name) for name in ("n1", "n2"))]
        plane.kubectl("create", "-f", "-", text=yaml.safe_dump_all(objects))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        metrics = [metric(name) for name in ("n1", "n2")]
        wait_for(lambda: plane.run("admin", "get", "nodemetrics,devices").returncode == 0, "the kinds are served")
        plane.kubectl("create", "-f", "-", text=yaml.safe_dump_all(metrics))
        plane.kubectl("apply", "-k", str(ROOT / "deploy/koordlet-policy"))
        bearer = token(plane, "n1")
        wait_for(lambda: koordletpolicy.NAME in status(plane, bearer, "n2"), "the policy is in force")
        yield plane
    finally:
        plane.stop()


def koordlet_pod(node: str) -> dict[str, Any]:
    spec = {"nodeName": node, "serviceAccountName": "koordlet", "containers": [{"name": "c", "image": "i"}]}
    metadata = {"name": f"koordlet-{node}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def metric(node: str) -> dict[str, Any]:
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": node}, "spec": {}}


def token(plane: ControlPlane, node: str = "") -> str:
    """Of koordlet's account: as the kubelet of `node` mounts it, or without a node."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name=koordlet-{node}"] if node else []
    return plane.kubectl("-n", NAMESPACE, "create", "token", "koordlet", *bound).strip()


def status(plane: ControlPlane, bearer: str, node: str) -> str:
    """Write the status of a Node; the refusal."""
    body = {"status": {"nodeInfo": {"bootID": str(time.monotonic_ns())}}}
    return plane.refusal(bearer, "PATCH", f"/api/v1/nodes/{node}/status", body)


def test_a_koordlet_writes_the_status_of_its_own_node_only(control_plane: ControlPlane) -> None:
    for own, other in (("n1", "n2"), ("n2", "n1")):
        bearer = token(control_plane, own)
        assert status(control_plane, bearer, own) == ""
        message = f"this is {other}, its token is of node {own}"
        assert message in status(control_plane, bearer, other)


def test_a_token_without_a_node_writes_nothing(control_plane: ControlPlane) -> None:
    assert "its token is of node (none)" in status(control_plane, token(control_plane), "n1")


def test_reports_of_other_nodes_are_refused(control_plane: ControlPlane) -> None:
    bearer = token(control_plane, "n1")

    def report(node: str) -> str:
        path = f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{node}/status"
        return control_plane.refusal(bearer, "PATCH", path, {"status": {"updateTime": "2026-01-01T00:00:00Z"}})

    def create(node: str) -> str:
        device = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": node}}
        path = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
        return control_plane.refusal(bearer, "POST", path, {**device, "spec": {}})

    for attempt in (report, create):
        assert attempt("n1") == ""
        assert koordletpolicy.NAME in attempt("n2")


def test_resource_slices_of_other_nodes_pools_and_drivers_are_refused(control_plane: ControlPlane) -> None:
    path, driver = "/apis/resource.k8s.io/v1/resourceslices", "devices.koordinator.sh"
    bearer = token(control_plane, "n1")

    def slice_of(node: str, pool: str, of: str) -> dict[str, Any]:
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-{of}"}}
        offered = {"name": pool, "generation": 1, "resourceSliceCount": 1}
        return {**kind, "spec": {"driver": of, "nodeName": node, "pool": offered, "devices": [{"name": "gpu-0"}]}}

    def create(node: str, pool: str, of: str) -> str:
        return control_plane.refusal(bearer, "POST", path, slice_of(node, pool, of))

    assert create("n1", "n1", driver) == ""
    assert "this is n2, its token is of node n1" in create("n2", "n2", driver)
    for pool, of in (("n2", driver), ("n1", "gpu.example.com")):
        assert "slices of the driver devices.koordinator.sh and the pool of its node" in create("n1", pool, of)
    for document in (slice_of("n1", "n1", "gpu.example.com"), slice_of("n2", "n2", driver)):
        control_plane.kubectl("create", "-f", "-", text=yaml.safe_dump(document))
        name = document["metadata"]["name"]
        assert koordletpolicy.NAME in control_plane.refusal(bearer, "DELETE", f"{path}/{name}", None)
        taken: dict[str, Any] = {"spec": {"devices": []}}
        assert koordletpolicy.NAME in control_plane.refusal(bearer, "PATCH", f"{path}/{name}", taken)
    assert control_plane.refusal(bearer, "DELETE", f"{path}/n1-{driver}", None) == ""


def proxy(plane: ControlPlane, bearer: str, target: str) -> str:
    return plane.refusal(bearer, "GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{target}/proxy/top", None)


def test_a_viewer_reaches_only_the_ports_of_pages(control_plane: ControlPlane) -> None:
    """koordlet's pods have the address of their node: 10250 is the kubelet, 6443 an API server."""
    bearer = viewer(control_plane)
    wait_for(lambda: koordletpolicy.PAGES_NAME in proxy(control_plane, bearer, "koordlet-n1"), "the policy is in force")
    ports = ("https:koordlet-n1:10250", "https:koordlet-n1:6443", "http:koordlet-n1:9316", "koordlet-n1:9316",
             "https:koordlet-n1:93160", "https:koordlet-n1:x:9316", "https:koordlet-n1:")  # fmt: skip
    for target in ports:
        assert "HTTPS ports 9316 and 10259" in proxy(control_plane, bearer, target), target
        assert koordletpolicy.PAGES_NAME not in proxy(control_plane, "admin", target)
    for port in koordletpolicy.PAGE_PORTS:
        passed = proxy(control_plane, bearer, f"https:koordlet-n1:{port}")
        assert "address not allowed" in passed, "admitted; this pod has no address"
    body = {"apiVersion": "v1", "kind": "PodPortForwardOptions"}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/koordlet-n1"
    assert "cannot create" in control_plane.refusal(bearer, "POST", f"{path}/portforward", body)
    assert "cannot create" in control_plane.refusal(bearer, "POST", f"{path}:9316/proxy/top", body)


def viewer(plane: ControlPlane) -> str:
    """The token of an account with the roles of deploy/manager/view.yaml."""
    plane.kubectl("create", "-f", "-", text=yaml.safe_dump_all(manifests.view()))
    plane.kubectl("-n", NAMESPACE, "create", "serviceaccount", "reader")
    for kind, role in (("clusterrolebinding", "--clusterrole"), ("rolebinding", "--role")):
        who = f"--serviceaccount={NAMESPACE}:reader"
        plane.kubectl("-n", NAMESPACE, "create", kind, "reader", f"{role}={VIEWER}", who)
    return plane.kubectl("-n", NAMESPACE, "create", "token", "reader").strip()


def test_other_users_are_not_restricted(control_plane: ControlPlane) -> None:
    assert status(control_plane, "admin", "n2") == ""
