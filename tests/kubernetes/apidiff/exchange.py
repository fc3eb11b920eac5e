"""Requests of the differential test, as data, and the differences of two answers.

A request may refer to an earlier answer of the same server: `${name:metadata.resourceVersion}` is that field of the
answer to the step called `name`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.apidiff.servers import ADMIN, Answer, ComparedServer

JSON, YAML = "application/json", "application/yaml"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

COMPARED_HEADERS = ("Content-Type", "Cache-Control", "Retry-After", "Www-Authenticate", "Allow", "Vary", "Location")
_REFERENCE = re.compile(r"\$\{([^:}]+):([^}]+)\}")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_TOKEN_VOLUME = re.compile(r"kube-api-access-[a-z0-9]{5}")
_AGE = re.compile(r"\d+s")
_VERSION_TEXT = re.compile(r"((?:resource ?[vV]ersion|current|precondition|object meta)\w*:? )\"?\d+\"?")


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `body` is JSON data, or bytes that are sent unchanged."""

    name: str
    method: str
    path: str
    body: Any = None
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    token: str = ADMIN
    compare: bool = True  # False: only prepares what later requests need, but must succeed on both
    until: str = ""  # send it again until the answer contains this text


def send(server: ComparedServer, call: Call, answers: Mapping[str, Answer]) -> Answer:
    """Send one request; `answers` are those of the same server so far, by name."""

    def fill(text: str) -> str:
        return _REFERENCE.sub(lambda m: str(dig(answers[m[1]].body, m[2])), text)

    headers = {"User-Agent": "apidiff/1", "Accept": "application/json", **call.headers}
    if call.token:
        headers["Authorization"] = f"Bearer {call.token}"
    body = call.body
    if body is not None:
        if not isinstance(body, bytes):
            body = fill(json.dumps(body)).encode()
        headers.setdefault("Content-Type", call.content_type)
    return server.send(call.method, fill(call.path), body, headers)


def dig(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def differences(real: Answer, embedded: Answer) -> Iterator[tuple[str, Any, Any]]:
    """(where, real, embedded) of everything that differs after normalising."""
    if real.status != embedded.status:
        yield "status", real.status, embedded.status
    if sorted(real.warnings) != sorted(embedded.warnings):
        yield "warnings", sorted(real.warnings), sorted(embedded.warnings)
    for name in COMPARED_HEADERS:
        if real.headers.get(name) != embedded.headers.get(name):
            yield f"header.{name}", real.headers.get(name), embedded.headers.get(name)
    if real.text.endswith("\n") != embedded.text.endswith("\n"):
        yield "final newline", real.text[-1:], embedded.text[-1:]
    yield from unequal("body", normal(real.body), normal(embedded.body))


_ABSENT = "<absent>"


def unequal(where: str, real: Any, embedded: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(real, dict) and isinstance(embedded, dict):
        for key in sorted({*real, *embedded}):
            yield from unequal(f"{where}.{key}", real.get(key, _ABSENT), embedded.get(key, _ABSENT))
    elif isinstance(real, list) and isinstance(embedded, list) and len(real) == len(embedded):
        for at, (left, right) in enumerate(zip(real, embedded, strict=True)):
            yield from unequal(f"{where}[{at}]", left, right)
    elif real != embedded or isinstance(real, bool) != isinstance(embedded, bool):
        yield where, real, embedded


def normal(value: Any, key: str = "") -> Any:
    """The value without what differs by nature: uids, times, versions, generated names."""
    if isinstance(value, dict):
        return {k: normal(v, k) for k, v in value.items()}
    if key == "managedFields" and isinstance(value, list):  # sorted by time, which differs
        value = sorted(value, key=lambda entry: (entry.get("manager", ""), entry.get("subresource", "")))
    if key in ("resourceRules", "nonResourceRules") and isinstance(value, list):  # in random order
        value = sorted(value, key=json.dumps)
    if isinstance(value, list):
        return [_AGE.sub("<age>", v) if key == "cells" and isinstance(v, str) and _AGE.fullmatch(v) else normal(v)
                for v in value]  # fmt: skip
    if isinstance(value, str):
        if key == "resourceVersion":
            return "<version>" if value else ""
        if key in ("continue", "token"):
            return f"<{key}>"
        value = _TOKEN_VOLUME.sub("kube-api-access-<suffix>", value)
        text = _VERSION_TEXT.sub(r"\1<version>", _TIME.sub("<time>", _UID.sub("<uid>", value)))
        return text
    return value
