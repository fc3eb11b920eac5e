"""A koordlet process under the roles of deploy/koordlet and deploy/koordlet-rights: nothing it asks is refused, no
right goes unused.

The API server writes an audit log; the kubelet is this process and asks the server, as a real one does, who calls and
whether they may. koordlet is brought to do everything that it does with the API: it reports, evicts a pod, says what of
a NodeSLO it does not take (twice: the second time the Event is counted up), looks up a claim, and keeps the node's
topology and devices against a client that changes them all the time, so that a write of its own comes too late now and
then. The device is an accelerator that a file describes; there is no NVML.
"""

from __future__ import annotations

import json
import urllib.error
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.ctl.manifests import koordlet as manifests
from koordlet.api.encoding import crdgen
from koordlet.api.encoding.quantity import Quantity
from koordlet.app.flags import read
from koordlet.options import KoordletOptions
from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.roots import Roots
from tests.koordlet.cgroupdirs import container_dir
from tests.koordlet.process.cluster import DEVICE, METRIC, NODE, TOPOLOGY, Api, Kubelet, https_status
from tests.koordlet.process.patience import until
from tests.koordlet.process.podtree import Container
from tests.koordlet.process.programs import touch
from tests.koordlet.statesinformer.reporting import slices_crd
from tests.ports import free_port
from tests.rights import Right, asked, granted

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[3]
USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"
SYSTEM = "/api/v1/namespaces/koordinator-system"
SLO = f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{NODE}"
GATES = "BlkIOReconcile=true,BEMemoryEvict=true,Accelerators=true,RDMADevices=true,ResourceSlices=true"
CARD = {
    "vendor": "huawei",
    "model": "Ascend-910B3",
    "uuid": "npu-0-0",
    "minor": "0",
    "resources": {"koordinator.sh/gpu-memory": "65536Mi"},
    "status": {"healthy": False, "errCode": "chip error", "errMessage": "NPU index 0 has 1 chip faults"},
}
FULL = {"enable": True, "memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0}
"""Every node is fuller than that."""
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
BLOCKS = {"blocks": [{"type": "podvolume", "name": "data", "ioCfg": {"readBPS": 1 << 20}}]}
WRITES = 50
"""Of the other client in a row: they take longer than koordlet's rounds are apart."""
GRANTED = granted([*manifests.rules(), *(rule for each in manifests.RIGHTS for rule in each.rules)])


class AskingKubelet(Kubelet):
    """The caller is authenticated and must have the right to the path, as at a kubelet of Kubernetes 1.33 or newer."""

    def __init__(self, directory: Path, api: Api) -> None:
        self.used: set[Right] = set()
        self.refused: set[tuple[str, str]] = set()
        self._api = api
        super().__init__(directory)

    def lets_in(self, authorization: str, path: str) -> bool:
        token = authorization.removeprefix("Bearer ")
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        user = self._api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
        subresource = path.strip("/")
        spec = {
            "user": user.get("user", {}).get("username", ""),
            "groups": user.get("user", {}).get("groups", []),
            "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": subresource, "name": NODE},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = self._api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        if not answer["status"]["allowed"]:
            self.refused.add((spec["user"], subresource))
            return False
        self.used.add(("", f"nodes/{subresource}", "get"))
        return True


def install(api: Api, kubelet_port: int) -> None:
    """CRDs, the Node and its objects, deploy/koordlet and deploy/koordlet-rights."""
    for crd in (*crdgen.documents().values(), slices_crd()):
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "koordinator-system"}})
    account, role, binding = yaml.safe_load_all((ROOT / "deploy/koordlet/rbac.yaml").read_text())
    api.call("POST", f"{SYSTEM}/serviceaccounts", account)
    api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    for each in manifests.RIGHTS:
        more, its_binding = yaml.safe_load_all((ROOT / f"deploy/koordlet-rights/{each.name}.yaml").read_text())
        api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", more)
        api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", its_binding)
    (daemonset,) = yaml.safe_load_all((ROOT / "deploy/koordlet/daemonset.yaml").read_text())
    api.call("POST", "/apis/apps/v1/namespaces/koordinator-system/daemonsets", daemonset)
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    amounts = {"cpu": "2", "memory": "4Gi"}
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
              "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
              "capacity": amounts, "allocatable": amounts}  # fmt: skip
    api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})


def report_and_obey(api: Api) -> None:
    """Objects of the manager: how to report, and a policy that has a pod evicted."""
    group = {"apiVersion": "slo.koordinator.sh/v1alpha1", "metadata": {"name": NODE}}
    policy = {"aggregateDurationSeconds": 30, "reportIntervalSeconds": 1}
    metric = {**group, "kind": "NodeMetric", "spec": {"metricCollectPolicy": policy}}
    api.call("POST", METRIC.rpartition("/")[0], metric)
    spec = {"resourceUsedThresholdWithBE": FULL, "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": False}}}}
    api.call("POST", SLO.rpartition("/")[0], {**group, "kind": "NodeSLO", "spec": spec})


