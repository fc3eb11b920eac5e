"""NUMA hints and their merging (spec 06 §2.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.numa.affinity import NumaRequest
from control.numa.hints import Merged, ZoneHint, choose_with, merge, node_hints, subsets, violates_exclusivity
from control.numa.masks import mask_of
from tests.control.numa.rooms import GIB, room

POLICIES = ("BestEffort", "Restricted", "SingleNUMANode")


def hint(*zones: int, preferred: bool = True, score: int = 0) -> ZoneHint:
    return ZoneHint(mask_of(zones), preferred, score)


def test_sets_of_zones_come_by_size_then_in_order() -> None:
    assert subsets(3) == (0b001, 0b010, 0b100, 0b011, 0b101, 0b110, 0b111)


def refused(cause: str) -> Merged:
    return Merged(None, reasons=(f"Unaligned NUMA Hint cause {cause}",))


@pytest.mark.parametrize(
    ("providers", "policy", "merged"),
    [
        ([{}], "SingleNUMANode", Merged(None)),
        ([{}], "Restricted", Merged(0b11)),
        ([{"cpu": None}], "SingleNUMANode", Merged(None)),
        ([{"cpu": [hint(0, score=92), hint(1, score=92)]}], "SingleNUMANode", Merged(0b01, 92)),
        ([{"cpu": [hint(0, score=73), hint(1, score=92)]}], "SingleNUMANode", Merged(0b10, 92)),
        (
            [{"cpu": [hint(0, score=92), hint(0, 1, preferred=False, score=96)]}, {"gpu": [hint(0, 1, score=9)]}],
            "SingleNUMANode",
            refused("cpu prefer [01] among [01 11],gpu prefer [11] among [11]"),
        ),
        (
            [{"cpu": [hint(0)]}, {"gpu": [hint(1), hint(0, 1, preferred=False)]}],
            "SingleNUMANode",
            refused("cpu prefer [01] among [01],gpu prefer [10] among [10 11]"),
        ),
        (
            [{"cpu": [hint(0)], "gpu": [hint(1)]}],
            "Restricted",
            refused("cpu prefer [01] among [01] & gpu prefer [10] among [10]"),
        ),
        ([{"cpu": [hint(0)], "gpu": [hint(1)]}], "BestEffort", Merged(0b11)),
        ([{"cpu": [hint(0), hint(0, 1)], "gpu": [hint(0, 1)]}], "Restricted", Merged(0b11)),
        ([{"cpu": [], "memory": [hint(0)]}], "Restricted", Merged(None, reasons=("Unsatisfied NUMA cpu",))),
        ([{"cpu": [], "memory": [hint(0)]}], "BestEffort", Merged(0b11)),
    ],
)  # fmt: skip
def test_merging(providers: list[Mapping[str, Sequence[ZoneHint] | None]], policy: str, merged: Merged) -> None:
    assert merge(providers, (0, 1), policy) == merged


def test_bits_in_reasons_are_zone_ids() -> None:
    reasons = merge([{"cpu": [hint(0)], "gpu": [hint(1)]}], (0, 3), "SingleNUMANode").reasons
    assert reasons == ("Unaligned NUMA Hint cause cpu prefer [01] among [01],gpu prefer [1000] among [1000]",)


@pytest.mark.parametrize(
    ("zones", "status", "exclusive", "violated"),
    [
        (0b11, ("single", "idle"), "Required", True),
        (0b11, ("shared", "idle"), "Required", False),
        (0b01, ("shared", "idle"), "Required", True),
        (0b01, ("single", "shared"), "Required", False),
        (0b01, ("shared", "idle"), "Preferred", False),
        (0b01, ("shared", "idle"), "", False),
    ],
)
def test_exclusivity(zones: int, status: tuple[str, ...], exclusive: str, violated: bool) -> None:
    assert violates_exclusivity(zones, status, exclusive) is violated


def test_exclusivity_rejects_unless_the_policy_is_best_effort() -> None:
    providers = [{"cpu": [hint(0)]}]
    assert merge(providers, (0, 1), "Restricted", lambda zones: True).reasons
    assert merge(providers, (0, 1), "BestEffort", lambda zones: True) == Merged(0b01)


def test_hints_of_a_node() -> None:
    """Two zones of 52 CPUs and 128 GiB; 20 CPUs of zone 0 are used, and zone 1 has no memory left."""
    total = {"cpu": 52000, "memory": 128 * GIB}
    node = room((2, 1, 26, 2), [total, total], used={0: {"cpu": 20000}, 1: {"memory": 128 * GIB}})
    hints = node_hints(node, NumaRequest({"cpu": 4000, "memory": 8 * GIB, "other": 1}), "SingleNUMANode", lambda _: 7)
    assert hints == {
        "cpu": [ZoneHint(0b01, True, 7), ZoneHint(0b11, False, 7)],
        "memory": [ZoneHint(0b01, True, 7)],
    }
    none = node_hints(node, NumaRequest({"cpu": 4000, "memory": 129 * GIB}), "Restricted", lambda _: 7)
    assert none == {"cpu": [], "memory": []}


LISTS = st.lists(
    st.builds(
        ZoneHint,
        st.sampled_from(subsets(3)),
        st.booleans(),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda hint: hint.zones,
)
RESOURCES = st.dictionaries(st.sampled_from(("cpu", "memory", "gpu")), st.one_of(st.none(), st.just([]), LISTS))


def _enumerated(hints: Mapping[str, Sequence[ZoneHint] | None], policy: str, banned: frozenset[int]) -> Merged | str:
    """Every combination, as the specification describes it. A string: rejected."""
    lists: list[list[ZoneHint]] = []
    for listed in hints.values():
        if listed is None:
            lists.append([ZoneHint(None, True)])
        elif not listed:
            if policy != "BestEffort":
                return "unsatisfied"
            lists.append([ZoneHint(None, False, unsatisfied=True)])
        else:
            lists.append(list(listed))
    if not hints:
        lists = [[ZoneHint(None, True)]]
    if policy == "SingleNUMANode":
        lists = [
            [hint for hint in listed if hint.preferred and (hint.zones is None or hint.zones.bit_count() == 1)]
            for listed in lists
        ]
    best: tuple[bool, int, int, int, bool] = (False, -3, 0, -7, True)
    for combination in product(*lists):
        sets = [hint.zones for hint in combination if hint.zones is not None]
        merged = reduce(lambda a, b: a & b, sets, 7)
        if not merged:
            continue
        preferred = all(hint.preferred for hint in combination) and len(set(sets)) <= 1 and merged not in banned
        unsatisfied = any(hint.unsatisfied for hint in combination)
        unsatisfied |= merged.bit_count() < max((zones.bit_count() for zones in sets), default=0)
        score = sum(hint.score for hint in combination if hint.zones == merged)
        best = max(best, (preferred, -merged.bit_count(), score, -merged, not unsatisfied))
    preferred, _, score, negative, satisfied = best
    if policy == "BestEffort":
        return Merged(-negative, score) if satisfied else Merged(7)
    if not preferred:
        return "unaligned"
    return Merged(None if policy == "SingleNUMANode" and negative == -7 else -negative, score)


@given(RESOURCES, st.sampled_from(POLICIES), st.frozensets(st.sampled_from(subsets(3)), max_size=3))
def test_merging_agrees_with_all_combinations(
    hints: Mapping[str, Sequence[ZoneHint] | None], policy: str, banned: frozenset[int]
) -> None:
    expected = _enumerated(hints, policy, banned)
    merged = merge([hints], (0, 1, 2), policy, lambda zones: zones in banned)
    if isinstance(expected, str):
        assert merged.reasons
    else:
        assert merged == expected


@given(
    policy=st.sampled_from(POLICIES),
    free=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    provided=st.lists(st.tuples(st.integers(1, 7), st.booleans(), st.sampled_from((0, 500))), max_size=7),
    barred=st.sets(st.integers(1, 7), max_size=3),
    cpus=st.integers(1, 6),
)
def test_small_sets_of_zones_decide_like_all(
    policy: str, free: list[int], provided: list[tuple[int, bool, int]], barred: set[int], cpus: int
) -> None:
    """With the hints of another provider, which may prefer any sets."""
    used = {zone: {"cpu": 1000 * (4 - left)} for zone, left in enumerate(free)}
    node = room((1, 3, 4, 1), [{"cpu": 4000}] * 3, used=used)
    request = NumaRequest({"cpu": 1000 * cpus})
    hints = {"gpu": [ZoneHint(zones, preferred, score) for zones, preferred, score in provided]}

    def score(chosen: int) -> int:
        return chosen * 7 % 5

    every = merge([node_hints(node, request, policy, score), hints], [0, 1, 2], policy, barred.__contains__)
    assert choose_with(hints, node, request, policy, score, barred.__contains__) == every


def test_many_zones_and_resources_are_merged_in_bounded_time() -> None:
    """Eight zones have 255 sets; six resources would have 10^14 combinations."""
    listed = [ZoneHint(subset, True, subset % 3) for subset in subsets(8)]
    merged = merge([{f"r{number}": listed for number in range(6)}], range(8), "Restricted")
    assert merged == Merged(0b10, 12)
