"""NUMA hints: which zones could serve a pod, and the best set of zones for all its resources (spec 06 §2.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

from control.numa.accumulator import usable
from control.numa.affinity import NodeRoom, NumaRequest, room_for
from control.numa.holdings import SHARED, SINGLE
from control.numa.masks import mask_of, numbers_of
from control.numa.report import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE

REQUIRED: Final = "Required"
NO_ZONES: Final = "node(s) Insufficient NUMA Node resources"


@dataclass(frozen=True, slots=True)
class ZoneHint:
    """A set of zones that can serve one resource. `zones`: mask of positions; None: any zones."""

    zones: int | None
    preferred: bool
    score: int = 0
    unsatisfied: bool = False


Hints = Mapping[str, "Sequence[ZoneHint] | None"]
"""What one provider answers: resource -> hints. None: any zones; empty: impossible."""


@dataclass(frozen=True)
class Merged:
    """The decision. `zones`: mask of positions, None: no affinity. `reasons`: why the node is refused."""

    zones: int | None
    score: int = 0
    reasons: tuple[str, ...] = ()


@cache
def subsets(count: int) -> tuple[int, ...]:
    """The non-empty sets of `count` positions by size, then lexicographically."""
    return tuple(mask_of(chosen) for size in range(1, count + 1) for chosen in combinations(range(count), size))


def node_hints(
    node: NodeRoom, request: NumaRequest, policy: str, score: Callable[[int], int]
) -> dict[str, list[ZoneHint]]:
    """The hints of a node with zones. `score(zones)`: 0..100 for a set of zones.

    A resource that a zone publishes and no set of zones can serve has an empty list."""
    published = [name for name in request.amounts if node.publishes(name)]
    rooms = {name: [room_for(node, request, zone, name) for zone in node.zones] for name in published}
    possible = "cpu" in rooms or request.cpus <= usable(node.layout, node.free, request.required_policy).bit_count()
    sets: dict[str, list[int]] = {name: [] for name in published}
    for chosen in subsets(len(node.zones)) if possible else ():
        members = list(numbers_of(chosen))
        # A trial allocation succeeds exactly when the rooms suffice, see `affinity`.
        if all(sum(room[at] for at in members) >= request.amounts[name] for name, room in rooms.items()):
            for name, room in rooms.items():
                if all(room[at] > 0 for at in members):
                    sets[name].append(chosen)
    hints: dict[str, list[ZoneHint]] = {}
    for name, served in sets.items():
        smallest = min((one.bit_count() for one in served), default=0)
        hints[name] = [ZoneHint(one, policy == RESTRICTED or one.bit_count() == smallest, score(one)) for one in served]
    return hints


def merge(
    providers: Iterable[Hints], ids: Sequence[int], policy: str, violates: Callable[[int], bool] = lambda zones: False
) -> Merged:
    """The best set of zones for all resources. `ids`: of the zones, by position. `violates(zones)`: exclusivity."""
    named, reasons = _flat(providers)
    everything = (1 << len(ids)) - 1
    if reasons and policy != BEST_EFFORT:
        return Merged(None, reasons=tuple(reasons))
    lists = [hints for _, hints in named]
    if policy == SINGLE_NUMA_NODE:
        lists = [
            [hint for hint in hints if hint.preferred and (hint.zones is None or hint.zones.bit_count() == 1)]
            for hints in lists
        ]
    best, preferred, score, unsatisfied = _best(lists, everything, violates)
    if policy == BEST_EFFORT:
        return Merged(everything) if unsatisfied else Merged(best, score)
    if not preferred:
        separator = "," if policy == SINGLE_NUMA_NODE else " & "
        return Merged(None, reasons=(f"Unaligned NUMA Hint cause {separator.join(sorted(_summaries(named, ids)))}",))
    return Merged(None if policy == SINGLE_NUMA_NODE and best == everything else best, score)


def violates_exclusivity(zones: int, status: Sequence[str], exclusive: str) -> bool:
    """Whether a set of zones contradicts a pod's `singleNUMANodeExclusive`. `status`: of each position."""
    if exclusive != REQUIRED:
        return False
    unwanted = SHARED if zones.bit_count() == 1 else SINGLE
    return any(status[at] == unwanted for at in numbers_of(zones))


def _flat(providers: Iterable[Hints]) -> tuple[list[tuple[str, Sequence[ZoneHint]]], list[str]]:
    """One list of hints per resource, and the reasons of those that no zones can serve."""
    flat: list[tuple[str, Sequence[ZoneHint]]] = []
    reasons: list[str] = []
    for hints in providers:
        if not hints:
            flat.append(("", [ZoneHint(None, preferred=True)]))
        for name, listed in hints.items():
            if listed is None:
                flat.append((name, [ZoneHint(None, preferred=True)]))
            elif not listed:
                flat.append((name, [ZoneHint(None, preferred=False, unsatisfied=True)]))
                reasons.append(f"Unsatisfied NUMA {name}")
            else:
                flat.append((name, listed))
    return flat, reasons


def _best(
    lists: Sequence[Sequence[ZoneHint]], everything: int, violates: Callable[[int], bool]
) -> tuple[int, bool, int, bool]:
    """(zones, preferred, score, unsatisfied) of the best combination with one hint per list.

    The best has the greatest key (preferred, fewer zones, score, lower bits). Enumerating the combinations would take
    exponential time; only the sets that they can end at matter. Hints without zones restrict nothing."""
    indifferent = [hints for hints in lists if any(hint.zones is None for hint in hints)]
    caring = [{hint.zones: hint for hint in hints if hint.zones is not None} for hints in lists]
    caring = [hints for hints in caring if hints]
    if any(not hints for hints in lists):
        return everything, False, 0, True
    all_preferred = all(any(hint.preferred for hint in hints) for hints in indifferent)
    reachable = {everything}
    for hints in caring:
        reachable = {zones & one for zones in reachable for one in hints if one is not None and zones & one}

    def exact(zones: int) -> list[ZoneHint]:
        return [hints[zones] for hints in caring if zones in hints]

    def key(zones: int) -> tuple[int, int, int]:
        return -zones.bit_count(), sum(hint.score for hint in exact(zones)), -zones

    agreed = [
        zones
        for zones in reachable
        if all_preferred
        and len(exact(zones)) == len(caring)
        and all(hint.preferred for hint in exact(zones))
        and (not violates(zones))
    ]
    if agreed:
        zones = max(agreed, key=key)
        return zones, True, key(zones)[1], False
    if not reachable:
        return everything, False, 0, False
    zones = max(reachable, key=key)
    unsatisfied = len(exact(zones)) < len(caring) or any(hint.unsatisfied for hints in indifferent for hint in hints)
    return zones, False, key(zones)[1], unsatisfied


def _summaries(named: Iterable[tuple[str, Sequence[ZoneHint]]], ids: Sequence[int]) -> list[str]:
    def bits(hints: Iterable[ZoneHint]) -> str:
        masks = (mask_of(ids[at] for at in numbers_of(hint.zones)) for hint in hints if hint.zones is not None)
        return " ".join(format(mask, "02b") for mask in masks)

    return [
        f"{name} prefer [{bits(hint for hint in hints if hint.preferred)}] among [{bits(hints)}]"
        for name, hints in named
        if name and any(hint.zones is not None for hint in hints)
    ]
