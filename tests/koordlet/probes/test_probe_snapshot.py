"""Windows and quantiles, with generated histograms and numpy as the second opinion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.probes.histogram import BOUNDS_NS, quantiles
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot, diff
from tests.koordlet.probes.rows import row_of

waits = st.lists(st.integers(0, 2**36), min_size=1, max_size=200)
hists = st.lists(st.integers(0, 10**6), min_size=BUCKETS, max_size=BUCKETS)


def hist_of(values: list[int]) -> np.ndarray:
    return np.bincount(np.searchsorted(BOUNDS_NS, values, side="right"), minlength=BUCKETS)


def snapshot(rows: dict[int, list[int]], lost: int = 0) -> SchedLatencySnapshot:
    """`rows`: key -> waits (all after wake-ups)."""
    keys = sorted(rows)
    hist = np.array([hist_of(rows[key]) if rows[key] else np.zeros(BUCKETS) for key in keys], dtype=np.int64)
    sums = np.array([sum(rows[key]) for key in keys], dtype=np.int64)
    zero = np.zeros(len(keys), dtype=np.int64)
    return SchedLatencySnapshot(
        source="bpf",
        time_ns=0,
        keys=np.array(keys, dtype=np.int64),
        wakeup_hist=hist.reshape(len(keys), BUCKETS),
        preempt_hist=np.zeros((len(keys), BUCKETS), dtype=np.int64),
        wakeup_sum_ns=sums,
        preempt_sum_ns=zero,
        wakeup_max_ns=np.array([max(rows[key], default=0) for key in keys], dtype=np.int64),
        preempt_max_ns=zero,
        throttled_ns=zero,
        throttled_count=zero,
        lost=SchedLatencyLosses(matrix_lost_count=lost),
    )


def quantile(hist: npt.ArrayLike, q: float) -> float:
    """Of one histogram; NaN when it is empty."""
    return float(quantiles(np.asarray(hist)[np.newaxis, :], q)[0])


def test_worked_example_of_the_proposal() -> None:
    """Spec 02 §11.1: 9850 below the bucket, 100 in it; p99 is 50 of 100 into the bucket."""
    hist = np.zeros(BUCKETS)
    hist[3], hist[8], hist[9] = 9850, 100, 50
    start, end = float(BOUNDS_NS[7]), float(BOUNDS_NS[8])
    assert quantile(hist, 0.99) == pytest.approx(start + (end - start) * 0.5)


@settings(deadline=None)
@given(waits, st.floats(0, 1))
def test_quantile_is_in_the_bucket_of_the_true_one(values: list[int], q: float) -> None:
    true = float(np.quantile(values, q, method="inverted_cdf"))
    bucket = int(np.searchsorted(BOUNDS_NS, true, side="right"))
    low = 0.0 if bucket == 0 else float(BOUNDS_NS[bucket - 1])
    high = float(BOUNDS_NS[bucket]) if bucket < BUCKETS - 1 else 2 * low
    estimate = quantile(hist_of(values), q)
    assert low * (1 - 1e-9) <= estimate <= high * (1 + 1e-9)


@settings(deadline=None)
@given(hists, st.floats(0, 1), st.floats(0, 1))
def test_quantile_never_falls(hist: list[int], a: float, b: float) -> None:
    low, high = sorted((a, b))
    if sum(hist) == 0:
        assert np.isnan(quantile(hist, a))
    else:
        assert quantile(hist, low) <= quantile(hist, high) + 1e-6


def test_quantile_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        quantile([1] * BUCKETS, 1.5)


rows = st.dictionaries(st.integers(-11, 50).filter(bool), st.lists(st.integers(0, 2**30), max_size=5), max_size=6)


@settings(deadline=None)
@given(rows, rows)
def test_a_window_is_what_was_added(old: dict[int, list[int]], more: dict[int, list[int]]) -> None:
    both = {key: old.get(key, []) + more.get(key, []) for key in old.keys() | more.keys()}
    window = diff(snapshot(old, lost=2), snapshot(both, lost=5))
    for key in both:
        row = row_of(window, key)
        assert row is not None
        assert window.sum_ns[row] == sum(more.get(key, []))
        assert window.hist[row].sum() == len(more.get(key, []))
    assert window.lost == SchedLatencyLosses(matrix_lost_count=3)


def test_counters_that_ran_back_count_from_zero() -> None:
    """A cgroup id that was reused, or a probe that was loaded again."""
    old, new = snapshot({7: [1000, 2000, 3000], 8: [5]}), snapshot({7: [400], 8: [5, 6]})
    window = diff(old, new)
    assert window.sum_ns.tolist() == [400, 6]
    assert window.hist.sum(axis=1).tolist() == [1, 1]


def test_a_cgroup_that_is_gone_is_not_in_the_window() -> None:
    window = diff(snapshot({7: [1], 8: [1]}), snapshot({8: [1]}))
    assert window.keys.tolist() == [8]
    assert row_of(window, 7) is None


def test_waits_of_both_kinds_add_up() -> None:
    waits = snapshot({1: [2000, 10**6]})
    waits = replace(waits, preempt_hist=waits.wakeup_hist, preempt_sum_ns=waits.wakeup_sum_ns * 2)
    assert waits.hist.sum(axis=1).tolist() == [4]
    assert waits.sum_ns.tolist() == [3 * (2000 + 10**6)]
