"""What is exported of a probe's histogram is true at each bound."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS, exported
from koordlet.probes.histogram import BOUNDS_NS
from koordlet.probes.layouts import BUCKETS


def test_bounds_are_a_factor_of_four_apart() -> None:
    bounds = [float(bound) for bound in BUCKET_BOUNDS]
    assert (bounds[0], bounds[-2], bounds[-1]) == (8.192e-6, 8.58993459, float("inf"))
    assert all(round(high / low, 6) == 4 for low, high in pairwise(bounds[:-1]))


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=BUCKETS, max_size=BUCKETS), max_size=4))
def test_at_each_bound_the_count_is_the_probes(histograms: list[list[int]]) -> None:
    table = np.array(histograms, dtype=np.int64).reshape(len(histograms), BUCKETS)
    ends = [*(f"{bound / 1e9:.9g}" for bound in BOUNDS_NS.tolist()), "+Inf"]
    for counts, cumulative in zip(histograms, exported(table), strict=True):
        probes = dict(zip(ends, np.cumsum(counts).tolist(), strict=True))
        assert cumulative == [probes[bound] for bound in BUCKET_BOUNDS]
        assert cumulative[-1] == sum(counts)


def test_before_there_is_any_histogram() -> None:
    for empty in (np.zeros(0, dtype=np.int64), np.zeros((0, BUCKETS), dtype=np.int64)):
        assert exported(empty) == []
