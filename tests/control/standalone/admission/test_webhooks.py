"""Admission webhooks with a real HTTPS server and its own certificate."""

# ruff: noqa: E501 - tables, one case per line

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from control.standalone.admission import AdmissionChain
from control.standalone.admission.endpoints import UnresolvedWebhook, WebhookEndpoints
from control.standalone.admission.matching import match
from control.standalone.errors import StatusError
from control.standalone.kinds import Kinds, ResourceKind
from control.standalone.policyinterfaces import AdmissionAttributes, ApiUser
from control.standalone.store import ObjectStore
from tests.certificates import self_signed_files
from tests.present import present

KINDS = Kinds()
USER = ApiUser("alice", ("devs",))
GROUP = "admissionregistration.k8s.io"
SERVICE = {"namespace": "ns", "name": "hook", "path": "/svc", "port": 443}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """(server context, CA bundle in base64) for 127.0.0.1 and hook.ns.svc."""
    cert, key = self_signed_files(tmp_path_factory.mktemp("pki"), "127.0.0.1", "hook.ns.svc")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, base64.b64encode(cert.read_bytes()).decode()


class Hook:
    """A webhook server: `answers` has the response per path; requests are recorded."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[Any] = []
        self.port = 0
        self.bundle = ""

    def url(self, path: str) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": self.bundle}

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.requests.append((request.path, review["request"]))
        answer = self.answers[request.path]
        response = answer(review["request"]) if callable(answer) else answer
        if isinstance(response, asyncio.Event):
            await response.wait()
            response = {"allowed": True}
        if isinstance(response, web.StreamResponse):
            return response  # type: ignore[return-value]
        body = {"uid": review["request"]["uid"], **response}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": body})


@pytest.fixture
async def hook(pki: tuple[ssl.SSLContext, str]) -> AsyncIterator[Hook]:
    hook = Hook()
    app = web.Application()
    app.router.add_post("/{tail:.*}", hook.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=pki[0])
    await site.start()
    hook.port, hook.bundle = runner.addresses[0][1], pki[1]
    yield hook
    await runner.cleanup()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = ObjectStore(None)
    put(store, "/namespaces", "ns", metadata={"labels": {"team": "a"}})
    yield store
    store.close()


def put(store: ObjectStore, key: str, name: str, ns: str | None = None, **fields: Any) -> None:
    metadata = {"name": name, **({"namespace": ns} if ns else {}), **fields.pop("metadata", {})}
    store.put(key, ns, name, {"metadata": metadata, **fields}, expect=None)
    store.commit()


def webhook(config: dict[str, Any], name: str = "hook.example.org", **more: Any) -> dict[str, Any]:
    rules = [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]
    return {"name": name, "clientConfig": config, "rules": rules, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], **more}  # fmt: skip


def configure(store: ObjectStore, *webhooks: dict[str, Any], kind: str = "mutating", name: str = "conf") -> None:
    put(store, f"{GROUP}/{kind}webhookconfigurations", name, webhooks=list(webhooks))


def request(
    key: str = "/configmaps", operation: str = "CREATE", labels: dict[str, str] | None = None, **more: Any
) -> AdmissionAttributes:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": labels or {}}, "data": {}}
    old = more.pop("old", None)
    return AdmissionAttributes(operation, present(KINDS.get(key)), "v1", "ns", "c", obj, old, USER, **more)  # type: ignore[arg-type]


async def run(store: ObjectStore, attributes: AdmissionAttributes | None = None, **hosts: Any) -> AdmissionAttributes:
    attributes = attributes or request()
    chain = AdmissionChain(store, webhook_hosts=hosts.get("hosts"))
    try:
        await chain.mutate(attributes)
        await chain.validate(attributes)
    finally:
        await chain.close()
    return attributes


def patch(*ops: dict[str, str]) -> dict[str, Any]:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(ops).encode()).decode()}


def adding(key: str) -> dict[str, Any]:
    return patch({"op": "add", "path": f"/data/{key}", "value": "1"})


async def test_a_webhook_gets_the_request_and_may_change_the_object(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/m"] = {**adding("a"), "warnings": ["careful"]}
    configure(store, webhook(hook.url("/m")))
    outcome = await run(store)
    assert outcome.obj is not None
    assert outcome.obj["data"] == {"a": "1"}
    assert outcome.warnings == ["careful"]
    (_, request) = hook.requests[0]
    want = {
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": "c",
        "namespace": "ns",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["devs"]},
        "oldObject": None,
        "dryRun": False,
    }
    assert want.items() <= request.items()
    assert request["object"]["data"] == {}


async def test_mutating_webhooks_see_earlier_changes_and_are_reinvoked(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/first"] = lambda r: patch(
        {"op": "add", "path": "/data/count", "value": str(len(r["object"]["data"]))}
    )
    hook.answers["/second"] = adding("b")
    configure(
        store,
        webhook(hook.url("/first"), "first.x.y", reinvocationPolicy="IfNeeded"),
        webhook(hook.url("/second"), "second.x.y"),
    )
    outcome = await run(store)
    assert [path for path, _ in hook.requests] == ["/first", "/second", "/first"]
    assert outcome.obj is not None
    assert outcome.obj["data"] == {"count": "2", "b": "1"}


async def test_a_service_is_found_through_its_endpoints(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/svc"] = adding("a")
    config = {"service": SERVICE, "caBundle": hook.bundle}
    configure(store, webhook(config))
    put(store, "/services", "hook", "ns", spec={"ports": [{"port": 443, "targetPort": 1}]})
    put(
        store,
        "/endpoints",
        "hook",
        "ns",
        subsets=[{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": hook.port}]}],
    )
    assert present((await run(store)).obj)["data"] == {"a": "1"}


async def test_a_service_may_be_mapped_to_a_host(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/svc"] = adding("a")
    configure(store, webhook({"service": SERVICE, "caBundle": hook.bundle}))
    outcome = await run(store, hosts={"ns/hook": f"127.0.0.1:{hook.port}"})
    assert outcome.obj is not None
    assert outcome.obj["data"] == {"a": "1"}


DENIALS = [
    ({"message": "no"}, 400, "", 'admission webhook "hook.example.org" denied the request: no'),
    ({"message": "no", "code": 403, "reason": "Forbidden"}, 403, "Forbidden", 'admission webhook "hook.example.org" denied the request: no'),
    ({"reason": "Teapot", "code": 418}, 418, "Teapot", 'admission webhook "hook.example.org" denied the request: Teapot'),
    ({}, 400, "", 'admission webhook "hook.example.org" denied the request without explanation'),
    ({"code": 200}, 400, "", 'admission webhook "hook.example.org" denied the request without explanation'),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["mutating", "validating"])
@pytest.mark.parametrize(("status", "code", "reason", "message"), DENIALS)
async def test_rejections_keep_the_webhooks_status(
    store: ObjectStore, hook: Hook, kind: str, status: dict[str, Any], code: int, reason: str, message: str
) -> None:
    hook.answers["/x"] = {"allowed": False, "status": status}
    configure(store, webhook(hook.url("/x")), kind=kind)
    with pytest.raises(StatusError) as caught:
        await run(store)
    assert (caught.value.code, caught.value.reason, caught.value.message) == (code, reason, message)


FAILURES = {
    "status": (lambda r: web.Response(status=503), "the server responded with status 503"),
    "no JSON": (lambda r: web.Response(text="hello"), "the response is not JSON"),
    "no response": (lambda r: web.json_response({}), "webhook response was absent"),
    "wrong uid": (lambda r: {"uid": "other", "allowed": True}, "expected response.uid="),
    "no patch type": ({"allowed": True, "patch": "W10="}, "but not response.patchType"),
    "patch not base64": ({"allowed": True, "patchType": "JSONPatch", "patch": "%"}, "not base64 of JSON"),
    "patch not a list": ({"allowed": True, "patchType": "JSONPatch", "patch": "e30="}, "not a JSON patch"),
}


@pytest.mark.parametrize(("answer", "message"), FAILURES.values(), ids=FAILURES.keys())
async def test_the_failure_policy_applies_to_invalid_responses(
    store: ObjectStore, hook: Hook, answer: Callable[..., Any] | dict[str, Any], message: str
) -> None:
    hook.answers["/x"] = answer
    configure(store, webhook(hook.url("/x"), failurePolicy="Fail"))
    with pytest.raises(StatusError, match=message) as caught:
        await run(store)
    assert caught.value.code == 500
    assert caught.value.message.startswith('Internal error occurred: failed calling webhook "hook.example.org": ')
    store.remove(f"{GROUP}/mutatingwebhookconfigurations", None, "conf",
                 expect=present(store.entry(f"{GROUP}/mutatingwebhookconfigurations", None, "conf")).rv)  # fmt: skip
    configure(store, webhook(hook.url("/x"), failurePolicy="Ignore"))
    assert present((await run(store)).obj)["data"] == {}


async def test_certificates_are_verified(store: ObjectStore, hook: Hook) -> None:
    configure(store, webhook({"url": hook.url("/x")["url"]}, failurePolicy="Fail"))
    with pytest.raises(StatusError, match="certificate verify failed"):
        await run(store)
    assert hook.requests == []


async def test_a_webhook_that_times_out_fails(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/x"] = asyncio.Event()
    configure(store, webhook(hook.url("/x"), timeoutSeconds=0.2), kind="validating")
    with pytest.raises(StatusError, match="context deadline exceeded"):
        await run(store)
    hook.answers["/x"].set()


async def test_a_webhook_that_does_not_listen_fails(store: ObjectStore, hook: Hook) -> None:
    configure(store, webhook({"url": "https://127.0.0.1:1/x", "caBundle": hook.bundle}), kind="validating")
    with pytest.raises(StatusError, match=r'Post "https://127.0.0.1:1/x\?timeout=10s"'):
        await run(store)


async def test_dry_run_needs_a_webhook_without_side_effects(store: ObjectStore, hook: Hook) -> None:
    hook.answers["/x"] = {"allowed": True}
    configure(store, webhook(hook.url("/x"), sideEffects="Some"), kind="validating")
    with pytest.raises(StatusError, match="does not support dry run") as caught:
        await run(store, request(dry_run=True))
    assert caught.value.code == 400


async def test_webhook_configurations_are_never_sent_to_webhooks(store: ObjectStore, hook: Hook) -> None:
    configure(store, webhook(hook.url("/x")), kind="validating")
    admission_request = request(f"{GROUP}/validatingwebhookconfigurations")
    await run(store, admission_request)
    assert hook.requests == []


TWO = ResourceKind("example.org", ("v2", "v1"), "Thing", "things", "thing", custom=True)
NAMESPACE = {"metadata": {"name": "ns", "labels": {"team": "a"}}}


def rules(**changes: Any) -> dict[str, Any]:
    base = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    return {"rules": [{**base, **changes}]}


MATCHES = {
    "plain": (rules(), {}, True),
    "other operation": (rules(operations=["DELETE"]), {}, False),
    "any operation": (rules(operations=["*"]), {"operation": "UPDATE"}, True),
    "other group": (rules(apiGroups=["apps"]), {}, False),
    "other version": (rules(apiVersions=["v2"]), {}, False),
    "any resource": (rules(resources=["*"]), {}, True),
    "subresource not named": (rules(), {"subresource": "status"}, False),
    "subresource named": (rules(resources=["configmaps/status"]), {"subresource": "status"}, True),
    "any subresource": (rules(resources=["configmaps/*"]), {"subresource": "status"}, True),
    "everything": (rules(resources=["*/*"]), {"subresource": "status"}, True),
    "star is no subresource": (rules(resources=["*"]), {"subresource": "status"}, False),
    "cluster scope": (rules(scope="Cluster"), {}, False),
    "namespaced scope": (rules(scope="Namespaced"), {}, True),
    "namespace selected": ({**rules(), "namespaceSelector": {"matchLabels": {"team": "a"}}}, {}, True),
    "namespace not selected": ({**rules(), "namespaceSelector": {"matchLabels": {"team": "b"}}}, {}, False),
    "object selected": ({**rules(), "objectSelector": {"matchLabels": {"x": "y"}}}, {"labels": {"x": "y"}}, True),
    "object not selected": ({**rules(), "objectSelector": {"matchLabels": {"x": "y"}}}, {}, False),
    "old object selected": ({**rules(), "objectSelector": {"matchLabels": {"x": "y"}}}, {"old": {"metadata": {"labels": {"x": "y"}}}}, True),
}  # fmt: skip


@pytest.mark.parametrize(("hook_rules", "about", "want"), MATCHES.values(), ids=MATCHES.keys())
def test_matching(hook_rules: dict[str, Any], about: dict[str, Any], want: bool) -> None:
    assert (match(hook_rules, request(**about), NAMESPACE) is not None) is want


def test_equivalent_versions_match_and_are_converted() -> None:
    attributes = AdmissionAttributes("CREATE", TWO, "v2", "ns", "t", {"metadata": {}}, None, USER)
    old_rules = rules(apiGroups=["example.org"], apiVersions=["v1"], resources=["things"])
    assert present(match({**old_rules, "matchPolicy": "Equivalent"}, attributes, NAMESPACE)).version == "v1"
    assert match({**old_rules, "matchPolicy": "Exact"}, attributes, NAMESPACE) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "neither url nor service"),
        ({"url": "https://x", "caBundle": "%"}, "caBundle is not base64"),
        ({"service": SERVICE}, 'service "hook" not found'),
        ({"service": {**SERVICE, "name": "idle"}}, 'no endpoints available for service "idle"'),
        ({"service": {**SERVICE, "name": "idle", "port": 8443}}, 'no service port 8443 found for service "idle"'),
    ],
)
def test_an_unresolved_webhook_names_the_reason(store: ObjectStore, config: dict[str, Any], message: str) -> None:
    put(store, "/services", "idle", "ns", spec={"ports": [{"port": 443}]})
    with pytest.raises(UnresolvedWebhook, match=message):
        WebhookEndpoints(store).resolve(config)


def test_a_service_is_resolved_by_endpoint_slices(store: ObjectStore) -> None:
    put(store, "/services", "hook", "ns", spec={"ports": [{"port": 443, "name": "https"}]})
    put(store, "discovery.k8s.io/endpointslices", "hook-x", "ns", metadata={"labels": {"kubernetes.io/service-name": "hook"}},
        ports=[{"name": "https", "port": 9443}],
        endpoints=[{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}, {"addresses": ["10.0.0.2"]}])  # fmt: skip
    target = WebhookEndpoints(store).resolve({"service": SERVICE})
    assert (target.url, target.server_name) == ("https://10.0.0.2:9443/svc", "hook.ns.svc")
    assert target.shown == "https://hook.ns.svc:443/svc"
