"""What the children of a quota may use: the worked examples, and what holds for all figures (spec 06 §5.5, §5.6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.quota.runtime import Share, distribute, scaled_minima

BORROWERS = [8] * 8 + [7] * 2


def shares(*figures: tuple[Any, ...]) -> list[Share]:
    """(weight, request, minimum[, lends]), named a, b, c …"""
    return [
        Share(chr(ord("a") + at), *fields, *(() if len(fields) > 3 else (True,))) for at, fields in enumerate(figures)
    ]


@pytest.mark.parametrize(
    ("total", "children", "expected"),
    [
        (100, [(40, 5, 10), (60, 20, 15), (50, 40, 20), (80, 70, 15)], [5, 20, 35, 40]),
        (100, [(40, 5, 10), (60, 20, 15), (50, 40, 20), (0, 70, 15)], [5, 20, 40, 15]),
        (100, [(40, 5, 10), (60, 20, 15), (50, 40, 20), (0, 70, 45)], [5, 20, 30, 45]),
        (7, [(1, 100, 0)] * 3, [3, 2, 2]),
        (81, [*((weight, 100, weight) for weight in BORROWERS), (3, 0, 3)], [9] * 3 + [8] * 5 + [7] * 2 + [0]),
        (
            100000,
            [(60000, 60000, 20000, False), (40000, 80000, 30000), (20000, 5000, 10000)],
            [47000, 48000, 5000],
        ),
        (30, [(1, 20, 20)] * 2, [20, 20]),
        (90, [(60, 60, 40), (40, 50, 30)], [52, 38]),
        (52, [(40, 40, 10), (20, 30, 10)], [31, 21]),
        (2**62, [(2**62, 2**62, 0), (2**62, 2**62, 0)], [2**61, 2**61]),
        (-5, [(1, 20, 3)], [3]),
    ],
    ids=["rounds", "weight 0", "guaranteed", "ties", "lender", "not lending", "over", "P, Q", "p1, p2", "huge", "gone"],
)
def test_the_documented_distributions(total: int, children: list[tuple[Any, ...]], expected: list[int]) -> None:
    assert list(distribute(total, shares(*children)).values()) == expected


@pytest.mark.parametrize(
    ("total", "minima", "fixed", "expected"),
    [
        (100, [50, 50, 50], "a", [50, 25, 25]),
        (50, [50, 50, 50], "a", [50, 0, 0]),
        (200000, [100000] * 3, "", [66666] * 3),
        (600, [100] * 3, "", [100] * 3),
        (0, [5, 0], "", [0, 0]),
    ],
    ids=["scaled", "nothing left", "thirds", "enough", "no total"],
)
def test_the_documented_scaling(total: int, minima: list[int], fixed: str, expected: list[int]) -> None:
    named = {chr(ord("a") + at): minimum for at, minimum in enumerate(minima)}
    assert list(scaled_minima(total, named, frozenset(fixed)).values()) == expected


amounts = st.one_of(st.integers(0, 20), st.integers(0, 2**63))
drawn = st.builds(Share, st.uuids().map(str), amounts, amounts, amounts, st.booleans())


@given(amounts, st.lists(drawn, max_size=8, unique_by=lambda share: share.name))
def test_a_distribution_gives_no_more_than_there_is(total: int, children: list[Share]) -> None:
    given_out = distribute(total, children)
    minima = sum(
        child.minimum if child.request > child.minimum or not child.lends else child.request for child in children
    )
    assert sum(given_out.values()) <= max(total, minima)
    for child in children:
        low = min(child.request, child.minimum) if child.lends else child.minimum
        assert low <= given_out[child.name] <= max(child.request, child.minimum if not child.lends else low)
    if sum(child.demand for child in children) <= total:
        assert given_out == {child.name: child.demand for child in children}
    hungry = [child for child in children if given_out[child.name] < child.request and child.weight]
    if hungry and minima <= total:
        assert sum(given_out.values()) == total  # nothing is kept back while a weighted child asks for more
