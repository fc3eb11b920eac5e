"""Malformed requests are errors of the client, never of the server."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

import pytest

from control.standalone.apiserver import ApiServer

CMS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
NAMES = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}

BODIES = {
    "boolean specification": (PODS, {**POD, "spec": True}),
    "boolean container": (PODS, {**POD, "spec": {"containers": [True]}}),
    "boolean metadata": (CMS, {**NAMES, "metadata": True}),
    "apiVersion is an object": (CMS, {**NAMES, "apiVersion": {}}),
    "kind is a list": (CMS, {**NAMES, "kind": ["ConfigMap"]}),
    "name is a number": (CMS, {**NAMES, "metadata": {"name": 1}}),
    "generateName is a number": (CMS, {**NAMES, "metadata": {"name": "a", "generateName": 1}}),
    "label is a number": (CMS, {**NAMES, "metadata": {"name": "a", "labels": {"a": 1}}}),
    "labels are a list": (CMS, {**NAMES, "metadata": {"name": "a", "labels": ["a"]}}),
    "version is a number": (CMS, {**NAMES, "metadata": {"name": "a", "resourceVersion": 1}}),
    "owner is a boolean": (CMS, {**NAMES, "metadata": {"name": "a", "ownerReferences": [True]}}),
    "managedFields is a number": (CMS, {**NAMES, "metadata": {"name": "a", "managedFields": 1}}),
    "finalizer is a number": (CMS, {**NAMES, "metadata": {"name": "a", "finalizers": [1]}}),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
async def test_values_of_another_type_are_rejected(http: Any, path: str, body: Any) -> None:
    created = await http("POST", path, body)
    assert created.status in (400, 422), created.text
    name = "p" if path == PODS else "a"
    for content_type in ("application/apply-patch+yaml", "application/merge-patch+json"):
        params = "?fieldManager=me&force=true" if "apply" in content_type else ""
        patched = await http("PATCH", f"{path}/{name}{params}", body, content_type=content_type)
        assert patched.status in (400, 404, 422), patched.text


async def test_names_of_unknown_fields_do_not_break_the_response(http: Any) -> None:
    """Warnings quote them in headers: without control characters, and not more than clients accept."""
    for kind in ("merge-patch+json", "strategic-merge-patch+json"):
        await http("POST", CMS, NAMES)
        patch = {"a\r\nb: c\x00\x85": 1, **{f"{'field' * 50}{number}": 1 for number in range(2000)}}
        patched = await http("PATCH", f"{CMS}/a", patch, content_type=f"application/{kind}")
        assert patched.status == 200, patched.text
        warnings = patched.headers.getall("Warning")
        assert '299 - "unknown field \\"a  b: c  \\""' in warnings
        assert sum(map(len, warnings)) < 6000


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
async def test_patches_with_values_of_another_type_are_rejected(http: Any, path: str, body: Any) -> None:
    name = "p" if path == PODS else "a"
    await http("POST", path, POD if path == PODS else NAMES)
    for kind in ("apply-patch+yaml", "merge-patch+json", "strategic-merge-patch+json"):
        params = "?fieldManager=me&force=true" if "apply" in kind else ""
        patched = await http("PATCH", f"{path}/{name}{params}", body, content_type=f"application/{kind}")
        assert patched.status in (400, 422), f"{kind}: {patched.text}"
    replaced = await http("PUT", f"{path}/{name}", body)
    assert replaced.status in (400, 409, 422), replaced.text


REVIEWS = {
    "specification": "x",
    "user": {"user": 1},
    "token": {"token": ["a"]},
    "groups": {"user": "a", "groups": "b"},
    "audiences": {"token": "a", "audiences": [1]},
    "extra": {"user": "a", "extra": {"k": "v"}},
    "attributes": {"user": "a", "resourceAttributes": "b"},
}


@pytest.mark.parametrize("spec", REVIEWS.values(), ids=REVIEWS.keys())
@pytest.mark.parametrize("kind", ["authentication tokenreviews", "authorization subjectaccessreviews",
                                  "authorization selfsubjectaccessreviews"])  # fmt: skip
async def test_reviews_with_values_of_another_type_are_rejected(http: Any, kind: str, spec: Any) -> None:
    group, plural = kind.split()
    response = await http("POST", f"/apis/{group}.k8s.io/v1/{plural}", {"spec": spec})
    assert response.status == 400, response.text
    assert "spec" in response.body["message"]


async def test_integer_keys_of_yaml_are_strings(http: Any) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {1: x}}\n"
    created = await http("POST", CMS, body, content_type="application/yaml")
    assert (created.status, created.body["metadata"]["labels"]) == (201, {"1": "x"})


@pytest.mark.parametrize("query", ["resourceVersion=%C2%B2", "resourceVersion=%D9%A3", "limit=%C2%B2", "limit=x",
                                   "resourceVersion=9" + "9" * 5000, "limit=" + "9" * 5000,
                                   "watch=1&resourceVersion=%C2%B2", "watch=1&timeoutSeconds=nan",
                                   "watch=1&timeoutSeconds=%C2%B2", "continue=%FF", "labelSelector=%FF(",
                                   "fieldSelector=%FF"])  # fmt: skip
async def test_malformed_query_parameters_are_rejected(http: Any, query: str) -> None:
    response = await http("GET", f"{CMS}?{query}")
    assert response.status in (400, 410, 504), response.text
    assert response.body["kind"] == "Status"


async def test_a_version_in_other_digits_is_no_version(http: Any) -> None:
    await http("POST", CMS, NAMES)
    response = await http("GET", f"{CMS}/a?resourceVersion=%C2%B2")
    assert response.status in (200, 400), response.text


async def test_a_broken_compressed_body_is_rejected(http: Any) -> None:
    body = json.dumps(NAMES).encode()
    response = await http("POST", CMS, body, headers={"Content-Encoding": "gzip"})
    assert response.status in (400, 415), response.text


@pytest.mark.parametrize("token", [b"\xff\xfe", b"a.b.c", base64.urlsafe_b64encode(b"[" * 5_500) + b".e30.c"])
async def test_a_token_of_arbitrary_bytes_is_rejected(server: ApiServer, token: bytes) -> None:
    url = urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(server.pki.ca_file))
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
    writer.write(b"GET /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer " + token + b"\r\n\r\n")
    status = await reader.readline()
    writer.close()
    assert status == b"HTTP/1.1 401 Unauthorized\r\n"
