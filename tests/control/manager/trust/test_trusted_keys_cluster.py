"""The rule of trusted keys in a cluster: tenants are refused, the scheduler and profiles are not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from control.manifestfiles import rule as rbac_rule
from control.scheduler.process import manifests as scheduler
from koordlet.api import names
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import ApiError, Client, ClientConfig
from koordlet.kube.credentials import Fixed
from tests.accounts import account_token
from tests.control.manager.conftest import apply
from tests.waiting import until

MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/shop/pods"
PROFILES = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles"
TENANT_RULES = [
    rbac_rule("", ["pods"], ["get", "create", "patch", "delete"]),
    rbac_rule("", ["pods/binding", "bindings"], ["create"]),  # as in a Role for all resources
]


@asynccontextmanager
async def account(cluster: Any, namespace: str, name: str) -> AsyncIterator[Client]:
    """A client with the token of a ServiceAccount."""
    token = await account_token(cluster.admin, name, namespace)
    config = ClientConfig.load(cluster.server.kubeconfig_path, qps=0)
    async with Client(replace(config, credentials=Fixed.bearer(token))) as client:
        yield client


def pod(name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}}


async def tenant_of(cluster: Any) -> None:
    """Namespace shop, in which the ServiceAccount `default` may do anything with pods."""
    raw, base = cluster.admin.raw, "/apis/rbac.authorization.k8s.io/v1/namespaces/shop"
    await raw("POST", "/api/v1/namespaces", body={"metadata": {"name": "shop"}})
    await raw("POST", f"{base}/roles", body={"metadata": {"name": "tenant"}, "rules": TENANT_RULES})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "shop"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
    binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
    await raw("POST", f"{base}/rolebindings", body=binding)
    await until(lambda: cluster.get("/api/v1/namespaces/shop/serviceaccounts/default"))


async def test_a_tenant_is_refused_and_the_scheduler_is_not(cluster: Any, manager: Any) -> None:
    for obj in scheduler.rbac():
        await apply(cluster.admin, obj)
    await tenant_of(cluster)
    running = await manager("--controllers=nodeslo")
    status = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-1"}'}
    async with account(cluster, "shop", "default") as tenant:
        with pytest.raises(ApiError) as refused:
            await tenant.raw("POST", PODS, body=pod("a", annotations=status))
        assert refused.value.status == 400
        assert "annotations.scheduling.koordinator.sh/resource-status: Forbidden: user " in str(refused.value)
        assert "koordinator-system:koord-scheduler" in str(refused.value)
        with pytest.raises(ApiError, match=r"labels\.koordinator\.sh/qosClass: Forbidden"):
            await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QOS_CLASS: "SYSTEM"}))
        await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QOS_CLASS: "LS"}))
        patch = {"metadata": {"annotations": status}}
        with pytest.raises(ApiError, match="resource-status: Forbidden"):
            await tenant.raw("PATCH", f"{PODS}/a", body=patch, content_type=MERGE)

        async with account(cluster, KOORDINATOR_NAMESPACE, scheduler.ACCOUNT) as client:
            await client.raw("PATCH", f"{PODS}/a", body=patch, content_type=MERGE)
        other = {"metadata": {"labels": {"app": "web"}}}
        await tenant.raw("PATCH", f"{PODS}/a", body=other, content_type=MERGE)
        with pytest.raises(ApiError, match="may not remove it"):
            removal = {"metadata": {"annotations": dict.fromkeys(status)}}
            await tenant.raw("PATCH", f"{PODS}/a", body=removal, content_type=MERGE)

        # an administrator's profile grants the class that it sets, in the namespaces that it selects
        spec = {"selector": {"matchLabels": {"agent": "yes"}}, "qosClass": "SYSTEM"}
        profile = {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile"}
        await cluster.admin.raw("POST", PROFILES, body={**profile, "metadata": {"name": "agents"}, "spec": spec})
        profiles = running.manager.context.caches.informer(ClusterColocationProfile)
        await until(lambda: profiles.list())
        document = json.loads(await tenant.raw("POST", PODS, body=pod("b", {"agent": "yes"})))
        assert document["metadata"]["labels"][names.LABEL_QOS_CLASS] == "SYSTEM"
        with pytest.raises(ApiError, match="qosClass: Forbidden"):
            await tenant.raw("POST", PODS, body=pod("c", {names.LABEL_QOS_CLASS: "SYSTEM"}))
    await cluster.admin.raw("POST", PODS, body=pod("d", {names.LABEL_QOS_CLASS: "SYSTEM"}, status))


async def test_a_binding_carries_no_trusted_keys_into_a_pod(cluster: Any, manager: Any) -> None:
    """The API server copies the annotations of a Binding to the pod; no request for the pod shows them."""
    for obj in scheduler.rbac():
        await apply(cluster.admin, obj)
    await tenant_of(cluster)
    await manager("--controllers=nodeslo")
    await cluster.admin.raw("POST", "/api/v1/nodes", body={"metadata": {"name": "n"}})
    status = {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0-1"}'}
    async with account(cluster, "shop", "default") as tenant:
        await tenant.raw("POST", PODS, body=pod("a"))

        def body(annotations: dict[str, str]) -> dict[str, Any]:
            return {"metadata": {"name": "a", "annotations": annotations}, "target": {"kind": "Node", "name": "n"}}

        for path in (f"{PODS}/a/binding", "/api/v1/namespaces/shop/bindings"):
            with pytest.raises(ApiError, match="resource-status: Forbidden") as refused:
                await tenant.raw("POST", path, body=body(status))
            assert refused.value.status == 403
        async with account(cluster, KOORDINATOR_NAMESPACE, scheduler.ACCOUNT) as client:
            await client.raw("POST", f"{PODS}/a/binding", body=body(status))


async def test_the_gate_disables_the_rule(cluster: Any, manager: Any) -> None:
    await tenant_of(cluster)
    await manager("--controllers=nodeslo", "--feature-gates=ValidatePodTrustedKeys=false")
    async with account(cluster, "shop", "default") as tenant:
        await tenant.raw("POST", PODS, body=pod("a", {names.LABEL_QOS_CLASS: "SYSTEM"}))
