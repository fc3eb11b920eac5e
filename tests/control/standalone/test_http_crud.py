"""Verbs over HTTPS: status codes, bodies, negotiation, subresources, errors as Status objects."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.standalone.apiserver import ApiServer
from control.standalone.store import StoreError
from tests.waiting import until

CMS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYS = "/apis/apps/v1/namespaces/default/deployments"


def cm(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def deployment(name: str = "d", replicas: int = 1) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def test_create_get_update_delete(http: Any) -> None:
    answer = await http("POST", CMS, cm("a", k="v"))
    assert answer.status == 201
    assert answer.body["data"] == {"k": "v"}
    response = await http("GET", f"{CMS}/a")
    assert (response.status, response.body) == (200, answer.body)
    changed = await http("PUT", f"{CMS}/a", {**response.body, "data": {"k": "w"}})
    assert (changed.status, changed.body["data"]) == (200, {"k": "w"})
    stale = await http("PUT", f"{CMS}/a", {**response.body, "data": {"k": "x"}})
    assert (stale.status, stale.body["kind"], stale.body["reason"]) == (409, "Status", "Conflict")
    gone = await http("DELETE", f"{CMS}/a")
    assert gone.body["status"] == "Success"
    assert gone.body["details"] == {"name": "a", "kind": "configmaps", "uid": answer.body["metadata"]["uid"]}
    missing = await http("GET", f"{CMS}/a")
    assert (missing.status, missing.body["message"]) == (404, 'configmaps "a" not found')


async def test_yaml_aliases_are_rejected(http: Any) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    response = await http("POST", path, bomb.encode(), content_type="application/yaml")
    assert (response.status, "aliases" in response.body["message"]) == (400, True)


async def test_requests_are_served_while_a_large_yaml_body_is_decoded(http: Any) -> None:
    items = "".join(f"  k{i}: v{i}\n" for i in range(20_000))
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{items}".encode()
    create = asyncio.create_task(http("POST", CMS, body, content_type="application/yaml"))
    served = 0
    while not create.done():
        assert (await http("GET", "/healthz")).status == 200
        served += 1
    assert (await create).status == 201
    assert served > 2


async def test_deep_nesting_is_rejected(http: Any) -> None:
    for depth in (300, 900, 5000, 100_000):
        body = (
            b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"x":' + b"[" * depth + b"]" * depth + b"}"
        )
        response = await http("POST", CMS, body)
        assert response.status in (201, 400), response.text
        await http("DELETE", f"{CMS}/a")


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/api/v1/nothings", 404, "NotFound"),
        ("GET", "/apis/none.io/v1/things", 404, "NotFound"),
        ("GET", "/nowhere", 404, "NotFound"),
        ("POST", "/api/v1/configmaps", 405, "MethodNotAllowed"),
        ("PUT", "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces", 405, "MethodNotAllowed"),
        ("GET", "/api/v1/configmaps?labelSelector=a+b", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?fieldSelector=data.x=1", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?limit=x", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?resourceVersion=x", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?resourceVersionMatch=Exact", 422, "Invalid"),
        ("GET", "/api/v1/configmaps?resourceVersionMatch=Bad&resourceVersion=1", 422, "Invalid"),
        ("GET", "/api/v1/configmaps?resourceVersion=999999", 504, "Timeout"),
        ("GET", "/api/v1/configmaps?continue=%25", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/default/configmaps/x/status", 404, "NotFound"),
        ("GET", "/api/v1/nodes/x/proxy/healthz", 404, "NotFound"),
    ],
)
async def test_invalid_requests_are_rejected(http: Any, method: str, path: str, status: int, reason: str) -> None:
    answer = await http(method, path, {} if method in ("POST", "PUT") else None)
    assert (answer.status, answer.body["reason"], answer.body["status"]) == (status, reason, "Failure")
    assert answer.body["code"] == status


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"a: [", "application/yaml", 400),
        (b"<x/>", "text/xml", 415),
        (b"k8s\x00\x0a", "application/vnd.kubernetes.protobuf", 400),
        (b"nope", "application/vnd.kubernetes.protobuf", 400),
        (b"k8s\x00\x0a\x06\x12\x04Nope", "application/vnd.kubernetes.protobuf", 415),
    ],
)
async def test_malformed_bodies(http: Any, body: bytes, content_type: str, status: int) -> None:
    answer = await http("POST", CMS, body, content_type=content_type)
    assert answer.status == status
    assert answer.body["kind"] == "Status"


async def test_bodies_may_be_yaml_and_have_a_size_limit(http: Any) -> None:
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: b}\n"
    assert (await http("POST", CMS, yaml, content_type="application/yaml")).status == 201
    big = await http("POST", CMS, cm("big", x="x" * (4 << 20)))
    assert (big.status, big.body["reason"]) == (413, "RequestEntityTooLarge")
    containers = [{"name": "c", "image": "i", "env": [{"name": "BIG", "value": "x" * (2 << 20)}]}]
    stored = await http("POST", PODS, pod("big", containers=containers))
    assert (stored.status, stored.body["reason"]) == (413, "RequestEntityTooLarge")
    assert 'pods "big": request is too large' in stored.body["message"]


@pytest.mark.parametrize(
    ("content_type", "body", "replicas"),
    [
        ("application/merge-patch+json", {"spec": {"replicas": 4}}, 4),
        ("application/strategic-merge-patch+json", {"spec": {"replicas": 5}}, 5),
        ("application/json-patch+json", [{"op": "replace", "path": "/spec/replicas", "value": 6}], 6),
    ],
)
async def test_patch_types(http: Any, content_type: str, body: Any, replicas: int) -> None:
    await http("POST", DEPLOYS, deployment())
    answer = await http("PATCH", f"{DEPLOYS}/d", body, content_type=content_type)
    assert (answer.status, answer.body["spec"]["replicas"]) == (200, replicas)
    assert answer.body["metadata"]["generation"] == 2


async def test_strategic_patch_merges_containers_by_name(http: Any) -> None:
    await http("POST", DEPLOYS, deployment())
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}}
    answer = await http("PATCH", f"{DEPLOYS}/d", patch, content_type="application/strategic-merge-patch+json")
    names = sorted(c["name"] for c in answer.body["spec"]["template"]["spec"]["containers"])
    assert names == ["c", "side"]


@pytest.mark.parametrize("value", [True, "1", 1.5])
async def test_a_value_of_another_type_is_rejected_even_if_python_calls_it_equal(http: Any, value: Any) -> None:
    """Unchanged fields of a patch aren't validated again; 1 and True are equal in Python, but not in JSON."""
    await http("POST", DEPLOYS, deployment("d", 1))
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": value}}
    answer = await http("PATCH", f"{DEPLOYS}/d", patch, content_type="application/merge-patch+json")
    assert (answer.status, "Deployment.spec.replicas" in answer.body["message"]) == (400, True), answer.text


