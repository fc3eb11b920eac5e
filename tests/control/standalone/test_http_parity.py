"""Answers that clients compare with kube-apiserver's; tests/kubernetes/apidiff compares them with the real one."""

from __future__ import annotations

from typing import Any

import pytest

from control.standalone.apiserver import ApiServer
from control.standalone.apiserver.bootstrap import sync_api_services
from tests.waiting import until

BASE = "/api/v1/namespaces/default"
CMS, PODS = f"{BASE}/configmaps", f"{BASE}/pods"
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


def config_map(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **fields}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


async def test_json_ends_with_a_newline(http: Any) -> None:
    for path in (CMS, f"{CMS}/missing", "/version", "/api"):
        assert (await http("GET", path)).text.endswith("}\n"), path


async def test_items_of_built_in_lists_have_no_kind(http: Any) -> None:
    await http("POST", CMS, config_map(data={"k": "v"}))
    listed = (await http("GET", CMS)).body["items"]
    item = next(each for each in listed if each["metadata"]["name"] == "a")
    assert list(item) == ["metadata", "data"]
    deleted = (await http("DELETE", CMS)).body["items"]
    assert not any({"kind", "apiVersion"} & each.keys() for each in deleted)


async def test_empty_collections_and_nulls_are_not_stored(http: Any) -> None:
    answer = await http("POST", CMS, config_map(data={}, binaryData=None))
    assert answer.body.keys() == {"apiVersion", "kind", "metadata"}
    answer = await http("POST", PODS, pod(nodeSelector={}, tolerations=[], affinity=None))
    assert not {"nodeSelector", "affinity"} & answer.body["spec"].keys()


