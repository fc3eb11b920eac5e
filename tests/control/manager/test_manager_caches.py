"""The indexes of spec 04 §1.8, the fields of a cached pod, and how keys reach a controller."""

from __future__ import annotations

from typing import Any

import pytest

from control.manager.caches import (
    POD_BY_NODE,
    POD_BY_QUOTA,
    QUOTA_BY_NAME,
    QUOTA_BY_NAMESPACE,
    Caches,
    quota_namespaces,
    trim_pod,
)
from koordlet.api.core import Node, Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import convert, to_builtins
from koordlet.kube import Client, ClientConfig

ANNOTATION = "quota.scheduling.koordinator.sh/namespaces"
LISTS = {
    "two": ('["a", "b"]', ["a", "b"]),
    "none": ("[]", []),
    "no JSON": ("a,b", []),
    "no list": ('{"a": 1}', []),
    "no texts": ("[1]", []),
}


@pytest.mark.parametrize(("text", "names"), LISTS.values(), ids=LISTS)
def test_the_namespaces_of_a_quota(text: str, names: list[str]) -> None:
    assert quota_namespaces(convert({"metadata": {"annotations": {ANNOTATION: text}}}, ElasticQuota)) == names


async def test_indexes(cluster: Any) -> None:
    caches = Caches(cluster.admin)
    pods, quotas = caches.informer(Pod), caches.informer(ElasticQuota)
    assert caches.informer(Pod) is pods
    for name, node, labels in (
        ("waiting", "", {}),
        ("placed", "n1", {"quota.scheduling.koordinator.sh/name": "q"}),
    ):
        pods.store.put(
            f"ns/{name}",
            convert({"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": {"nodeName": node}}, Pod),
        )
    quotas.store.put("ns/q", convert({"metadata": {"name": "q", "annotations": {ANNOTATION: '["a"]'}}}, ElasticQuota))
    assert [pod.metadata.name for pod in pods.by_index(POD_BY_NODE, "")] == ["waiting"]
    assert [pod.metadata.name for pod in pods.by_index(POD_BY_NODE, "n1")] == ["placed"]
    assert [pod.metadata.name for pod in pods.by_index(POD_BY_QUOTA, "q")] == ["placed"]
    assert len(quotas.by_index(QUOTA_BY_NAMESPACE, "a")) == len(quotas.by_index(QUOTA_BY_NAME, "q")) == 1
    await caches.start()
    await caches.synced()
    assert not pods.list()
    with pytest.raises(RuntimeError, match="informer for Node requested after the start"):
        caches.informer(Node)
    await caches.stop()


async def test_only_the_configured_namespace_is_listed(cluster: Any) -> None:
    async with Client(ClientConfig.load(cluster.server.kubeconfig_path, qps=0)) as client:
        caches = Caches(client, namespace="default")
        pods, nodes = caches.informer(Pod), caches.informer(Node)
        await cluster.nodes("n1")
        await caches.start()
        await caches.synced()
        assert [node.metadata.name for node in nodes.list()] == ["n1"]
        assert pods.list() == []
        await caches.stop()


def test_a_cached_pod_keeps_the_fields_that_are_read() -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    container = {
        "name": "c",
        "image": "i",
        "command": ["x"],
        "env": [{"name": "A", "value": "b"}],
        "resources": resources,
    }
    pod: Pod = convert(
        {
            "metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}},
            "spec": {
                "containers": [container],
                "initContainers": [container],
                "volumes": [{"name": "v"}],
                "priority": 1,
            },
            "status": {"phase": "Running", "qosClass": "Burstable"},
        },
        Pod,
    )
    kept = to_builtins(trim_pod(pod))
    assert kept["spec"]["containers"] == [{"name": "c", "image": "i", "resources": resources}]
    assert "volumes" not in kept["spec"] and kept["spec"]["priority"] == 1
    assert (kept["metadata"], kept["status"]) == (to_builtins(pod)["metadata"], to_builtins(pod)["status"])
    assert pod.spec.containers[0].command == ["x"]  # the object itself is as it was
