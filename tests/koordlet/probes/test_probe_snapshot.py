"""Windows and quantiles, with generated histograms and numpy as the second opinion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.probes import BOUNDS_NS, Lost, SchedLatencySnapshot, diff, quantile
from koordlet.probes.schedlatency.layout import BUCKETS

waits = st.lists(st.integers(0, 2**36), min_size=1, max_size=200)
hists = st.lists(st.integers(0, 10**6), min_size=BUCKETS, max_size=BUCKETS)


def hist_of(values: list[int]) -> np.ndarray:
    return np.bincount(np.searchsorted(BOUNDS_NS, values, side="right"), minlength=BUCKETS)


def snapshot(rows: dict[int, list[int]], matrix: dict[tuple[int, int], int], lost: int = 0) -> SchedLatencySnapshot:
    """Rows: key -> waits seen (all after wakeups)."""
    keys = sorted(rows)
    pairs = sorted(matrix)
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
        victim=np.array([victim for victim, _ in pairs], dtype=np.int64),
        culprit=np.array([culprit for _, culprit in pairs], dtype=np.int64),
        wait_ns=np.array([matrix[pair] for pair in pairs], dtype=np.int64),
        wait_count=np.array([1] * len(pairs), dtype=np.int64),
        lost=Lost(matrix_lost_count=lost),
    )


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
    assert estimate is not None
    assert low * (1 - 1e-9) <= estimate <= high * (1 + 1e-9)


@settings(deadline=None)
@given(hists, st.floats(0, 1), st.floats(0, 1))
def test_quantile_never_falls(hist: list[int], a: float, b: float) -> None:
    low, high = sorted((a, b))
    if sum(hist) == 0:
        assert quantile(hist, a) is None
    else:
        assert quantile(hist, low) <= quantile(hist, high) + 1e-6


def test_quantile_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        quantile([1] * BUCKETS, 1.5)


rows = st.dictionaries(st.integers(-11, 50).filter(bool), st.lists(st.integers(0, 2**30), max_size=5), max_size=6)
matrices = st.dictionaries(st.tuples(st.integers(1, 5), st.integers(-3, 5)), st.integers(1, 10**9), max_size=6)


@settings(deadline=None)
@given(rows, rows, matrices, matrices)
def test_a_window_is_what_came_on_top(old: dict, more: dict, old_matrix: dict, more_matrix: dict) -> None:
    both = {key: old.get(key, []) + more.get(key, []) for key in old.keys() | more.keys()}
    pairs = {key: old_matrix.get(key, 0) + more_matrix.get(key, 0) for key in old_matrix.keys() | more_matrix.keys()}
    window = diff(snapshot(old, old_matrix, lost=2), snapshot(both, pairs, lost=5))
    for key in both:
        row = window.row(key)
        assert row is not None
        assert window.sum_ns[row] == sum(more.get(key, []))
        assert window.count[row] == len(more.get(key, []))
    charged = {
        (int(v), int(c)): int(ns) for v, c, ns in zip(window.victim, window.culprit, window.wait_ns, strict=True)
    }
    assert charged == {key: more_matrix.get(key, 0) for key in pairs}
    assert window.lost == Lost(matrix_lost_count=3)


def test_counters_that_ran_back_count_from_zero() -> None:
    """A cgroup id that was reused, or a probe loaded anew."""
    old, new = snapshot({7: [1000, 2000, 3000], 8: [5]}, {}), snapshot({7: [400], 8: [5, 6]}, {})
    window = diff(old, new)
    assert window.sum_ns.tolist() == [400, 6]
    assert window.count.tolist() == [1, 1]


def test_a_cgroup_that_is_gone_is_not_in_the_window() -> None:
    window = diff(snapshot({7: [1], 8: [1]}, {(7, 8): 5}), snapshot({8: [1]}, {}))
    assert window.keys.tolist() == [8] and len(window.victim) == 0
    assert window.row(7) is None


def test_culprits_are_ordered_and_limited() -> None:
    seen = snapshot({1: [9]}, {(1, 2): 5, (1, 3): 50, (1, -1): 7, (2, 1): 99})
    assert [(c.key, c.wait_ns) for c in seen.culprits(1)] == [(3, 50), (-1, 7), (2, 5)]
    assert [c.key for c in seen.culprits(1, limit=1)] == [3]
    assert seen.culprits(4) == []


def test_waits_of_both_kinds_add_up() -> None:
    seen = snapshot({1: [2000, 10**6]}, {})
    seen = replace(seen, preempt_hist=seen.wakeup_hist, preempt_sum_ns=seen.wakeup_sum_ns * 2)
    assert seen.count.tolist() == [4]
    assert seen.sum_ns.tolist() == [3 * (2000 + 10**6)]
    assert seen.max_ns.tolist() == [10**6]
