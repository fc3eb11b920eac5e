"""Which CPUs a pod gets (spec 06 §2.5): the verified examples, a plain form of the search, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.numa.accumulator import AllocationFailed, CPUSearchRules, HeldCPUs, satisfies, take, usable
from control.numa.layout import CoreLayout, LayoutError, layout_of
from control.numa.masks import cpu_list, mask_of, numbers_of
from tests.control.numa.layouts import layout, mask
from tests.control.numa.plainsearch import PlainCPU, PlainRequest, plain_take

FULL, SPREAD, MOST, LEAST = "FullPCPUs", "SpreadByPCPUs", "MostAllocated", "LeastAllocated"
PCPU, NUMA = "PCPULevel", "NUMANodeLevel"


@pytest.mark.parametrize(
    ("shape", "allocated", "held_as", "need", "rules", "preferred", "result"),
    [
        ((2, 2, 4, 2), "0-5,16-23", "", 6, CPUSearchRules(FULL, strategy=MOST), "", "24-29"),
        ((2, 2, 4, 2), "0-5,16-23", "", 6, CPUSearchRules(FULL, strategy=LEAST), "", "8-13"),
        ((2, 2, 4, 2), "0-5,16-23", "", 12, CPUSearchRules(FULL, strategy=MOST), "", "6-15,24-25"),
        ((2, 2, 4, 2), "0-5,16-23", "", 12, CPUSearchRules(FULL, strategy=LEAST), "", "6-15,24-25"),
        ((2, 2, 4, 2), "0-3,8-11", "", 4, CPUSearchRules(FULL, strategy=LEAST), "", "16-19"),
        ((2, 2, 2, 2), "0,2,4,8,12", "", 4, CPUSearchRules(FULL, strategy=MOST), "", "10-11,14-15"),
        ((2, 2, 2, 2), "0,2,4,8,10,12", "", 6, CPUSearchRules(FULL, strategy=MOST), "", "5-7,13-15"),
        ((2, 2, 2, 2), "0,2,4,8,10,12", "", 6, CPUSearchRules(FULL, strategy=LEAST), "", "1,3,6-7,14-15"),
        ((1, 1, 4, 2), "", "", 3, CPUSearchRules(FULL, strategy=MOST), "", "0-2"),
        ((1, 1, 4, 2), "", "", 3, CPUSearchRules(FULL, strategy=LEAST), "", "0-2"),
        ((2, 1, 4, 2), "0,2", "", 4, CPUSearchRules(SPREAD, strategy=MOST), "", "1,3-4,6"),
        ((2, 1, 4, 2), "0,2", "", 6, CPUSearchRules(SPREAD, strategy=MOST), "", "1,3-7"),
        ((2, 1, 4, 2), "0,2", "", 6, CPUSearchRules(SPREAD, strategy=LEAST), "", "8-12,14"),
        ((2, 1, 4, 2), "0,2", PCPU, 4, CPUSearchRules(SPREAD, PCPU, MOST), "", "8,10,12,14"),
        ((2, 1, 8, 2), "0,2", PCPU, 4, CPUSearchRules(SPREAD, PCPU, MOST), "", "4,6,8,10"),
        ((2, 1, 4, 2), "", PCPU, 10, CPUSearchRules(SPREAD, PCPU, MOST), "", "0-4,6,8,10,12,14"),
        ((2, 1, 4, 2), "0,2", NUMA, 4, CPUSearchRules(FULL, NUMA, MOST), "", "8-11"),
        ((2, 1, 4, 2), "0,2", NUMA, 4, CPUSearchRules(FULL, "None", MOST), "", "4-7"),
        ((2, 1, 16, 2), "", "", 2, CPUSearchRules(SPREAD, strategy=MOST), "11,13,15,17", "11,13"),
    ],
)  # fmt: skip
def test_examples(
    shape: tuple[int, int, int, int],
    allocated: str,
    held_as: str,
    need: int,
    rules: CPUSearchRules,
    preferred: str,
    result: str,
) -> None:
    cores = layout(*shape)
    taken = mask(allocated)
    held = HeldCPUs(taken if held_as == PCPU else 0, taken if held_as == NUMA else 0)
    assert cpu_list(take(cores, cores.cpus & ~taken, need, rules, held, mask(preferred))) == result


def test_cpus_that_two_pods_may_share() -> None:
    cores = layout(1, 1, 4, 2)
    rules = CPUSearchRules(FULL, max_refs=2)
    refs: dict[int, int] = {}
    chosen = []
    for need in (4, 5, 4):
        available = mask_of(cpu for cpu in numbers_of(cores.cpus) if refs.get(cpu, 0) < 2)
        result = take(cores, available, need, rules, HeldCPUs(refs=refs))
        chosen.append(cpu_list(result))
        for cpu in numbers_of(result):
            refs[cpu] = refs.get(cpu, 0) + 1
    assert chosen == ["0-3", "0,4-7", "2-5"]


def test_more_than_available_is_refused() -> None:
    cores = layout(1, 1, 4, 2)
    with pytest.raises(AllocationFailed, match=r"^not enough cpus available to satisfy request$"):
        take(cores, mask("0-3"), 5, CPUSearchRules(FULL))


SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 2))


@st.composite
def searches(draw: st.DrawFn) -> tuple[CoreLayout, set[int], PlainRequest]:
    cores = layout(*draw(SHAPES))
    offline = draw(st.sets(st.sampled_from(range(cores.number)), max_size=2)) if cores.number > 4 else set()
    if offline:
        cores = layout_of(
            (cpu, core.key & 0xFFFF, core.socket, core.node)
            for cpu, core in cores.core_of.items()
            if cpu not in offline
        )
    every = sorted(numbers_of(cores.cpus))
    shared = draw(st.booleans())
    refs = draw(st.dictionaries(st.sampled_from(every), st.integers(1, 2 if shared else 1)))
    available = set(every) - {cpu for cpu, count in refs.items() if count >= (2 if shared else 1)}
    exclusive = draw(st.dictionaries(st.sampled_from(sorted(refs)), st.sampled_from((PCPU, NUMA)))) if refs else {}
    request = PlainRequest(
        draw(st.integers(1, len(every))),
        full=draw(st.booleans()),
        exclusive=draw(st.sampled_from(("", PCPU, NUMA))),
        most=draw(st.booleans()),
        shared=shared,
        refs=refs,
        exclusive_cpus=exclusive,
    )
    return cores, available, request


def _take(cores: CoreLayout, available: set[int], request: PlainRequest) -> set[int] | None:
    rules = CPUSearchRules(
        FULL if request.full else SPREAD,
        request.exclusive,
        MOST if request.most else LEAST,
        max_refs=2 if request.shared else 1,
    )
    held = HeldCPUs(
        mask_of(cpu for cpu, policy in request.exclusive_cpus.items() if policy == PCPU),
        mask_of(cpu for cpu, policy in request.exclusive_cpus.items() if policy == NUMA),
        request.refs,
    )
    try:
        return set(numbers_of(take(cores, mask_of(available), request.need, rules, held)))
    except AllocationFailed:
        return None


@given(searches())
def test_the_search_agrees_with_its_plain_form(search: tuple[CoreLayout, set[int], PlainRequest]) -> None:
    cores, available, request = search
    cpus = [PlainCPU(cpu, core.key & 0xFFFF, core.socket, core.node) for cpu, core in sorted(cores.core_of.items())]
    assert _take(cores, available, request) == plain_take(cpus, available, request)


@given(searches())
def test_a_choice_has_the_right_size_and_only_available_cpus(
    search: tuple[CoreLayout, set[int], PlainRequest],
) -> None:
    cores, available, request = search
    chosen = _take(cores, available, request)
    assert (chosen is None) == (request.need > len(available))
    if chosen is not None:
        assert len(chosen) == request.need
        assert chosen <= available


@given(searches())
def test_a_required_policy_is_satisfied_whenever_enough_cpus_are_usable(
    search: tuple[CoreLayout, set[int], PlainRequest],
) -> None:
    cores, available, request = search
    policy = FULL if request.full else SPREAD
    can_use = usable(cores, mask_of(available), policy)
    if request.full:
        request.need += -request.need % cores.cpus_per_core
    chosen = _take(cores, set(numbers_of(can_use)), request)
    assert (chosen is None) == (request.need > can_use.bit_count())
    if chosen is not None:
        assert satisfies(cores, mask_of(chosen), policy)


@pytest.mark.parametrize(
    ("cpus", "reason"),
    [
        ([(8192, 0, 0, 0)], "CPU 8192 is not from 0 to 8191"),
        ([(-1, 0, 0, 0)], "CPU -1 is not from 0 to 8191"),
        ([(0, 1 << 16, 0, 0)], "core 65536 of CPU 0 is not from 0 to 65535"),
        ([(0, 0, -1, 0)], "socket -1 of CPU 0 is not from 0 to 65535"),
        ([(0, 0, 0, 70000)], "NUMA node 70000 of CPU 0 is not from 0 to 65535"),
        ([(0, 0, 0, 0), (0, 1, 0, 0)], "CPU 0 is listed twice"),
        ([(0, 0, 0, 0), (1, 0, 0, 1)], "core 0 of socket 0 is on NUMA nodes 0 and 1"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(cpus: list[tuple[int, int, int, int]], reason: str) -> None:
    with pytest.raises(LayoutError, match=f"^{reason}$"):
        layout_of(cpus)
