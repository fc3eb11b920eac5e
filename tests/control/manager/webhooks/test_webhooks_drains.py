"""Users drain with koord-descheduler only the nodes that they may drain with kubectl."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from control.manager.webhooks.drains import Drain, needed_rights
from control.manifestfiles import rule
from koordlet.api.crs.drain import DrainNode, DrainNodeGroup
from koordlet.api.encoding import wire
from koordlet.kube import ApiError
from scripts.securitytables import roles_of_deploy
from tests.control.manager.trust.test_trusted_keys_cluster import account
from tests.waiting import until

GROUP = "/apis/scheduling.koordinator.sh/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = "application/merge-patch+json"
EVICT = "create pods/eviction"


def body(kind: str, name: str, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    meta = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def drain(node: str, annotations: dict[str, str] | None = None, **more: Any) -> DrainNode:
    text = msgspec.json.encode(body("DrainNode", "d", {"nodeName": node, **more}, annotations))
    decoded: DrainNode = wire.json_decoder(DrainNode).decode(text, where="drain")
    return decoded


def group(**labels: str) -> DrainNodeGroup:
    text = msgspec.json.encode(body("DrainNodeGroup", "g", {"nodeSelector": {"matchLabels": labels}}))
    decoded: DrainNodeGroup = wire.json_decoder(DrainNodeGroup).decode(text, where="group")
    return decoded


FORCED = {"descheduler.alpha.kubernetes.io/evict": ""}


@pytest.mark.parametrize(
    ("new", "old", "rights"),
    [
        (drain("n1"), None, ["patch nodes n1", EVICT]),
        (drain("n1"), drain("n1"), []),
        (drain("n1", confirmState="Confirmed"), drain("n1"), ["patch nodes n1", EVICT]),
        (drain("n1", FORCED), drain("n1"), ["patch nodes n1", EVICT]),
        (drain("n1", cordonPolicy={"mode": "Label", "labels": {"a": "b"}}), drain("n1"), ["patch nodes n1", EVICT]),
        (drain("n2"), drain("n1"), ["patch nodes n1", "patch nodes n2", EVICT]),
        (group(zone="a"), None, ["patch nodes", EVICT]),
        (group(zone="a"), group(zone="a"), []),
        (group(zone="b"), group(zone="a"), ["patch nodes", EVICT]),
    ],
)
def test_the_rights_that_a_drain_needs(new: Drain, old: Drain | None, rights: list[str]) -> None:
    def text(right: dict[str, str]) -> str:
        resource = "/".join(filter(None, (right["resource"], right.get("subresource"))))
        return " ".join(filter(None, (right["verb"], resource, right.get("name"))))

    needed = needed_rights(new, old)
    assert [text(right) for right in needed] == rights
    assert not any("namespace" in right for right in needed), "in all namespaces"


def test_no_shipped_role_lets_users_drain() -> None:
    """Only koord-descheduler's own, and none that is aggregated into the roles of users."""
    roles = [role for _, role in roles_of_deploy()]
    draining = {
        role["metadata"]["name"]
        for role in roles
        for each in role["rules"]
        if {"*", "drainnodes", "drainnodegroups"} & set(each.get("resources", ()))
        and {"create", "patch", "update", "*"} & set(each["verbs"])
    }
    assert draining == {"koord-descheduler-drain"}
    text = yaml.safe_dump_all(roles)
    assert "aggregate-to" not in text and "aggregationRule" not in text


async def test_a_drain_needs_the_rights_of_its_user(cluster: Any, manager: Any) -> None:
    """The account may create drains, patch the node n1, and at first evict in the namespace shop only."""
    await manager("--controllers=nodeslo")
    await cluster.admin.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": "shop"}})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "shop"}
    drains = rule("scheduling.koordinator.sh", ["drainnodes", "drainnodegroups"], ["create", "patch", "get"])

    async def grant(kind: str, name: str, space: str, *rules: dict[str, Any]) -> None:
        base = f"{RBAC}{space}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        await cluster.admin.raw("POST", f"{base}/{kind.lower()}s", body={"metadata": {"name": name}, "rules": rules})
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        await cluster.admin.raw("POST", f"{base}/{kind.lower()}bindings", body=binding)

    evict = rule("", ["pods/eviction"], ["create"])
    await grant("ClusterRole", "drainer", "", drains, rule("", ["nodes"], ["patch"], ["n1"]))
    await grant("Role", "drainer", "/namespaces/shop", evict)
    await until(lambda: cluster.get("/api/v1/namespaces/shop/serviceaccounts/default"))
    await until(lambda: registered(cluster))
    async with account(cluster, "shop", "default") as user:

        async def refused(method: str, path: str, document: Any) -> str:
            kind = MERGE if method == "PATCH" else "application/json"
            with pytest.raises(ApiError) as caught:
                await user.raw(method, f"{GROUP}/{path}", body=document, content_type=kind)
            assert caught.value.status == 403
            return str(caught.value)

        own = body("DrainNode", "own", {"nodeName": "n1"})
        everywhere = body("DrainNodeGroup", "all", {"nodeSelector": {}})
        assert "may not create pods/eviction, which this DrainNode would do" in await refused("POST", "drainnodes", own)
        await grant("ClusterRole", "evictor", "", evict)
        other = body("DrainNode", "other", {"nodeName": "n2"})
        assert "may not patch nodes 'n2'" in await refused("POST", "drainnodes", other)
        assert "may not patch nodes, which this DrainNodeGroup" in await refused("POST", "drainnodegroups", everywhere)
        await user.raw("POST", f"{GROUP}/drainnodes", body=own)
        assert "may not patch nodes 'n2'" in await refused("PATCH", "drainnodes/own", {"spec": {"nodeName": "n2"}})
        confirmed = {"spec": {"confirmState": "Confirmed"}}
        await user.raw("PATCH", f"{GROUP}/drainnodes/own", body=confirmed, content_type=MERGE)
    await cluster.admin.raw("POST", f"{GROUP}/drainnodegroups", body=everywhere)


async def registered(cluster: Any) -> bool:
    name = "koordinator-validating-webhook-configuration"
    stored = await cluster.get(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}")
    return any(entry["name"] == "vdrain.koordinator.sh" for entry in (stored or {}).get("webhooks", ()))
