"""Which running pods a reservation takes over as its first owners (spec 06 §4.9). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from control.quota.amounts import Amounts
from control.reservation.amounts import Shortage, allocated, restricted_shortages, score
from control.reservation.matching import conditions, matched, owner_matches
from control.reservation.model import ReservationModel
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.reservation import RESTRICTED
from koordlet.api.encoding.wire import WireError

CLUSTER: Final = "Cluster"
ATTRIBUTES: Final = "node(s) reservation pre allocation is unsupported with current attributes"
CLUSTER_MODE_DISABLED: Final = "reservation requires cluster mode pre-allocation which is disabled"
_INT64: Final = 1 << 63


def refusal(model: ReservationModel, *, cluster_mode: bool) -> str:
    """Why the reservation cannot be scheduled at all; empty if it can."""
    if not model.pre_allocation:
        return ""
    if model.problem:
        return f"reservation is malformed: {model.problem}"
    if model.policy != RESTRICTED:
        return ATTRIBUTES
    return CLUSTER_MODE_DISABLED if model.pre_allocation_mode == CLUSTER and not cluster_mode else ""


def is_candidate(
    model: ReservationModel, pod: Pod, requests: Mapping[str, int], node_labels: Mapping[str, str], cluster_label: str
) -> bool:
    """Whether the reservation may take over a running pod without a reservation. `cluster_label`: of mode Cluster."""
    labels = pod.metadata.labels
    if model.pre_allocation_mode == CLUSTER:
        named = labels.get(cluster_label) == names.TRUE
    else:
        named = any(owner.label_selector is not None and owner_matches(owner, pod) for owner in model.owners)
    if not named:
        return False
    try:
        pod_conditions = conditions(pod)
    except WireError:
        return False
    return not pod_conditions.ignores and matched(pod_conditions, requests, model, node_labels).ok


def priority_of(pod: Pod, annotation: str) -> int:
    """Of mode Cluster, highest first; 0 if it is missing or no int64."""
    text = pod.metadata.annotations.get(annotation, "")
    if len(text) > len(str(-_INT64)):
        return 0
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if -_INT64 <= value < _INT64 else 0


@dataclass(frozen=True, slots=True)
class TakeOver:
    """`chosen`: positions of the candidates; empty: none was chosen. `short`: what the reservation lacks for them."""

    chosen: tuple[int, ...] = ()
    short: tuple[Shortage, ...] = ()


def choose(
    model: ReservationModel, candidates: Sequence[Mapping[str, int]], fits: Callable[[Amounts], bool]
) -> TakeOver:
    """`candidates`: their requests, first those that are preferred among equal ones.

    `fits(used)`: whether the node has room for the reservation if its owners use this much of it."""
    amounts, inner = model.amounts, model.inner_reserved
    order = list(range(len(candidates)))
    if model.pre_allocation_mode != CLUSTER or not model.several_pre_allocated:
        order.sort(key=lambda at: -score(candidates[at], amounts, {}))
    chosen: list[int] = []
    used: Amounts = {}
    short: list[Shortage] = []
    for at in order:
        requests = candidates[at]
        lacking = restricted_shortages(requests, model.restricted, amounts, used, inner, owners=len(chosen))
        if lacking:
            short += lacking
            continue
        with_it = allocated((requests, used), model.restricted)
        if fits(with_it):
            return TakeOver((*chosen, at))
        if model.several_pre_allocated:
            chosen.append(at)
            used = with_it
    return TakeOver(short=tuple(dict.fromkeys(short)))


def score_of(count: int) -> int:
    """Score of a node on which this number of pods is taken over, if several may be."""
    return 100 // (1 + count)
