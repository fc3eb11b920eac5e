"""Jobs of users move only what the user may evict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.manager.webhooks.migrationjobs import needed_rights
from control.manager.webhooks.userrights import refusal, review
from control.manager.webhookserver.admission import RequestUser
from control.manifestfiles import rule as rbac_rule
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.encoding import wire
from koordlet.kube import ApiError
from tests.control.manager.trust.test_trusted_keys_cluster import account
from tests.waiting import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOBS = "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs"
MERGE = "application/merge-patch+json"
DELETE = {"koordinator.sh/evict-policy": "Delete"}
TEMPLATE = {"spec": {"ttl": "1h"}}


def body(
    name: str, namespace: str = "shop", labels: dict[str, str] | None = None, pod: str = "p", **options: Any
) -> dict[str, Any]:
    spec = {"podRef": {"kind": "Pod", "namespace": namespace, "name": pod}}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {**spec, **({"reservationOptions": options} if options else {})},
    }


def job(*arguments: Any, **options: Any) -> PodMigrationJob:
    text = msgspec.json.encode(body(*arguments, **options))
    decoded: PodMigrationJob = wire.json_decoder(PodMigrationJob).decode(text, where="job")
    return decoded


EVICT = ("create", "pods", "eviction")
REMOVE = ("delete", "pods", "")
RESERVE = ("create", "reservations", "")


@pytest.mark.parametrize(
    ("new", "old", "rights"),
    [
        (job("a"), None, [EVICT]),
        (job("a", "shop", DELETE), None, [EVICT, REMOVE]),
        (job("a", "shop", {"koordinator.sh/evict-policy": "SoftEviction"}), None, [EVICT]),
        (job("a", template=TEMPLATE), None, [EVICT, RESERVE]),
        (job("a", reservationRef={"name": "r"}), None, [EVICT]),
        (job("a", "shop", DELETE, template=TEMPLATE), None, [EVICT, REMOVE, RESERVE]),
        (job("a"), job("a"), []),
        (job("a", "shop", {"other": "x"}), job("a"), []),
        (job("a", reservationRef={"name": "r"}), job("a"), []),
        (job("a", "shop", DELETE), job("a"), [EVICT, REMOVE]),
        (job("a", "shop", None, "q"), job("a"), [EVICT]),
        (job("a", "other"), job("a"), [EVICT]),
        (job("a", template=TEMPLATE), job("a"), [EVICT, RESERVE]),
    ],
)
def test_the_rights_that_a_job_needs(new: PodMigrationJob, old: PodMigrationJob | None, rights: list[Any]) -> None:
    needed = needed_rights(new, old)
    assert [(right["verb"], right["resource"], right.get("subresource", "")) for right in needed] == rights
    ref = new.spec.pod_ref
    pods = [right for right in needed if right["resource"] == "pods"]
    assert all((right["namespace"], right["name"]) == (ref.namespace, ref.name) for right in pods)


def test_the_refusal_names_user_right_and_pod() -> None:
    (right,) = needed_rights(job("a"), None)
    assert refusal("ada", right, "PodMigrationJob") == (
        "user 'ada' may not create pods/eviction 'p' in namespace 'shop', which this PodMigrationJob would do"
    )
    spec = review(RequestUser(username="ada", uid="1", groups=["devs"], extra={"k": ["v"]}), right)["spec"]
    assert (spec["user"], spec["uid"], spec["groups"], spec["extra"]) == ("ada", "1", ["devs"], {"k": ["v"]})


async def test_a_job_moves_only_what_its_user_may_evict(cluster: Any, manager: Any) -> None:
    """The account may create jobs, and evict in the namespace shop only."""
    await manager("--controllers=nodeslo")
    for space in ("shop", "other"):
        await cluster.admin.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": space}})
    jobs = rbac_rule("scheduling.koordinator.sh", ["podmigrationjobs"], ["create", "patch", "get"])
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "shop"}
    for kind, scope, rules in (
        ("ClusterRole", "", [jobs]),
        ("Role", "/namespaces/shop", [rbac_rule("", ["pods/eviction"], ["create"])]),
    ):
        base = f"{RBAC}{scope}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "mover"}
        await cluster.admin.raw("POST", f"{base}/{kind.lower()}s", body={"metadata": {"name": "mover"}, "rules": rules})
        binding = {"metadata": {"name": "mover"}, "roleRef": role, "subjects": [subject]}
        await cluster.admin.raw("POST", f"{base}/{kind.lower()}bindings", body=binding)
    await until(lambda: cluster.get("/api/v1/namespaces/shop/serviceaccounts/default"))
    await until(lambda: registered(cluster))
    async with account(cluster, "shop", "default") as mover:

        async def refused(method: str, path: str, document: Any) -> str:
            kind = MERGE if method == "PATCH" else "application/json"
            with pytest.raises(ApiError) as caught:
                await mover.raw(method, path, body=document, content_type=kind)
            assert caught.value.status == 403
            return str(caught.value)

        await mover.raw("POST", JOBS, body=body("mine"))
        user = "system:serviceaccount:shop:default"
        expected = f"user '{user}' may not create pods/eviction 'p' in namespace 'other'"
        assert expected in await refused("POST", JOBS, body("others", "other"))
        assert "may not delete pods" in await refused("POST", JOBS, body("removed", labels=DELETE))
        assert "may not create reservations" in await refused("POST", JOBS, body("reserved", template=TEMPLATE))
        aimed = {"spec": {"podRef": {"namespace": "other"}}}
        assert expected in await refused("PATCH", f"{JOBS}/mine", aimed)
        await mover.raw("PATCH", f"{JOBS}/mine", body={"spec": {"paused": True}}, content_type=MERGE)
    await cluster.admin.raw("POST", JOBS, body=body("administrator", "other", DELETE, template=TEMPLATE))


async def registered(cluster: Any) -> bool:
    name = "koordinator-validating-webhook-configuration"
    stored = await cluster.get(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{name}")
    return any(entry["name"] == "vpodmigrationjob.koordinator.sh" for entry in (stored or {}).get("webhooks", ()))
