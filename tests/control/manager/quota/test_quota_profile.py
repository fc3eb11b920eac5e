"""Root quotas of the selected nodes: the example of spec 04 §7, and the controller with a real API server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control.manager.quota.profiledecide import desired_quota, resource_keys, tree_id
from koordlet.api.core import Node
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import convert
from koordlet.kube import NotFound
from tests.control.manager.conftest import WebhookCluster

KEY = "quota.scheduling.koordinator.sh/"
PROFILES = "/apis/quota.koordinator.sh/v1alpha1/namespaces/default/elasticquotaprofiles"
QUOTA = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas/root"


def node(name: str, ready: bool = True, unschedulable: bool = False) -> Node:
    amounts = {"cpu": "10", "memory": "1000", "storage": "1000"}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return convert(
        {
            "metadata": {"name": name, "labels": {"zone": "a"}},
            "spec": {"unschedulable": unschedulable},
            "status": {"allocatable": amounts, "conditions": conditions},
        },
        Node,
    )


def profile(
    namespace: str = "",
    name: str = "profile1",
    ratio: str | None = None,
    labels: dict[str, str] | None = None,
    **annotations: Any,
) -> ElasticQuotaProfile:
    meta = {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations}
    spec = {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}, "quotaLabels": {"mine": "1"}}
    return convert({"metadata": meta, "spec": {**spec, "resourceRatio": ratio}}, ElasticQuotaProfile)


def plain(amounts: dict[str, Quantity]) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}


EXAMPLES = {
    "whole": (None, ["cpu", "memory"], {"cpu": 20, "memory": 2000}, (20, 2000), (10, 1000)),
    "nine tenths": ("0.9", ["cpu", "memory"], {"cpu": 18, "memory": 1800}, (18, 1800), (9, 900)),
    "cpu alone": ("0.9", ["cpu"], {"cpu": 18}, (18, 1800), (9, 900)),
    "a key that no node has": (None, ["gpu"], {"gpu": 0}, (20, 2000), (10, 1000)),
    "ratio over 1": ("1.5", ["cpu"], {"cpu": 20}, (20, 2000), (10, 1000)),
    "unreadable ratio": ("most", ["cpu"], {"cpu": 20}, (20, 2000), (10, 1000)),
}


@pytest.mark.parametrize(("ratio", "keys", "lower", "everything", "idle"), EXAMPLES.values(), ids=EXAMPLES)
def test_the_quota_of_two_nodes(
    ratio: str | None, keys: list[str], lower: dict[str, int], everything: tuple[int, int], idle: tuple[int, int]
) -> None:
    desired = desired_quota(profile(ratio=ratio), [node("n1"), node("n2", ready=False)], keys)
    assert plain(desired.spec.min) == lower
    assert desired.spec.max == dict.fromkeys(keys, Quantity("4611686018427387"))
    for key, (cpu, rest) in (("total-resource", everything), ("unschedulable-resource", idle)):
        amounts = {name: float(Quantity(text)) for name, text in json.loads(desired.annotations[KEY + key]).items()}
        assert amounts == {"cpu": cpu, "memory": rest, "storage": rest}
    assert desired.labels == {
        KEY + "profile": "profile1", "mine": "1", KEY + "tree-id": "2862972692226656278", KEY + "is-root": "true",
    }  # fmt: skip


def test_unschedulable_nodes_are_counted_separately() -> None:
    nodes = [node("a"), node("b", unschedulable=True), node("c", ready=False)]
    desired = desired_quota(profile(), nodes, ["cpu"])
    assert json.loads(desired.annotations[KEY + "unschedulable-resource"])["cpu"] == "20"


def test_tree_ids() -> None:
    assert tree_id(profile()) == "2862972692226656278"
    assert tree_id(profile("default")) == "3288849408605801223"
    assert tree_id(profile(labels={KEY + "tree-id": "mine"})) == "mine"


def test_resource_keys() -> None:
    assert resource_keys({}) == (["cpu", "memory"], None)
    assert resource_keys({KEY + "resource-keys": '["cpu"]'}) == (["cpu"], None)
    keys, problem = resource_keys({KEY + "resource-keys": "cpu"})
    assert keys == ["cpu", "memory"] and KEY + "resource-keys" in problem  # type: ignore[operator]


def test_other_fields_of_the_quota_are_kept() -> None:
    desired = desired_quota(profile(), [node("a")], ["cpu"])
    same = ElasticQuota(spec=desired.spec)
    same.metadata.labels = {**desired.labels, "other": "1"}
    same.metadata.annotations = {**desired.annotations, KEY + "shared-weight": "{}"}
    assert not desired.differs_from(same)
    same.metadata.labels["mine"] = "2"
    assert desired.differs_from(same)


async def test_a_quota_follows_its_nodes(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster()
    for name in ("n1", "n2"):
        meta = {"name": name, "labels": {"zone": "a"}}
        await cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        status = {"allocatable": {"cpu": "10", "memory": "1000"}, "conditions": [{"type": "Ready", "status": "True"}]}
        await cluster.merge(f"/api/v1/nodes/{name}/status", {"status": status})
    nodes = cluster.manager.context.caches.informer(Node)
    await cluster.until(lambda: sum(bool(each.status.allocatable) for each in nodes.list()) == 2)
    created = await cluster.create(
        PROFILES,
        {
            "apiVersion": "quota.koordinator.sh/v1alpha1",
            "kind": "ElasticQuotaProfile",
            "metadata": {"name": "p"},
            "spec": {"quotaName": "root", "nodeSelector": {"matchLabels": {"zone": "a"}}},
        },
    )

    async def quota(cpu: str) -> dict[str, Any] | None:
        try:
            elastic_quota = await cluster.get(QUOTA)
        except NotFound:
            return None
        return elastic_quota if elastic_quota["spec"]["min"].get("cpu") == cpu else None

    elastic_quota = await cluster.until(lambda: quota("20"))
    assert elastic_quota["metadata"]["labels"][KEY + "is-root"] == "true"
    assert elastic_quota["metadata"]["labels"][KEY + "tree-id"]
    labelled = await cluster.get(f"{PROFILES}/p")
    assert labelled["metadata"]["labels"][KEY + "tree-id"] == elastic_quota["metadata"]["labels"][KEY + "tree-id"]
    change = {"spec": {"resourceRatio": "0.5"}, "metadata": {"annotations": {KEY + "resource-keys": '["cpu"]'}}}
    assert created["metadata"]["generation"] < (await cluster.merge(f"{PROFILES}/p", change))["metadata"]["generation"]
    elastic_quota = await cluster.until(lambda: quota("10"))
    assert elastic_quota["spec"]["min"] == {"cpu": "10"}, "keys that are no longer wanted are gone"
