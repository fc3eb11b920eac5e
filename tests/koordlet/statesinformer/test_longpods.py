"""Very long pods are reduced before they are decoded; what koordlet reads of others stays."""

from typing import Any

import msgspec
import pytest

from koordlet.api.core import Pod
from koordlet.api.encoding.wire import json_decoder
from koordlet.statesinformer.pods.informer import describe
from koordlet.statesinformer.pods.longpods import FEW, MAX_BYTES, MAX_CONTAINERS, reduced
from koordlet.system.cgroup.naming import CgroupDriver

MAX_ADMITTED = 26_000
"""Containers: kube-apiserver 1.35 stored 25,000 with short names in a pod, and refused 30,000."""
ANNOTATIONS = {"note": "x" * 200_000}


def containers(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"a{index:x}", "image": "a", "resources": {}, **fields} for index in range(number)]


def statuses(number: int) -> list[dict[str, Any]]:
    """The kubelet sorts them by name."""
    running = {"state": {"running": {}}, "image": "a", "restartCount": 0}
    return sorted(
        ({"name": f"a{index:x}", "containerID": f"containerd://{index:064x}", **running} for index in range(number)),
        key=lambda status: str(status["name"]),
    )


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> bytes:
    meta = {"name": "p", "namespace": "n", "uid": "uid-p", "annotations": ANNOTATIONS, **metadata}
    whole = {"metadata": meta, "spec": spec, "status": {"phase": "Running", "qosClass": "BestEffort", **(status or {})}}
    return msgspec.json.encode(whole)


def read(text: bytes) -> Pod:
    decoded: Pod = json_decoder(Pod).decode(text)
    return decoded


AMOUNTS = {f"example.com/{index}": "1" for index in range(300)}
ENV = [{"name": "a"}] * 300
VOLUMES = [{"name": f"v{index}", "emptyDir": {}} for index in range(300)]
HOSTILE = {
    "containers": pod({"containers": containers(MAX_ADMITTED)}, {"containerStatuses": statuses(MAX_ADMITTED)}),
    "init containers": pod({"initContainers": containers(5000), "containers": containers(1)}),
    "env": pod({"containers": containers(1, env=ENV * 300)}),
    "env of each": pod({"containers": containers(300, env=ENV)}),
    "limits of each": pod({"containers": containers(300, resources={"limits": AMOUNTS, "requests": AMOUNTS})}),
    "volumes": pod({"volumes": [{"name": f"v{index}", "projected": {"sources": VOLUMES}} for index in range(300)]}),
    "labels": pod({"containers": containers(1)}, labels={f"l{index}": "" for index in range(50_000)}),
    "owners": pod({}, ownerReferences=[{"name": "a", "kind": "b", "uid": "c", "apiVersion": "v1"}] * 20_000),
    "nesting": pod({"containers": containers(1)}, managedFields=[0]).replace(b"[0]", b"[" * 5000 + b"]" * 5000),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_long_pod_is_bounded(text: bytes) -> None:
    short, _ = reduced(text)
    assert len(short) < MAX_BYTES + 201_000
    known = read(short)
    assert known.metadata.key == "n/p" and known.metadata.annotations == ANNOTATIONS
    assert known.status.phase == "Running"


def test_the_first_containers_are_known_with_their_status() -> None:
    short, is_cut = reduced(HOSTILE["containers"])
    meta = describe(read(short), CgroupDriver.CGROUPFS)
    assert is_cut and len(meta.containers) == MAX_CONTAINERS
    assert {each.name for each in meta.containers} == {each["name"] for each in containers(MAX_CONTAINERS)}
    assert all(each.running for each in meta.containers)
    short, is_cut = reduced(HOSTILE["limits of each"])
    assert is_cut and len(read(short).spec.containers) == FEW


def test_what_koordlet_reads_of_a_long_pod_stays() -> None:
    resources = {"limits": {"cpu": "1", "kubernetes.io/batch-cpu": "1k"}, "requests": {"cpu": "500m"}}
    spec = {
        "priority": 9000, "nodeName": "n1", "overhead": {"cpu": "1"}, "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": containers(100, resources=resources, env=ENV), "hostNetwork": True,
        "initContainers": [{"name": "mesh", "restartPolicy": "Always"}],
    }  # fmt: skip
    init = [{"name": "mesh", "containerID": "containerd://mesh", "state": {"running": {}}}]
    status = {"containerStatuses": statuses(100), "initContainerStatuses": init}
    text = pod(spec, status, labels={"koordinator.sh/qosClass": "BE"}, creationTimestamp="2026-01-01T00:00:00Z")
    short, is_cut = reduced(text)
    assert not is_cut and len(short) < len(text)
    whole, kept = read(text), read(short)
    for each in (*whole.spec.containers, *kept.spec.containers):
        each.image, each.env = "", []
    for known in (*whole.status.container_statuses, *kept.status.container_statuses):
        known.image, known.restart_count = "", 0
    assert kept == whole


def test_many_labels_and_resources_hide_none_that_koordlet_reads() -> None:
    own = {"cpu": "1", "kubernetes.io/batch-cpu": "1k"}
    resources = {kind: {f"a.example/{index}": "0" for index in range(500)} | own for kind in ("limits", "requests")}
    labels = {f"a{index}": "x" * 63 for index in range(5000)} | {"koordinator.sh/qosClass": "BE"}
    short, _ = reduced(pod({"containers": containers(20, resources=resources)}, labels=labels))
    kept = read(short)
    assert kept.metadata.labels["koordinator.sh/qosClass"] == "BE"
    for container in kept.spec.containers:
        assert container.resources.limits.keys() >= own.keys()
        assert container.resources.requests.keys() >= own.keys()


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"metadata":7}', b'{"spec":{"containers":[7]}}', b'{"metadata":"\xff"}']
)
def test_text_that_is_no_pod_is_left_to_the_decoder(text: bytes) -> None:
    assert reduced(text) == (text, False)
