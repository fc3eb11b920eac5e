"""Tokens, certificates, RBAC, access reviews, and the prevention of privilege escalation."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from control.standalone.auth import (
    RBAC,
    AccessReviews,
    Authentication,
    JwtError,
    ServiceAccountTokens,
    Signer,
    StaticTokens,
    TokenFileError,
    bootstrap,
    escalation,
    service_account_user,
)
from control.standalone.auth.rules import allows, uncovered
from control.standalone.auth.tokenfile import parse
from control.standalone.errors import StatusError
from control.standalone.kinds import Kinds
from control.standalone.policyinterfaces import AdmissionAttributes, ApiUser, AuthzAttributes
from control.standalone.store import ObjectStore
from tests.present import present

KEY = ec.generate_private_key(ec.SECP256R1())
ALICE = ApiUser("alice", ("devs", "system:authenticated"))
KINDS = Kinds()
RB = "rbac.authorization.k8s.io"


def pem(key: ec.EllipticCurvePrivateKey | RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = ObjectStore(None)
    yield store
    store.close()


def put(store: ObjectStore, key: str, name: str, ns: str | None = None, uid: str = "u1", **fields: Any) -> None:
    metadata = {"name": name, "uid": uid, **fields.pop("metadata", {})}
    if ns:
        metadata["namespace"] = ns
    store.put(key, ns, name, {"metadata": metadata, **fields}, expect=None)
    store.commit()


class Tokens:
    def __init__(self, store: ObjectStore) -> None:
        self.now = 1000.0
        self.store = store
        self.tokens = ServiceAccountTokens(Signer(KEY), store.get, now=lambda: self.now)
        put(store, "/serviceaccounts", "robot", "ns", uid="sa-uid")

    def issue(self, **spec: Any) -> str:
        account = self.store.get("/serviceaccounts", "ns", "robot")
        result: str = self.tokens.request(account, {"spec": spec})["status"]["token"]  # type: ignore[arg-type]
        return result


@pytest.fixture
def tokens(store: ObjectStore) -> Tokens:
    return Tokens(store)


def test_a_token_names_its_account_until_it_expires(tokens: Tokens) -> None:
    token = tokens.issue(expirationSeconds=600)
    user = tokens.tokens.verify(token).user
    assert user.name == "system:serviceaccount:ns:robot"
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated")
    assert user.uid == "sa-uid"
    tokens.now += 600
    with pytest.raises(JwtError, match="expired"):
        tokens.tokens.verify(token)


def test_a_token_is_invalid_after_its_account_is_deleted(tokens: Tokens, store: ObjectStore) -> None:
    token = tokens.issue()
    store.remove("/serviceaccounts", "ns", "robot", expect=present(store.entry("/serviceaccounts", "ns", "robot")).rv)
    store.commit()
    with pytest.raises(JwtError, match="is gone"):
        tokens.tokens.verify(token)
    put(store, "/serviceaccounts", "robot", "ns", uid="another")
    with pytest.raises(JwtError, match="is gone"):
        tokens.tokens.verify(token)


def test_a_bound_token_is_invalid_after_its_pod_is_deleted(tokens: Tokens, store: ObjectStore) -> None:
    put(store, "/nodes", "n", uid="node-uid")
    put(store, "/pods", "p", "ns", uid="pod-uid", spec={"nodeName": "n"})
    token = tokens.issue(boundObjectRef={"kind": "Pod", "name": "p", "uid": "pod-uid"})
    extra = tokens.tokens.verify(token).user.extra
    assert extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert extra["authentication.kubernetes.io/node-name"] == ("n",)
    store.remove("/pods", "ns", "p", expect=present(store.entry("/pods", "ns", "p")).rv)
    store.commit()
    with pytest.raises(JwtError, match="pod this token is bound to"):
        tokens.tokens.verify(token)


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({"expirationSeconds": 10}, 422, "may not specify a duration less than 10 minutes"),
        ({"boundObjectRef": {"kind": "House", "name": "x"}}, 422, 'Unsupported value: "House"'),
        ({"boundObjectRef": {"kind": "Pod", "name": "x"}}, 404, 'pods "x" not found'),
        ({"boundObjectRef": {"kind": "Pod", "name": "p", "uid": "other"}}, 409, "does not match the UID"),
    ],
)
def test_invalid_token_requests_are_rejected(
    tokens: Tokens, store: ObjectStore, spec: dict[str, Any], code: int, message: str
) -> None:
    put(store, "/pods", "p", "ns")
    with pytest.raises(StatusError, match=message) as caught:
        tokens.issue(**spec)
    assert caught.value.code == code


def test_audiences(tokens: Tokens) -> None:
    token = tokens.issue(audiences=["vault"])
    with pytest.raises(JwtError, match="audiences"):
        tokens.tokens.verify(token)
    assert tokens.tokens.verify(token, ["vault", "other"]).audiences == ("vault",)


def test_forged_tokens_are_rejected(tokens: Tokens) -> None:
    token = tokens.issue()
    head, claims, signature = token.split(".")
    data = json.loads(base64.urlsafe_b64decode(claims + "=="))
    data["sub"] = "system:serviceaccount:kube-system:admin"
    other = base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    stranger = Signer(ec.generate_private_key(ec.SECP256R1())).sign({"iss": "x"})
    for bad in (
        f"{head}.{other}.{signature}",
        f"{none}.{claims}.",
        stranger,
        "x",
        "a.b.c",
        token + "x",
        f"{head}.{claims}.AA",
    ):
        with pytest.raises(JwtError):
            tokens.tokens.verify(bad)


def test_only_a_p256_key_is_accepted() -> None:
    assert Signer.from_pem(pem(KEY)).key_id == Signer(KEY).key_id
    for bad in (b"junk", pem(rsa.generate_private_key(65537, 2048)), pem(ec.generate_private_key(ec.SECP384R1()))):
        with pytest.raises(JwtError):
            Signer.from_pem(bad)


def test_the_token_file() -> None:
    text = '# comment\ntoken1,ann,u1,"devs, ops"\ntoken2,bob,u2\n\n'
    assert parse(text) == [
        ("token1", ApiUser("ann", ("devs", "ops"), "u1")),
        ("token2", ApiUser("bob", (), "u2")),
    ]
    with pytest.raises(TokenFileError, match=r"f:2: expected token,user,uid"):
        parse("t,u,i\nsecret,only\n", "f")


def test_an_invalid_token_file_error_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="missing"):
        StaticTokens.read(tmp_path / "missing")
    (tmp_path / "f").write_text("t,u,i\n")
    assert StaticTokens.read(tmp_path / "f").find("t") == ApiUser("u", (), "i")


async def test_authentication(tokens: Tokens) -> None:
    static = StaticTokens([("good", ApiUser("ann", ("devs",)))])
    authenticate = Authentication(static, tokens.tokens).authenticate
    assert await authenticate({"Authorization": "Bearer good"}, None) == ApiUser(
        "ann", ("devs", "system:authenticated")
    )
    robot = await authenticate({"Authorization": f"bearer {tokens.issue()}"}, None)
    assert robot is not None
    assert robot.name == "system:serviceaccount:ns:robot"
    assert await authenticate({}, None) is None
    cert = {"subject": ((("organizationName", "system:nodes"),), (("commonName", "system:node:n"),))}
    assert await authenticate({}, cert) == ApiUser("system:node:n", ("system:nodes", "system:authenticated"))
    for header in ("Bearer wrong", "Basic YTpi", "Bearer "):
        with pytest.raises(StatusError) as caught:
            await authenticate({"Authorization": header}, None)
        assert caught.value.code == 401
    with pytest.raises(StatusError):
        await Authentication(static, tokens.tokens, anonymous=False).authenticate({}, None)


def rule(verbs: str, groups: str = "", resources: str = "pods", **more: Any) -> dict[str, list[str]]:
    return {
        "verbs": verbs.split(),
        "apiGroups": groups.split(",") if groups else [""],
        "resources": resources.split(),
        **more,
    }


def ask(
    verb: str = "get",
    resource: str = "pods",
    sub: str = "",
    group: str = "",
    ns: str = "ns",
    name: str = "",
    path: str = "",
) -> AuthzAttributes:
    return AuthzAttributes(ALICE, verb, group, "v1", resource, sub, ns, name, path)


RULES = [
    (rule("get list"), ask(), True),
    (rule("get list"), ask("watch"), False),
    (rule("*"), ask("anything"), True),
    (rule("get"), ask(resource="nodes"), False),
    (rule("get", resources="*"), ask(resource="nodes"), True),
    (rule("get", groups="apps"), ask(), False),
    (rule("get", groups="*"), ask(group="apps"), True),
    (rule("get"), ask(sub="log"), False),
    (rule("get", resources="pods/log"), ask(sub="log"), True),
    (rule("get", resources="*/log"), ask(sub="log"), True),
    (rule("get", resources="*"), ask(sub="log"), True),
    (rule("get", resourceNames=["a"]), ask(name="a"), True),
    (rule("get", resourceNames=["a"]), ask(name="b"), False),
    (rule("list", resourceNames=["a"]), ask("list"), False),
    ({"verbs": ["get"], "nonResourceURLs": ["/api/*"]}, ask(resource="", path="/api/v1"), True),
    ({"verbs": ["get"], "nonResourceURLs": ["/healthz"]}, ask(resource="", path="/healthz/x"), False),
    ({"verbs": ["get"], "nonResourceURLs": ["*"]}, ask(), False),
]


@pytest.mark.parametrize(("given_rule", "question", "want"), RULES)
def test_rules(given_rule: dict[str, list[str]], question: AuthzAttributes, want: bool) -> None:
    assert allows(given_rule, question) is want


PARTS = st.lists(st.sampled_from(["get", "list", "*"]), min_size=1, max_size=2)
ANY_RULE = st.fixed_dictionaries(
    {"verbs": PARTS, "apiGroups": st.lists(st.sampled_from(["", "apps", "*"]), min_size=1, max_size=2),
     "resources": st.lists(st.sampled_from(["pods", "pods/log", "nodes", "*", "*/log"]), min_size=1, max_size=2)},
    optional={"resourceNames": st.lists(st.sampled_from("ab"), min_size=1, max_size=2)},
)  # fmt: skip
QUESTIONS = [ask(v, r, s, g, "ns", n) for v in ("get", "list") for r in ("pods", "nodes") for s in ("", "log")
             for g in ("", "apps") for n in ("", "a", "b")]  # fmt: skip


@settings(deadline=None)
@given(st.lists(ANY_RULE, max_size=3), st.lists(ANY_RULE, max_size=3))
def test_covered_rules_allow_nothing_new(
    owned: list[dict[str, list[str]]], granted: list[dict[str, list[str]]]
) -> None:
    if not uncovered(owned, granted):
        for question in QUESTIONS:
            if any(allows(each, question) for each in granted):
                assert any(allows(each, question) for each in owned)


@settings(deadline=None)
@given(st.lists(ANY_RULE, max_size=3))
def test_rules_cover_themselves(rules: list[dict[str, list[str]]]) -> None:
    assert uncovered(rules, rules) == []


def role(store: ObjectStore, name: str, rules: list[dict[str, list[str]]], ns: str | None = None, **more: Any) -> None:
    put(store, f"{RB}/roles" if ns else f"{RB}/clusterroles", name, ns, rules=rules, **more)


def bind(store: ObjectStore, name: str, subject: str, ref: str, ns: str | None = None) -> None:
    kind, _, subject_name = subject.partition(":")
    key = f"{RB}/rolebindings" if ns else f"{RB}/clusterrolebindings"
    ref_kind, _, ref_name = ref.partition(":")
    who_ns, _, who_name = subject_name.rpartition("/")
    put(store, key, name, ns, subjects=[{"kind": kind, "name": who_name, "namespace": who_ns}],
        roleRef={"kind": ref_kind, "name": ref_name})  # fmt: skip


def test_bindings_grant_until_they_are_deleted(store: ObjectStore) -> None:
    rbac = RBAC(store)
    assert rbac.authorize(ask()) == (False, "")
    role(store, "reader", [rule("get")], "ns")
    bind(store, "b", "User:alice", "Role:reader", "ns")
    allowed, why = rbac.authorize(ask())
    assert allowed
    assert why == 'RBAC: allowed by RoleBinding "b/ns" of Role "reader" to user "alice"'
    assert not rbac.authorize(ask(ns="other"))[0]
    store.remove(f"{RB}/rolebindings", "ns", "b", expect=present(store.entry(f"{RB}/rolebindings", "ns", "b")).rv)
    store.commit()
    assert not rbac.authorize(ask())[0]


def test_a_role_binding_to_a_cluster_role_grants_only_in_its_namespace(store: ObjectStore) -> None:
    role(store, "reader", [rule("get"), {"verbs": ["get"], "nonResourceURLs": ["/x"]}])
    bind(store, "b", "Group:devs", "ClusterRole:reader", "ns")
    rbac = RBAC(store)
    assert rbac.authorize(ask())[0]
    assert not rbac.authorize(ask(ns="other"))[0]
    assert not rbac.authorize(ask(resource="", ns="", path="/x"))[0]
    bind(store, "everywhere", "Group:devs", "ClusterRole:reader")
    assert rbac.authorize(ask(ns="other"))[0]
    assert rbac.authorize(ask(resource="", ns="", path="/x"))[0]


def test_service_accounts_and_masters(store: ObjectStore) -> None:
    role(store, "reader", [rule("get")])
    bind(store, "b", "ServiceAccount:ns/robot", "ClusterRole:reader")
    rbac = RBAC(store)
    robot = service_account_user("ns", "robot")
    assert rbac.authorize(AuthzAttributes(robot, "get", "", "v1", "pods", namespace="x"))[0]
    assert not rbac.authorize(AuthzAttributes(service_account_user("other", "robot"), "get", "", "v1", "pods"))[0]
    root = ApiUser("root", ("system:masters",))
    assert rbac.authorize(AuthzAttributes(root, "delete", path="/anything"))[0]


def test_aggregated_roles_have_the_rules_of_the_selected_roles(store: ObjectStore) -> None:
    for key, obj in bootstrap.objects():
        put(
            store,
            key,
            obj["metadata"]["name"],
            metadata=obj["metadata"],
            **{k: v for k, v in obj.items() if k != "metadata"},
        )
    bind(store, "b", "User:alice", "ClusterRole:admin", "ns")
    rbac = RBAC(store)
    assert rbac.authorize(ask("list", "pods"))[0]
    assert rbac.authorize(ask("create", "secrets"))[0]
    assert rbac.authorize(ask("create", "roles", group=RB))[0]
    assert not rbac.authorize(ask("create", "nodes", ns=""))[0]
    role(
        store,
        "things",
        [rule("get", "example.org", "things")],
        metadata={"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
    )
    assert rbac.authorize(ask("get", "things", group="example.org"))[0]
    node = ApiUser("system:node:n", ("system:nodes",))
    assert rbac.authorize(AuthzAttributes(node, "patch", "", "v1", "nodes", "status", name="n"))[0]
    assert rbac.authorize(AuthzAttributes(ApiUser("x", ("system:unauthenticated",)), "get", path="/healthz"))[0]


async def review(
    store: ObjectStore,
    tokens: Tokens,
    kind: str,
    spec: dict[str, Any] | None = None,
    user: ApiUser = ALICE,
    ns: str = "",
) -> dict[str, Any]:
    static = StaticTokens([("good", ApiUser("ann", ("devs",)))])
    reviews = AccessReviews(RBAC(store), static, tokens.tokens)
    resource_kind = next(k for k in KINDS if k.kind == kind)
    answer = await reviews.review(resource_kind, ns, {"spec": spec or {}}, user)
    assert answer["kind"] == kind
    result: dict[str, Any] = answer["status"]
    return result


async def test_access_reviews(store: ObjectStore, tokens: Tokens) -> None:
    role(store, "reader", [rule("get"), {"verbs": ["get"], "nonResourceURLs": ["/x"]}], uid="r")
    bind(store, "b", "User:alice", "ClusterRole:reader")
    pods = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "ns"}}
    assert (await review(store, tokens, "SelfSubjectAccessReview", pods))["allowed"] is True
    path = {"nonResourceAttributes": {"verb": "get", "path": "/x"}}
    assert (await review(store, tokens, "SelfSubjectAccessReview", path))["allowed"] is True
    bob = {"user": "bob", **pods}
    assert await review(store, tokens, "SubjectAccessReview", bob) == {"allowed": False}
    local = await review(store, tokens, "LocalSubjectAccessReview", {"user": "alice", **pods}, ns="ns")
    assert local["allowed"] is True
    rules = await review(store, tokens, "SelfSubjectRulesReview", {"namespace": "ns"})
    assert rules["resourceRules"] == [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]
    assert rules["nonResourceRules"] == [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]
    assert rules["incomplete"] is False
    me = await review(store, tokens, "SelfSubjectReview")
    assert me["userInfo"] == {"username": "alice", "groups": ["devs", "system:authenticated"]}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("SelfSubjectAccessReview", {}),
        ("SelfSubjectAccessReview", {"resourceAttributes": {}, "nonResourceAttributes": {}}),
        ("SubjectAccessReview", {"resourceAttributes": {}}),
        ("LocalSubjectAccessReview", {"user": "a", "resourceAttributes": {"namespace": "other"}}),
    ],
)
async def test_invalid_reviews_are_rejected(
    store: ObjectStore, tokens: Tokens, kind: str, spec: dict[str, Any]
) -> None:
    with pytest.raises(StatusError) as caught:
        await review(store, tokens, kind, spec, ns="ns")
    assert caught.value.code == 422


async def test_token_reviews(store: ObjectStore, tokens: Tokens) -> None:
    good = await review(store, tokens, "TokenReview", {"token": "good"})
    assert good["authenticated"] is True
    assert good["user"] == {"username": "ann", "groups": ["devs", "system:authenticated"]}
    robot = await review(store, tokens, "TokenReview", {"token": tokens.issue(audiences=["a"]), "audiences": ["a"]})
    assert robot["audiences"] == ["a"]
    assert robot["user"]["username"] == "system:serviceaccount:ns:robot"
    bad = await review(store, tokens, "TokenReview", {"token": "bad"})
    assert "authenticated" not in bad
    assert bad["error"].startswith("invalid bearer token")


def write(
    store: ObjectStore,
    plural: str,
    obj: dict[str, Any],
    user: ApiUser = ALICE,
    old: dict[str, Any] | None = None,
    ns: str = "ns",
) -> None:
    kind = KINDS.get(f"{RB}/{plural}")
    assert kind is not None
    escalation.check(RBAC(store), AdmissionAttributes("CREATE", kind, "v1", ns, "x", obj, old, user))


def test_a_user_cannot_grant_rights_it_does_not_have(store: ObjectStore) -> None:
    role(store, "mine", [rule("get list"), rule("create", RB, "roles rolebindings")], "ns")
    bind(store, "b", "User:alice", "Role:mine", "ns")
    write(store, "roles", {"rules": [rule("get")]})
    with pytest.raises(StatusError) as caught:
        write(store, "roles", {"rules": [rule("get delete")]})
    assert caught.value.code == 403
    assert caught.value.message == (
        'roles.rbac.authorization.k8s.io "x" is forbidden: user "alice" (groups=["devs" "system:authenticated"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
    )
    role(store, "strong", [rule("*", "*", "*")])
    with pytest.raises(StatusError):
        write(store, "rolebindings", {"roleRef": {"kind": "ClusterRole", "name": "strong"}})
    write(store, "rolebindings", {"roleRef": {"kind": "Role", "name": "mine"}})
    with pytest.raises(StatusError):
        write(store, "clusterroles", {"aggregationRule": {"clusterRoleSelectors": [{}]}}, ns="")


def test_escalate_bind_and_system_masters_may_grant_any_rights(store: ObjectStore) -> None:
    strong = {"rules": [rule("*", "*", "*")]}
    role(
        store, "mine", [rule("escalate", RB, "roles"), rule("bind", RB, "clusterroles", resourceNames=["strong"])], "ns"
    )
    bind(store, "b", "User:alice", "Role:mine", "ns")
    role(store, "strong", strong["rules"])
    write(store, "roles", strong)
    write(store, "rolebindings", {"roleRef": {"kind": "ClusterRole", "name": "strong"}})
    write(store, "clusterroles", strong, ApiUser("root", ("system:masters",)), ns="")
    with pytest.raises(StatusError):
        write(store, "clusterroles", strong, ns="")


def test_unchanged_rules_are_not_checked(store: ObjectStore) -> None:
    strong = {"rules": [rule("*", "*", "*")]}
    write(store, "roles", {**strong, "metadata": {"labels": {}}}, old=strong)
