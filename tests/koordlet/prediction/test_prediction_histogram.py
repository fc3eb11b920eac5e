"""Decaying histograms: the worked values of spec 02 §8.3, and properties compared with a simple implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.app.histogram import CPU_BUCKETS, EPSILON, MEMORY_BUCKETS, YEAR_ONE, Buckets, Histograms
from koordlet.prediction.models import PeakMethod, PredictionModels

NOW = 1_782_864_000.0  # 2026-07-01T00:00:00Z
DAY = 86_400.0
HALF = 12 * 3600.0
ROW = np.array([0])
TEN_BUCKETS = Buckets(np.arange(10.0))
"""Ten buckets of width 1."""


def histogram_of(buckets: Buckets, *samples: tuple[float, float, float], half_life: float = DAY) -> Histograms:
    """A histogram of (value, weight, time)."""
    histograms = Histograms(buckets, half_life, rows=1)
    for value, weight, at in samples:
        histograms.add(ROW, np.array([value]), at, weight)
    return histograms


def percentile(histogram: Histograms, share: float) -> float:
    return float(histogram.percentiles(ROW, [share])[0, 0])


def test_bucket_counts_and_bounds() -> None:
    assert (len(CPU_BUCKETS), len(MEMORY_BUCKETS)) == (158, 205)
    assert CPU_BUCKETS.starts[-1] >= 1024
    small = Buckets.exponential(maximum=500, first=40, ratio=1.5)
    assert small.starts.tolist() == [0, 40, 100, 190, 325, 527.5]
    assert small.find(np.array([-1.0, 0, 39.9, 40, 99, 100, 527.5, 1e9])).tolist() == [0, 0, 0, 1, 1, 2, 5, 5]


CPU = {0.0: 25, 0.1: 107, 0.5: 539, 1.0: 1035, 2.0: 2001, 4.0: 4217, 8.0: 8394, 1060.5: 1060437, 5000.0: 1060437}
MEMORY = {0: 5242880, 128 << 20: 135477939, 256 << 20: 286623669, 1 << 30: 1097586419}


@pytest.mark.parametrize(("cores", "milli"), CPU.items())
def test_cpu_peaks_are_exact(cores: float, milli: int) -> None:
    models = PredictionModels()
    models.train(["uid"], np.array([cores]), np.array([0.0]), NOW, 0)
    assert models.peaks(["uid"])["uid"].cpu == milli


@pytest.mark.parametrize(("used", "expected"), MEMORY.items())
def test_memory_peaks_are_exact(used: int, expected: int) -> None:
    models = PredictionModels()
    models.train(["uid"], np.array([0.0]), np.array([float(used)]), NOW, 0)
    assert models.peaks(["uid"])["uid"].memory == expected


def test_percentiles_of_samples_at_one_instant() -> None:
    histogram = histogram_of(CPU_BUCKETS, *[(0.5, 1, NOW)] * 60, *[(2.0, 1, NOW)] * 3, half_life=HALF)
    assert [int(percentile(histogram, share) * 1000) for share in (0.95, 0.98)] == [539, 2001]


def test_weights_halve_per_half_life() -> None:
    old, new = [(2.0, 1, NOW - HALF)] * 60, [(0.5, 1, NOW)] * 60
    histogram = histogram_of(CPU_BUCKETS, *old, *new, half_life=HALF)
    assert [int(percentile(histogram, share) * 1000) for share in (0.66, 0.67)] == [539, 2001]


LINEAR = {0.0: 2, 0.2: 3, 0.4: 4, 0.7: 5}
DECAYING = {0.02: 2, 0.03: 3, 0.10: 3, 0.11: 4, 0.34: 4, 0.35: 5}


@pytest.mark.parametrize(("share", "expected"), LINEAR.items())
def test_percentiles_of_a_linear_histogram(share: float, expected: int) -> None:
    samples = [(float(v), float(v), NOW) for v in (1, 2, 3, 4)]
    assert percentile(histogram_of(TEN_BUCKETS, *samples), share) == expected


@pytest.mark.parametrize(("share", "expected"), DECAYING.items())
def test_percentiles_with_samples_one_half_life_apart(share: float, expected: int) -> None:
    samples = [(float(v), float(v), NOW + v * HALF) for v in (1, 2, 3, 4)]
    assert percentile(histogram_of(TEN_BUCKETS, *samples, half_life=HALF), share) == expected


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert percentile(histogram_of(CPU_BUCKETS), 0.95) == 0
    assert histogram_of(CPU_BUCKETS).only_zeros(ROW).tolist() == [True]


class Plain:
    """One decaying histogram as spec 02 §8.3 describes it, bucket by bucket."""

    def __init__(self, starts: list[float], half_life: float) -> None:
        self.starts, self.half_life = starts, half_life
        self.weights = [0.0] * len(starts)
        self.total, self.reference = 0.0, YEAR_ONE

    def add(self, value: float, weight: float, at: float) -> None:
        if at > self.reference + 100 * self.half_life:
            reference = YEAR_ONE + math.floor((at - YEAR_ONE) / self.half_life + 0.5) * self.half_life
            power = max(round((self.reference - reference) / self.half_life), -2000)
            self.weights = [w * 2.0**power for w in self.weights]
            self.total *= 2.0**power
            self.reference = reference
        weight *= 2 ** ((at - self.reference) / self.half_life)
        bucket = max(b for b, start in enumerate(self.starts) if b == 0 or start <= value)
        self.weights[bucket] += weight
        self.total += weight

    def percentile(self, share: float) -> float:
        filled = [b for b, weight in enumerate(self.weights) if weight >= EPSILON]
        if not filled:
            return 0.0
        reached, bucket = 0.0, filled[0]
        for bucket in range(filled[0], filled[-1] + 1):
            reached += self.weights[bucket]
            if reached >= share * self.total:
                break
        return self.starts[min(bucket + 1, len(self.starts) - 1)]


SAMPLES = st.lists(
    st.tuples(st.floats(0, 2000), st.floats(0.01, 10), st.floats(0, 300 * HALF)), min_size=1, max_size=40
)
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(SAMPLES, SHARES)
def test_percentiles_equal_those_of_a_simple_implementation(
    samples: list[tuple[float, float, float]], shares: list[float]
) -> None:
    samples = sorted(samples, key=lambda sample: sample[2])
    plain = Plain(CPU_BUCKETS.starts.tolist(), HALF)
    for value, weight, ahead in samples:
        plain.add(value, weight, NOW + ahead)
    fast = histogram_of(CPU_BUCKETS, *[(v, w, NOW + t) for v, w, t in samples], half_life=HALF)
    assert fast.reference[0] == plain.reference
    assert fast.weights[0] == pytest.approx(plain.weights, rel=1e-9)
    # At the edge of a bucket, rounding may decide either way.
    plain.weights, plain.total = fast.weights[0].tolist(), float(fast.total[0])
    assert fast.percentiles(ROW, shares)[0].tolist() == [plain.percentile(share) for share in shares]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200), st.sampled_from([0.5, 0.6, 0.9, 0.95, 0.98, 1.0]))
def test_percentiles_are_in_the_bucket_of_numpys_quantile(values: list[float], share: float) -> None:
    """Without decay and weights."""
    histogram = histogram_of(CPU_BUCKETS, *[(value, 1.0, NOW) for value in values])
    exact = np.quantile(values, share, method="inverted_cdf")
    estimate = percentile(histogram, share)
    assert CPU_BUCKETS.find(np.array([exact]))[0] == np.searchsorted(CPU_BUCKETS.ends[:-1], estimate)


@given(SAMPLES, SHARES)
def test_percentiles_grow_with_the_share(samples: list[tuple[float, float, float]], shares: list[float]) -> None:
    histogram = histogram_of(CPU_BUCKETS, *[(v, w, NOW + t) for v, w, t in samples])
    percentiles = histogram.percentiles(ROW, sorted(shares))[0]
    assert (np.diff(percentiles) >= 0).all()


@given(st.lists(st.tuples(st.floats(0, 2000), st.floats(0.01, 10)), min_size=1), st.floats(0, 99), st.floats(0, 5))
def test_decay_alone_changes_no_percentile(samples: list[tuple[float, float]], age: float, later: float) -> None:
    """All weights decay alike; a sample of weight 0 moves the reference time, also beyond 100 half-lives."""
    histogram = histogram_of(
        CPU_BUCKETS, (0.0, 0.0, NOW), *[(v, w, NOW + age * HALF) for v, w in samples], half_life=HALF
    )
    before = histogram.percentiles(ROW, [0.5, 0.95])
    histogram.add(ROW, np.array([0.0]), NOW + (age + later) * HALF, weight=0.0)
    assert histogram.percentiles(ROW, [0.5, 0.95]) == pytest.approx(before)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=30))
def test_rows_are_independent(samples: list[tuple[int, float]]) -> None:
    together = Histograms(CPU_BUCKETS, HALF, rows=6)
    alone = [Histograms(CPU_BUCKETS, HALF, rows=1) for _ in range(6)]
    for number, (row, value) in enumerate(samples):
        together.add(np.array([row]), np.array([value]), NOW + number * 1000)
        alone[row].add(ROW, np.array([value]), NOW + number * 1000)
    assert np.array_equal(together.weights, np.vstack([histogram.weights for histogram in alone]))


def test_moments_are_those_of_the_samples() -> None:
    values = np.random.default_rng(3).gamma(4.0, 0.5, 500)
    histogram = histogram_of(CPU_BUCKETS, *[(value, 1.0, NOW) for value in values])
    mean, deviation = histogram.moments(ROW)
    assert mean[0] == pytest.approx(values.mean(), rel=0.03)
    assert deviation[0] == pytest.approx(values.std(), rel=0.03)


def test_peak_methods() -> None:
    models = PredictionModels(sigmas=3.0)
    for value in (1.0, 1.0, 1.0, 3.0):
        models.train(["uid"], np.array([value]), np.array([value * 2**30]), NOW, 0)
    peaks = {peak: models.peaks(["uid"], peak)["uid"] for peak in PeakMethod}
    assert peaks[PeakMethod.MAX] == peaks[PeakMethod.HISTOGRAM].most(peaks[PeakMethod.NSIGMA])
    assert peaks[PeakMethod.NSIGMA].cpu == pytest.approx(1000 * (1.5 + 3 * np.std([1, 1, 1, 3])), rel=0.05)
    assert models.peaks(["unknown"]) == {}


def test_rows_of_removed_models_are_reused() -> None:
    models = PredictionModels()
    for number in range(100):
        models.train([f"uid-{number}"], np.array([1.0]), np.array([1.0]), NOW, 0)
        if number >= 10:
            models.drop(f"uid-{number - 10}")
    assert len(models.cpu.total) == 16
    assert models.peaks([f"uid-{n}" for n in range(100)]).keys() == {f"uid-{n}" for n in range(90, 100)}
