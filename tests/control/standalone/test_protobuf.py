"""Protobuf bodies: messages encoded by hand and decoded as objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.errors import StatusError
from control.standalone.http.protobuf import decode, table
from control.standalone.kinds import BUILTIN


def varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def num(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def pair(field: int, key: str, value: bytes) -> bytes:
    return text(field, text(1, key) + value)


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + text(1, text(1, api_version) + text(2, kind)) + text(2, message)


META = text(1, text(1, "a") + text(2, "") + text(8, b"") + pair(11, "app", text(2, "x")))


@pytest.mark.parametrize(
    ("api_version", "kind", "message", "expected"),
    [
        pytest.param(
            "v1",
            "ConfigMap",
            META + pair(2, "k", text(2, "v")) + pair(3, "b", text(2, b"\x00\xff")) + num(4, 0),
            {
                "metadata": {"name": "a", "labels": {"app": "x"}},
                "data": {"k": "v"},
                "binaryData": {"b": "AP8="},
                "immutable": False,
            },
            id="maps, bytes, a false that was set",
        ),
        pytest.param(
            "policy/v1",
            "PodDisruptionBudget",
            text(2, text(1, num(1, 1) + num(2, 0) + text(3, "50%"))),
            {"spec": {"minAvailable": "50%"}},
            id="int or string",
        ),
        pytest.param(
            "policy/v1",
            "PodDisruptionBudget",
            text(2, text(3, num(1, 0) + num(2, 2) + text(3, ""))),
            {"spec": {"maxUnavailable": 2}},
            id="int",
        ),
        pytest.param(
            "v1",
            "ResourceQuota",
            text(2, pair(1, "cpu", text(2, text(1, "1500m")))),
            {"spec": {"hard": {"cpu": "1500m"}}},
            id="quantity",
        ),
        pytest.param(
            "coordination.k8s.io/v1",
            "Lease",
            text(2, text(1, "me") + num(2, 15) + text(3, num(1, 1700000000) + num(2, 5000))),
            {
                "spec": {
                    "holderIdentity": "me",
                    "leaseDurationSeconds": 15,
                    "acquireTime": "2023-11-14T22:13:20.000005Z",
                }
            },
            id="micro time",
        ),
        pytest.param(
            "v1",
            "Pod",
            text(2, text(1, text(1, "vol") + text(2, text(2, text(1, "Memory"))))),
            {"spec": {"volumes": [{"name": "vol", "emptyDir": {"medium": "Memory"}}]}},
            id="inlined message",
        ),
        pytest.param(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            num(2, -5) + num(3, 0),
            {"value": -5},
            id="negative number",
        ),
        pytest.param(
            "authorization.k8s.io/v1",
            "SubjectAccessReview",
            text(2, pair(5, "scope", text(2, text(1, "a") + text(1, "b")))),
            {"spec": {"extra": {"scope": ["a", "b"]}}},
            id="list in a message",
        ),
        pytest.param(
            "v1", "Namespace", text(1, text(1, "n")) + text(99, "newer"), {"metadata": {"name": "n"}}, id="unknown"
        ),
    ],
)
def test_messages(api_version: str, kind: str, message: bytes, expected: dict[str, Any]) -> None:
    assert decode(envelope(api_version, kind, message)) == {"apiVersion": api_version, "kind": kind, **expected}


def test_delete_options_are_the_same_in_every_group() -> None:
    body = envelope("apps/v1", "DeleteOptions", num(1, 0) + text(4, "Foreground"))
    assert decode(body) == {
        "apiVersion": "apps/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Foreground",
    }


def test_every_message_that_a_field_names_is_in_the_table() -> None:
    known = table()
    scalars = {
        "string",
        "bool",
        "int",
        "double",
        "bytes",
        "time",
        "microtime",
        "duration",
        "quantity",
        "intstr",
        "raw",
        "items",
    }
    for name, fields in known.messages.items():
        for field in fields.values():
            assert field.type in scalars or field.type in known.messages, f"{name}.{field.name}: {field.type}"
    for kind in BUILTIN:
        if kind.group not in ("apiextensions.k8s.io", "apiregistration.k8s.io"):
            assert f"{kind.served_as()} {kind.kind}" in known.roots


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_at_most_rejected(junk: bytes) -> None:
    for body in (b"k8s\x00" + junk, envelope("v1", "Pod", junk), junk):
        try:
            decoded = decode(body)
        except StatusError as e:
            assert e.code in (400, 415)
        else:
            assert isinstance(decoded, dict)
