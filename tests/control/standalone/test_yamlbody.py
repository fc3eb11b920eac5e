"""YAML request bodies: the same values as a YAML library, in bounded time and memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.errors import StatusError
from control.standalone.http import yamlbody

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Z"]), max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_decoding_reverses_encoding(value: Any, flow: bool) -> None:
    assert yamlbody.decode(yaml.safe_dump(value, default_flow_style=flow).encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: [x, 'y', \"1\", 0x10, 1e3, 1.5]", {"a": 1, "b": ["x", "y", "1", 16, "1e3", 1.5]}),
        ("{a: yes, b: ~, c: null, d: }", {"a": True, "b": None, "c": None, "d": None}),
        ("time: 2026-01-01T00:00:00Z", {"time": "2026-01-01T00:00:00Z"}),
        ("1: a\ntrue: b\n~: c\n1.5: d", {"1": "a", "true": "b", "null": "c", "1.5": "d"}),
        ("a: !!str 5\nb: !!int '5'", {"a": "5", "b": 5}),
        ("a: &anchor 1", {"a": 1}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: 100000000000000000000", {"a": 1e20}),
        ("<<: x", {"<<": "x"}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert yamlbody.decode(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "aliases are not supported"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("? [a]\n: b", "a key must be a scalar"),
        ("a: !!binary aGk=", "unsupported tag"),
        ("a: !!python/object:os.system x", "unsupported tag"),
        ("a: !!set {x, y}", "unsupported tag"),
        ("[" * 201 + "]" * 201, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("a: [", "did not find expected node content|expected the node content"),
        ("a: !!int x", "invalid literal"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
    ],
)
def test_malformed_documents_are_rejected(text: str, message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        yamlbody.decode(text.encode())
    assert caught.value.code == 400


def test_a_bomb_of_aliases_costs_nothing() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    tracemalloc.start()
    try:
        with pytest.raises(StatusError, match="aliases"):
            yamlbody.decode("\n".join(lines).encode())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_time_is_proportional_to_the_length() -> None:
    def seconds(items: int) -> float:
        body = ("a:\n" + "".join(f"- name: x{i}\n  v: {i}\n" for i in range(items))).encode()
        start = time.process_time()
        assert len(yamlbody.decode(body)["a"]) == items
        return time.process_time() - start

    seconds(1000)
    assert seconds(16_000) < 12 * max(seconds(4_000), 0.01)
