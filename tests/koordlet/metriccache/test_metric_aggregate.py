"""Aggregation: the worked examples of spec 02 §4.2 and §13.5, compared with simple implementations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache.aggregate import PER_MILLE, Aggregation, AggregationError, Floats, aggregate_rows
from koordlet.metriccache.cache import Points

EXAMPLES = [
    ("p90 of nine is the eighth", range(0, 900, 100), Aggregation.P90, 700),
    ("p50 of nine is the fourth", range(0, 900, 100), Aggregation.P50, 300),
    ("one point is every percentile", [1000], Aggregation.P99, 1000),
    ("mean", [4, 1, 1], Aggregation.AVG, 2),
    ("300 samples: mean", range(1, 301), Aggregation.AVG, 150.5),
    ("300 samples: p50", range(1, 301), Aggregation.P50, 150),
    ("300 samples: p90", range(1, 301), Aggregation.P90, 270),
    ("300 samples: p95", range(1, 301), Aggregation.P95, 285),
    ("300 samples: p99", range(1, 301), Aggregation.P99, 297),
    ("last is by time, not by size", [5, 9, 2], Aggregation.LAST, 2),
    ("count", [5, 9, 2], Aggregation.COUNT, 3),
    ("count of nothing", [], Aggregation.COUNT, 0),
]


def aggregate(values: Floats, kind: Aggregation) -> float:
    return Points(np.arange(len(values), dtype=np.float64), values).aggregate(kind)


@pytest.mark.parametrize(("values", "kind", "expected"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES])
def test_worked_examples(values: range | list[int], kind: Aggregation, expected: float) -> None:
    assert aggregate(np.array(list(values), dtype=float), kind) == expected


@pytest.mark.parametrize("kind", [k for k in Aggregation if k is not Aggregation.COUNT])
def test_no_samples_is_an_error(kind: Aggregation) -> None:
    with pytest.raises(AggregationError):
        aggregate(np.array([]), kind)


def test_wire_values_keep_their_historical_case() -> None:
    assert [str(kind) for kind in Aggregation] == ["avg", "p50", "P90", "P95", "p99", "last", "count"]


CELLS = st.one_of(st.just(math.nan), st.floats(-1e6, 1e6))


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_reducing_all_rows_equals_reducing_each_row(rows: list[list[float]]) -> None:
    reduced = aggregate_rows(np.array(rows), list(Aggregation))
    for index, row in enumerate(rows):
        points = [value for value in row if not math.isnan(value)]
        assert reduced[Aggregation.COUNT][index] == len(points)
        if not points:
            assert all(math.isnan(reduced[kind][index]) for kind in Aggregation if kind is not Aggregation.COUNT)
            continue
        for kind, mille in PER_MILLE.items():
            assert reduced[kind][index] == sorted(points)[max(len(points) * mille // 1000 - 1, 0)]
        assert reduced[Aggregation.LAST][index] == points[-1]
        assert reduced[Aggregation.AVG][index] == pytest.approx(math.fsum(points) / len(points), abs=1e-6)


POINTS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=400)


@given(POINTS)
def test_reductions_follow_numpy(points: list[float]) -> None:
    """NumPy's mean; NumPy's percentile where the rank is an integer, otherwise the next lower point."""
    values = np.array(points)
    assert aggregate(values, Aggregation.AVG) == pytest.approx(np.mean(values), abs=1e-6)
    assert aggregate(values, Aggregation.COUNT) == np.size(values)
    for kind, mille in PER_MILLE.items():
        nearest = np.quantile(values, mille / 1000, method="inverted_cdf")
        percentile = aggregate(values, kind)
        if len(points) * mille % 1000 == 0:
            assert percentile == nearest
        else:
            assert percentile <= nearest
            assert ((values > percentile) & (values < nearest)).sum() == 0
