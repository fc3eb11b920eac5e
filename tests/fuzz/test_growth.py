"""The time of parsing tenant input grows with its length, and not faster; so does the memory.

An input that is FACTOR times longer may cost FACTOR times as much, with room for noise; a quadratic parser costs FACTOR
times more than that. CPU time of this thread is compared, so that other processes have little influence. Memory is what
Python allocates.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tests.fuzz.parsers import PARSERS, Parser

SHORT, FACTOR = 4_000, 16
"""Repetitions in the short input, and how much longer the long one is: at most half a megabyte."""
ALLOWED = 3.0
"""How much more than FACTOR times the long input may cost: caches and memory; a quadratic parser costs 16."""
CHEAP_S = 0.005
"""A long input below it is cheap however it grows; ratios of such times are noise."""
ATTEMPTS = 4
BYTES_PER_CHARACTER, FIXED_BYTES = 200, 1 << 20
"""Memory of a parser: an object per character, and caches and tables that do not depend on the input."""

CASES = [(name, part) for name, parser in PARSERS.items() for part in parser.repeated]


def cost_s(parser: Parser, text: str) -> float:
    """CPU seconds of the fastest of three runs."""
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        try:
            parser.parse(text)
        except parser.errors:
            pass
        best = min(best, time.thread_time() - started)
    return best


@pytest.mark.parametrize(("name", "part"), CASES, ids=[f"{name} {part!r}" for name, part in CASES])
def test_time_grows_with_the_length_of_the_input(name: str, part: str) -> None:
    parser, ratio = PARSERS[name], 0.0
    for _ in range(ATTEMPTS):
        long = cost_s(parser, part * (SHORT * FACTOR))
        if long < CHEAP_S:
            return
        ratio = long / max(cost_s(parser, part * SHORT), CHEAP_S / FACTOR) / FACTOR
        if ratio <= ALLOWED:
            return
    pytest.fail(f"{FACTOR} times the input cost {ratio * FACTOR:.0f} times the time")


def peak_bytes(parser: Parser, text: str) -> int:
    """The most memory that was allocated at one time."""
    tracemalloc.start()
    try:
        parser.parse(text)
    except parser.errors:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(("name", "part"), CASES, ids=[f"{name} {part!r}" for name, part in CASES])
def test_memory_grows_with_the_length_of_the_input(name: str, part: str) -> None:
    text = part * SHORT
    assert peak_bytes(PARSERS[name], text) <= BYTES_PER_CHARACTER * len(text) + FIXED_BYTES


def test_a_parser_that_multiplies_its_input_is_noticed() -> None:
    parser = Parser(lambda text: [text + str(index) for index in range(1000)], (), ("a",), ("a",))
    assert peak_bytes(parser, "a" * SHORT) > BYTES_PER_CHARACTER * SHORT + FIXED_BYTES


def test_a_quadratic_parser_is_noticed() -> None:
    def quadratic(text: str) -> object:
        while text:
            text = text[16:]
        return text

    parser = Parser(quadratic, (), ("a",), ("a",))
    short, long = (cost_s(parser, "a" * (10 * SHORT * factor)) for factor in (1, FACTOR))
    assert long > CHEAP_S
    assert long / short > ALLOWED * FACTOR