async def test_changed_fields_of_a_patch_are_validated(http: Any) -> None:
    """Unknown fields, nulls and quantities, at the top level, in metadata and below."""
    await http("POST", PODS, pod("p"))
    patch = [
        {"op": "add", "path": "/junk", "value": 1},
        {"op": "add", "path": "/metadata/junk", "value": 1},
        {"op": "add", "path": "/metadata/annotations", "value": None},
        {"op": "add", "path": "/spec/junk", "value": 1},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    ]
    kind = "application/json-patch+json"
    answer = await http("PATCH", f"{PODS}/p", patch, content_type=kind)
    assert answer.status == 200, answer.text
    assert sorted(answer.headers.getall("Warning")) == [
        f'299 - "unknown field \\"{path}\\""' for path in ("junk", "metadata.junk", "spec.junk")
    ]
    assert answer.body.keys() == {"apiVersion", "kind", "metadata", "spec", "status"}
    assert answer.body["metadata"].keys().isdisjoint({"junk", "annotations"})
    assert answer.body["metadata"]["labels"] == {"a": "b"}
    assert "junk" not in answer.body["spec"]
    strict = await http("PATCH", f"{PODS}/p?fieldValidation=Strict", patch, content_type=kind)
    assert (strict.status, 'unknown field "metadata.junk"' in strict.body["message"]) == (400, True)


