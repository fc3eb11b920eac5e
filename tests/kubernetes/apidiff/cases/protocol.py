"""Paths, methods and credentials: what is answered before any object is looked at."""

from __future__ import annotations

from tests.kubernetes.apidiff.cases.objects import config_map, core, namespace
from tests.kubernetes.apidiff.exchange import Call
from tests.kubernetes.apidiff.servers import TENANT

NS = namespace("protocol")
CMS = core(NS, "configmaps")
REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
          "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": NS}}}  # fmt: skip
AUTHZ = "/apis/authorization.k8s.io/v1"


def review(kind: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}


CALLS = [
    Call("unknown path", "GET", "/nothing"),
    Call("unknown group", "GET", "/apis/nothing.io/v1"),
    Call("unknown version", "GET", "/apis/apps/v9"),
    Call("unknown core version", "GET", "/api/v9"),
    Call("unknown resource", "GET", f"/api/v1/namespaces/{NS}/nothings"),
    Call("unknown resource to create", "POST", f"/api/v1/namespaces/{NS}/nothings", config_map("a")),
    Call("unknown resource in a group", "GET", "/apis/apps/v1/nothings"),
    Call("unknown resource in an unknown group", "GET", "/apis/nothing.io/v1/nothings/a"),
    Call("unknown subresource", "GET", CMS + "/kube-root-ca.crt/nothing"),
    Call("cluster kind in a namespace", "GET", f"/api/v1/namespaces/{NS}/nodes"),
    Call("trailing slash", "GET", CMS + "/"),
    Call("upper case path", "GET", f"/api/v1/Namespaces/{NS}"),
    Call("version", "GET", "/version"),
    Call("healthz", "GET", "/healthz"),
    Call("livez", "GET", "/livez"),
    Call("readyz", "GET", "/readyz"),
    Call("livez ping", "GET", "/livez/ping"),
    Call("livez unknown", "GET", "/livez/nothing"),
    Call("api", "GET", "/api"),
    Call("openapi unknown group", "GET", "/openapi/v3/apis/nothing/v1"),
    Call("no token", "GET", CMS, token=""),
    Call("bad token", "GET", CMS, token="wrong"),
    Call("basic authentication", "GET", CMS, token="", headers={"Authorization": "Basic YTpi"}),
    Call("tenant lists", "GET", CMS, token=TENANT),
    Call("tenant gets", "GET", CMS + "/a", token=TENANT),
    Call("tenant lists everywhere", "GET", "/api/v1/pods", token=TENANT),
    Call("tenant creates", "POST", CMS, config_map("a"), token=TENANT),
    Call("tenant creates nonsense", "POST", CMS, b"{", token=TENANT),
    Call("tenant deletes in a group", "DELETE", f"/apis/apps/v1/namespaces/{NS}/deployments/a", token=TENANT),
    Call("tenant patches a status", "PATCH", f"/api/v1/namespaces/{NS}/pods/a/status", {}, token=TENANT),
    Call("tenant gets a node", "GET", "/api/v1/nodes/n", token=TENANT),
    Call("tenant gets an unknown resource", "GET", "/api/v1/nothings", token=TENANT),
    Call("tenant gets metrics", "GET", "/metrics", token=TENANT),
    Call("tenant gets the version", "GET", "/version", token=TENANT),
    Call("tenant discovers", "GET", "/api/v9", token=TENANT),
    Call("anonymous version", "GET", "/version", token=""),
    Call("anonymous health", "GET", "/livez", token=""),
    Call("anonymous discovery", "GET", "/api", token=""),
    Call("impersonate", "GET", CMS, headers={"Impersonate-User": "jane"}),
    Call("impersonate a service account", "GET", CMS,
         headers={"Impersonate-User": f"system:serviceaccount:{NS}:default"}),
    Call("impersonate a group only", "GET", CMS, headers={"Impersonate-Group": "g"}),
    Call("tenant impersonates", "GET", CMS, headers={"Impersonate-User": "jane"}, token=TENANT),
    Call("self review", "POST", f"{AUTHZ}/selfsubjectaccessreviews", REVIEW),
    Call("self review of a tenant", "POST", f"{AUTHZ}/selfsubjectaccessreviews", REVIEW, token=TENANT),
    Call("self review of nothing", "POST", f"{AUTHZ}/selfsubjectaccessreviews", review("SelfSubjectAccessReview")),
    Call("self review of a path", "POST", f"{AUTHZ}/selfsubjectaccessreviews",
         review("SelfSubjectAccessReview", nonResourceAttributes={"path": "/metrics", "verb": "get"}), token=TENANT),
    Call("self review of both", "POST", f"{AUTHZ}/selfsubjectaccessreviews", review(
        "SelfSubjectAccessReview", nonResourceAttributes={"path": "/", "verb": "get"},
        resourceAttributes={"verb": "get", "resource": "pods"})),
    Call("subject review", "POST", f"{AUTHZ}/subjectaccessreviews", review(
        "SubjectAccessReview", user="tenant", resourceAttributes={"verb": "get", "resource": "pods"})),
    Call("subject review of an admin", "POST", f"{AUTHZ}/subjectaccessreviews", review(
        "SubjectAccessReview", user="x", groups=["system:masters"],
        resourceAttributes={"verb": "get", "resource": "pods"})),
    Call("subject review without a user", "POST", f"{AUTHZ}/subjectaccessreviews", review(
        "SubjectAccessReview", resourceAttributes={"verb": "get", "resource": "pods"})),
    Call("local review", "POST", f"{AUTHZ}/namespaces/{NS}/localsubjectaccessreviews", review(
        "LocalSubjectAccessReview", user="tenant",
        resourceAttributes={"verb": "get", "resource": "pods", "namespace": NS})),
    Call("local review of another namespace", "POST", f"{AUTHZ}/namespaces/{NS}/localsubjectaccessreviews", review(
        "LocalSubjectAccessReview", user="tenant",
        resourceAttributes={"verb": "get", "resource": "pods", "namespace": "other"})),
    Call("list reviews", "GET", f"{AUTHZ}/subjectaccessreviews"),
    Call("rules review", "POST", f"{AUTHZ}/selfsubjectrulesreviews", review("SelfSubjectRulesReview", namespace=NS)),
    Call("rules review of a tenant", "POST", f"{AUTHZ}/selfsubjectrulesreviews",
         review("SelfSubjectRulesReview", namespace=NS), token=TENANT),
    Call("rules review without a namespace", "POST", f"{AUTHZ}/selfsubjectrulesreviews",
         review("SelfSubjectRulesReview")),
    Call("token review", "POST", "/apis/authentication.k8s.io/v1/tokenreviews",
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": TENANT}}),
    Call("token review of nothing", "POST", "/apis/authentication.k8s.io/v1/tokenreviews",
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}}),
    Call("token review of a wrong token", "POST", "/apis/authentication.k8s.io/v1/tokenreviews",
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "wrong"}}),
    Call("who am I", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
         {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, token=TENANT),
    Call("token", "POST", core(NS, "serviceaccounts", "default/token"),
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}),
    Call("token of an audience", "POST", core(NS, "serviceaccounts", "default/token"),
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}}),
    Call("short token", "POST", core(NS, "serviceaccounts", "default/token"),
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 5}}),
    Call("token of a missing account", "POST", core(NS, "serviceaccounts", "nobody/token"),
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
    Call("token for a missing pod", "POST", core(NS, "serviceaccounts", "default/token"),
         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
          "spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}}}),
]  # fmt: skip
