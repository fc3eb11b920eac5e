"""Which writes a result requires: patches of Node status and Node metadata, and zones. Pure (spec 04 §6.2).

The status is written when an amount changed by more than the threshold, when the reason or the percentage left by
interference changed, or when the last write is more than `updateTimeThresholdSeconds` ago and any value differs. The
metadata is written when it differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from control.manager.noderesource import zones
from control.manager.noderesource.calculate import NodeResult
from control.manager.noderesource.explain import explained
from control.manager.noderesource.interference import written_holds
from control.manager.noderesource.prepare import OVERCOMMIT_RESOURCES, meta_patch, must_write, prepare, status_patch
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.pages.overcommit import DISABLED, INTERFERENCE, Hold, OvercommitExplanation
from koordlet.api.sloconfig.colocation import DEFAULT, ColocationStrategy


@dataclass(frozen=True, slots=True)
class Synced:
    """Monotonic times at which this process last knew the Node and the topology to be up to date; None: not yet."""

    node: float | None = None
    topology: float | None = None


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The required writes for one node; falsy for none."""

    status: Mapping[str, Any]
    meta: Mapping[str, Any]
    zones: bool
    """the zones must be rewritten, starting from the API server's current object"""
    confirmed: Synced
    """the new `Synced` for the parts that need no write"""
    problem: str = ""
    """an annotation of the Node that could not be read"""

    def __bool__(self) -> bool:
        return bool(self.status or self.meta or self.zones)


def decide(
    result: NodeResult,
    topology: NodeResourceTopology | None,
    synced: Synced,
    *,
    now: float,
    wall: float,
    with_explanation: bool = True,
) -> NodeDecision:
    """The required writes. `now` is monotonic time, `wall` Unix time.

    Without `with_explanation` the status patch lacks the explanation, which is expensive to build.
    """
    node = result.node
    if not is_reported(node):
        return NodeDecision({}, {}, False, synced)
    prepared = prepare(node, result.plan)
    untouched = result.reason == DISABLED and not _has_overcommit(node)
    status: Mapping[str, Any] = {}
    confirmed = synced.node
    if not untouched:
        due = overdue(synced.node, now, result.strategy)
        changed = _explanation_changed(result)
        if due or changed or must_write(node, prepared, result.plan.devices, threshold_of(result.strategy)):
            explain = partial(explained, result, prepared, wall) if with_explanation else OvercommitExplanation
            status = status_patch(node, prepared, explain, explanation_changed=changed, now=wall)
            confirmed = synced.node if status else now
    renewed = overdue(synced.topology, now, result.strategy)
    rewrite = topology is not None and _zones_changed(topology, result, refresh=renewed)
    return NodeDecision(
        status=status,
        meta=meta_patch(node, result.plan),
        zones=rewrite,
        confirmed=Synced(confirmed, now if renewed and not rewrite else synced.topology),
        problem=prepared.problem,
    )


def is_reported(node: Node) -> bool:
    """Whether the Node's kubelet has reported resources; before that nothing is written."""
    return bool(node.status.capacity and node.status.allocatable)


def _zones_changed(topology: NodeResourceTopology, result: NodeResult, *, refresh: bool) -> bool:
    if result.zones is None:
        return False
    threshold = threshold_of(result.strategy)
    return zones.must_rewrite(topology, result.zones, threshold, refresh=refresh, clearing=not result.overcommits)


def new_zones(present: list[dict[str, Any]], result: NodeResult, *, refresh: bool) -> list[dict[str, Any]] | None:
    """The desired zones, from those of the API server's current object; None when nothing must be written."""
    if result.zones is None:
        return None
    threshold = threshold_of(result.strategy)
    return zones.rewritten(present, result.zones, threshold, refresh=refresh, clearing=not result.overcommits)


def overdue(at: float | None, now: float, strategy: ColocationStrategy) -> bool:
    """Whether the last write is more than `updateTimeThresholdSeconds` ago, so that any difference is written."""
    seconds = strategy.update_time_threshold_seconds or DEFAULT.update_time_threshold_seconds or 0
    return at is None or now - at > seconds


def threshold_of(strategy: ColocationStrategy) -> float:
    return strategy.resource_diff_threshold or DEFAULT.resource_diff_threshold or 0.0


def _explanation_changed(result: NodeResult) -> bool:
    """Whether the Node's condition has another reason, or its annotation other percentages left by interference."""
    condition = result.node.status.condition(names.CONDITION_OVERCOMMIT)
    if condition is None or condition.reason != result.reason:
        return True
    if result.reason != INTERFERENCE:
        return False  # interference reduces nothing, before and now
    return reduced_percents(written_holds(result.node)) != reduced_percents(result.holds)


def reduced_percents(holds: Mapping[str, Hold]) -> dict[str, int]:
    """Resource -> percentage, for those that interference reduces."""
    return {name: hold.percent for name, hold in holds.items() if hold.percent != 100}


def _has_overcommit(node: Node) -> bool:
    """Whether the Node carries the condition or batch and mid resources, which must be removed."""
    return node.status.condition(names.CONDITION_OVERCOMMIT) is not None or any(
        name in resources
        for resources in (node.status.capacity, node.status.allocatable)
        for name in OVERCOMMIT_RESOURCES
    )
