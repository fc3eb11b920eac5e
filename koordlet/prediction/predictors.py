"""How much of what Prod pods requested can be lent, and Prod's peak: two predictors, combined (spec 02 §8.5).

The pod predictor adds up the peaks of single pods, the priority predictor takes the peak of their sum: the first is
high because pods do not peak together, the second knows nothing of a pod that has just come. Of the two, the smaller
amount can be lent and the greater is the peak. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordlet.api.annotations.node import RAW_ALLOCATABLE
from koordlet.api.core import Node, Pod
from koordlet.api.core.podresources import is_terminated, pod_requests
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.priority import NONE, PROD
from koordlet.prediction.models import CLASS_KEYS, SYSTEM, class_key
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast

LENDING = (PROD, NONE)
"""Priority classes whose unused requests can be lent."""
LENDING_KEYS = tuple(class_key(name) for name in LENDING)
POD, PRIORITY, MINIMUM = "podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"


class PredictionError(LookupError):
    """What a prediction needs is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class PodView:
    """Of a pod, what predictors look at."""

    uid: str
    priority_class: str
    request: Amount
    age: float
    """seconds; infinite where the pod does not say when it was created"""
    ending: bool = False
    """deleted or terminated: it will use nothing for long"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one predictor says."""

    reclaimable: Amount
    peak: Amount


def view(uid: str, priority_class: str, pod: Pod, now: float) -> PodView:
    """A pod at `now` (Unix time)."""
    created = pod.metadata.creation_timestamp
    return PodView(
        uid=uid,
        priority_class=priority_class,
        request=_amount(pod_requests(pod)),
        age=float("inf") if created is None else now - created.unix,
        ending=pod.metadata.deletion_timestamp is not None or is_terminated(pod),
    )


def allocatable(node: Node) -> Amount:
    """What the node had to give before anything was amplified; PredictionError if it does not say."""
    try:
        raw = RAW_ALLOCATABLE.get(node.metadata.annotations)
    except ValueError:
        raw = None  # as if absent: what the kubelet says is good enough
    amounts = {**node.status.allocatable, **(raw or {})}
    if "cpu" not in amounts or "memory" not in amounts:
        raise PredictionError("the Node tells no allocatable cpu and memory")
    return _amount(amounts)


def by_pod(
    pods: Iterable[PodView], peaks: Mapping[str, Amount], have: Amount, *, margin: int, cold_start: float
) -> tuple[Prediction, list[PodView]]:
    """The pod predictor, and the pods that the priority predictor may count.

    `peaks` by UID; a pod younger than `cold_start` seconds, or without a peak, counts with its whole request.
    """
    unknown, used, spare, counted, seen = Amount(), Amount(), Amount(), [], set()
    for pod in pods:
        if pod.uid in seen:
            raise PredictionError(f"pod {pod.uid} is there twice")
        seen.add(pod.uid)
        if pod.priority_class not in LENDING or pod.ending:
            continue
        peak = peaks.get(pod.uid)
        if pod.age <= cold_start:
            unknown += pod.request
            counted.append(pod)
        elif peak is None:
            unknown += pod.request
        else:
            peak = peak.with_margin(margin)
            used += peak
            spare += pod.request.less(peak)
            counted.append(pod)
    return Prediction(have.less(used).least(spare), used + unknown), counted


def by_priority(pods: Iterable[PodView], peaks: Mapping[str, Amount], have: Amount, *, margin: int) -> Prediction:
    """The priority predictor. `peaks` of the system and of the classes that run anything; see `class_peaks`."""
    used = sum(peaks.values(), Amount()).with_margin(margin)
    requested = sum((pod.request for pod in pods), Amount())
    return Prediction(have.less(used).least(requested.less(used)), used)


def class_peaks(peaks: Mapping[str, Amount], idle: Iterable[str]) -> dict[str, Amount]:
    """Of all peaks, those that count against what can be lent; PredictionError while one was never trained.

    A class that never used anything is left out: its peak would be the first bucket's end, a constant.
    """
    missing = [key for key in (SYSTEM, *LENDING_KEYS) if key not in peaks]
    if missing:
        raise PredictionError(f"not trained yet: {', '.join(missing)}")
    left_out = set(idle).intersection(CLASS_KEYS)
    return {key: peaks[key] for key in (SYSTEM, *LENDING_KEYS) if key not in left_out}


def combine(one: Prediction, other: Prediction) -> Prediction:
    """Cautious: the smaller amount to lend, the greater peak."""
    return Prediction(one.reclaimable.least(other.reclaimable), one.peak.most(other.peak))


def predict(
    pods: Iterable[PodView],
    peaks: Mapping[str, Amount],
    idle: Iterable[str],
    have: Amount,
    *,
    margin: int,
    cold_start: float,
) -> dict[str, Prediction]:
    """All three by name; PredictionError if one is not possible."""
    pod, counted = by_pod(pods, peaks, have, margin=margin, cold_start=cold_start)
    priority = by_priority(counted, class_peaks(peaks, idle), have, margin=margin)
    return {POD: pod, PRIORITY: priority, MINIMUM: combine(pod, priority)}


def forecast(predictions: Mapping[str, Prediction]) -> Forecast:
    """What NodeMetric carries."""
    chosen = predictions[MINIMUM]
    return Forecast(chosen.reclaimable, chosen.peak)


def _amount(resources: Mapping[str, Quantity]) -> Amount:
    return Amount(resources.get("cpu", ZERO).milli_value(), resources.get("memory", ZERO).value())
