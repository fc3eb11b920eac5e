"""The decayed histogram against NumPy and against what a quantile must be."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.interference.baseline import BUCKETS, EDGES, RATIO, Baseline, bucket_of

values = st.floats(1e-4, 90.0)
ROW = np.array([0])


def learnt(samples, half_life=1e12):
    baseline = Baseline(1, 1)
    for value in samples:
        baseline.learn(ROW, np.array([[value]]), np.array([[True]]), 1.0, half_life)
    return baseline


@given(st.floats(0.0, 200.0))
def test_a_value_lies_in_its_bucket(value):
    bucket = int(bucket_of(np.array([value]))[0])
    assert EDGES[bucket] <= value * (1 + 1e-6)
    assert bucket == BUCKETS - 1 or value <= EDGES[bucket + 1] * (1 + 1e-6)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=60), st.floats(0.05, 1.0))
def test_a_quantile_is_within_a_bucket_of_the_true_one(samples, q):
    found = learnt(samples).quantile(ROW, q)[0, 0]
    exact = np.quantile(samples, q, method="inverted_cdf")
    assert exact / RATIO * 0.999 <= found <= exact * RATIO * 1.001


def test_half_of_the_weight_is_gone_after_a_half_life_of_learning():
    baseline = learnt([1.0] * 100, half_life=100.0)
    first = baseline.learnt(ROW)[0, 0]
    for _ in range(100):
        baseline.learn(ROW, np.array([[10.0]]), np.array([[True]]), 1.0, 100.0)
    assert baseline.quantile(ROW, 0.30)[0, 0] < 2.0  # a third of the weight is old
    assert baseline.quantile(ROW, 0.40)[0, 0] > 8.0
    assert baseline.learnt(ROW)[0, 0] > first


def test_what_is_masked_is_not_learnt_and_other_rows_stay():
    baseline = Baseline(2, 2)
    both = np.array([0, 1])
    mask = np.array([[True, False], [False, False]])
    baseline.learn(both, np.full((2, 2), 0.5), mask, 1.0, 100.0)
    assert baseline.learnt(both).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert np.isnan(baseline.quantile(both, 0.5)[1]).all()
    baseline.grow(4)
    assert baseline.learnt(np.arange(4))[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    baseline.forget(ROW)
    assert not baseline.learnt(both).any()
