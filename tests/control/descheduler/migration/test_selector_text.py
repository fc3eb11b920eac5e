"""Label selectors as text."""

from __future__ import annotations

import pytest

from control.descheduler.migration.decide.selectortext import parse_selector
from koordlet.api.meta import SelectorError


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("  ", {"a": "b"}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a = b , c", {"a": "b", "c": ""}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": "x"}, True),
        ("!a", {"a": "x"}, False),
        ("! a", {}, True),
        ("example.com/a in (x, y)", {"example.com/a": "y"}, True),
        ("a in (x,y)", {"a": "z"}, False),
        ("a notin (x,y)", {"a": "z"}, True),
        ("a=", {"a": ""}, True),
        ("a=b,c in (d),!e", {"a": "b", "c": "d", "e": ""}, False),
    ],
)
def test_match(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_selector(text).matches(labels) is matches


@pytest.mark.parametrize("text", ["a in b", "a in (b", "=b", "a=b,", ",a", "a b", "a=b=c", "a in ((b))", "-a=b", "a=-"])
def test_invalid(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(text)
