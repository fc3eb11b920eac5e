"""Trusted keys in requests for subresources of pods, by a tenant whose Role has all verbs on all resources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control import manifestfiles
from control.manager.options import WebhookEnv
from control.manager.webhookserver import configurations, registrations
from control.manager.webhookserver.configurations import ConfigurationTarget, WebhookConfiguration
from control.manifestfiles import rule
from koordlet.api import names
from koordlet.api.meta import ObjectMeta
from koordlet.kube import ApiError
from tests.control.manager.trust.test_trusted_keys_cluster import PODS, account, pod, tenant_of

MERGE = "application/merge-patch+json"
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/tenant"
CPUS = {"metadata": {"annotations": {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-1"}'}}}


async def test_the_status_of_a_pod_carries_no_trusted_keys_into_it(cluster: Any, manager: Any) -> None:
    await tenant_of(cluster)
    await cluster.admin.raw("PATCH", ROLE, body={"rules": [rule("*", ["*"], ["*"])]}, content_type=MERGE)
    await manager("--controllers=nodeslo")
    async with account(cluster, "shop", "default") as tenant:
        await tenant.raw("POST", PODS, body=pod("a"))
        with pytest.raises(ApiError, match="resource-status: Forbidden") as refused:
            await tenant.raw("PATCH", f"{PODS}/a/status", body=CPUS, content_type=MERGE)
        assert refused.value.status == 403
        body = {"metadata": {"labels": {"app": "web"}}, "status": {"reason": "mine"}}
        changed = json.loads(await tenant.raw("PATCH", f"{PODS}/a/status", body=body, content_type=MERGE))
        assert changed["status"]["reason"] == "mine", "other changes are the tenant's"
    stored = await cluster.get(f"{PODS}/a")
    assert names.ANNOTATION_RESOURCE_STATUS not in stored["metadata"].get("annotations", {})
    changed = json.loads(await cluster.admin.raw("PATCH", f"{PODS}/a/status", body=CPUS, content_type=MERGE))
    assert changed["metadata"]["annotations"][names.ANNOTATION_RESOURCE_STATUS], "an administrator may"


@pytest.mark.parametrize("quota", [names.SYSTEM_QUOTA, names.ROOT_QUOTA])
async def test_a_tenants_pod_is_not_of_a_built_in_quota(cluster: Any, manager: Any, quota: str) -> None:
    await tenant_of(cluster)
    await manager("--controllers=nodeslo")
    async with account(cluster, "shop", "default") as tenant:
        with pytest.raises(ApiError, match=r"labels\.quota\.scheduling\.koordinator\.sh/name: Forbidden"):
            await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QUOTA_NAME: quota}))
        await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QUOTA_NAME: names.DEFAULT_QUOTA}))
    await cluster.admin.raw("POST", PODS, body=pod("b", {names.LABEL_QUOTA_NAME: names.SYSTEM_QUOTA}))


async def test_accounts_of_the_components_namespace_are_trusted(cluster: Any, manager: Any) -> None:
    """Not those of the configuration's namespace, which another team may administrate."""
    await tenant_of(cluster)
    rights = manifestfiles.rbac("koord-manager", [], [rule("", ["configmaps"], ["get", "list", "watch"])])[-2:]
    for obj in rights:
        obj["metadata"] = {**obj["metadata"], "namespace": "shop"}
    await cluster.install(*rights)
    await manager("--controllers=nodeslo", "--config-namespace=shop")
    path = "/api/v1/namespaces/shop/serviceaccounts"
    await cluster.admin.raw("POST", path, body={"metadata": {"name": "koord-manager"}})
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings/tenant"
    subject = {"kind": "ServiceAccount", "name": "koord-manager", "namespace": "shop"}
    await cluster.admin.raw("PATCH", role, body={"subjects": [subject]}, content_type=MERGE)
    async with account(cluster, "shop", "koord-manager") as namesake:
        with pytest.raises(ApiError, match="qosClass: Forbidden"):
            await namesake.raw("POST", PODS, body=pod("a", {names.LABEL_QOS_CLASS: "SYSTEM"}))


async def test_a_label_of_the_namespace_exempts_nothing(cluster: Any, manager: Any) -> None:
    await tenant_of(cluster)
    labels = {"metadata": {"labels": {"control-plane": "mine"}}}
    await cluster.admin.raw("PATCH", "/api/v1/namespaces/shop", body=labels, content_type=MERGE)
    await manager("--controllers=nodeslo")
    async with account(cluster, "shop", "default") as tenant:
        with pytest.raises(ApiError, match="qosClass: Forbidden"):
            await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QOS_CLASS: "SYSTEM"}))


def test_an_api_server_that_drops_match_conditions_is_not_written_again() -> None:
    target = ConfigurationTarget(WebhookEnv(), 9876, ("/validate-pod-keys", "/validate-pod"), b"ca")
    webhooks = configurations.desired("ValidatingWebhookConfiguration", target)
    assert any(registrations.MATCH_CONDITIONS in webhook for webhook in webhooks)
    old = [{name: value for name, value in webhook.items() if name != "matchConditions"} for webhook in webhooks]
    for installed, unchanged in ((webhooks, True), (old, True), (old[:-1], False)):
        configuration = WebhookConfiguration(metadata=ObjectMeta(name="v"), webhooks=installed)
        assert (configurations.patch("ValidatingWebhookConfiguration", configuration, target) is None) is unchanged
