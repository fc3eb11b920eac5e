# ruff: noqa: E501
"""JSON, merge, strategic and apply patches of built-in kinds."""

from __future__ import annotations

from tests.kubernetes.apidiff.cases.objects import config_map, core, group, namespace, pod, workload
from tests.kubernetes.apidiff.exchange import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    TABLE,
    Call,
)

NS = namespace("patches")
CMS, PODS = core(NS, "configmaps"), core(NS, "pods")
DEPLOYMENTS = group("apps/v1", NS, "deployments")
APPLIED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"k": "v"}}


CALLS = [
    Call("create", "POST", CMS, config_map("a", k="v")),
    Call("merge", "PATCH", CMS + "/a", {"data": {"k": None, "n": "1"}}, MERGE_PATCH),
    Call("merge nothing", "PATCH", CMS + "/a", {}, MERGE_PATCH),
    Call("merge a wrong type", "PATCH", CMS + "/a", {"data": {"k": 1}}, MERGE_PATCH),
    Call("merge a wrong shape", "PATCH", CMS + "/a", {"data": "x"}, MERGE_PATCH),
    Call("merge a list", "PATCH", CMS + "/a", [], MERGE_PATCH),
    Call("merge broken", "PATCH", CMS + "/a", b"{", MERGE_PATCH),
    Call("merge a name", "PATCH", CMS + "/a", {"metadata": {"name": "b"}}, MERGE_PATCH),
    Call("merge a namespace", "PATCH", CMS + "/a", {"metadata": {"namespace": "b"}}, MERGE_PATCH),
    Call("merge a kind", "PATCH", CMS + "/a", {"kind": "Secret"}, MERGE_PATCH),
    Call("merge a version", "PATCH", CMS + "/a", {"metadata": {"resourceVersion": "1"}}, MERGE_PATCH),
    Call("merge a uid", "PATCH", CMS + "/a", {"metadata": {"uid": "1"}}, MERGE_PATCH),
    Call("merge an unknown field", "PATCH", CMS + "/a", {"x": 1}, MERGE_PATCH),
    Call("merge an unknown field, strict", "PATCH", CMS + "/a?fieldValidation=Strict", {"x": 1}, MERGE_PATCH),
    Call("merge an unknown field, ignore", "PATCH", CMS + "/a?fieldValidation=Ignore", {"x": 1}, MERGE_PATCH),
    Call("merge missing", "PATCH", CMS + "/missing", {"data": {"a": "b"}}, MERGE_PATCH),
    Call("merge dry", "PATCH", CMS + "/a?dryRun=All", {"data": {"dry": "b"}}, MERGE_PATCH),
    Call("merge with force", "PATCH", CMS + "/a?force=true", {"data": {"dry": "b"}}, MERGE_PATCH),
    Call("merge as a table", "PATCH", CMS + "/a", {"data": {"t": "1"}}, MERGE_PATCH, headers={"Accept": TABLE}),
    Call("patch without a type", "PATCH", CMS + "/a", {"data": {}}, "application/json"),
    Call("patch of an unknown type", "PATCH", CMS + "/a", {"data": {}}, "text/plain"),
    Call("json", "PATCH", CMS + "/a", [{"op": "add", "path": "/data/j", "value": "1"},
                                        {"op": "test", "path": "/data/j", "value": "1"}], JSON_PATCH),
    Call("json test fails", "PATCH", CMS + "/a", [{"op": "test", "path": "/data/j", "value": "2"}], JSON_PATCH),
    Call("json removes nothing", "PATCH", CMS + "/a", [{"op": "remove", "path": "/data/nothing"}], JSON_PATCH),
    Call("json replaces nothing", "PATCH", CMS + "/a",
         [{"op": "replace", "path": "/data/nothing", "value": "1"}], JSON_PATCH),
    Call("json adds below nothing", "PATCH", CMS + "/a",
         [{"op": "add", "path": "/x/y", "value": "1"}], JSON_PATCH),
    Call("json unknown operation", "PATCH", CMS + "/a", [{"op": "nothing", "path": "/data/j"}], JSON_PATCH),
    Call("json object", "PATCH", CMS + "/a", {"op": "add"}, JSON_PATCH),
    Call("json copies and moves", "PATCH", CMS + "/a", [{"op": "copy", "from": "/data/j", "path": "/data/c"},
                                                        {"op": "move", "from": "/data/j", "path": "/data/m"}], JSON_PATCH),
    Call("json wrong value", "PATCH", CMS + "/a", [{"op": "add", "path": "/data/j", "value": 1}], JSON_PATCH),
    Call("strategic", "PATCH", CMS + "/a", {"data": {"s": "1"}}, STRATEGIC_PATCH),
    Call("strategic replaces", "PATCH", CMS + "/a", {"data": {"$patch": "replace", "only": "1"}}, STRATEGIC_PATCH),
    Call("create a pod", "POST", PODS, pod("p", containers=[
        {"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
         "ports": [{"containerPort": 80}]}, {"name": "d", "image": "i"}])),
    Call("strategic image", "PATCH", PODS + "/p",
         {"spec": {"containers": [{"name": "d", "image": "j"}]}}, STRATEGIC_PATCH),
    Call("strategic forbidden", "PATCH", PODS + "/p",
         {"spec": {"containers": [{"name": "d", "command": ["x"]}]}}, STRATEGIC_PATCH),
    Call("strategic added container", "PATCH", PODS + "/p",
         {"spec": {"containers": [{"name": "e", "image": "j"}]}}, STRATEGIC_PATCH),
    Call("strategic without merge key", "PATCH", PODS + "/p",
         {"spec": {"containers": [{"image": "j"}]}}, STRATEGIC_PATCH),
    Call("strategic with a bad directive", "PATCH", PODS + "/p", {"spec": {"$patch": "bad"}}, STRATEGIC_PATCH),
    Call("strategic toleration", "PATCH", PODS + "/p",
         {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}, STRATEGIC_PATCH),
    Call("create a deployment", "POST", DEPLOYMENTS, workload("Deployment", "d")),
    Call("strategic env", "PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"containers": [
        {"name": "c", "env": [{"name": "X", "value": "1"}]}]}}}}, STRATEGIC_PATCH),
    Call("strategic order", "PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "n"}, {"name": "c"}],
        "containers": [{"name": "n", "image": "i"}]}}}}, STRATEGIC_PATCH),
    Call("strategic delete", "PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {
        "containers": [{"name": "n", "$patch": "delete"}]}}}}, STRATEGIC_PATCH),
    Call("strategic strategy", "PATCH", DEPLOYMENTS + "/d",
         {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}, STRATEGIC_PATCH),
    Call("apply creates", "PATCH", CMS + "/s?fieldManager=one", APPLIED, APPLY_PATCH),
    Call("apply same", "PATCH", CMS + "/s?fieldManager=one", APPLIED, APPLY_PATCH),
    Call("apply without a manager", "PATCH", CMS + "/s", APPLIED, APPLY_PATCH),
    Call("apply conflict", "PATCH", CMS + "/s?fieldManager=two", {**APPLIED, "data": {"k": "w"}}, APPLY_PATCH),
    Call("apply shared", "PATCH", CMS + "/s?fieldManager=two", {**APPLIED, "data": {"k": "v", "m": "1"}}, APPLY_PATCH),
    Call("apply forced", "PATCH", CMS + "/s?fieldManager=two&force=true",
         {**APPLIED, "data": {"k": "w"}}, APPLY_PATCH),
    Call("apply removes", "PATCH", CMS + "/s?fieldManager=two&force=true", {**APPLIED, "data": {}}, APPLY_PATCH),
    Call("apply another name", "PATCH", CMS + "/t?fieldManager=two", APPLIED, APPLY_PATCH),
    Call("apply another kind", "PATCH", CMS + "/s?fieldManager=two", {**APPLIED, "kind": "Secret"}, APPLY_PATCH),
    Call("apply without kind", "PATCH", CMS + "/s?fieldManager=two", {"metadata": {"name": "s"}}, APPLY_PATCH),
    Call("apply managed fields", "PATCH", CMS + "/s?fieldManager=two",
         {**APPLIED, "metadata": {"name": "s", "managedFields": [{"manager": "x"}]}}, APPLY_PATCH),
    Call("apply unknown field", "PATCH", CMS + "/s?fieldManager=two", {**APPLIED, "x": 1}, APPLY_PATCH),
    Call("apply unknown field, ignore", "PATCH", CMS + "/s?fieldManager=two&fieldValidation=Ignore&force=true",
         {**APPLIED, "x": 1}, APPLY_PATCH),
    Call("apply wrong type", "PATCH", CMS + "/s?fieldManager=two", {**APPLIED, "data": {"k": 1}}, APPLY_PATCH),
    Call("apply yaml", "PATCH", CMS + "/ay?fieldManager=y",
         b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ay}\ndata: {a: b}\n", APPLY_PATCH),
    Call("apply broken yaml", "PATCH", CMS + "/ay?fieldManager=y", b"a: [", APPLY_PATCH),
    Call("apply a pod", "PATCH", PODS + "/ap?fieldManager=y", pod("ap"), APPLY_PATCH),
    Call("apply a deployment", "PATCH", DEPLOYMENTS + "/ad?fieldManager=y", workload("Deployment", "ad"), APPLY_PATCH),
    Call("apply more containers", "PATCH", DEPLOYMENTS + "/ad?fieldManager=z", {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ad"},
        "spec": {"template": {"spec": {"containers": [{"name": "e", "image": "i"}]}}}}, APPLY_PATCH),
    Call("apply conflicting replicas", "PATCH", DEPLOYMENTS + "/ad?fieldManager=z", {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ad"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "j"}]}}}}, APPLY_PATCH),
    Call("update after apply", "PUT", DEPLOYMENTS + "/ad", workload("Deployment", "ad", replicas=3)),
    Call("drop managed fields", "PATCH", CMS + "/s", {"metadata": {"managedFields": [{}]}}, MERGE_PATCH),
]  # fmt: skip
