"""The predictors: the worked examples of spec 02 §8.5."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from koordlet.api.core import Node
from koordlet.api.encoding.wire import Time
from koordlet.prediction.models import SYSTEM, class_key
from koordlet.prediction.predictors import (
    MINIMUM,
    POD,
    PRIORITY,
    PodDemand,
    Prediction,
    PredictionError,
    allocatable,
    by_pod,
    by_priority,
    class_peaks,
    combine,
    pod_demand,
    predict,
)
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.pods.model import PodMeta

MI, GI = 1 << 20, 1 << 30
HOUR = 3600.0
OLD = 1e9
PROD, NONE = class_key("koord-prod"), class_key("")

PODS = [
    PodDemand("pod1", "koord-prod", Amount(1000, GI), age=60),
    PodDemand("pod2", "koord-prod", Amount(2000, 2 * GI), age=OLD),
    PodDemand("pod3", "koord-prod", Amount(3000, 3 * GI), age=OLD, ending=True),
    PodDemand("pod4", "koord-batch", Amount(4000, 4 * GI), age=OLD),
]
PEAKS = {
    "pod1": Amount(100, GI),
    "pod2": Amount(500, GI),
    "pod3": Amount(500, GI),
    SYSTEM: Amount(300, 512 * MI),
    PROD: Amount(1000, GI),
    NONE: Amount(0, 0),
}


def margin(value: int) -> int:
    return value * 110 // 100


EXAMPLES = {
    "much allocatable": (
        Amount(3000, 3 * GI),
        {
            POD: Amount(1450, 2 * GI - margin(GI)),
            PRIORITY: Amount(1570, 3 * GI - 1771674009),
            MINIMUM: Amount(1450, 2 * GI - margin(GI)),
        },
    ),
    "little allocatable": (Amount(1000, GI), {POD: Amount(450, 0), PRIORITY: Amount(), MINIMUM: Amount()}),
}


@pytest.mark.parametrize(("node", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_the_overcommittable_amount_follows_the_worked_example(node: Amount, expected: dict[str, Amount]) -> None:
    predictions = predict(PODS, PEAKS, set(), node, margin=10, cold_start=HOUR)
    assert {name: prediction.reclaimable for name, prediction in predictions.items()} == expected


def test_the_peak_of_pods_follows_the_worked_example() -> None:
    pods = [
        PodDemand("normal", "koord-prod", Amount(2000, 2 * GI), OLD),
        PodDemand("young", "koord-prod", Amount(1000, GI), 60),
        PodDemand("unpredictable", "", Amount(500, 512 * MI), OLD),
        PodDemand("young but over", "koord-prod", Amount(7000, 7 * GI), 60, ending=True),
    ]
    prediction, counted = by_pod(
        pods, {"normal": Amount(500, 768 * MI)}, Amount(9000, 9 * GI), margin=10, cold_start=HOUR
    )
    assert prediction.peak == Amount(2050, 885837004 + 1073741824 + 536870912)
    assert [pod.uid for pod in counted] == ["normal", "young"], "unpredictable pods are in no sum of requests"


def test_an_idle_node_has_no_overcommittable_amount() -> None:
    first = Amount(25, 5 * MI)
    peaks = {SYSTEM: first, PROD: first, NONE: first}
    prediction = by_priority([], class_peaks(peaks, set()), Amount(3000, 3 * GI), margin=10)
    assert prediction == Prediction(Amount(), Amount(82, 17301504))


def test_unused_classes_are_left_out() -> None:
    peaks = {SYSTEM: Amount(300, GI), PROD: Amount(1000, GI), NONE: Amount(25, 5 * MI)}
    assert class_peaks(peaks, {NONE, SYSTEM}) == {SYSTEM: Amount(300, GI), PROD: Amount(1000, GI)}


@pytest.mark.parametrize("missing", [SYSTEM, PROD, NONE])
def test_a_class_that_was_not_trained_is_an_error(missing: str) -> None:
    peaks = {key: amount for key, amount in PEAKS.items() if key != missing}
    with pytest.raises(PredictionError, match=missing):
        predict(PODS, peaks, set(), Amount(3000, 3 * GI), margin=10, cold_start=HOUR)


def test_a_pod_listed_twice_is_an_error() -> None:
    with pytest.raises(PredictionError, match="pod1 is listed twice"):
        by_pod([PODS[0], PODS[0]], PEAKS, Amount(), margin=10, cold_start=HOUR)


def test_the_combination_is_conservative() -> None:
    first, other = Prediction(Amount(1, 20), Amount(3, 40)), Prediction(Amount(2, 10), Amount(4, 30))
    assert combine(first, other) == Prediction(Amount(1, 10), Amount(4, 40))


def test_raw_allocatable_comes_before_allocatable(make_node: Callable[..., Node]) -> None:
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu":"2","memory":"1Gi"}'}
    assert allocatable(make_node("3", "3Gi")) == Amount(3000, 3 * GI)
    assert allocatable(make_node("3", "3Gi", **raw)) == Amount(2000, GI)
    assert allocatable(make_node("3", "3Gi", **{next(iter(raw)): "{"})) == Amount(3000, 3 * GI)
    node = make_node()
    node.status.allocatable = {}
    with pytest.raises(PredictionError, match="allocatable"):
        allocatable(node)


def test_the_demand_of_a_pod(make_pod: Callable[..., PodMeta]) -> None:
    created = Time.parse("2026-07-01T00:00:00Z")
    meta = make_pod("uid", "1500m", "1Gi", creationTimestamp=str(created))
    assert meta.pod is not None
    assert pod_demand("uid", "koord-prod", meta.pod, created.unix + 60) == PodDemand(
        "uid", "koord-prod", Amount(1500, GI), 60.0
    )
    deleted = make_pod("uid", deletionTimestamp=str(created))
    assert deleted.pod is not None
    assert pod_demand("uid", "", deleted.pod, 0).ending
    assert pod_demand("uid", "", deleted.pod, 0).age == float("inf"), "a static pod has no creation time"


AMOUNTS = st.builds(Amount, st.integers(0, 10**6), st.integers(0, 2**44))
DEMANDS = st.lists(
    st.builds(
        PodDemand,
        st.uuids().map(str),
        st.sampled_from(["koord-prod", "koord-mid", "koord-batch", ""]),
        AMOUNTS,
        st.floats(0, 10 * HOUR),
        st.booleans(),
    ),
    unique_by=lambda pod: pod.uid,
)


@given(DEMANDS, st.data(), AMOUNTS, st.integers(0, 100))
def test_the_overcommittable_amount_is_bounded_by_requests_and_node(
    pods: list[PodDemand], data: DataObject, node: Amount, percent: int
) -> None:
    peaks = {pod.uid: data.draw(AMOUNTS) for pod in pods if data.draw(st.booleans())}
    peaks.update({key: data.draw(AMOUNTS) for key in (SYSTEM, PROD, NONE)})
    minimum = predict(pods, peaks, set(), node, margin=percent, cold_start=HOUR)[MINIMUM]
    requests = [pod.request for pod in pods if pod.priority_class in ("koord-prod", "") and not pod.ending]
    requested = sum(requests, Amount())
    assert minimum.reclaimable.least(requested.least(node)) == minimum.reclaimable
    assert minimum.peak.most(peaks[SYSTEM]) == minimum.peak, "the system is part of the peak"


MOVES = {
    "the same": (Forecast(Amount(2000, GI), Amount(2000, GI)), False),
    "five percent": (Forecast(Amount(2100, GI), Amount(1900, GI)), False),
    "more": (Forecast(Amount(2101, GI), Amount(2000, GI)), True),
    "less memory at the peak": (Forecast(Amount(2000, GI), Amount(2000, GI * 94 // 100)), True),
    "gone": (Forecast.none("no node"), True),
}


@pytest.mark.parametrize(("now", "expected"), MOVES.values(), ids=MOVES)
def test_a_forecast_moved_by_more_than_five_percent(now: Forecast, expected: bool) -> None:
    assert now.changed(Forecast(Amount(2000, GI), Amount(2000, GI)), 5) is expected


def test_a_small_absolute_change_is_not_a_move() -> None:
    nothing = Forecast(Amount(), Amount())
    assert not Forecast(Amount(50, 32 * MI), Amount()).changed(nothing, 5)
    assert Forecast(Amount(51, 0), Amount()).changed(nothing, 5)
    assert Forecast(Amount(), Amount(0, 33 * MI)).changed(nothing, 5)
