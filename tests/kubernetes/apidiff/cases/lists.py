# ruff: noqa: E501
"""Lists and watches: selectors, paging, versions, bookmarks."""

from __future__ import annotations

from tests.kubernetes.apidiff.cases.objects import config_map, core, namespace, pod
from tests.kubernetes.apidiff.exchange import MERGE_PATCH, PARTIAL, TABLE, Call

NS = namespace("lists")
CMS, PODS = core(NS, "configmaps"), core(NS, "pods")
NAMED = "fieldSelector=metadata.name%3D"


def listing(name: str, query: str, path: str = CMS, **more: object) -> Call:
    return Call(name, "GET", f"{path}?{query}", **more)  # type: ignore[arg-type]


CALLS = [
    *(Call(f"create {n}", "POST", CMS, config_map(n, {"n": n, "all": "x"}, k="v")) for n in "abcde"),
    Call("create a pod", "POST", PODS, pod("p")),
    Call("create a bound pod", "POST", PODS, pod("q", nodeName="node")),
    listing("all", ""),
    listing("equal", "labelSelector=n%3Da"),
    listing("not equal", "labelSelector=n!%3Da"),
    listing("in", "labelSelector=n%20in%20(a,b)"),
    listing("not in", "labelSelector=n%20notin%20(a,b),all"),
    listing("exists", "labelSelector=n"),
    listing("absent", "labelSelector=!n"),
    listing("greater", "labelSelector=n>5"),
    listing("bad label selector", "labelSelector=a%20b"),
    listing("bad label value", "labelSelector=n%3D-a-"),
    listing("bad label key", "labelSelector=-n%3Da"),
    listing("open set", "labelSelector=n%20in%20(a"),
    listing("empty set", "labelSelector=n%20in%20()"),
    listing("bad operator", "labelSelector=n%20on%20(a)"),
    listing("greater than text", "labelSelector=n>x"),
    listing("by name", f"{NAMED}a"),
    listing("by unknown field", "fieldSelector=data.k%3Dv"),
    listing("by bad field selector", "fieldSelector=a"),
    listing("pods by phase", "fieldSelector=status.phase%3DPending", PODS),
    listing("pods by node", "fieldSelector=spec.nodeName%3Dnode", PODS),
    listing("pods without node", "fieldSelector=spec.nodeName%3D", PODS),
    listing("pods by unknown field", "fieldSelector=spec.x%3Dy", PODS),
    listing("pods as a table", "", PODS, headers={"Accept": TABLE}),
    listing("pods everywhere by namespace", f"fieldSelector=metadata.namespace%3D{NS}", "/api/v1/pods"),
    listing("limit", "limit=2"),
    listing("next page", "limit=2&continue=${limit:metadata.continue}"),
    listing("last page", "limit=2&continue=${next page:metadata.continue}"),
    listing("limit with a selector", "limit=2&labelSelector=all"),
    listing("limit as a table", "limit=2", headers={"Accept": TABLE}),
    listing("limit as metadata", "limit=1", headers={"Accept": PARTIAL.replace("Metadata", "MetadataList")}),
    listing("negative limit", "limit=-1"),
    listing("bad limit", "limit=x"),
    listing("bad continue", "limit=2&continue=bad"),
    listing("continue at a version", "limit=2&resourceVersion=5&continue=${limit:metadata.continue}"),
    listing("at 0", "resourceVersion=0"),
    listing("at 0 with a limit", "resourceVersion=0&limit=2"),
    listing("exact", "resourceVersion=${all:metadata.resourceVersion}&resourceVersionMatch=Exact"),
    listing("exact 0", "resourceVersion=0&resourceVersionMatch=Exact"),
    listing("match without version", "resourceVersionMatch=Exact"),
    listing("unknown match", "resourceVersion=5&resourceVersionMatch=Some"),
    listing("not older", "resourceVersion=${all:metadata.resourceVersion}&resourceVersionMatch=NotOlderThan"),
    listing("bad version", "resourceVersion=x"),
    listing("future version", "resourceVersion=99999999&timeoutSeconds=1"),
    listing("list with initial events", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
    listing("missing namespace", "", core("nowhere", "configmaps")),
    listing("missing namespace as a table", "", core("nowhere", "configmaps"), headers={"Accept": TABLE}),
    listing("empty", "", core(NS, "secrets")),
    listing("empty pods as a table", "labelSelector=none", PODS, headers={"Accept": TABLE}),
    Call("change", "PATCH", CMS + "/a", {"metadata": {"labels": {"n": "z"}}}, MERGE_PATCH),
    Call("remove", "DELETE", CMS + "/b"),
    listing("watch", "watch=1&timeoutSeconds=1&resourceVersion=${all:metadata.resourceVersion}"),
    listing("watch nothing", "watch=1&timeoutSeconds=1&labelSelector=nothing"),
    listing("watch selected", "watch=1&timeoutSeconds=1&labelSelector=n%3Da&resourceVersion=${all:metadata.resourceVersion}"),
    listing("watch entering", "watch=1&timeoutSeconds=1&labelSelector=n%3Dz&resourceVersion=${all:metadata.resourceVersion}"),
    listing("watch a name", f"watch=1&timeoutSeconds=1&{NAMED}a&resourceVersion=${{all:metadata.resourceVersion}}"),
    listing("watch from nothing", "watch=1&timeoutSeconds=1"),
    listing("watch from 0", "watch=1&timeoutSeconds=1&resourceVersion=0"),
    listing("watch as a table", "watch=1&timeoutSeconds=1&resourceVersion=${all:metadata.resourceVersion}",
            headers={"Accept": TABLE}),
    listing("watch as metadata", "watch=1&timeoutSeconds=1&resourceVersion=${all:metadata.resourceVersion}",
            headers={"Accept": PARTIAL}),
    listing("watch from a bad version", "watch=1&timeoutSeconds=1&resourceVersion=x"),
    listing("watch from the past", "watch=1&timeoutSeconds=1&resourceVersion=1"),
    listing("watch with initial events, no match", "watch=1&timeoutSeconds=1&sendInitialEvents=true"),
    listing("watch with a match", "watch=1&timeoutSeconds=1&resourceVersionMatch=NotOlderThan&resourceVersion=1"),
    listing("watch with a continue", "watch=1&timeoutSeconds=1&continue=x"),
    listing("watch with bad timeout", "watch=1&timeoutSeconds=x"),
    listing("old watch path", "timeoutSeconds=1&resourceVersion=${all:metadata.resourceVersion}",
            f"/api/v1/watch/namespaces/{NS}/configmaps/a"),
]  # fmt: skip
