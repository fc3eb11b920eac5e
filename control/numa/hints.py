"""NUMA hints: which zones could serve a pod, and the best set of zones for all its resources (spec 06 §2.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

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
    node: NodeRoom, request: NumaRequest, policy: str, score: Callable[[int], int], *, largest: int = 0
) -> dict[str, list[ZoneHint]]:
    """The hints of a node with zones. `score(zones)`: 0..100 for a set of zones. `largest`: the size up to which sets
    are looked at; 0: all.

    A resource that a zone publishes and no set of zones can serve has an empty list."""
    published = [name for name in request.amounts if node.publishes(name)]
    rooms = {name: [room_for(node, request, zone, name) for zone in node.zones] for name in published}
    sets: dict[str, list[int]] = {name: [] for name in published}
    scores: dict[int, int] = {}
    for chosen in subsets(len(node.zones)):
        if largest and chosen.bit_count() > largest:
            break
        members = list(numbers_of(chosen))
        # Exactly then a trial allocation succeeds, see `affinity`.
        if all(sum(room[at] for at in members) >= request.amounts[name] for name, room in rooms.items()):
            for name, room in rooms.items():
                if all(room[at] > 0 for at in members):
                    sets[name].append(chosen)
                    if chosen not in scores:
                        scores[chosen] = score(chosen)
    hints: dict[str, list[ZoneHint]] = {}
    for name, served in sets.items():
        smallest = min((zones.bit_count() for zones in served), default=0)
        hints[name] = [
            ZoneHint(zones, policy == RESTRICTED or zones.bit_count() == smallest, scores[zones]) for zones in served
        ]
    return hints


def choose_with(
    provided: Hints,
    node: NodeRoom,
    request: NumaRequest,
    policy: str,
    score: Callable[[int], int],
    violates: Callable[[int], bool],
) -> Merged:
    """`merge` of the hints of a node and of another provider. One zone suffices or is refused under SingleNUMANode:
    larger sets then only matter for the reasons."""
    ids = [zone.id for zone in node.zones]
    if policy == SINGLE_NUMA_NODE:
        merged = merge([node_hints(node, request, policy, score, largest=1), provided], ids, policy, violates)
        if not merged.reasons:
            return merged
    return merge([node_hints(node, request, policy, score), provided], ids, policy, violates)


def choose(
    node: NodeRoom, request: NumaRequest, policy: str, score: Callable[[int], int], violates: Callable[[int], bool]
) -> Merged:
    """`merge` of the hints of one node alone. Usually a few zones agree for all resources: larger sets, for which the
    work doubles with each zone, are then not looked at."""
    published = [name for name in request.amounts if node.publishes(name)]
    rooms = [[room_for(node, request, zone, name) for zone in node.zones] for name in published]
    amounts = [request.amounts[name] for name in published]
    everything = (1 << len(node.zones)) - 1
    for size, sets in _by_size(len(node.zones)) if published else ():
        agreed: list[int] = []
        hinted = False
        for chosen, members in sets:
            if all(sum([room[at] for at in members]) >= amount for room, amount in zip(rooms, amounts, strict=True)):
                common = all(room[at] > 0 for room in rooms for at in members)
                hinted = hinted or common or any(all(room[at] > 0 for at in members) for room in rooms)
                if common and not violates(chosen):
                    agreed.append(chosen)
        if agreed:
            best = max((len(published) * score(agreed_zones), -agreed_zones) for agreed_zones in agreed)
            zones = -best[1]
            return Merged(None if policy == SINGLE_NUMA_NODE and zones == everything else zones, best[0])
        if (size == 1 and policy == SINGLE_NUMA_NODE) or (hinted and policy == BEST_EFFORT):
            break
    hints = node_hints(node, request, policy, score)
    return merge([hints], [zone.id for zone in node.zones], policy, violates)


@cache
def _by_size(count: int) -> tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]:
    """(size, sets with their positions) in ascending order."""
    return tuple(
        (size, tuple((mask_of(chosen), chosen) for chosen in combinations(range(count), size)))
        for size in range(1, count + 1)
    )


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
        reachable = {zones & hinted for zones in reachable for hinted in hints if hinted is not None and zones & hinted}

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
