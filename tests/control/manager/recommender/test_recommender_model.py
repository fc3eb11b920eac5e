"""The usage model of a container, its checkpoint and its estimate: worked values of spec 04 §9.2-§9.3, and laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.manager.recommender.estimate import estimate
from control.manager.recommender.model import ContainerModel
from control.manager.recommender.settings import MIB, RecommenderSettings
from koordlet.api.crs.analysis import ContainerCheckpoint
from koordlet.api.encoding.wire import decode, encode
from koordlet.app.histogram import CPU_BUCKETS, CheckpointError

NOW = 1_782_864_000.0  # 2026-07-01T00:00:00Z
HOUR = 3600.0
DEFAULTS = RecommenderSettings()


def taught(*samples: tuple[float, float, float], settings: RecommenderSettings = DEFAULTS) -> ContainerModel:
    """A model of (cores, bytes, time)."""
    model = ContainerModel(settings)
    if samples:
        model.add(*np.array(samples, dtype=float).T)
    return model


def estimated(model: ContainerModel, now: float = NOW, settings: RecommenderSettings = DEFAULTS) -> Any:
    result = estimate("c", model, settings, now)
    assert result is not None
    return result


def test_the_worked_example() -> None:
    """Nine samples of one core and one of four: p95 is 4.21713, with the margin 4639m."""
    estimate = estimated(taught(*[(1.0, 1 << 30, NOW)] * 9, (4.0, 1 << 30, NOW)))
    assert estimate.cpu.target == 4639
    assert estimate.memory.target == pytest.approx(1097586419.8 * 1.1, abs=1)
    status = estimate.status()
    assert (status.container_name, str(status.resources["cpu"])) == ("c", "4639m")
    assert "cpu 4639m = p95 4217m x 1.1" in estimate.message and "10 samples" in estimate.message


FLOORS = {
    "idle": (0.0, 0.0, 28, 10 * MIB),
    "small": (0.03, 8.0 * MIB, 57, math.ceil(10.25 * MIB * 1.1)),
}


@pytest.mark.parametrize(("cores", "memory", "cpu", "amount"), FLOORS.values(), ids=FLOORS)
def test_floors(cores: float, memory: float, cpu: int, amount: int) -> None:
    """The first buckets end at 25 milli-cores and 5 MiB; with the margin the one is over its floor, the other not."""
    estimate = estimated(taught((cores, memory, NOW)))
    assert (estimate.cpu.target, estimate.memory.target) == (cpu, amount)


def test_there_is_no_estimate_without_samples() -> None:
    assert estimate("c", taught(), DEFAULTS, NOW) is None


CONFIDENCE = {"one sample": (0.0, 0.0), "half": (12.0, 0.5), "just enough": (24.0, 1.0), "plenty": (240.0, 1.0)}


@pytest.mark.parametrize(("hours", "confidence"), CONFIDENCE.values(), ids=CONFIDENCE)
def test_confidence_is_the_share_of_the_required_history(hours: float, confidence: float) -> None:
    model = taught((1.0, 1e9, NOW - hours * HOUR), (1.0, 1e9, NOW))
    assert estimated(model).confidence == pytest.approx(confidence)


def test_bounds_narrow_with_history() -> None:
    short = estimated(taught((1.0, 1e9, NOW - HOUR), (1.0, 1e9, NOW)))
    long = estimated(taught((1.0, 1e9, NOW - 1000 * HOUR), (1.0, 1e9, NOW)))
    assert short.cpu.lower < long.cpu.lower <= long.cpu.target <= long.cpu.upper < short.cpu.upper


def test_an_oom_kill_raises_memory_for_a_day() -> None:
    model = taught(*[(1.0, 100.0 * MIB, NOW + minute * 60) for minute in range(2000)])
    before = estimated(model, NOW + 2000 * 60)
    at = NOW + 2000 * 60
    model.killed(512.0 * MIB, at)
    after = estimated(model, at + 60)
    assert before.memory.target < 200 * MIB
    assert after.memory.target == math.ceil(614.4 * MIB - 1e-3)
    assert after.memory.outside(512 * MIB), "a pod with the old limit is worth replacing"
    assert "a container was OOM-killed" in after.message
    assert after.cpu == before.cpu
    assert estimated(model, at + 25 * HOUR).memory.target < 200 * MIB


@pytest.mark.parametrize(("limit", "needed"), [(64, 164), (500, 600), (1000, 1200)])
def test_memory_needed_after_an_oom_kill(limit: int, needed: int) -> None:
    model = taught((1.0, MIB, NOW))
    model.killed(limit * MIB, NOW)
    assert model.oom_floor(NOW) == pytest.approx(needed * MIB)


def test_a_second_kill_with_less_does_not_lower_the_floor() -> None:
    model = taught((1.0, MIB, NOW))
    model.killed(1000.0 * MIB, NOW)
    model.killed(100.0 * MIB, NOW + HOUR)
    assert model.oom_kills == 2
    assert model.oom_floor(NOW + HOUR) == pytest.approx(1200 * MIB)


BROKEN = {
    "no histogram": ({"memory": {}}, "container c: cpu: the histogram is missing"),
    "bucket": ({"cpu": {"bucketWeights": {"158": 1}, "totalWeight": 1.0}}, "container c: cpu: bucketWeights[158]"),
    "negative": ({"cpu": {}, "memory": {"totalWeight": -1.0}}, "container c: memory: totalWeight is -1"),
}


@pytest.mark.parametrize(("document", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_malformed_checkpoint_is_named(document: dict[str, Any], problem: str) -> None:
    stored: ContainerCheckpoint = decode(encode({"containerName": "c", **document}), ContainerCheckpoint)
    with pytest.raises(CheckpointError) as caught:
        ContainerModel.restore(stored, DEFAULTS)
    assert problem in str(caught.value)


samples = st.lists(
    st.tuples(st.floats(0, 64), st.floats(0, 2.0**38), st.integers(0, 200 * 3600).map(lambda s: NOW + s)),
    min_size=1,
    max_size=40,
)


@given(samples)
@settings(max_examples=60, deadline=None)
def test_law_a_restored_checkpoint_equals_the_model(samples: list[tuple[float, float, float]]) -> None:
    """Through the wire and back: the counters are the same, the estimate is one bucket away at most."""
    model = taught(*samples)
    model.killed(float(256 * MIB), NOW)
    stored: ContainerCheckpoint = decode(encode(model.checkpoint("c")), ContainerCheckpoint)
    again = ContainerModel.restore(stored, DEFAULTS)
    assert (again.samples, again.first, again.last) == (model.samples, model.first, model.last)
    assert (again.oom_kills, again.oom_time) == (1, NOW)
    old, new = estimated(model), estimated(again)
    assert new.confidence == old.confidence
    share = 0.5 / 10_000 * len(CPU_BUCKETS)  # what rounding may have differs of the weight
    shares = (max(0.95 - share, 0.0), 0.95, min(0.95 + share, 1.0))
    low, _, high = model.percentiles(shares, (0.5,))[0]
    assert low <= again.percentiles((0.95,), (0.5,))[0][0] <= high
    kept = again.checkpoint("c")
    assert encode(ContainerModel.restore(kept, DEFAULTS).checkpoint("c")) == encode(kept), "and stays there"


@given(samples)
@settings(max_examples=60, deadline=None)
def test_law_targets_are_within_their_bounds_and_over_the_floors(samples: list[tuple[float, float, float]]) -> None:
    estimate = estimated(taught(*samples))
    for bounds, floor in ((estimate.cpu, 25), (estimate.memory, 10 * MIB)):
        assert floor <= bounds.target and 0 <= bounds.lower <= bounds.target <= bounds.upper
        shown = [int(bounds.target * 0.95), bounds.target, math.ceil(bounds.target * 1.05)]
        assert not any(map(bounds.outside, shown)), "the lag of a status is no reason to evict"
    assert 0 <= estimate.confidence <= 1
    highest = max(cores for cores, _, _ in samples)
    assert estimate.cpu.target <= max(highest * 1.05 * 1.1 * 1000, 25) + 25 * 1.1 + 1, "over every sample"


@given(samples, st.floats(0, 64), st.floats(0, 2.0**38))
@settings(max_examples=60, deadline=None)
def test_law_more_usage_never_lowers_the_estimate(
    samples: list[tuple[float, float, float]], cores: float, memory: float
) -> None:
    """Samples that are at least as great, one by one, have targets that are."""
    greater = [(max(c, cores), max(m, memory), at) for c, m, at in samples]
    less, more = estimated(taught(*samples)), estimated(taught(*greater))
    assert less.cpu.target <= more.cpu.target and less.cpu.lower <= more.cpu.lower
    assert less.memory.target <= more.memory.target and less.memory.upper <= more.memory.upper


@given(samples)
@settings(max_examples=60, deadline=None)
def test_law_percentiles_are_those_of_the_weighted_samples(samples: list[tuple[float, float, float]]) -> None:
    """Against brute force: each sample weighs 2^(age / half-life), shown as the upper end of its bucket."""
    model = taught(*samples)
    newest = max(at for _, _, at in samples)
    weighed = sorted((cores, 2.0 ** ((at - newest) / DEFAULTS.cpu_half_life)) for cores, _, at in samples)
    total = sum(weight for _, weight in weighed)
    ends, filled = CPU_BUCKETS.ends, [w for _, w in weighed if w > 1e-3]
    for share in (0.3, 0.5, 0.77, 0.95):
        near = [abs(sum(w for _, w in weighed[: n + 1]) - share * total) for n in range(len(weighed))]
        if len(filled) < len(weighed) or min(near) < 1e-6 * total:
            continue  # so old that the bucket counts as empty, or a tie that a rounding decides
        reached = np.cumsum([weight for _, weight in weighed])
        cores = weighed[int(np.argmax(reached >= share * total))][0]
        expected = ends[CPU_BUCKETS.find(np.array([cores]))[0]]
        assert model.percentiles((share,), (0.5,))[0][0] == pytest.approx(expected)


@given(samples, st.randoms())
@settings(max_examples=40, deadline=None)
def test_law_order_and_batches_do_not_matter(samples: list[tuple[float, float, float]], rng: Any) -> None:
    whole, shuffled = taught(*samples), list(samples)
    rng.shuffle(shuffled)
    single = ContainerModel(DEFAULTS)
    for sample in shuffled:
        single.add(*np.array([sample]).T)
    assert (single.samples, single.first, single.last) == (whole.samples, whole.first, whole.last)
    np.testing.assert_allclose(
        single.cpu.weights[0] / single.cpu.total[0], whole.cpu.weights[0] / whole.cpu.total[0], atol=1e-9
    )
