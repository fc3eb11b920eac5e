"""Whether a result is worth writing, and what: patches of Node status and metadata, zones. Pure (spec 04 §6.2).

A status is written when an amount moved by more than the threshold, when the reason or what interference leaves
changed, or when the last write is `updateTimeThresholdSeconds` ago and something differs at all; metadata when it
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from control.manager.noderesource import zones
from control.manager.noderesource.calculate import Result
from control.manager.noderesource.explain import explained
from control.manager.noderesource.interference import written_holds
from control.manager.noderesource.prepare import LENT, meta_patch, must_write, prepare, status_patch
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.pages.overcommit import DISABLED, INTERFERENCE, Hold, Lending
from koordlet.api.sloconfig.colocation import DEFAULT, ColocationStrategy


@dataclass(frozen=True, slots=True)
class Synced:
    """When (monotonic) this process last knew Node and topology to hold what they should; None: not yet."""

    node: float | None = None
    topology: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one node; falsy for nothing."""

    status: Mapping[str, Any]
    meta: Mapping[str, Any]
    zones: bool
    """the topology must be rewritten, from the object as the API server has it"""
    confirmed: Synced
    """what is known when nothing of it has to be written"""
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.status or self.meta or self.zones)


def decide(
    result: Result,
    topology: NodeResourceTopology | None,
    synced: Synced,
    *,
    now: float,
    wall: float,
    in_words: bool = True,
) -> Decision:
    """`now` is monotonic, `wall` Unix time; without `in_words` the patch lacks the explanation, its costliest part."""
    node = result.node
    if not node.status.capacity or not node.status.allocatable:
        return Decision({}, {}, False, synced)
    prepared = prepare(node, result.plan)
    untouched = result.reason == DISABLED and not _traces(node)
    status: Mapping[str, Any] = {}
    confirmed = synced.node
    if not untouched:
        due = overdue(synced.node, now, result.strategy)
        turned = _turned(result)
        if due or turned or must_write(node, prepared, result.plan.devices, threshold_of(result.strategy)):
            words = partial(explained, result, prepared, wall) if in_words else Lending
            status = status_patch(node, prepared, words, turned=turned, now=wall)
            confirmed = synced.node if status else now
    renewed = overdue(synced.topology, now, result.strategy)
    rewrite = topology is not None and _zones_moved(topology, result, refresh=renewed)
    return Decision(
        status=status,
        meta=meta_patch(node, result.plan),
        zones=rewrite,
        confirmed=Synced(confirmed, now if renewed and not rewrite else synced.topology),
        problem=prepared.problem,
    )


def _zones_moved(topology: NodeResourceTopology, result: Result, *, refresh: bool) -> bool:
    if result.zones is None:
        return False
    threshold = threshold_of(result.strategy)
    return zones.must_rewrite(topology, result.zones, threshold, refresh=refresh, clearing=not result.lends)


def new_zones(present: list[dict[str, Any]], result: Result, *, refresh: bool) -> list[dict[str, Any]] | None:
    """The zones of the object as the API server has it, as they should be; None when they may stay."""
    if result.zones is None:
        return None
    threshold = threshold_of(result.strategy)
    return zones.rewritten(present, result.zones, threshold, refresh=refresh, clearing=not result.lends)


def overdue(at: float | None, now: float, strategy: ColocationStrategy) -> bool:
    """Whether the last write is so long ago that any difference counts."""
    seconds = strategy.update_time_threshold_seconds or DEFAULT.update_time_threshold_seconds or 0
    return at is None or now - at > seconds


def threshold_of(strategy: ColocationStrategy) -> float:
    return strategy.resource_diff_threshold or DEFAULT.resource_diff_threshold or 0.0


def _turned(result: Result) -> bool:
    """Whether the Node tells another reason, or another part that interference leaves."""
    condition = result.node.status.condition(names.CONDITION_LENDING)
    if condition is None or condition.reason != result.reason:
        return True
    if result.reason != INTERFERENCE:
        return False  # everything is lent, and was
    return left_of(written_holds(result.node)) != left_of(result.holds)


def left_of(holds: Mapping[str, Hold]) -> dict[str, int]:
    return {name: hold.percent for name, hold in holds.items() if hold.percent != 100}


def _traces(node: Node) -> bool:
    """Whether there is anything of ours to take back."""
    return node.status.condition(names.CONDITION_LENDING) is not None or any(
        name in part for part in (node.status.capacity, node.status.allocatable) for name in LENT
    )
