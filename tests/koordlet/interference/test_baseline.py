"""The decayed histogram compared with NumPy's quantiles."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.interference.baseline import BUCKET_RATIO, BUCKETS, EDGES, Baseline, bucket_of

values = st.floats(1e-4, 90.0)
ROW = np.array([0])


def learned(samples: list[float], half_life: float = 1e12) -> Baseline:
    baseline = Baseline(1, 1)
    for value in samples:
        baseline.learn(ROW, np.array([[value]]), np.array([[True]]), 1.0, half_life)
    return baseline


@given(st.floats(0.0, 200.0))
def test_a_value_lies_in_its_bucket(value: float) -> None:
    bucket = int(bucket_of(np.array([value]))[0])
    assert EDGES[bucket] <= value * (1 + 1e-6)
    assert bucket == BUCKETS - 1 or value <= EDGES[bucket + 1] * (1 + 1e-6)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=60), st.floats(0.05, 1.0))
def test_a_quantile_is_within_one_bucket_of_the_exact_one(samples: list[float], q: float) -> None:
    estimate = learned(samples).quantile(ROW, q)[0, 0]
    exact = np.quantile(samples, q, method="inverted_cdf")
    assert exact / BUCKET_RATIO * 0.999 <= estimate <= exact * BUCKET_RATIO * 1.001


def test_weights_halve_after_one_half_life_of_learning() -> None:
    baseline = learned([1.0] * 100, half_life=100.0)
    first = baseline.learned_seconds(ROW)[0, 0]
    for _ in range(100):
        baseline.learn(ROW, np.array([[10.0]]), np.array([[True]]), 1.0, 100.0)
    assert baseline.quantile(ROW, 0.30)[0, 0] < 2.0  # a third of the weight is old
    assert baseline.quantile(ROW, 0.40)[0, 0] > 8.0
    assert baseline.learned_seconds(ROW)[0, 0] > first


def test_masked_values_are_not_learned_and_other_rows_are_kept() -> None:
    baseline = Baseline(2, 2)
    both = np.array([0, 1])
    mask = np.array([[True, False], [False, False]])
    baseline.learn(both, np.full((2, 2), 0.5), mask, 1.0, 100.0)
    assert baseline.learned_seconds(both).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert np.isnan(baseline.quantile(both, 0.5)[1]).all()
    baseline.grow(4)
    assert baseline.learned_seconds(np.arange(4))[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    baseline.forget(ROW)
    assert not baseline.learned_seconds(both).any()