async def test_invalid_patches_are_rejected(http: Any) -> None:
    await http("POST", CMS, cm("a"))
    assert (await http("PATCH", f"{CMS}/a", {}, content_type="application/json")).status == 415
    assert (await http("PATCH", f"{CMS}/a", {}, content_type="application/json-patch+json")).status == 400
    nothing = await http("PATCH", f"{CMS}/none", {}, content_type="application/merge-patch+json")
    assert nothing.status == 404
    unnamed = await http("PATCH", f"{CMS}/a", cm("a"), content_type="application/apply-patch+yaml")
    assert (unnamed.status, unnamed.body["reason"]) == (422, "Invalid")


async def test_server_side_apply_creates_conflicts_and_forces(http: Any) -> None:
    apply = {"content_type": "application/apply-patch+yaml"}
    answer = await http("PATCH", f"{CMS}/a?fieldManager=one", cm("a", k="1"), **apply)
    assert answer.status == 201
    assert answer.body["metadata"]["managedFields"][0]["manager"] == "one"
    again = await http("PATCH", f"{CMS}/a?fieldManager=one", cm("a", k="1"), **apply)
    assert again.status == 200
    assert again.body["metadata"]["resourceVersion"] == answer.body["metadata"]["resourceVersion"]
    conflict = await http("PATCH", f"{CMS}/a?fieldManager=two", cm("a", k="2"), **apply)
    assert (conflict.status, conflict.body["reason"]) == (409, "Conflict")
    assert conflict.body["details"]["causes"][0]["field"] == ".data.k"
    forced = await http("PATCH", f"{CMS}/a?fieldManager=two&force=true", cm("a", k="2"), **apply)
    assert (forced.status, forced.body["data"]) == (200, {"k": "2"})


async def test_scale(http: Any) -> None:
    await http("POST", DEPLOYS, deployment(replicas=2))
    scale = await http("GET", f"{DEPLOYS}/d/scale")
    assert (scale.body["kind"], scale.body["spec"], scale.body["status"]) == (
        "Scale", {"replicas": 2}, {"replicas": 0, "selector": "app=d"},
    )  # fmt: skip
    body = {"metadata": {"name": "d"}, "spec": {"replicas": 7}}
    put = await http("PUT", f"{DEPLOYS}/d/scale", body)
    assert put.body["spec"] == {"replicas": 7}
    stale = {**body, "metadata": {"name": "d", "resourceVersion": "1"}}
    assert (await http("PUT", f"{DEPLOYS}/d/scale", stale)).status == 409
    patch = {"spec": {"replicas": 3}}
    await http("PATCH", f"{DEPLOYS}/d/scale", patch, content_type="application/merge-patch+json")
    assert (await http("GET", f"{DEPLOYS}/d")).body["spec"]["replicas"] == 3
    bad = await http("PUT", f"{DEPLOYS}/d/scale", {"spec": {"replicas": -1}})
    assert (bad.status, bad.body["details"]["causes"][0]["field"]) == (422, "spec.replicas")


async def test_binding_assigns_a_pod_once(http: Any) -> None:
    await http("POST", PODS, pod("p"))
    binding = {"metadata": {"name": "p", "annotations": {"k": "v"}}, "target": {"kind": "Node", "name": "n1"}}
    bound = await http("POST", f"{PODS}/p/binding", binding)
    assert (bound.status, bound.body["status"]) == (201, "Success")
    stored = (await http("GET", f"{PODS}/p")).body
    assert stored["spec"]["nodeName"] == "n1"
    assert stored["metadata"]["annotations"]["k"] == "v"
    assert [(c["type"], c["status"]) for c in stored["status"]["conditions"]] == [("PodScheduled", "True")]
    twice = await http("POST", f"{PODS}/p/binding", binding)
    assert (twice.status, twice.body["reason"]) == (409, "Conflict")
    assert 'is already assigned to node "n1"' in twice.body["message"]
    assert (await http("POST", f"{PODS}/p/binding", {"target": {}})).status == 422


