"""The wire contract of the webhooks, over real HTTPS."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from control.manager.webhookserver.admission import (
    AllowResponse,
    DenyResponse,
    Response,
    UndecodableObject,
    WebhookHandler,
    WebhookRequest,
    patch_response,
)
from control.manager.webhookserver.certificates import make
from control.manager.webhookserver.certstore import FileStore
from control.manager.webhookserver.metrics import MUTATE, WebhookMetrics
from control.manager.webhookserver.server import MAX_BODY_BYTES, WebhookServer
from koordlet.api.core import Pod


class Echo(WebhookHandler):
    """Does what the pod's name says."""

    path, gate = "/mutate-pod", "PodMutatingWebhook"
    resources = frozenset({("", "pods", "")})

    async def handle(self, request: WebhookRequest) -> Response:
        match request.name:
            case "allow":
                return AllowResponse(warnings=("careful",))
            case "change":
                return patch_response({"a": 1}, {"a": 2})
            case "deny":
                return DenyResponse("metadata.labels: Forbidden: no")
            case "forbid":
                return DenyResponse("not yours", code=403, reason="Forbidden")
            case "undecodable":
                request.decode(Pod)
                raise AssertionError("it was decoded")
            case "hang":
                await asyncio.sleep(3600)
        raise RuntimeError("boom")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[WebhookServer, Callable[..., Awaitable[Any]]]]:
    store = FileStore(tmp_path)
    store.replace(make("hooks.example", datetime.now(UTC)))
    server = WebhookServer(tmp_path, host="127.0.0.1", port=0, registry=CollectorRegistry())
    server.register(Echo())
    await server.start()
    context = ssl.create_default_context(cafile=str(tmp_path / "ca-cert.pem"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

        async def post(
            body: Any,
            path: str = "/mutate-pod",
            *,
            method: str = "POST",
            kind: str = "application/json",
            query: str = "",
        ) -> tuple[int, Any]:
            data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
            url = f"https://localhost:{server.port}{path}{query}"
            async with session.request(method, url, data=data, headers={"Content-Type": kind}) as response:
                raw = await response.read()
                return response.status, json.loads(raw) if raw.startswith(b"{") else raw.decode()

        yield server, post
    await server.stop()


def review(name: str, *, version: str = "admission.k8s.io/v1", resource: str = "pods", **request: Any) -> Any:
    return {
        "kind": "AdmissionReview",
        "apiVersion": version,
        "request": {
            "uid": f"uid-{name}",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": resource},
            "name": name,
            "namespace": "ns",
            "operation": "CREATE",
            "object": {"spec": {"containers": [{"name": 3}]}},
            **request,
        },
    }


CASES: dict[str, tuple[str, bool, int | None, str]] = {
    "allow": ("allow", True, 200, ""),
    "change": ("change", True, None, ""),
    "refusal": ("deny", False, 400, "metadata.labels: Forbidden: no"),
    "binding refusal": ("forbid", False, 403, "not yours"),
    "undecodable object": ("undecodable", False, 400, "Pod ns/undecodable: spec.containers[0].name"),
    "crash": ("crash", False, 500, "/mutate-pod failed: RuntimeError: boom"),
}


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
@pytest.mark.parametrize(("name", "allowed", "code", "message"), CASES.values(), ids=CASES)
async def test_outcomes(served: Any, version: str, name: str, allowed: bool, code: int | None, message: str) -> None:
    _, post = served
    status, answer = await post(review(name, version=version))
    assert (status, answer["kind"], answer["apiVersion"]) == (200, "AdmissionReview", version)
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == (f"uid-{name}", allowed)
    assert response.get("status", {}).get("code") == code
    assert response.get("status", {}).get("message", "").startswith(message)
    if name == "change":
        assert response["patchType"] == "JSONPatch"
        assert json.loads(base64.b64decode(response["patch"])) == [{"op": "replace", "path": "/a", "value": 2}]
    else:
        assert "patchType" not in response
    assert response.get("warnings") == (["careful"] if name == "allow" else None)


@pytest.mark.parametrize(
    "requested",
    [{"resource": "nodes"}, {"subResource": "binding"}],
    ids=["another resource", "a subresource"],
)
async def test_requests_for_other_resources_are_allowed(served: Any, requested: dict[str, Any]) -> None:
    _, post = served
    status, answer = await post(review("deny", **requested))
    assert (status, answer["response"]["allowed"]) == (200, True)


BAD: dict[str, tuple[Any, str, int, str]] = {
    "nothing": (b"", "application/json", 400, "request body is empty"),
    "garbage": (b"{\x00", "application/json", 400, "malformed"),
    "not UTF-8": (b'{"kind": "\xff"}', "application/json", 400, "AdmissionReview"),
    "an array": ([1], "application/json", 400, "AdmissionReview"),
    "another kind": ({"kind": "Pod"}, "application/json", 400, '"Pod" is not AdmissionReview'),
    "a version of tomorrow": (review("allow", version="admission.k8s.io/v2"), "application/json", 400, "v2"),
    "no request": (
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"},
        "application/json",
        400,
        "request",
    ),
    "no uid": (review("allow", uid=""), "application/json", 400, "uid"),
    "a wrong type": (review("allow", operation=7), "application/json", 400, "$.request.operation"),
    "YAML": (b"kind: AdmissionReview", "application/yaml", 415, "application/yaml"),
    "too large": (b" " * (MAX_BODY_BYTES + 1), "application/json", 413, "larger than"),
    "deeply nested": (b'{"a":' * 5000, "application/json", 400, "AdmissionReview"),
}


@pytest.mark.parametrize(("body", "kind", "code", "expected"), BAD.values(), ids=BAD)
async def test_an_invalid_review_is_refused_with_a_reason(
    served: Any, body: Any, kind: str, code: int, expected: str
) -> None:
    _, post = served
    status, answer = await post(body, kind=kind)
    assert (status, answer["response"]["allowed"], answer["response"]["status"]["code"]) == (code, False, code)
    assert expected in answer["response"]["status"]["message"]
    assert (await post(review("allow")))[1]["response"]["allowed"] is True  # the server goes on


def compact(obj: str) -> bytes:
    """A review as the API server writes it, with this JSON as the object."""
    head = '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"7c3f-1","operation":"CREATE"'
    return f'{head},"object":{obj}}}}}'.encode()


UNREADABLE = {
    "nested deeper than can be decoded": compact('{"f:a":' * 1500 + "{}" + "}" * 1500),
    "a text that JSON makes six times as long": compact(json.dumps("<" * 1_300_000).replace("<", "\\u003c")),
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_object_that_cannot_be_read_is_refused_whatever_the_failure_policy(served: Any, body: bytes) -> None:
    """The API server stores the object if the HTTP status is an error or the uid differs, and the policy is Ignore."""
    _, post = served
    status, answer = await post(body)
    assert (status, answer["response"]["uid"], answer["response"]["allowed"]) == (200, "7c3f-1", False)


async def test_a_hanging_handler_is_cancelled_after_the_timeout(served: Any) -> None:
    _, post = served
    status, text = await post(review("hang"), query="?timeout=50ms")
    assert status == 504 and "timed out" in text


async def test_other_pages(served: Any) -> None:
    _, post = served
    assert await post(b"", "/healthz", method="GET") == (200, "")
    assert (await post(b"", method="GET"))[0] == 405
    assert (await post(b"", "/nowhere"))[0] == 404
    status, answer = await post({"request": {"uid": "x"}}, "/convert")
    assert (status, answer["response"]["uid"], answer["response"]["result"]["status"]) == (200, "x", "Failure")


async def test_requests_are_counted_by_code(served: Any, tmp_path: Path) -> None:
    server, post = served
    await post(review("allow"))
    await post(review("crash"))
    await post(b"")
    counts = {
        sample.labels["code"]: sample.value
        for metric in server._metrics.requests.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert counts == {"200": 2, "400": 1}
    with pytest.raises(ValueError, match="two webhooks have the path /mutate-pod"):
        server.register(Echo())


def test_the_durations_of_plugins_have_koordinators_name_and_buckets() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics.of(registry)
    with metrics.plugin(MUTATE, "pod", "CREATE", "ClusterColocationProfile"):
        pass
    with pytest.raises(UndecodableObject), metrics.plugin(MUTATE, "pod", "CREATE", "ClusterColocationProfile"):
        raise UndecodableObject("no")
    labels = {"webhook_type": "mutate", "object_type": "pod", "operation": "CREATE"}
    for status in ("allowed", "rejected"):
        name = "koord_manager_webhook_webhook_duration_milliseconds_count"
        value = registry.get_sample_value(name, {**labels, "plugin_name": "ClusterColocationProfile", "status": status})
        assert value == 1
    buckets = {s.labels["le"] for m in metrics.duration.collect() for s in m.samples if s.name.endswith("_bucket")}
    assert len(buckets) == 21 and {"0.001", "0.002", "524.288"} <= buckets
