"""The ElasticQuota webhooks over real HTTPS: defaults, refusals with reasons, expected entries, pods against quotas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from control.manager.quota import shared
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaProfile
from koordlet.kube import ApiError
from tests.control.manager.conftest import WebhookCluster

QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
PODS = "/api/v1/namespaces/default/pods"
KEY = "quota.scheduling.koordinator.sh/"


def quota(
    name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {
            "name": name,
            "labels": {KEY + k: v for k, v in (labels or {}).items()},
            "annotations": {KEY + k: v for k, v in (annotations or {}).items()},
        },
        "spec": spec,
    }


def pod(name: str, quota_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {KEY + "name": quota_name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


async def test_the_life_of_a_tree(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster()
    top = quota("top", {"is-parent": "true", "tree-id": "t"}, min={"cpu": "10"}, max={"cpu": "20"})
    created = await cluster.create(QUOTAS, top)
    assert created["metadata"]["labels"][KEY + "parent"] == "koordinator-root-quota"
    assert json.loads(created["metadata"]["annotations"][KEY + "shared-weight"]) == {"cpu": "20"}

    # A child directly after its parent: an admitted quota counts before the watch delivers it.
    child = quota("child", {"parent": "top"}, {"namespaces": '["team"]'}, min={"cpu": "6"}, max={"cpu": "20"})
    assert (await cluster.create(QUOTAS, child))["metadata"]["labels"][KEY + "tree-id"] == "t"
    second = quota("second", {"parent": "top"}, min={"cpu": "6"}, max={"cpu": "20"})
    error = await cluster.refused(cluster.create(QUOTAS, second))
    assert error.status == 400
    assert 'spec.min: Invalid value: "cpu=6": the sum of the children of top is cpu=12, its own is cpu=10' in str(error)

    # Neither a refusal nor a dry run leaves anything behind.
    second["spec"]["min"] = {"cpu": "4"}
    for _ in range(2):
        await cluster.create(QUOTAS, second, dry_run=True)
    await cluster.create(QUOTAS, second)

    no_parent = {"metadata": {"labels": {KEY + "is-parent": None}}}
    refusals = [
        (cluster.create(QUOTAS, quota("x", {"parent": "no"})), 'there is no such quota'),
        (cluster.create(QUOTAS, quota("x", {}, {"namespaces": '["team"]'})), "namespace team is bound to quota child"),
        (cluster.create(QUOTAS, quota("x", min={"cpu": "1"})), "spec.min: Forbidden: cpu is not in spec.max"),
        (cluster.merge(f"{QUOTAS}/child", {"spec": {"min": {"cpu": "7"}}}), "the sum of the children of top is cpu=11"),
        (cluster.merge(f"{QUOTAS}/top", no_parent), "quota top has children (child, second)"),
        (cluster.delete(f"{QUOTAS}/top"), "quota top has children (child, second)"),
        (cluster.create(PODS, pod("p", "top")), "quota top is a parent quota"),
    ]  # fmt: skip
    for request, words in refusals:
        assert words in str(await cluster.refused(request))

    await cluster.create(PODS, pod("p", "child"))
    await cluster.until(lambda: cluster.cached(Pod, "default/p") and cluster.cached(ElasticQuota, "default/second"))
    error = await cluster.refused(cluster.delete(f"{QUOTAS}/child"))
    assert "quota child has 1 pods (default/p)" in str(error)
    await cluster.delete(f"{QUOTAS}/second")
    await cluster.merge(f"{QUOTAS}/child", {"spec": {"min": {"cpu": "10"}}})

    # A weight that can't be read passes when nothing else changes, as users of the reference know it.
    await cluster.merge(f"{QUOTAS}/child", {"metadata": {"annotations": {KEY + "shared-weight": "["}}})

    # The debug page shows the tree.
    server = cluster.manager.server
    assert server is not None
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{server.port}/elasticQuota", ssl=False) as answer,
    ):
        shown = await answer.json()
    assert shown["quotaInfoMap"]["child"]["parentName"] == "top"
    assert "child" in shown["quotaHierarchyInfo"]["top"]


def asking_for(name: str, cpu: str, **labels: Any) -> dict[str, Any]:
    info = pod(name, "team")
    info["metadata"]["labels"] |= labels
    info["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return info


async def test_pods_are_counted_against_their_quota(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster({"EnableQuotaAdmission": True}, "--quota-update-conflict-fresh-get")
    await cluster.create(QUOTAS, quota("team", max={"cpu": "10"}))
    await cluster.until(lambda: cluster.cached(ElasticQuota, "default/team"))

    async def create(name: str, cpu: str) -> str | None:
        try:
            await cluster.create(PODS, asking_for(name, cpu))
        except ApiError as error:
            return str(error)
        return None

    await cluster.create(PODS, asking_for("dry", "9"), dry_run=True)
    answers = await asyncio.gather(*(create(f"p{number}", "1500m") for number in range(9)))
    refused = [answer for answer in answers if answer]
    assert len(refused) == 3, "six times 1500m fit into 10"
    for words in ("exceeded quota: default/team, requested: cpu=1500m", "limited: cpu=10"):
        assert all(words in answer for answer in refused)
    stored = await cluster.get(f"{QUOTAS}/team")
    assert stored["metadata"]["annotations"][KEY + "child-request"] == '{"cpu":"9"}'

    # Another client writes the quota: the next pod is added to that amount.
    other = {"metadata": {"annotations": {KEY + "child-request": '{"cpu":"2"}'}}}
    await cluster.merge(f"{QUOTAS}/team", other)
    assert await create("late", "3") is None
    stored = await cluster.get(f"{QUOTAS}/team")
    assert stored["metadata"]["annotations"][KEY + "child-request"] == '{"cpu":"5"}'

    # What is not there can't be counted against.
    error = await cluster.refused(cluster.create(PODS, asking_for("x", "1", **{KEY + "name": "no-such"})))
    assert "quota no-such: 0 ElasticQuotas of this name, there must be one" in str(error)


async def test_pods_of_a_tree_stay_on_its_nodes(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster({"MultiQuotaTree": True})
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {"name": "p", "labels": {KEY + "tree-id": "t"}},
        "spec": {"quotaName": "root", "nodeSelector": {"matchLabels": {"pool": "x"}}},
    }
    await cluster.create("/apis/quota.koordinator.sh/v1alpha1/namespaces/default/elasticquotaprofiles", profile)
    await cluster.create(QUOTAS, quota("team", {"tree-id": "t"}, max={"cpu": "10"}))
    await cluster.until(lambda: cluster.cached(ElasticQuotaProfile, "default/p"))
    created = await cluster.create(PODS, pod("a", "team"))
    required = created["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x"]}]}]
    assert "affinity" not in (await cluster.create(PODS, pod("b", "other")))["spec"]


async def test_a_parent_admitted_by_another_replica_is_read(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]],
) -> None:
    """As long as the watch says nothing, the parent is looked up."""
    cluster = await webhook_cluster()
    nine = {"min": {"cpu": "9"}, "max": {"cpu": "9"}}
    await cluster.create(QUOTAS, quota("top", {"is-parent": "true", "tree-id": "t"}, **nine))
    await cluster.until(lambda: cluster.cached(ElasticQuota, "default/top"))
    topology = shared(cluster.manager.context)
    topology.remove(cluster.cached(ElasticQuota, "default/top"))
    assert topology.tree.get("top") is None
    created = await cluster.create(QUOTAS, quota("child", {"parent": "top"}, **nine))
    assert created["metadata"]["labels"][KEY + "tree-id"] == "t"
