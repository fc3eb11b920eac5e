"""Lines of the audit log: fields, levels, and values that JSON cannot say."""

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.audit import group, node, pod, unknown
from koordlet.audit.events import MAX_MESSAGE_CHARS, About, is_event, line

CASES = {
    "node": (node(), {"type": "node"}),
    "pod": (pod("default", "web"), {"type": "pod", "namespace": "default", "name": "web"}),
    "container": (
        pod("default", "web", "main"),
        {"type": "pod", "namespace": "default", "name": "web", "container": "main"},
    ),
    "group": (group("BE"), {"type": "group", "name": "BE"}),
    "unknown": (unknown("x"), {"type": "unknown", "name": "x"}),
}


@pytest.mark.parametrize(("about", "expected"), CASES.values(), ids=CASES)
def test_fields_are_the_documented_ones_and_empty_ones_are_left_out(about: About, expected: dict[str, str]) -> None:
    event = json.loads(line(1_700_000_000.25, 0, about, "UpdateCgroups", ""))
    created = datetime.datetime.fromisoformat(event.pop("createdAt"))
    assert created.timestamp() == 1_700_000_000.25
    assert created.tzinfo is not None
    assert event == {**expected, "level": 0, "reason": "UpdateCgroups"}


def test_details_are_one_more_field() -> None:
    event = json.loads(line(0, 3, node(), "CPUBurst", "quota raised", {"from": 100, "to": 150.5}))
    assert (event["level"], event["message"], event["details"]) == (3, "quota raised", {"from": 100, "to": 150.5})


ODD = {
    "surrogate": ("\udcff", {}),
    "big number": ("m", {"n": 1 << 70}),
    "odd key": ("m", {("a", 1): 1}),
    "object": ("m", {"path": object()}),
    "not a number": ("m", {"x": float("nan")}),
}


@pytest.mark.parametrize(("message", "details"), ODD.values(), ids=ODD)
def test_values_that_json_cannot_represent_become_text(message: str, details: dict[Any, Any]) -> None:
    text = line(0, 1, pod("n", "p"), "Reason", message, details)
    assert json.loads(text)["details" if details else "message"]
    assert is_event(text)


@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers() | st.floats() | st.text() | st.none()))
def test_any_event_is_one_readable_line(name: str, message: str, details: dict[str, Any]) -> None:
    text = line(0, 2, unknown(name), "Reason", message, details)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert is_event(text)


def test_a_long_message_is_truncated() -> None:
    assert len(json.loads(line(0, 0, node(), "R", "x" * (MAX_MESSAGE_CHARS + 5)))["message"]) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize("text", [b"", b'{"type":"po', b"[]", b'{"type":7}', b"\xff\xfe", b"null"])
def test_invalid_events(text: bytes) -> None:
    assert not is_event(text)


def test_an_event_of_the_original_without_level_is_an_event() -> None:
    assert is_event(b'{"createdAt":"2023-01-01T00:00:00Z","type":"node","reason":"x","extra":1}')