def token(api: Api) -> str:
    """Of koordlet's account."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = api.call("POST", f"{SYSTEM}/serviceaccounts/{manifests.ACCOUNT}/token", body)
    token: str = answer["status"]["token"]
    return token


def kubeconfig(api: Api, scratch: Path) -> Path:
    document = yaml.safe_load(api.kubeconfig.read_text())
    document["users"] = [{"name": "koordlet", "user": {"token": token(api)}}]
    document["contexts"][0]["context"]["user"] = "koordlet"
    path = scratch / "koordlet.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def running_pod(api: Api, tree: Any, name: str, qos: str, kube_qos: KubeQOS) -> dict[str, Any]:
    """A pod of the API server with its cgroups, a service with two containers; as its kubelet tells of it."""
    names = ("main", "side") if qos == "LS" else ("main",)
    annotations = {"koordinator.sh/blkioQOS": json.dumps(BLOCKS)} if qos == "LS" else {}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": qos}, "annotations": annotations},
        "spec": {
            "nodeName": NODE,
            "volumes": [claim],
            "containers": [{"name": container_name, "image": "none"} for container_name in names],
        },
    }
    pod = api.call("POST", "/api/v1/namespaces/default/pods", body)
    uid, statuses = pod["metadata"]["uid"], []
    for container_name in names:
        digest = uuid.uuid4().hex + uuid.uuid4().hex
        directory = container_dir(tree.driver, kube_qos, uid, f"containerd://{digest}")
        tree.mkdir(directory)
        container = Container(tree, uid, digest, directory)
        tree.containers.append(container)
        container.run(touch(1))
        statuses.append({"name": container_name, "containerID": f"containerd://{digest}", "state": {"running": {}}})
    return {**pod, "status": {"phase": "Running", "qosClass": kube_qos.value, "containerStatuses": statuses}}


def refuse_and_accept(api: Api) -> None:
    """A NodeSLO that is not taken, taken, and not taken for the same reason again."""

    def condition_is(status: str) -> bool:
        conditions = api.call("GET", f"/api/v1/nodes/{NODE}")["status"].get("conditions", [])
        return any(condition["type"] == "NodeSLOInvalid" and condition["status"] == status for condition in conditions)

    for policy, status in (("always", "True"), ("none", "False"), ("always", "True")):
        api.patch(SLO, {"spec": {"cpuBurstStrategy": {"policy": policy}}})
        until(partial(condition_is, status), f"NodeSLOInvalid {status}")


def meddle(api: Api, number: int) -> None:
    """Take from its objects what is koordlet's, again and again: a write of its own meanwhile finds another version.
    Add a slice to its pool that it has to delete."""
    pool = {"name": NODE, "generation": number + 1, "resourceSliceCount": 1}
    stale = {"driver": "devices.koordinator.sh", "nodeName": NODE, "pool": pool, "devices": []}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"stale-{number}"}}
    api.call("POST", SLICES, {**kind, "spec": stale})
    for turn in range(WRITES):
        theirs = {"metadata": {"annotations": {"somebody": f"{number}.{turn}"}}}
        for path, taken in ((TOPOLOGY, {"topologyPolicies": ["BestEffort"]}), (DEVICE, {"spec": {"devices": []}})):
            try:
                api.patch(path, theirs | taken)
            except urllib.error.HTTPError as error:
                assert error.code == 404, error


def test_every_call_is_allowed_and_every_right_is_used(trees: Any, views: Any, koordlets: Any, tmp_path: Path) -> None:
    tree, audit = trees(), tmp_path / "audit.log"
    api = Api(tmp_path / "api", free_port(), f"--audit-log-path={audit}")
    api.start()
    kubelet = AskingKubelet(tmp_path, api)
    try:
        until(api.ready, "the API server")
        install(api, kubelet.port)
        until(lambda: api.find(SLO.rpartition("/")[0]), "NodeSLO served")
        until(lambda: api.find(f"{SYSTEM.replace('koordinator-system', 'default')}/serviceaccounts/default"),
                    "the namespace's account")  # fmt: skip
        report_and_obey(api)
        kubelet.pods = [
            running_pod(api, tree, "web", "LS", KubeQOS.BURSTABLE),
            running_pod(api, tree, "job", "BE", KubeQOS.BESTEFFORT),
        ]
        view = views(tree)
        (tmp_path / "infos").mkdir()
        (tmp_path / "infos/ic-device").write_text(json.dumps([CARD]))
        koordlet = koordlets(
            view, f"--kubeconfig={kubeconfig(api, view.scratch)}", f"--feature-gates={GATES}", "--probes=off",
            "--cgroup-stats=files", "--kubelet-sync-interval=1s", "--node-topology-sync-interval=100ms",
            "--memory-evict-cool-time-seconds=0", "--page-authorization=delegated",
            "--node-metric-min-report-interval=1s",
            f"--xpu-device-infos-dir={tmp_path / 'infos'}", standalone=False,
        )  # fmt: skip
        refuse_and_accept(api)

        def unused(without: str = "") -> set[Right]:
            used = {right for right, _, _ in asked(audit, USER)} | kubelet.used
            return {right for right in GRANTED - used if right[2] != without}

        caller = token(api)
        numbers = iter(range(1 << 30))

        def everything() -> bool:
            meddle(api, next(numbers))
            https_status(koordlet.port, "/metrics", caller)  # a review of the token, and one of the path
            return not unused(without="watch")  # a watch is in the audit log when it ends

        def complete() -> Any:
            status = api.find(METRIC).get("status", {})
            pods = {pod["name"]: pod.get("extensions") or {} for pod in status.get("podsMetric", [])}
            return len(pods) == 2 and len(pods["web"].get("containers", {})) == 2 and status

        def described() -> Any:
            device_object = api.find(DEVICE)
            return device_object if device_object is not None and device_object["spec"].get("devices") else None

        with suppress(AssertionError):  # the missing ones are listed below
            until(everything, "every right to be used")
        reported = until(complete, "a report with each container of the service")
        device = until(described, "the node's Device")
        assert koordlet.terminate() == 0
        until(lambda: not any(verb == "watch" for _, _, verb in unused()) or None, "watches in the audit log")
        assert not unused(), f"granted and never used; log: {koordlet.log[-3000:]}"
        refused = {(right, uri) for right, code, uri in asked(audit, USER) if code in (401, 403)}
        assert not refused | kubelet.refused
        assert {right for right, _, _ in asked(audit, USER)} <= GRANTED
        (offer,) = [each for each in api.call("GET", SLICES)["items"] if "stale" not in each["metadata"]["name"]]
        assert [each["name"] for each in offer["spec"]["devices"]] == ["gpu-0"]
        (card,) = device["spec"]["devices"]
        assert (card["id"], card["health"], card["conditions"][0]["reason"]) == ("npu-0-0", False, "chiperror")
        assert device["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "huawei"
        assert reported["nodeMetric"]["nodeUsage"]["resources"].keys() == {"cpu", "memory"}
        extensions = {
            pod["name"]: (pod.get("extensions") or {}).get("containers", {}) for pod in reported["podsMetric"]
        }
        assert extensions["web"].keys() == {"main", "side"} and not extensions["job"], (
            "containers are told apart where several run"
        )
        assert Quantity(extensions["web"]["side"]["memory"]) > Quantity("1Mi")
        assert "deletionTimestamp" in api.find("/api/v1/namespaces/default/pods/job")["metadata"], "evicted"
    finally:
        kubelet.close()
        api.kill()
        for container in tree.containers:
            container.end()


def test_deploy_holds_what_koordlet_is_installed_with() -> None:
    for folder, texts in (("koordlet", manifests.texts()), ("koordlet-rights", manifests.rights_texts())):
        for name, text in texts.items():
            assert (ROOT / "deploy" / folder / name).read_text() == text, "run python -m control.ctl.manifests.koordlet"
        assert {path.name for path in (ROOT / "deploy" / folder).iterdir()} == set(texts)


def test_everything_that_koordlet_looks_for_on_the_host_is_mounted() -> None:
    (daemonset,) = manifests.daemonset()
    spec = daemonset["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    inside = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert set(inside.values()) == set(outside)
    here, there = read(KoordletOptions, [*container["args"], "--node-name=n"]).roots(), Roots.host()
    for name in (
        "proc_sys",
        "dev",
        "cgroup",
        "sys",
        "sys_fs",
        "var_run",
        "run",
        "var_lib_kubelet",
        "hook_config",
        "terway_qos",
    ):
        assert outside[inside[str(getattr(here, name))]] == str(getattr(there, name)), name
    assert spec["hostPID"] and spec["hostNetwork"], "/proc and the network are the node's"
    written = [argument.partition("=")[2] for argument in container["args"] if "=/" in argument]
    assert all(any(path.startswith(f"{mount}/") or path == mount for mount in inside) for path in written), written


def test_a_role_for_one_node_writes_to_its_objects_only() -> None:
    writes = {"patch"}
    for rule in manifests.rules("n1"):
        if writes & set(rule["verbs"]) and rule["resources"] != ["events"]:
            assert rule["resourceNames"] == ["n1"], rule
