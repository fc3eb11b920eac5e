"""Label and field selectors, formatting functions and other pure parts of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from control.standalone.errors import StatusError
from control.standalone.http.jsonpath import JsonPathError, compile_path
from control.standalone.http.negotiate import discovery_version, view
from control.standalone.http.requestinfo import parse
from control.standalone.http.table import human_duration
from control.standalone.kinds import Kinds, version_priority
from control.standalone.selectors import compile_matcher, field_terms, required_name
from control.standalone.strategy import pod_qos

KINDS = Kinds()


def matches(labels: str, have: dict[str, str]) -> bool:
    kind = KINDS.get("/pods")
    assert kind is not None
    matcher = compile_matcher(kind, labels, None)
    return matcher is None or matcher({"metadata": {"labels": have}})


@pytest.mark.parametrize(
    ("selector", "have", "expected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c),d=e", {"a": "c"}, False),
        ("a notin (b)", {}, True),
        ("a notin (b)", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("!a", {}, True),
        ("x.io/a=b", {"x.io/a": "b"}, True),
        ("n>3", {"n": "4"}, True),
        ("n<3", {"n": "x"}, False),
        ("a=", {"a": ""}, True),
        ("", {}, True),
    ],
)
def test_label_selectors(selector: str, have: dict[str, str], expected: bool) -> None:
    assert matches(selector, have) is expected


@pytest.mark.parametrize("selector", ["a b", "a in b", "=x", "a=b=c", "a in (b"])
def test_malformed_label_selectors(selector: str) -> None:
    with pytest.raises(StatusError) as caught:
        matches(selector, {})
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("key", "selector", "obj", "expected"),
    [
        ("/pods", "spec.nodeName=n", {"metadata": {}, "spec": {"nodeName": "n"}}, True),
        ("/pods", "spec.nodeName=", {"metadata": {}, "spec": {}}, True),
        ("/pods", "status.phase!=Failed", {"metadata": {}, "status": {"phase": "Running"}}, True),
        ("/pods", "metadata.name=a,status.phase=x", {"metadata": {"name": "a"}}, False),
        ("/nodes", "spec.unschedulable=false", {"metadata": {}, "spec": {}}, True),
        ("/nodes", "spec.unschedulable=true", {"metadata": {}, "spec": {"unschedulable": True}}, True),
        ("/events", "involvedObject.kind=Pod", {"metadata": {}, "involvedObject": {"kind": "Pod"}}, True),
        ("/events", "source=kubelet", {"metadata": {}, "source": {"component": "kubelet"}}, True),
        ("/configmaps", "metadata.namespace=x", {"metadata": {"namespace": "x"}}, True),
    ],
)
def test_field_selectors(key: str, selector: str, obj: dict[str, Any], expected: bool) -> None:
    kind = KINDS.get(key)
    assert kind is not None
    matcher = compile_matcher(kind, None, selector)
    assert matcher is not None
    assert matcher(obj) is expected


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a=b,c!=d", [("a", True, "b"), ("c", False, "d")]),
        ("a==b,,", [("a", True, "b")]),
        (r"type!=x\,metadata.name=allowed", None),
        (r"type!=x\,metadata.name\=allowed", [("type", False, "x,metadata.name=allowed")]),
        (r"type!=x\\,metadata.name=allowed", [("type", False, "x\\"), ("metadata.name", True, "allowed")]),
        ("type!=(,metadata.name=allowed", [("type", False, "("), ("metadata.name", True, "allowed")]),
        ("metadata.name=a\\", None),
        (r"metadata.name=\a", None),
        ("metadata.name", None),
    ],
)
def test_field_terms_are_split_at_unescaped_commas(text: str, terms: list[tuple[str, bool, str]] | None) -> None:
    if terms is None:
        with pytest.raises(StatusError):
            field_terms(text)
        assert required_name(text) == ""
    else:
        assert field_terms(text) == terms
        assert required_name(text) == next((v for k, equal, v in terms if k == "metadata.name" and equal), "")


def test_unknown_field_labels_are_rejected() -> None:
    kind = KINDS.get("/pods")
    assert kind is not None
    with pytest.raises(StatusError, match=r"field label not supported: spec\.foo"):
        compile_matcher(kind, None, "spec.foo=1")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-0.5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"),
        (3 * 3600 - 1, "179m"), (3 * 3600, "3h"), (4 * 3600 + 300, "4h5m"), (9 * 3600 + 300, "9h"),
        (47 * 3600, "47h"), (50 * 3600, "2d2h"), (8 * 86400, "8d"), (500 * 86400, "500d"),
        (3 * 365 * 86400 + 86400, "3y1d"), (9 * 365 * 86400, "9y"),
    ],
)  # fmt: skip
def test_ages(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


DOC = {
    "a": {"b": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}], "c.d": "dot", "z": False},
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}],
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".a.b[0].n", [1]), (".a.b[*].n", [1, 2]), (".a.b[-1].t", ["y"]), (".a['c.d']", ["dot"]), (r".a.c\.d", ["dot"]),
        ('.conditions[?(@.type=="Ready")].status', ["True"]), (".conditions[?(@.type!='Ready')].status", ["False"]),
        (".a.z", [False]), (".missing.x", []), ("{.a.b[1].n}", [2]), ("a.b[7].n", []),
    ],
)  # fmt: skip
def test_json_paths(path: str, values: list[Any]) -> None:
    assert compile_path(path)(DOC) == values


def test_unsupported_json_paths_name_the_position() -> None:
    with pytest.raises(JsonPathError, match=r"\[1:2\]"):
        compile_path(".a[1:2]")


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, ("list", "", "v1", "pods", "", "", "")),
        ("GET", "/api/v1/pods", {"watch": "true"}, ("watch", "", "v1", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/x/pods/p", {}, ("get", "", "v1", "pods", "x", "p", "")),
        ("GET", "/api/v1/namespaces/x", {}, ("get", "", "v1", "namespaces", "x", "x", "")),
        ("PUT", "/api/v1/namespaces/x/finalize", {}, ("update", "", "v1", "namespaces", "x", "x", "finalize")),
        ("POST", "/apis/apps/v1/namespaces/x/deployments", {}, ("create", "apps", "v1", "deployments", "x", "", "")),
        ("PATCH", "/apis/a.io/v1/things/t/status", {}, ("patch", "a.io", "v1", "things", "", "t", "status")),
        ("DELETE", "/api/v1/nodes", {}, ("deletecollection", "", "v1", "nodes", "", "", "")),
        ("DELETE", "/api/v1/nodes/n", {}, ("delete", "", "v1", "nodes", "", "n", "")),
        ("GET", "/api/v1/watch/nodes/n", {}, ("watch", "", "v1", "nodes", "", "n", "")),
        ("GET", "/api/v1/nodes/n/proxy/a/b", {}, ("get", "", "v1", "nodes", "", "n", "proxy")),
        ("GET", "/api/v1/pods", {"fieldSelector": "metadata.name=p"}, ("list", "", "v1", "pods", "", "p", "")),
        ("GET", "/healthz", {}, ("get", "", "", "", "", "", "")),
        ("GET", "/apis/apps/v1", {}, ("get", "", "", "", "", "", "")),
    ],
)
def test_request_grammar(method: str, path: str, query: dict[str, str], expected: tuple[str, ...]) -> None:
    i = parse(method, path, query)
    assert (i.verb, i.group, i.version, i.resource, i.namespace, i.name, i.subresource) == expected


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "object"), ("*/*", "object"), (f"{TABLE},application/json", "table"),
        ("application/vnd.kubernetes.protobuf,application/json", "object"),
        ("application/json;q=0.5," + TABLE, "table"),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "partial"),
        ("application/json;as=Table;v=v9;g=meta.k8s.io, application/json", "object"),
    ],
)  # fmt: skip
def test_negotiation(accept: str, expected: str) -> None:
    assert view(accept) == expected


def test_protobuf_alone_is_not_acceptable() -> None:
    with pytest.raises(StatusError) as caught:
        view("application/vnd.kubernetes.protobuf")
    assert caught.value.code == 406


def test_aggregated_discovery_is_chosen_by_order() -> None:
    v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    assert discovery_version(f"{v2},application/json") == "v2"
    assert discovery_version(f"application/json,{v2}") == ""


def test_version_order() -> None:
    names = ["v1alpha1", "foo", "v2", "v1beta2", "v10", "v1", "v1beta10", "v3beta1"]
    assert sorted(names, key=version_priority) == [
        "v10",
        "v2",
        "v1",
        "v3beta1",
        "v1beta10",
        "v1beta2",
        "v1alpha1",
        "foo",
    ]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "0"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
    ],
)
def test_qos_class_of_new_pods(resources: list[dict[str, Any]], expected: str) -> None:
    assert pod_qos({"containers": [{"name": str(i), "resources": r} for i, r in enumerate(resources)]}) == expected
