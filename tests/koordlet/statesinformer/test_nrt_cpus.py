"""Whole CPUs, the kubelet's packed way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from koordlet.api.annotations.topology import CPUInfo
from koordlet.api.cpus import format_cpus, parse_cpus
from koordlet.statesinformer.nrt.cpus import NotEnoughCPUs, cpu_infos, take_by_topology
from koordlet.system.cpu.cputopology import Cpu, CpuTopology

TWO_SOCKETS = [  # 12 CPUs: even cores on socket 0, odd ones on socket 1
    CPUInfo(id=cpu, core=cpu % 6, socket=cpu % 2, node=cpu % 2) for cpu in range(12)
]


def machine(sockets: int, nodes: int, cores: int, threads: int) -> list[CPUInfo]:
    """Regular; threads of a core are far apart, as on real machines."""
    total = sockets * nodes * cores
    return [
        CPUInfo(id=thread * total + core, core=core, socket=core // (nodes * cores), node=core // cores)
        for thread in range(threads)
        for core in range(total)
    ]


TAKEN = {
    "nothing": ("0-11", 0, ""),
    "a negative count": ("0-11", -2, ""),
    "a core": ("0-11", 2, "0,6"),
    "a core and a half": ("0-11", 3, "0,2,6"),
    "a socket": ("0-11", 6, "0,2,4,6,8,10"),
    "a socket and a core": ("0-11", 8, "0-2,4,6-8,10"),
    "everything": ("0-11", 12, "0-11"),
    "the fuller socket first": ("0-5,7-11", 2, "2,8"),  # socket 0 has 5 left: its whole cores before socket 1's
    "single CPUs of broken cores first": ("0-5,7-11", 1, "0"),
}


@pytest.mark.parametrize(("available", "count", "expected"), TAKEN.values(), ids=TAKEN)
def test_take(available: str, count: int, expected: str) -> None:
    assert format_cpus(take_by_topology(TWO_SOCKETS, parse_cpus(available), count)) == expected


def test_more_cpus_than_available() -> None:
    with pytest.raises(NotEnoughCPUs, match="13 CPUs are requested, 12 are available"):
        take_by_topology(TWO_SOCKETS, frozenset(range(12)), 13)


def test_a_whole_numa_node_before_cores_of_two() -> None:
    cpus = machine(sockets=1, nodes=2, cores=4, threads=2)
    assert format_cpus(take_by_topology(cpus, frozenset(range(16)), 8)) == "0-3,8-11"
    broken = frozenset(range(16)) - {0}  # node 0 is not whole any more
    assert format_cpus(take_by_topology(cpus, broken, 8)) == "4-7,12-15"


@st.composite
def questions(draw: DrawFn) -> tuple[list[CPUInfo], frozenset[int], int]:
    cpus = machine(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 2)))
    available = frozenset(draw(st.sets(st.sampled_from([cpu.id for cpu in cpus]))))
    return cpus, available, draw(st.integers(0, len(available)))


@given(questions())
def test_a_subset_of_the_right_size(question: tuple[list[CPUInfo], frozenset[int], int]) -> None:
    cpus, available, count = question
    taken = take_by_topology(cpus, available, count)
    assert taken <= available
    assert len(taken) == count


@given(questions())
def test_packed(question: tuple[list[CPUInfo], frozenset[int], int]) -> None:
    """What is taken from a machine breaks at most one free core, after the single CPUs near it."""
    cpus, available, count = question
    taken = take_by_topology(cpus, available, count)
    cores = {cpu.core: {other.id for other in cpus if other.core == cpu.core} for cpu in cpus}
    free = [ids for ids in cores.values() if ids <= available]
    broken = [ids for ids in free if ids & taken and not ids <= taken]
    assert len(broken) <= 1
    for core in broken:  # only when its NUMA node had no other single CPU left
        node = next(cpu.node for cpu in cpus if cpu.id in core)
        singles = available - frozenset().union(*free)
        assert {cpu.id for cpu in cpus if cpu.node == node} & singles <= taken


@given(questions())
def test_whole_sockets_are_taken_first(question: tuple[list[CPUInfo], frozenset[int], int]) -> None:
    cpus, available, count = question
    sockets = {cpu.socket: {other.id for other in cpus if other.socket == cpu.socket} for cpu in cpus}
    free = [ids for ids in sockets.values() if ids <= available]
    size = len(cpus) // len(sockets)
    taken = take_by_topology(cpus, available, count)
    assert sum(ids <= taken for ids in free) >= min(len(free), count // size)


def test_cores_are_numbered_consecutively() -> None:
    """The kernel's core ids repeat across sockets."""
    cpus = tuple(Cpu(id=i, core=i // 2 % 2, socket=i // 4, node=i // 4, l1=None, l2=None, l3=None) for i in range(8))
    infos = cpu_infos(CpuTopology(tuple(reversed(cpus)), smt=True, turbo=False))
    assert [(cpu.id, cpu.core, cpu.socket) for cpu in infos] == [
        (0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 2, 1), (5, 2, 1), (6, 3, 1), (7, 3, 1),
    ]  # fmt: skip
