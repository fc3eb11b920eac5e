"""The ring compared with a dictionary of samples, and its bounds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache.kinds import SeriesError
from koordlet.metriccache.ring import Ring

A, B, C = ("a",), ("b",), ("c",)


def put(ring: Ring, at: float, **values: float) -> None:
    keys, numbers = [(name,) for name in values], list(values.values())
    ring.check(at, keys, numbers)
    ring.append(at, keys, numbers)


def rows(ring: Ring, *keys: tuple[str, ...], start: float = -np.inf, end: float = np.inf) -> dict[str, Any]:
    times, values = ring.window(start, end, keys)
    return {
        key[0]: [(float(t), float(v)) for t, v in zip(times, row, strict=True) if not np.isnan(v)]
        for key, row in zip(keys, values, strict=True)
    }


def test_window_bounds_are_inclusive() -> None:
    ring = Ring(columns=8, max_rows=4)
    for at in range(1, 6):
        put(ring, at, a=at * 10)
    assert rows(ring, A, start=2, end=4) == {"a": [(2, 20), (3, 30), (4, 40)]}


def test_oldest_column_is_overwritten_first() -> None:
    ring = Ring(columns=3, max_rows=4)
    for at in range(1, 6):
        put(ring, at, a=at)
    assert rows(ring, A) == {"a": [(3, 3), (4, 4), (5, 5)]}


def test_samples_up_to_a_minute_late_are_inserted_in_order() -> None:
    ring = Ring(columns=8, max_rows=4)
    for at in (100, 110, 130):
        put(ring, at, a=at)
    put(ring, 120, a=120)
    put(ring, 120, b=7)
    assert rows(ring, A, B) == {"a": [(100, 100), (110, 110), (120, 120), (130, 130)], "b": [(120, 7)]}


def test_samples_over_a_minute_late_are_rejected() -> None:
    ring = Ring(columns=8, max_rows=4)
    put(ring, 100, a=1)
    with pytest.raises(SeriesError, match="over a minute older"):
        put(ring, 39, a=1)
    assert rows(ring, A) == {"a": [(100, 1)]}


def test_a_repeated_sample_is_ignored_and_another_value_is_an_error() -> None:
    ring = Ring(columns=8, max_rows=4)
    put(ring, 100, a=1)
    put(ring, 100, a=1)
    with pytest.raises(SeriesError, match="another value"):
        put(ring, 100, a=2)
    assert rows(ring, A) == {"a": [(100, 1)]}


def test_rows_are_reused_once_their_samples_aged_out() -> None:
    ring = Ring(columns=3, max_rows=2)
    put(ring, 1, a=1, b=1)
    for at in (2, 3, 4):
        put(ring, at, b=at)
    put(ring, 5, c=5)
    assert rows(ring, A, B, C) == {"a": [], "b": [(3, 3), (4, 4)], "c": [(5, 5)]}
    assert ring.lost == 0


def test_a_full_ring_counts_refused_samples() -> None:
    ring = Ring(columns=3, max_rows=2)
    put(ring, 1, a=1, b=1, c=1)
    assert ring.lost == 1
    assert rows(ring, C) == {"c": []}


def test_drop_frees_the_row() -> None:
    ring = Ring(columns=3, max_rows=1)
    put(ring, 1, a=1)
    ring.drop([A, ("never there",)])
    put(ring, 2, b=2)
    assert rows(ring, A, B) == {"a": [], "b": [(2, 2)]}


def test_memory_is_bounded_by_rows_and_columns() -> None:
    ring = Ring(columns=100, max_rows=64)
    for at in range(300):
        put(ring, at, **{f"s{n}": 1.0 for n in range(at % 90)})
    assert ring.nbytes <= 64 * 100 * 4 + 100 * 8 + 64 * 8


TICKS = st.lists(
    st.tuples(st.floats(0.1, 5), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), max_size=4)),
    max_size=40,
)


@given(TICKS, st.integers(2, 12))
def test_the_ring_has_the_last_columns(ticks: list[tuple[float, dict[str, int]]], columns: int) -> None:
    ring, at, model = Ring(columns=columns, max_rows=16), 0.0, []
    for step, values in ticks:
        at += step
        put(ring, at, **values)
        if values:
            model.append((at, values))
    for name in "abcdef":
        expected = [(t, v[name]) for t, v in model[-columns:] if name in v]
        assert rows(ring, (name,))[name] == expected
    times, keys, values = ring.dump()  # type: ignore[assignment]
    copy = Ring(columns=columns, max_rows=16)
    copy.load(times, keys, values)  # type: ignore[arg-type]
    assert rows(copy, *keys) == rows(ring, *keys)


def test_batches_with_the_same_series_in_any_order() -> None:
    ring = Ring(columns=8, max_rows=4)
    for at, keys in enumerate([[("a",), ("b",)], [("a",), ("b",)], [("b",), ("a",)], [("a",), ("b",)]]):
        ring.check(float(at), keys, [1.0, 2.0])
        ring.append(float(at), keys, [1.0, 2.0])
    assert ring.same_series([("a",), ("b",)])
    assert ring.window(0, 9, [("a",), ("b",)])[1].tolist() == [[1, 1, 2, 1], [2, 2, 1, 2]]
    ring.drop([("a",)])
    ring.append(4.0, [("c",)], [5.0])
    ring.append(5.0, [("a",), ("b",)], [7.0, 8.0])
    assert ring.window(4, 9, [("a",), ("b",), ("c",)])[1][:, 1].tolist()[:2] == [7, 8]
    assert ring.window(4, 4, [("c",)])[1].tolist() == [[5]]
    with pytest.raises(SeriesError):
        ring.check(6.0, [("a",), ("a",)], [1.0, 2.0])


def test_infrequent_samples_use_few_columns() -> None:
    ring = Ring(columns=330, max_rows=4, seconds=330.0)
    for at in range(0, 3000, 10):
        put(ring, float(at), a=at)
    assert ring.columns == 64
    assert [at for at, _ in rows(ring, A, start=2990 - 330)["a"]] == [float(at) for at in range(2660, 3000, 10)]


def test_columns_are_added_while_the_oldest_is_needed() -> None:
    ring = Ring(columns=330, max_rows=4, seconds=330.0)
    for at in range(1000):
        put(ring, float(at), a=at)
        kept = rows(ring, A, start=at - 329)["a"]
        assert [value for _, value in kept] == [float(second) for second in range(max(at - 329, 0), at + 1)]
    assert ring.columns == 330


def test_rows_of_ended_series_are_reused_before_rows_are_added() -> None:
    ring = Ring(columns=330, max_rows=4096, seconds=330.0)
    for at in range(0, 20_000, 10):
        put(ring, float(at), **{f"{at // 100 + series}": 1.0 for series in range(30)})
    assert ring.nbytes <= 64 * 4 * 128 + 64 * 8 + 128 * 8  # 30 current series and 33 that are still kept
    assert len(list(ring.keys)) < 70
