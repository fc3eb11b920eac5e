"""Parsers of tenant input get any text: they return or raise their own error (docs/security.md).

`make fuzz MINUTES=60` runs this for an hour (scripts/fuzz.sh); without it, each parser gets some hundred texts.
"""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.parsers import PARSERS, Parser

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
SECONDS_PER_PARSER = MINUTES * 60 / len(PARSERS)
EXAMPLES = 100
SYNTAX = st.sampled_from(
    [*'[]{}(),:"-+.*&!?|>%@`#=\\/\n\t 0123456789eEmKGi_', "true", "null", "1e30", "\ud800", "é", "\x00"]
)
"""Characters of the formats: they reach more of a parser than random ones."""


def texts(parser: Parser) -> st.SearchStrategy[str]:
    """Random texts, texts of syntax, and texts of the corpus with an edit."""
    piece = st.one_of(SYNTAX, st.sampled_from(parser.corpus), st.sampled_from(parser.repeated), st.text(max_size=3))

    def edited(text: str, start: int, removed: int, added: str) -> str:
        start %= len(text) + 1
        return text[:start] + added + text[start + removed :]

    edits = st.builds(edited, st.sampled_from(parser.corpus), st.integers(0, 200), st.integers(0, 5), piece)
    return st.one_of(edits, st.lists(piece, max_size=30).map("".join), st.text(max_size=60))


def run(parser: Parser, text: str) -> None:
    try:
        parser.parse(text)
    except parser.errors:
        return


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_raises_its_own_error_only(name: str) -> None:
    parser = PARSERS[name]
    for text in (*parser.corpus, *(part * 2000 for part in parser.repeated)):
        run(parser, text)
    end = time.monotonic() + SECONDS_PER_PARSER

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=not MINUTES, suppress_health_check=list(HealthCheck))
    @given(texts(parser))
    @example("")
    def fuzz(text: str) -> None:
        run(parser, text)

    fuzz()
    while time.monotonic() < end:
        fuzz()
