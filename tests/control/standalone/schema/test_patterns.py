"""Patterns of CRD schemas: RE2's syntax and results, in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.schema.crd import check_crd
from control.standalone.schema.patterns import Pattern, PatternError

MATCHES = [
    ("^[a-z]+$", "abc", True), ("^[a-z]+$", "abC", False), ("b{2,3}", "abbc", True), ("b{2,3}", "abc", False),
    ("^(ab|cd)*$", "abcdab", True), ("^(ab|cd)*$", "abc", False), (r"^\d+(\.\d+)?$", "1.5", True),
    (r"\bcat\b", "a cat.", True), (r"\bcat\b", "concat", False), (r"\Bcat", "concat", True), ("(?i)abc", "xABC", True),
    ("(?i:a)b", "Ab", True), ("(?i:a)b", "AB", False), ("a.c", "a\nc", False), ("(?s)a.c", "a\nc", True),
    ("^b$", "a\nb", False), ("(?m)^b$", "a\nb\nc", True), (r"\pL+$", "é", True), (r"^\PL$", "é", False),
    (r"^\p{Lu}$", "É", True), (r"^\p{^Lu}$", "É", False), ("[[:alpha:]]", "1a", True), ("[[:^digit:]]", "12", False),
    ("^[]a]$", "]", True), ("^[^]a]$", "]", False), (r"^[\w-]+$", "a-b_1", True), (r"\x41\x{e9}", "Aé", True),
    (r"^\Qa.b\E$", "a.b", True), (r"^\Qa.b\E$", "axb", False), ("", "", True), ("^$", "", True), ("^$", "a", False),
    ("a|", "x", True), ("x{0}y", "y", True), (r"a\z", "ab", False), (r"\Aa", "ba", False), ("a+?b", "aab", True),
    ("(?P<name>a)b", "ab", True), ("a{,3}", "a{,3}", True), ("(a*)*b", "aaab", True), (r"\d", "٣", False),
]  # fmt: skip
ERRORS = {
    "(": "missing closing ): `(`", "a)": "unexpected ): `a)`", "(?=a)": "invalid or unsupported Perl syntax: `(?=`",
    "[a": "missing closing ]: `[a`", "a**": "invalid nested repetition operator: `**`",
    "*": "missing argument to repetition operator: `*`",
    "a{1001}": "invalid repeat count: `{1001}`", "a{3,2}": "invalid repeat count: `{3,2}`", r"\8": "invalid escape",
    "[b-a]": "invalid character class range: `b-a`", "\\": "trailing backslash", r"\p{Xx}": "invalid character class",
    "((a{1000}){1000}){1000}": "invalid repeat count", "(" * 5000: "missing closing )",
    "a" * 70_000: "expression too large", "\ud800": "invalid UTF-8",
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "expected"), MATCHES)
def test_results(pattern: str, text: str, expected: bool) -> None:
    assert Pattern(pattern).search(text) is expected


@pytest.mark.parametrize(("pattern", "message"), ERRORS.items(), ids=[ascii(p[:20]) for p in ERRORS])
def test_errors(pattern: str, message: str) -> None:
    with pytest.raises(PatternError, match=re.escape(message)):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(a*)*b", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_patterns_that_make_others_backtrack_end(pattern: str) -> None:
    """Each of them takes Python's `re` longer than the universe has existed."""
    assert not Pattern(pattern).search("a" * 50_000 + "!")


def test_a_text_that_utf_8_cannot_state_is_searched() -> None:
    assert Pattern("^a.$").search("a\ud800")


_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\b", "^", "$", "1", "-"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("({0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map("(?:{0[0]}){0[1]}".format),
    ),
    max_leaves=6,
)


@given(_PATTERNS, st.text("ab1-_ ", max_size=6))
def test_equal_to_a_backtracking_engine(pattern: str, text: str) -> None:
    python = pattern.replace("$", r"\Z")  # Python's $ also matches before a final line feed
    assert Pattern(pattern).search(text) is (re.search(python, text, re.ASCII) is not None)


def test_a_crd_with_a_pattern_that_re2_refuses_is_invalid() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing"}
    crd = {
        "metadata": {"name": "things.a.io"},
        "spec": {"group": "a.io", "scope": "Cluster", "names": names, "versions": [version]},
    }
    (error,) = check_crd(crd)
    assert "invalid or unsupported Perl syntax" in error.message
