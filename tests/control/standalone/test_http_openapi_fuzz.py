"""Requests made from the embedded API server's own OpenAPI documents, and damaged ones: never a 500, never a hang.

`FUZZ_REQUESTS` sets their number, `FUZZ_SEED` the seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "400"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
PATIENCE_S = 120.0
"""A request that takes longer has hung."""
MAX_DEPTH = 5
CONNECTING = ("/proxy", "/log", "/exec", "/attach", "/portforward", "/watch/")
"""Paths whose answer is that of a kubelet, or that stream."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e30, "", "x", "é", "\x00", "²", "a" * 300, [], [None], {}, {"a": None}, [{}], {"": {"": []}},
)  # fmt: skip
NAMES = ("default", "kube-system", "missing", "A", "..", "%2e", "a" * 260, "é", "a b")
KUBERNETES_OWN = "resourceVersion should not be set on objects to be created"
"""kube-apiserver, too, answers this with 500."""


@dataclass(frozen=True)
class Operation:
    """One method of a path, with the schemas of its document."""

    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    contents: dict[str, Any]
    """Content type -> schema of the body."""
    schemas: dict[str, Any]


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    schemas = document.get("components", {}).get("schemas", {})
    for path, item in sorted(document["paths"].items()):
        if any(part in path for part in CONNECTING):
            continue
        for method in ("get", "post", "put", "patch", "delete"):
            if method in item:
                parameters = (*item.get("parameters", ()), *item[method].get("parameters", ()))
                contents = item[method].get("requestBody", {}).get("content", {})
                bodies = {kind: content.get("schema", {}) for kind, content in contents.items()}
                yield Operation(method.upper(), path, parameters, bodies, schemas)


class Maker:
    """Makes requests of operations."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.odd = 0.0
        """How often a value is odd, in the present request."""

    def request(self, operation: Operation) -> tuple[str, str, bytes | None, str]:
        """(method, path, body, content type)"""
        chance = self.chance
        self.odd = chance.choice((0.0, 0.0, 0.02, 0.1))
        path, query = operation.path, ["timeoutSeconds=1"]
        for part in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
            path = path.replace(f"{{{part}}}", quote(chance.choice(NAMES) if self.odd else "default", safe="%"))
        for parameter in operation.parameters:
            if (
                parameter.get("in") == "query"
                and chance.random() < 2 * self.odd
                and parameter["name"] != "timeoutSeconds"
            ):
                document = self.value(parameter.get("schema", {}), operation.schemas, 0)
                query.append(f"{parameter['name']}={quote(str(document))}")
        if not operation.contents:
            return operation.method, f"{path}?{'&'.join(query)}", None, ""
        kind = chance.choice(sorted(operation.contents))
        body = self.value(operation.contents[kind], operation.schemas, 0)
        if kind == "*/*":  # any of the accepted types
            kind = "application/json" if chance.random() >= self.odd else "text/plain"
        if kind == "application/json-patch+json" and chance.random() < 0.8:
            operation_name = chance.choice(("add", "remove", "copy", "test"))
            body = [{"op": operation_name, "path": "/metadata/labels", "from": "/spec", "value": chance.choice(ODD)}]
        data = json.dumps(body).encode()
        if chance.random() < self.odd:
            data = data[: chance.randrange(len(data) + 1)]
        return operation.method, f"{path}?{'&'.join(query)}", data, kind

    def value(self, schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> Any:
        """A value of the schema, with an odd one here and there."""
        chance = self.chance
        if chance.random() < self.odd:
            return chance.choice(ODD)
        for each in schema.get("allOf", ())[:1]:
            return self.value(each, schemas, depth)
        if "$ref" in schema:
            return self.value(schemas.get(schema["$ref"].rpartition("/")[2], {}), schemas, depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, schemas, depth)
            case "array":
                count = chance.randrange(3) if depth < MAX_DEPTH else 0
                return [self.value(schema.get("items", {}), schemas, depth + 1) for _ in range(count)]
            case "string":
                return chance.choice(("a", "b", "1", "5Gi", "2024-01-01T00:00:00Z", "web", "v1"))
            case "integer" | "number":
                return chance.choice((0, 1, 80, -5))
            case "boolean":
                return chance.random() < 0.5
        return chance.choice(ODD)

    def _object(self, schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> dict[str, Any]:
        chance, fields, required = self.chance, schema.get("properties", {}), schema.get("required", ())
        values = {
            name: self.value(property_schema, schemas, depth + 1)
            for name, property_schema in fields.items()
            if name in required or (depth < MAX_DEPTH and chance.random() < 3 * self.odd)
        }
        if isinstance(schema.get("additionalProperties"), dict) and depth < MAX_DEPTH:
            values["key"] = self.value(schema["additionalProperties"], schemas, depth + 1)
        kinds = schema.get("x-kubernetes-group-version-kind") or []
        if depth == 0 and kinds:
            group, version = kinds[0]["group"], kinds[0]["version"]
            values["apiVersion"], values["kind"] = f"{group}/{version}" if group else version, kinds[0]["kind"]
        name = chance.choice(("default", f"n{chance.randrange(1000)}"))
        if depth == 0 and isinstance(values.setdefault("metadata", {}), dict) and chance.random() >= self.odd:
            values["metadata"]["name"] = name
        return values


async def answered(http: Any, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {http.server.admin_token}", **({"Content-Type": kind} if kind else {})}
    url = URL(http.server.url + path, encoded=True)
    async with http.session.request(method, url, data=body, headers=headers) as response:
        return response.status, await response.text()


async def test_requests_of_the_openapi_documents_are_no_server_errors(http: Any) -> None:
    index = (await http("GET", "/openapi/v3")).body["paths"]
    known: list[Operation] = []
    for entry in index.values():
        known += operations((await http("GET", entry["serverRelativeURL"])).body)
    assert len(known) > 300, "the documents describe the server"
    maker = Maker(random.Random(SEED))
    order = maker.chance.sample(known, len(known))
    statuses = set()
    for number in range(REQUESTS):
        method, path, body, kind = maker.request(order[number % len(order)])
        shown = f"request {number} of seed {SEED}: {method} {path} {kind} {(body or b'')[:2000]!r}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, text = await answered(http, method, path, body, kind)
        except TimeoutError:
            pytest.fail(f"no answer to {shown}")
        assert status < 500 or status == 504 or KUBERNETES_OWN in text, f"{status} {text[:500]} to {shown}"
        statuses.add(status)
    assert (await http("GET", "/readyz")).status == 200
    assert statuses >= {200, 201, 400, 404, 409, 422}, "requests reach storage and validation"
