"""How much of Prod pods' requests can be overcommitted, and Prod's peak: two predictors, combined (spec 02 §8.5). Pure.

The pod predictor adds the peaks of the single pods; the priority predictor takes the peak of their sum. The first is
too high because pods do not peak together; the second does not include a pod that has just started. The result is the
smaller overcommittable amount and the larger peak.
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

RECLAIMABLE_CLASSES = (PROD, NONE)
"""Priority classes whose unused requests can be overcommitted."""
RECLAIMABLE_KEYS = tuple(class_key(name) for name in RECLAIMABLE_CLASSES)
POD, PRIORITY, MINIMUM = "podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"


class PredictionError(LookupError):
    """An input of the prediction is missing; the message names it."""


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod's inputs to the predictors."""

    uid: str
    priority_class: str
    request: Amount
    age: float
    """seconds; infinite without a creation time"""
    ending: bool = False
    """deleted or terminated: it will not use its request for long"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result of one predictor."""

    reclaimable: Amount
    peak: Amount


def pod_demand(uid: str, priority_class: str, pod: Pod, now: float) -> PodDemand:
    """A pod at `now` (Unix time)."""
    created = pod.metadata.creation_timestamp
    return PodDemand(
        uid=uid,
        priority_class=priority_class,
        request=_amount(pod_requests(pod)),
        age=float("inf") if created is None else now - created.unix,
        ending=pod.metadata.deletion_timestamp is not None or is_terminated(pod),
    )


def allocatable(node: Node) -> Amount:
    """The node's allocatable before amplification; PredictionError if it is missing."""
    try:
        raw = RAW_ALLOCATABLE.get(node.metadata.annotations)
    except ValueError:
        raw = None  # malformed counts as absent: use the kubelet's value
    amounts = {**node.status.allocatable, **(raw or {})}
    if "cpu" not in amounts or "memory" not in amounts:
        raise PredictionError("the Node has no allocatable cpu and memory")
    return _amount(amounts)


def by_pod(
    pods: Iterable[PodDemand], peaks: Mapping[str, Amount], node: Amount, *, margin: int, cold_start: float
) -> tuple[Prediction, list[PodDemand]]:
    """The pod predictor, and the pods that the priority predictor may count.

    `peaks` by UID; `node`: its allocatable. A pod younger than `cold_start` seconds, or without a peak, counts with its
    whole request.
    """
    unpredicted, used, unused, counted, seen = Amount(), Amount(), Amount(), [], set()
    for pod in pods:
        if pod.uid in seen:
            raise PredictionError(f"pod {pod.uid} is listed twice")
        seen.add(pod.uid)
        if pod.priority_class not in RECLAIMABLE_CLASSES or pod.ending:
            continue
        peak = peaks.get(pod.uid)
        if pod.age <= cold_start:
            unpredicted += pod.request
            counted.append(pod)
        elif peak is None:
            unpredicted += pod.request
        else:
            peak = peak.with_margin(margin)
            used += peak
            unused += pod.request.less(peak)
            counted.append(pod)
    return Prediction(node.less(used).least(unused), used + unpredicted), counted


def by_priority(pods: Iterable[PodDemand], peaks: Mapping[str, Amount], node: Amount, *, margin: int) -> Prediction:
    """The priority predictor. `peaks` of the system and of the classes that used anything; see `class_peaks`."""
    used = sum(peaks.values(), Amount()).with_margin(margin)
    requested = sum((pod.request for pod in pods), Amount())
    return Prediction(node.less(used).least(requested.less(used)), used)


def class_peaks(peaks: Mapping[str, Amount], idle: Iterable[str]) -> dict[str, Amount]:
    """The peaks that reduce the overcommittable amount; PredictionError while one of them was never trained.

    A class that never used anything is left out: its peak would be the end of the first bucket, a constant.
    """
    missing = [key for key in (SYSTEM, *RECLAIMABLE_KEYS) if key not in peaks]
    if missing:
        raise PredictionError(f"not trained yet: {', '.join(missing)}")
    unused = set(idle).intersection(CLASS_KEYS)
    return {key: peaks[key] for key in (SYSTEM, *RECLAIMABLE_KEYS) if key not in unused}


def combine(first: Prediction, second: Prediction) -> Prediction:
    """The smaller overcommittable amount and the larger peak."""
    return Prediction(first.reclaimable.least(second.reclaimable), first.peak.most(second.peak))


def predict(
    pods: Iterable[PodDemand],
    peaks: Mapping[str, Amount],
    idle: Iterable[str],
    node: Amount,
    *,
    margin: int,
    cold_start: float,
) -> dict[str, Prediction]:
    """All three predictions by name; PredictionError if one is not possible. `idle`: keys of unused classes."""
    pod, counted = by_pod(pods, peaks, node, margin=margin, cold_start=cold_start)
    priority = by_priority(counted, class_peaks(peaks, idle), node, margin=margin)
    return {POD: pod, PRIORITY: priority, MINIMUM: combine(pod, priority)}


def forecast(predictions: Mapping[str, Prediction]) -> Forecast:
    """The prediction for NodeMetric."""
    minimum = predictions[MINIMUM]
    return Forecast(minimum.reclaimable, minimum.peak)


def _amount(resources: Mapping[str, Quantity]) -> Amount:
    return Amount(resources.get("cpu", ZERO).milli_value(), resources.get("memory", ZERO).value())
