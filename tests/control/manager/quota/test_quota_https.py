"""The ElasticQuota webhooks over real HTTPS: complete, refuse in words, leave no ghosts; pods are held to quotas."""

from __future__ import annotations

import json

import aiohttp

from koordlet.api.core import Pod
from koordlet.api.quota import ElasticQuota

QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
PODS = "/api/v1/namespaces/default/pods"
KEY = "quota.scheduling.koordinator.sh/"


def quota(name, labels=None, annotations=None, **spec):
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


def pod(name, quota_name):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {KEY + "name": quota_name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


async def test_the_life_of_a_tree(asking):
    cluster = await asking()
    top = quota("top", {"is-parent": "true", "tree-id": "t"}, min={"cpu": "10"}, max={"cpu": "20"})
    made = await cluster.create(QUOTAS, top)
    assert made["metadata"]["labels"][KEY + "parent"] == "koordinator-root-quota"
    assert json.loads(made["metadata"]["annotations"][KEY + "shared-weight"]) == {"cpu": "20"}

    # A child right behind its parent: what was admitted counts before the watch tells of it.
    child = quota("child", {"parent": "top"}, {"namespaces": '["team"]'}, min={"cpu": "6"}, max={"cpu": "20"})
    assert (await cluster.create(QUOTAS, child))["metadata"]["labels"][KEY + "tree-id"] == "t"
    second = quota("second", {"parent": "top"}, min={"cpu": "6"}, max={"cpu": "20"})
    error = await cluster.refused(cluster.create(QUOTAS, second))
    assert error.status == 400
    assert 'spec.min: Invalid value: "cpu=6": the children of top come to cpu=12, it has cpu=10' in str(error)

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
        (cluster.merge(f"{QUOTAS}/child", {"spec": {"min": {"cpu": "7"}}}), "the children of top come to cpu=11"),
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
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{server.port}/elasticQuota", ssl=False) as answer,
    ):
        shown = await answer.json()
    assert shown["quotaInfoMap"]["child"]["parentName"] == "top"
    assert "child" in shown["quotaHierarchyInfo"]["top"]