async def test_eviction_deletes(http: Any) -> None:
    await http("POST", PODS, pod("p"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}}
    dry = await http("POST", f"{PODS}/p/eviction?dryRun=All", body)
    assert dry.status == 201
    assert (await http("GET", f"{PODS}/p")).status == 200
    assert (await http("POST", f"{PODS}/p/eviction", body)).status == 201
    assert (await http("GET", f"{PODS}/p")).status == 404
    assert (await http("POST", f"{PODS}/p/eviction", body)).status == 404


async def test_delete_collection_by_selector(http: Any) -> None:
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        await http("POST", CMS, {**cm(name), "metadata": {"name": name, "labels": {"app": app}}})
    gone = await http("DELETE", f"{CMS}?labelSelector=app%3Dx")
    assert [o["metadata"]["name"] for o in gone.body["items"]] == ["a", "b"]
    left = {o["metadata"]["name"] for o in (await http("GET", CMS)).body["items"]}
    assert "c" in left
    assert not {"a", "b"} & left


async def test_tables_and_metadata_views(http: Any) -> None:
    await http("POST", PODS, pod("p"))
    table = (await http("GET", PODS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})).body
    assert table["kind"] == "Table"
    assert [c["name"] for c in table["columnDefinitions"]][:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert table["rows"][0]["cells"][:4] == ["p", "0/1", "Pending", "0"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    meta = (await http("GET", PODS, headers={"Accept": partial})).body
    assert (meta["kind"], set(meta["items"][0])) == ("PartialObjectMetadataList", {"kind", "apiVersion", "metadata"})
    response = await http(
        "GET", f"{PODS}/p", headers={"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    )
    assert response.body["kind"] == "PartialObjectMetadata"
    proto = await http("GET", PODS, headers={"Accept": "application/vnd.kubernetes.protobuf"})
    assert (proto.status, proto.body["reason"]) == (406, "NotAcceptable")


async def test_large_responses_are_compressed(http: Any, server: ApiServer) -> None:
    for i in range(3):
        await http("POST", CMS, cm(f"big{i}", x="x" * 100_000))
    headers = {"Authorization": f"Bearer {server.admin_token}", "Accept-Encoding": "gzip"}
    connector = aiohttp.TCPConnector(ssl=http.context)
    async with (
        aiohttp.ClientSession(auto_decompress=False, connector=connector) as session,
        session.get(server.url + CMS, headers=headers) as response,
    ):
        raw = await response.read()
        assert response.headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(raw))["items"]) >= 3
    assert len(raw) < 10_000


async def test_credentials(http: Any) -> None:
    assert (await http("GET", CMS, token="wrong")).status == 401
    anonymous = await http("GET", CMS, token=None)
    assert (anonymous.status, anonymous.body["reason"]) == (403, "Forbidden")
    assert anonymous.body["message"] == (
        'configmaps is forbidden: User "system:anonymous" cannot list resource "configmaps" in API group "" in the '
        'namespace "default"'
    )
    assert (await http("GET", "/readyz", token=None)).status == 200
    assert (await http("GET", "/metrics", token=None)).status == 403


async def test_health_version_and_metrics(http: Any) -> None:
    assert (await http("GET", "/healthz")).text == "ok"
    verbose = (await http("GET", "/readyz?verbose")).text
    assert "[+]store ok" in verbose
    assert verbose.endswith("readyz check passed\n")
    assert (await http("GET", "/livez/ping")).text == "ok"
    assert (await http("GET", "/livez/nothing")).status == 404
    assert (await http("GET", "/version")).body["gitVersion"].startswith("v1.")
    await http("GET", CMS)
    metrics = (await http("GET", "/metrics")).text
    assert 'apiserver_request_total{code="200",group="",resource="configmaps",subresource="",verb="list"' in metrics
    assert 'apiserver_storage_objects{resource="namespaces"} 4.0' in metrics


async def test_discovery_unaggregated_and_aggregated(http: Any) -> None:
    core = (await http("GET", "/api/v1")).body
    pods = next(r for r in core["resources"] if r["name"] == "pods")
    assert (pods["shortNames"], pods["categories"], pods["namespaced"]) == (["po"], ["all"], True)
    assert next(r for r in core["resources"] if r["name"] == "pods/eviction")["kind"] == "Eviction"
    groups = (await http("GET", "/apis")).body["groups"]
    assert "apps" in {g["name"] for g in groups}
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    all_groups = await http("GET", "/apis", headers={"Accept": accept})
    assert all_groups.body["kind"] == "APIGroupDiscoveryList"
    apps = next(i for i in all_groups.body["items"] if i["metadata"]["name"] == "apps")
    deployments = next(r for r in apps["versions"][0]["resources"] if r["resource"] == "deployments")
    assert {s["subresource"] for s in deployments["subresources"]} == {"status", "scale"}
    again = await http("GET", "/apis", headers={"Accept": accept, "If-None-Match": all_groups.headers["ETag"]})
    assert again.status == 304


async def test_openapi(http: Any) -> None:
    index = (await http("GET", "/openapi/v3")).body["paths"]
    document = await http("GET", index["apis/apps/v1"]["serverRelativeURL"])
    schemas = document.body["components"]["schemas"]
    assert "io.k8s.api.apps.v1.Deployment" in schemas
    assert "io.k8s.api.core.v1.Pod" in (await http("GET", "/openapi/v2")).body["definitions"]
    assert (await http("GET", "/openapi/v3/apis/none/v1")).status == 404


async def test_impersonation_needs_the_right(http: Any) -> None:
    as_user = {"Impersonate-User": "jane", "Impersonate-Group": "devs"}
    refused = await http("GET", CMS, headers=as_user)
    assert (refused.status, 'User "jane" cannot list' in refused.body["message"]) == (403, True)
    review = await http(
        "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {"kind": "SelfSubjectReview"}, headers=as_user
    )
    assert review.body["status"]["userInfo"]["username"] == "jane"


async def test_audit_log(tmp_path: Any, connect: Any) -> None:
    log = tmp_path / "audit.log"
    async with ApiServer(tmp_path / "data", audit_log=log) as server:
        client = connect(server)
        await client("POST", CMS, cm("a"))
        await client("GET", CMS, token="wrong")
        await client.session.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    created = next(e for e in lines if e["verb"] == "create")
    assert (created["user"]["username"], created["objectRef"]["resource"]) == ("admin", "configmaps")
    assert lines[-1]["responseStatus"] == {"code": 401}
    assert server.admin_token not in log.read_text()


async def test_requests_succeed_when_the_audit_log_is_full(tmp_path: Any, connect: Any) -> None:
    async with ApiServer(tmp_path / "data", audit_log=Path("/dev/full")) as server:
        client = connect(server)
        assert (await client("POST", CMS, cm("a"))).status == 201
        assert (await client("GET", f"{CMS}/a")).status == 200
        await client.session.close()


async def test_maintenance_continues_after_a_failure(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("control.standalone.apiserver.server.MAINTAIN_SECONDS", 0.01)
    async with ApiServer(tmp_path / "data", history_events=10) as server:
        working = server.store.maintain
        failed = []

        async def refusing() -> int:
            failed.append(1)
            server.store.maintain = working  # type: ignore[method-assign]
            raise StoreError("disk full")

        server.store.maintain = refusing  # type: ignore[method-assign]
        compacted = server.store.compacted
        for i in range(30):
            await server.registry.create("/configmaps", "default", cm(f"c{i}"))

        async def compacting() -> bool:
            return bool(failed) and server.store.compacted > compacted

        await until(compacting)
    assert "disk full" in caplog.text


async def test_state_survives_a_restart(tmp_path: Any, connect: Any) -> None:
    async with ApiServer(tmp_path / "data") as first:
        client = connect(first)
        created = (await client("POST", CMS, cm("a", k="v"))).body
        await client.session.close()
    async with ApiServer(tmp_path / "data") as second:
        client = connect(second)
        assert (await client("GET", f"{CMS}/a")).body == created
        assert second.admin_token == first.admin_token
        assert second.pki.ca_file.read_text() == first.pki.ca_pem
        await client.session.close()
    assert oct(second.kubeconfig_path.stat().st_mode & 0o777) == "0o600"


async def test_two_servers_cannot_share_a_directory(server: ApiServer) -> None:
    from control.standalone.apiserver import AlreadyRunning

    with pytest.raises(AlreadyRunning, match="another API server"):
        async with ApiServer(server.config.data_dir):
            pass


async def test_stopping_ends_watches(http: Any, server: ApiServer) -> None:
    events = []

    async def follow() -> None:
        async for event in http.watch(f"{CMS}?watch=1"):
            events.append(event)

    task = asyncio.create_task(follow())
    while not events:
        await http("POST", CMS, {"metadata": {"generateName": "x-"}})
    await server.stop()
    await asyncio.wait_for(task, 60)


async def test_ephemeral_containers_are_validated_and_only_added(http: Any) -> None:
    await http("POST", PODS, pod("debugged"))
    url = f"{PODS}/debugged/ephemeralcontainers"
    strategic = "application/strategic-merge-patch+json"

    async def added(**container: Any) -> Any:
        return await http("PATCH", url, {"spec": {"ephemeralContainers": [container]}}, content_type=strategic)

    for container, reason in (
        ({"name": "../../../../etc/x", "image": "i"}, "spec.ephemeralContainers[0].name: Invalid value"),
        ({"name": "c", "image": "i"}, "spec.ephemeralContainers[0].name: Duplicate value"),
        ({"name": "e", "image": ""}, "spec.ephemeralContainers[0].image: Required value"),
        ({"name": "e", "image": "i", "targetContainerName": "no"}, "targetContainerName: Not found"),
        ({"name": "e", "image": "i", "ports": [{"containerPort": 1}]}, "ports: Forbidden"),
        ({"name": "e", "image": "i", "resources": {"limits": {"cpu": "1"}}}, "resources: Forbidden"),
    ):
        refused = await added(**container)
        assert refused.status == 422 and reason in refused.body["message"], container
    assert (await added(name="e", image="i", targetContainerName="c")).status == 200
    changed = await added(name="e", image="j")
    assert (changed.status, "may not be changed" in changed.body["message"]) == (422, True)
    operation = {"op": "remove", "path": "/spec/ephemeralContainers/0"}
    removed = await http("PATCH", url, [operation], content_type="application/json-patch+json")
    assert (removed.status, "may not be removed" in removed.body["message"]) == (422, True)
    assert (await added(name="f", image="i")).status == 200


async def test_a_resize_changes_only_resources(http: Any) -> None:
    await http("POST", PODS, pod("resized"))
    strategic = "application/strategic-merge-patch+json"

    async def resized(**container: Any) -> Any:
        body = {"spec": {"containers": [{"name": "c", **container}]}}
        return await http("PATCH", f"{PODS}/resized/resize", body, content_type=strategic)

    assert (await resized(resources={"requests": {"cpu": "1"}})).status == 200
    for change in ({"image": "j"}, {"command": ["sh"]}, {"securityContext": {"privileged": True}}):
        refused = await resized(**change)
        assert (refused.status, "only cpu and memory" in refused.body["message"]) == (422, True), change
    assert (await resized(resources={"requests": {"cpu": "-1"}})).status == 422
