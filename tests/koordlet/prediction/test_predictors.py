"""The predictors: the worked examples of spec 02 §8.5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.wire import Time
from koordlet.prediction.models import SYSTEM, class_key
from koordlet.prediction.predictors import (
    MINIMUM,
    POD,
    PRIORITY,
    PodView,
    Prediction,
    PredictionError,
    allocatable,
    by_pod,
    by_priority,
    class_peaks,
    combine,
    predict,
    view,
)
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast

MI, GI = 1 << 20, 1 << 30
HOUR = 3600.0
OLD = 1e9
PROD, NONE = class_key("koord-prod"), class_key("")

PODS = [
    PodView("pod1", "koord-prod", Amount(1000, GI), age=60),
    PodView("pod2", "koord-prod", Amount(2000, 2 * GI), age=OLD),
    PodView("pod3", "koord-prod", Amount(3000, 3 * GI), age=OLD, ending=True),
    PodView("pod4", "koord-batch", Amount(4000, 4 * GI), age=OLD),
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


@pytest.mark.parametrize(("have", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_what_can_be_lent(have, expected):
    found = predict(PODS, PEAKS, set(), have, margin=10, cold_start=HOUR)
    assert {name: one.reclaimable for name, one in found.items()} == expected


def test_the_peak_of_pods():
    pods = [
        PodView("normal", "koord-prod", Amount(2000, 2 * GI), OLD),
        PodView("young", "koord-prod", Amount(1000, GI), 60),
        PodView("unpredictable", "", Amount(500, 512 * MI), OLD),
        PodView("young but over", "koord-prod", Amount(7000, 7 * GI), 60, ending=True),
    ]
    found, counted = by_pod(pods, {"normal": Amount(500, 768 * MI)}, Amount(9000, 9 * GI), margin=10, cold_start=HOUR)
    assert found.peak == Amount(2050, 885837004 + 1073741824 + 536870912)
    assert [pod.uid for pod in counted] == ["normal", "young"], "what cannot be predicted is in no sum of requests"


def test_an_idle_node():
    first = Amount(25, 5 * MI)
    peaks = {SYSTEM: first, PROD: first, NONE: first}
    found = by_priority([], class_peaks(peaks, set()), Amount(3000, 3 * GI), margin=10)
    assert found == Prediction(Amount(), Amount(82, 17301504))


def test_classes_that_never_ran_anything_are_left_out():
    peaks = {SYSTEM: Amount(300, GI), PROD: Amount(1000, GI), NONE: Amount(25, 5 * MI)}
    assert class_peaks(peaks, {NONE, SYSTEM}) == {SYSTEM: Amount(300, GI), PROD: Amount(1000, GI)}


@pytest.mark.parametrize("missing", [SYSTEM, PROD, NONE])
def test_a_class_that_was_not_trained_is_an_error(missing):
    peaks = {key: amount for key, amount in PEAKS.items() if key != missing}
    with pytest.raises(PredictionError, match=missing):
        predict(PODS, peaks, set(), Amount(3000, 3 * GI), margin=10, cold_start=HOUR)


def test_a_pod_twice_is_an_error():
    with pytest.raises(PredictionError, match="pod1 is there twice"):
        by_pod([PODS[0], PODS[0]], PEAKS, Amount(), margin=10, cold_start=HOUR)


def test_combination_is_cautious():
    one, other = Prediction(Amount(1, 20), Amount(3, 40)), Prediction(Amount(2, 10), Amount(4, 30))
    assert combine(one, other) == Prediction(Amount(1, 10), Amount(4, 40))


def test_allocatable(make_node):
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu":"2","memory":"1Gi"}'}
    assert allocatable(make_node("3", "3Gi")) == Amount(3000, 3 * GI)
    assert allocatable(make_node("3", "3Gi", **raw)) == Amount(2000, GI)
    assert allocatable(make_node("3", "3Gi", **{next(iter(raw)): "{"})) == Amount(3000, 3 * GI)
    node = make_node()
    node.status.allocatable = {}
    with pytest.raises(PredictionError, match="allocatable"):
        allocatable(node)


def test_a_view_of_a_pod(make_pod):
    created = Time.parse("2026-07-01T00:00:00Z")
    meta = make_pod("uid", "1500m", "1Gi", creationTimestamp=str(created))
    assert view("uid", "koord-prod", meta.pod, created.unix + 60) == PodView(
        "uid", "koord-prod", Amount(1500, GI), 60.0
    )
    deleted = make_pod("uid", deletionTimestamp=str(created))
    assert view("uid", "", deleted.pod, 0).ending
    assert view("uid", "", deleted.pod, 0).age == float("inf"), "a static pod does not say when it was made"


AMOUNTS = st.builds(Amount, st.integers(0, 10**6), st.integers(0, 2**44))
VIEWS = st.lists(
    st.builds(
        PodView,
        st.uuids().map(str),
        st.sampled_from(["koord-prod", "koord-mid", "koord-batch", ""]),
        AMOUNTS,
        st.floats(0, 10 * HOUR),
        st.booleans(),
    ),
    unique_by=lambda pod: pod.uid,
)


@given(VIEWS, st.data(), AMOUNTS, st.integers(0, 100))
def test_never_more_is_lent_than_requested_or_there(pods, data, have, percent):
    peaks = {pod.uid: data.draw(AMOUNTS) for pod in pods if data.draw(st.booleans())}
    peaks.update({key: data.draw(AMOUNTS) for key in (SYSTEM, PROD, NONE)})
    found = predict(pods, peaks, set(), have, margin=percent, cold_start=HOUR)[MINIMUM]
    lending = [pod.request for pod in pods if pod.priority_class in ("koord-prod", "") and not pod.ending]
    asked = sum(lending, Amount())
    assert found.reclaimable.least(asked.least(have)) == found.reclaimable
    assert found.peak.most(peaks[SYSTEM]) == found.peak, "the system is part of the peak"


MOVES = {
    "the same": (Forecast(Amount(2000, GI), Amount(2000, GI)), False),
    "five percent": (Forecast(Amount(2100, GI), Amount(1900, GI)), False),
    "more": (Forecast(Amount(2101, GI), Amount(2000, GI)), True),
    "less memory at the peak": (Forecast(Amount(2000, GI), Amount(2000, GI * 94 // 100)), True),
    "gone": (Forecast.none("no node"), True),
}


@pytest.mark.parametrize(("now", "expected"), MOVES.values(), ids=MOVES)
def test_what_counts_as_moved(now, expected):
    assert now.moved(Forecast(Amount(2000, GI), Amount(2000, GI)), 5) is expected


def test_a_trifle_is_no_move():
    nothing = Forecast(Amount(), Amount())
    assert not Forecast(Amount(50, 32 * MI), Amount()).moved(nothing, 5)
    assert Forecast(Amount(51, 0), Amount()).moved(nothing, 5)
    assert Forecast(Amount(), Amount(0, 33 * MI)).moved(nothing, 5)