async def test_structs_are_always_there(http: Any) -> None:
    meta = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    service = await http("POST", f"{BASE}/services", {**meta, "spec": {"ports": [{"port": 80}]}})
    assert service.body["status"] == {"loadBalancer": {}}
    node = await http("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}})
    assert node.body["status"]["allocatable"] == {"cpu": "4"}
    assert node.body["status"]["nodeInfo"]["kubeletVersion"] == ""
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1}}
    answer = await http("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    assert answer.body["status"] == {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    }


async def test_managed_fields_are_those_of_the_request(http: Any) -> None:
    """Neither what admission adds, nor the status, nor structs that exist in every object have a manager."""
    created = (await http("POST", PODS, pod())).body
    (entry,) = created["metadata"]["managedFields"]
    fields = entry["fieldsV1"]
    assert fields.keys() == {"f:spec"}
    assert not {"f:tolerations", "f:priority", "f:serviceAccountName", "f:volumes"} & fields["f:spec"].keys()
    assert "." not in fields["f:spec"]["f:containers"]
    assert created["status"]["phase"] == "Pending"
    changed = await http("PATCH", f"{CMS}/kube-root-ca.crt", {"metadata": {"managedFields": [{}]}}, content_type=MERGE)
    assert "managedFields" not in changed.body["metadata"]


async def test_pods_mount_the_token_of_their_account(http: Any) -> None:
    spec = (await http("POST", PODS, pod())).body["spec"]
    (volume,) = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    mount = {"name": volume["name"], "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    assert spec["containers"][0]["volumeMounts"] == [mount]
    without = (await http("POST", PODS, pod("q", automountServiceAccountToken=False))).body["spec"]
    assert "volumes" not in without


async def test_gated_pods_say_why_they_wait(http: Any) -> None:
    answer = await http("POST", PODS, pod(schedulingGates=[{"name": "a.io/a"}]))
    (condition,) = answer.body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


async def test_binding_of_the_collection_and_its_checks(http: Any) -> None:
    await http("POST", PODS, pod())
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    other = await http("POST", f"{PODS}/p/binding", {**binding, "metadata": {"name": "q"}})
    assert (other.status, other.body["message"]) == (400, "name in URL does not match name in Binding object")
    bound = await http("POST", f"{BASE}/bindings", binding)
    assert (bound.status, bound.body["code"]) == (201, 201)
    stored = (await http("GET", f"{PODS}/p")).body
    assert (stored["spec"]["nodeName"], stored["metadata"]["generation"]) == ("n", 1)
    eviction = await http("POST", f"{PODS}/p/eviction", {"metadata": {"name": "q"}})
    assert (eviction.status, eviction.body["message"]) == (400, "name in URL does not match name in Eviction object")


APPLIED = {
    "another name": ({**config_map("b")}, 400, "does not match the name on the URL"),
    "another kind": ({**config_map(), "kind": "Secret"}, 400, "invalid object type: /v1, Kind=Secret"),
    "no kind": ({"metadata": {"name": "a"}}, 400, "invalid object type: /, Kind="),
    "unknown field": (config_map(x=1), 500, ".x: field not declared in schema"),
}


@pytest.mark.parametrize(("body", "status", "message"), APPLIED.values(), ids=APPLIED)
async def test_apply_checks_what_is_applied(http: Any, body: dict[str, Any], status: int, message: str) -> None:
    answer = await http("PATCH", f"{CMS}/a?fieldManager=m", body, content_type=APPLY)
    assert answer.status == status
    assert message in answer.body["message"]
    assert (await http("GET", f"{CMS}/a")).status == 404


REFUSED: dict[str, tuple[str, str, Any, int, str]] = {
    "owner": ("POST", CMS, config_map("b") | {"metadata": {"name": "b", "ownerReferences": [{"kind": "Pod"}]}},
              422, "metadata.ownerReferences.uid"),
    "finalizer": ("POST", CMS, config_map("b") | {"metadata": {"name": "b", "finalizers": ["unqualified"]}},
                  422, "name is neither a standard finalizer name nor is it fully qualified"),
    "long field manager": ("POST", f"{CMS}?fieldManager={'m' * 129}", config_map("b"),
                           422, "CreateOptions.meta.k8s.io"),
    "update without a name": ("PUT", f"{CMS}/a", {"kind": "ConfigMap"}, 400, "name must be provided"),
    "both policies": ("DELETE", f"{CMS}/a", {"propagationPolicy": "Orphan", "orphanDependents": True},
                      422, "cannot be both set"),
    "options of another kind": ("DELETE", f"{CMS}/a", {"kind": "Pod", "apiVersion": "v1"}, 400, "options of a delete"),
    "label selector value": ("GET", f"{CMS}?labelSelector=a%3D-b-", None, 400, "a valid label must be"),
    "label selector key": ("GET", f"{CMS}?labelSelector=-a%3Db", None, 400, "name part must consist of"),
    "label selector number": ("GET", f"{CMS}?labelSelector=a%3Ex", None, 400, "the value must be an integer"),
    "table of nothing": ("GET", f"{CMS}/kube-root-ca.crt?includeObject=X", None, 400, "must be 'Metadata', 'Object'"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "message"), REFUSED.values(), ids=REFUSED)
async def test_refused_requests(http: Any, method: str, path: str, body: Any, status: int, message: str) -> None:
    async def published() -> bool:
        result: bool = (await http("GET", f"{CMS}/kube-root-ca.crt")).status == 200
        return result

    await until(published)
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"} if "includeObject" in path else {}
    answer = await http(method, path, body, headers=headers)
    assert (answer.status, message in answer.text) == (status, True), answer.text


async def test_methods_that_resources_do_not_have(http: Any) -> None:
    assert (await http("OPTIONS", f"{CMS}/kube-root-ca.crt")).status == 405
    headers = {"Authorization": f"Bearer {http.server.admin_token}"}
    async with http.session.head(f"{http.server.url}{CMS}/kube-root-ca.crt", headers=headers) as head:
        assert head.status == 405
    answer = await http("POST", f"{CMS}/a", config_map())
    assert (answer.status, answer.body["details"]) == (405, {})


async def test_deprecated_kinds_warn(http: Any) -> None:
    answer = await http("GET", f"{BASE}/endpoints")
    assert answer.headers["Warning"].startswith('299 - "v1 Endpoints is deprecated in v1.33+')


async def test_jobs_keep_their_pods_unless_asked(http: Any) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    answer = await http("POST", jobs, {"metadata": {"name": "j"}, "spec": {"template": template, "suspend": True}})
    assert answer.body["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    deleted = await http("DELETE", f"{jobs}/j")
    assert deleted.body["metadata"]["finalizers"] == ["orphan"]


async def test_json_patch_replace_adds_an_absent_key(http: Any) -> None:
    await http("POST", CMS, config_map(data={"a": "b"}))
    operations = [{"op": "replace", "path": "/data/new", "value": "1"}]
    answer = await http("PATCH", f"{CMS}/a", operations, content_type="application/json-patch+json")
    assert answer.body["data"] == {"a": "b", "new": "1"}


async def test_a_deleted_event_shows_the_object_as_it_was(http: Any) -> None:
    created = (await http("POST", CMS, config_map())).body
    await http("DELETE", f"{CMS}/a")
    query = f"watch=1&timeoutSeconds=1&resourceVersion={created['metadata']['resourceVersion']}"
    events = [event async for event in http.watch(f"{CMS}?{query}") if event["object"]["metadata"]["name"] == "a"]
    assert [event["type"] for event in events] == ["DELETED"]
    assert "deletionTimestamp" not in events[0]["object"]["metadata"]


async def test_api_services_can_be_created_and_survive_the_servers_own(http: Any, server: ApiServer) -> None:
    """The server deletes those that it made itself for groups that are gone, and no other."""
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    spec = {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100}
    remote = {**spec, "service": {"namespace": "kube-system", "name": "metrics-server"}, "insecureSkipTLSVerify": True}
    name = "v1beta1.metrics.k8s.io"
    created = await http("POST", path, {"metadata": {"name": name}, "spec": remote})
    assert (created.status, created.body["spec"]["service"]["port"], created.body["status"]) == (201, 443, {})
    await sync_api_services(server.registry)
    assert (await http("GET", f"{path}/{name}")).status == 200
    assert (await http("DELETE", f"{path}/{name}")).status == 200
    local = (await http("GET", f"{path}/v1.apps")).body
    assert local["status"]["conditions"][0]["reason"] == "Local"
    bad = await http("POST", path, {"metadata": {"name": "x"}, "spec": {**spec, "caBundle": "YWJj"}})
    assert (bad.status, [cause["field"] for cause in bad.body["details"]["causes"]]) == (
        422,
        ["metadata.name", "spec.caBundle"],
    )


async def test_a_new_service_has_a_load_balancer(http: Any) -> None:
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    created = await http("POST", "/api/v1/namespaces/default/services", body)
    assert created.body["status"] == {"loadBalancer": {}}


async def test_a_client_may_rewrite_the_managers_and_nothing_else(http: Any) -> None:
    """kubectl moves the fields of client-side apply to server-side apply by a patch of managedFields alone."""
    created = (await http("POST", f"{CMS}?fieldManager=before", config_map("m", data={"k": "v"}))).body
    entries = [{**entry, "manager": "after"} for entry in created["metadata"]["managedFields"]]
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    written = (await http("PATCH", f"{CMS}/m", patch, content_type="application/json-patch+json")).body
    assert [entry["manager"] for entry in written["metadata"]["managedFields"]] == ["after"]
    assert written["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    again = (await http("PUT", f"{CMS}/m", written)).body
    assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
