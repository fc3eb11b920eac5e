"""Pods with resource claims in real schedulers, on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.scheduler.plugins.dynamicresources.claimwriter import bind_claim
from control.scheduler.state.pods import Shapes
from koordlet.api.core.claims import ResourceClaim
from koordlet.kube import KubeError, PatchKind
from tests.control.scheduler.dynamicresources.objects import pod_with
from tests.waiting import until

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
PODS = ("early", "pod-b", "pod-c")
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"


async def serve_claims(world: Any) -> None:
    """The embedded API server has these kinds only as custom resources. Before the scheduler starts."""
    names = {"ResourceClaim": True, "ResourceSlice": False, "DeviceClass": False}
    for kind, namespaced in names.items():
        plural = "deviceclasses" if kind == "DeviceClass" else f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        if kind == "ResourceClaim":
            version["subresources"] = {"status": {}}
        meta = {
            "name": f"{plural}.resource.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        }
        spec = {
            "group": "resource.k8s.io",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [version],
        }
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        await world.apply({**body, "metadata": meta, "spec": spec})


async def offer(world: Any, node: str, *devices: str) -> None:
    """Devices of a node, and the class that selects them."""
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    await world.admin.raw("POST", f"{GROUP}/deviceclasses", body={**kind, "spec": spec})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    offered = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [{"name": name} for name in devices]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}}
    await world.admin.raw("POST", f"{GROUP}/resourceslices", body={**kind, "spec": offered})


async def create_claim(world: Any, name: str) -> None:
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    await world.admin.raw("POST", CLAIMS, body={**kind, "spec": {"devices": devices}})


async def claim(world: Any, name: str) -> Any:
    return json.loads(await world.admin.raw("GET", f"{CLAIMS}/{name}"))


async def pod(world: Any, name: str, *claims: str) -> None:
    used = [{"name": f"n{number}", "resourceClaimName": each} for number, each in enumerate(claims)]
    await world.pod(name, cpu="10m", resourceClaims=used)


async def free(world: Any, name: str) -> None:
    """What kube-controller-manager does when no pod uses the claim any more."""
    body = {"status": {"allocation": None, "reservedFor": None}}
    await world.admin.patch(ResourceClaim, name, "default", body=body, subresource="status")


async def allocate(world: Any, name: str, node: str) -> None:
    """What another scheduler writes."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    results = [{"request": "r", "driver": DRIVER, "pool": node, "device": "gone"}]
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    body = {"status": {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}}
    await world.admin.patch(ResourceClaim, name, "default", body=body, subresource="status", kind=PatchKind.MERGE)


def device(document: Any) -> str:
    (result,) = document["status"]["allocation"]["devices"]["results"]
    return str(result["device"])


async def test_devices_are_given_once_and_freed_ones_again(world: Any, scheduler: Any) -> None:
    await serve_claims(world)
    await world.node("n1", cpu="4")
    await world.node("n2", cpu="4")
    await scheduler()
    await offer(world, "n2", "gpu-0", "gpu-1")
    await pod(world, "early", "a")
    await until(lambda: world.condition("early"))
    assert 'resourceclaim "a" not found' in await world.condition("early")
    for name in ("a", "b", "c"):
        await create_claim(world, name)
    for name in ("b", "c"):
        await pod(world, f"pod-{name}", name)
    await until(lambda: two_bound(world))
    bound = [name for name in PODS if await world.bound(name)]
    (late,) = set(PODS) - set(bound)
    await until(lambda: world.condition(late))
    assert (await world.condition(late)).startswith("0/2 nodes are available: 2 cannot allocate all claims.")
    used = {name: await claim(world, name) for name in ("a", "b", "c")}
    allocated = {name: each for name, each in used.items() if "allocation" in each.get("status", {})}
    assert sorted(map(device, allocated.values())) == ["gpu-0", "gpu-1"]
    for each in allocated.values():
        assert [consumer["resource"] for consumer in each["status"]["reservedFor"]] == ["pods"]
        assert each["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        (term,) = each["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == ["n2"]
    await free(world, next(iter(allocated)))
    await until(lambda: world.bound(late))


async def two_bound(world: Any) -> bool:
    return sum([bool(await world.bound(name)) for name in PODS]) == 2


async def test_pods_of_one_claim_share_its_devices_and_its_node(world: Any, scheduler: Any) -> None:
    await serve_claims(world)
    await world.node("n1", cpu="4")
    await world.node("n2", cpu="4")
    await offer(world, "n1", "gpu-0")
    await create_claim(world, "shared")
    running = await scheduler()
    await pod(world, "first", "shared")
    await until(lambda: world.bound("first"))
    await running.stop()
    await scheduler()
    for name in ("second", "third"):
        await pod(world, name, "shared")
    await until(lambda: world.bound("second", "third"))
    users = (await claim(world, "shared"))["status"]["reservedFor"]
    assert sorted(each["name"] for each in users) == ["first", "second", "third"]
    await create_claim(world, "other")
    await pod(world, "without", "other")
    await until(lambda: world.condition("without"))


async def test_devices_that_keep_a_pod_from_fitting_are_freed(world: Any, scheduler: Any) -> None:
    """A claim that was allocated on a node that has no room for its pod any more."""
    await serve_claims(world)
    await world.node("n1", cpu="10m")
    await world.node("n2", cpu="4")
    await offer(world, "n2", "gpu-0")
    await create_claim(world, "a")
    await allocate(world, "a", "n1")
    await scheduler()
    await world.pod("large", cpu="1", resourceClaims=[{"name": "a", "resourceClaimName": "a"}])
    await until(lambda: world.bound("large"))
    assert device(await claim(world, "a")) == "gpu-0"


async def test_a_pod_is_not_bound_if_its_claim_was_allocated_elsewhere_meanwhile(world: Any) -> None:
    """While it waited for the other members of its gang, for example."""
    await serve_claims(world)
    await create_claim(world, "a")
    await allocate(world, "a", "n1")
    known = await world.admin.get(ResourceClaim, "a", "default")
    await free(world, "a")
    await allocate(world, "a", "n2")
    info = Shapes().info(pod_with("a"))
    with pytest.raises(KubeError, match="allocated to other devices meanwhile"):
        await bind_claim(world.admin, known, info, None)
    assert "reservedFor" not in (await claim(world, "a"))["status"]
    current = await world.admin.get(ResourceClaim, "a", "default")
    await bind_claim(world.admin, current, info, None)
    (user,) = (await claim(world, "a"))["status"]["reservedFor"]
    assert user["uid"] == info.uid
