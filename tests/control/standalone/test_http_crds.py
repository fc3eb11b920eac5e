"""Custom kinds at run time: conditions, discovery, versions, pruning, columns, scale, removal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/t.example.com/v1/namespaces/default/things"


def version(name: str, storage: bool = False, **more: Any) -> dict[str, Any]:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "colour": {"type": "string", "default": "red", "enum": ["red", "blue"]},
            "replicas": {"type": "integer"},
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}
    return {"name": name, "served": True, "storage": storage, "schema": schema, "subresources": {"status": {}}, **more}


def crd(plural: str = "things", kind: str = "Thing", versions: list[dict[str, Any]] | None = None, **names: Any) -> Any:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.t.example.com"},
        "spec": {
            "group": "t.example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **names},
            "versions": versions or [version("v1", storage=True)],
        },
    }


def thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "t.example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec}


async def conditions(http: Any, name: str) -> dict[str, str]:
    body = (await http("GET", f"{CRDS}/{name}")).body
    return {c["type"]: c["status"] for c in body.get("status", {}).get("conditions", [])}


async def established(http: Any, name: str) -> bool:
    return (await conditions(http, name)).get("Established") == "True"


async def answers(http: Any, path: str, status: int) -> bool:
    return bool((await http("GET", path)).status == status)


async def soon(check: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await check():  # noqa: ASYNC110 - the awaited change happens in the server
            await asyncio.sleep(0.01)


async def establish(http: Any, body: dict[str, Any]) -> None:
    answer = await http("POST", CRDS, body)
    assert answer.status == 201, answer.text
    await soon(lambda: established(http, body["metadata"]["name"]))


async def test_a_crd_adds_and_removes_its_kind(http: Any) -> None:
    assert (await http("GET", THINGS)).status == 404
    await establish(http, crd(shortNames=["th"]))
    assert await conditions(http, "things.t.example.com") == {"NamesAccepted": "True", "Established": "True"}
    stored = (await http("GET", f"{CRDS}/things.t.example.com")).body
    assert stored["status"]["storedVersions"] == ["v1"]
    assert stored["spec"]["names"]["singular"] == "thing"
    discovered = (await http("GET", "/apis/t.example.com/v1")).body["resources"]
    assert [r["name"] for r in discovered] == ["things", "things/status"]
    assert discovered[0]["shortNames"] == ["th"]
    index = (await http("GET", "/openapi/v3")).body["paths"]
    document = (await http("GET", index["apis/t.example.com/v1"]["serverRelativeURL"])).body
    assert "com.example.t.v1.Thing" in document["components"]["schemas"]
    assert (await http("POST", THINGS, thing("a", size=1))).status == 201
    object_with_finalizer = thing("b", size=1)
    object_with_finalizer["metadata"]["finalizers"] = ["t.example.com/hold"]
    assert (await http("POST", THINGS, object_with_finalizer)).status == 201
    await http("DELETE", f"{CRDS}/things.t.example.com")
    await soon(lambda: answers(http, f"{THINGS}/a", 404))
    assert (await http("GET", f"{CRDS}/things.t.example.com")).status == 200  # waits for b
    free = [{"op": "remove", "path": "/metadata/finalizers"}]
    await http("PATCH", f"{THINGS}/b", free, content_type="application/json-patch+json")
    await soon(lambda: answers(http, "/apis/t.example.com/v1", 404))
    assert (await http("GET", f"{CRDS}/things.t.example.com")).status == 404
    assert (await http("GET", THINGS)).status == 404


async def test_objects_are_pruned_defaulted_and_validated(http: Any) -> None:
    await establish(http, crd())
    answer = await http("POST", THINGS, thing("a", size=2, nonsense=True))
    assert answer.body["spec"] == {"size": 2, "colour": "red"}
    assert answer.headers["Warning"] == '299 - "unknown field \\"spec.nonsense\\""'
    strict = await http("POST", f"{THINGS}?fieldValidation=Strict", thing("b", size=2, nonsense=True))
    assert (strict.status, strict.body["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.nonsense"' in strict.body["message"]
    bad = await http("POST", THINGS, thing("b", colour="green"))
    assert (bad.status, bad.body["reason"]) == (422, "Invalid")
    assert bad.body["message"].startswith('Thing.t.example.com "b" is invalid: ')
    assert {c["field"] for c in bad.body["details"]["causes"]} == {"spec.size", "spec.colour"}


async def test_status_is_separate_and_generation_counts(http: Any) -> None:
    await establish(http, crd())
    created = (await http("POST", THINGS, {**thing("a", size=1), "status": {"x": 1}})).body
    assert "status" not in created
    assert created["metadata"]["generation"] == 1
    status = await http("PUT", f"{THINGS}/a/status", {**created, "spec": {"size": 9}, "status": {"x": 2}})
    assert (status.body["spec"]["size"], status.body["status"]) == (1, {"x": 2})
    assert status.body["metadata"]["generation"] == 1
    patched = await http(
        "PATCH", f"{THINGS}/a", {"spec": {"size": 3}, "status": {"x": 5}}, content_type="application/merge-patch+json"
    )
    assert (patched.body["metadata"]["generation"], patched.body["status"]) == (2, {"x": 2})
    refused = await http("PATCH", f"{THINGS}/a", {}, content_type="application/strategic-merge-patch+json")
    assert refused.status == 415
    unconditional = {**thing("a", size=4)}
    put = await http("PUT", f"{THINGS}/a", unconditional)
    assert (put.status, "must be specified for an update" in put.body["message"]) == (422, True)


async def test_versions_are_views_of_the_same_object(http: Any) -> None:
    await establish(http, crd(versions=[version("v1alpha1"), version("v1alpha2", storage=True)]))
    groups = (await http("GET", "/apis/t.example.com")).body
    assert groups["preferredVersion"]["version"] == "v1alpha2"
    old = "/apis/t.example.com/v1alpha1/namespaces/default/things"
    new = "/apis/t.example.com/v1alpha2/namespaces/default/things"
    answer = await http("POST", old, {**thing("a", size=1), "apiVersion": "t.example.com/v1alpha1"})
    assert answer.body["apiVersion"] == "t.example.com/v1alpha1"
    assert (await http("GET", f"{new}/a")).body["apiVersion"] == "t.example.com/v1alpha2"
    listed = (await http("GET", old)).body
    assert (listed["apiVersion"], listed["items"][0]["apiVersion"]) == ("t.example.com/v1alpha1",) * 2
    event = await anext(http.watch(f"{old}?watch=1"))
    assert event["object"]["apiVersion"] == "t.example.com/v1alpha1"


async def test_printer_columns(http: Any) -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Phase", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status', "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    await establish(http, crd(versions=[version("v1", storage=True, additionalPrinterColumns=columns)]))
    created = (await http("POST", THINGS, thing("a", size=3))).body
    created["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    await http("PUT", f"{THINGS}/a/status", created)
    table = (await http("GET", THINGS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})).body
    assert [(c["name"], c["priority"]) for c in table["columnDefinitions"]] == [
        ("Name", 0), ("Size", 0), ("Phase", 1), ("Age", 0),
    ]  # fmt: skip
    name, size, phase, age = table["rows"][0]["cells"]
    assert (name, size, phase, age.endswith("s")) == ("a", 3, "True", True)


async def test_scale_of_a_custom_kind(http: Any) -> None:
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.sel",
    }
    subresources = {"status": {}, "scale": scale}
    await establish(http, crd(versions=[version("v1", storage=True, subresources=subresources)]))
    await http("POST", THINGS, thing("a", size=1, replicas=2))
    current = (await http("GET", f"{THINGS}/a/scale")).body
    assert (current["spec"], current["status"]) == ({"replicas": 2}, {"replicas": 0})
    await http("PATCH", f"{THINGS}/a/scale", {"spec": {"replicas": 5}}, content_type="application/merge-patch+json")
    assert (await http("GET", f"{THINGS}/a")).body["spec"]["replicas"] == 5


async def test_names_in_use_are_not_accepted(http: Any) -> None:
    await establish(http, crd(shortNames=["th"]))
    other = crd(plural="others", kind="Other", shortNames=["th"])
    assert (await http("POST", CRDS, other)).status == 201
    await soon(lambda: conditions(http, "others.t.example.com"))
    assert await conditions(http, "others.t.example.com") == {"NamesAccepted": "False", "Established": "False"}
    assert (await http("GET", "/apis/t.example.com/v1/others")).status == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "wrong.t.example.com"}}, "metadata.name"),
        ({"spec": {"group": "t.example.com", "names": {"plural": "things"}}}, "spec.names.kind"),
    ],
)
async def test_invalid_crds_are_rejected(http: Any, change: dict[str, Any], field: str) -> None:
    refused = await http("POST", CRDS, {**crd(), **change})
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")
    assert field in {c["field"] for c in refused.body["details"]["causes"]}


async def test_custom_kinds_survive_a_restart(tmp_path: Any, connect: Any) -> None:
    from control.standalone.apiserver import ApiServer

    async with ApiServer(tmp_path / "d") as server:
        client = connect(server)
        await establish(client, crd())
        await client("POST", THINGS, thing("a", size=1))
        await client.session.close()
    async with ApiServer(tmp_path / "d") as server:
        client = connect(server)
        assert (await client("GET", f"{THINGS}/a")).body["spec"]["size"] == 1
        assert (await client("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.t.example.com")).status == 200
        await client.session.close()
