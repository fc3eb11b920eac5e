"""Choosing CPUs: whole cores or one CPU per core, close together, apart from exclusive pods (spec 06 §2.5).

    cpus = take(layout, available, need, rules, taken)

The choice is deterministic. Every search respects exclusivity first and ignores it if nothing else fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from control.numa.layout import Core, CoreLayout
from control.numa.masks import mask_of, numbers_of, union
from koordlet.api.annotations.node import NUMA_LEAST_ALLOCATED, NUMA_MOST_ALLOCATED
from koordlet.api.annotations.scheduling import (
    BIND_FULL_PCPUS,
    BIND_SPREAD_BY_PCPUS,
    EXCLUSIVE_NUMA_NODE_LEVEL,
    EXCLUSIVE_PCPU_LEVEL,
)

NOT_ENOUGH_CPUS: Final = "not enough cpus available to satisfy request"
ALLOCATION_FAILED: Final = "failed to allocate cpus"


class AllocationFailed(Exception):
    """The node cannot give what is requested; the message is the reason."""


@dataclass(frozen=True, slots=True)
class CPUSearchRules:
    """How CPUs are chosen."""

    policy: str = ""
    """FullPCPUs or SpreadByPCPUs."""
    exclusive: str = ""
    """PCPULevel, NUMANodeLevel, or anything else for none."""
    strategy: str = NUMA_LEAST_ALLOCATED
    """MostAllocated prefers what has the least left; any other value the opposite."""
    max_refs: int = 1
    """How many pods may share a CPU."""


@dataclass(frozen=True)
class HeldCPUs:
    """What is allocated on the node already."""

    exclusive_cores: int = 0
    """Mask of the CPUs that pods with PCPULevel hold."""
    exclusive_nodes: int = 0
    """Mask of the CPUs that pods with NUMANodeLevel hold."""
    refs: Mapping[int, int] = field(default_factory=dict)
    """CPU -> number of pods that hold it. Only read if CPUs may be shared."""


NOTHING_HELD: Final = HeldCPUs()


def take(
    layout: CoreLayout,
    available: int,
    need: int,
    rules: CPUSearchRules,
    held: HeldCPUs = NOTHING_HELD,
    preferred: int = 0,
) -> int:
    """Mask of `need` of the available CPUs, as many as possible of them preferred. Raises AllocationFailed."""
    if need > available.bit_count():
        raise AllocationFailed(NOT_ENOUGH_CPUS)
    first = available & preferred
    chosen = 0
    if first:
        chosen = _Search(layout, first, rules, held).take(min(need, first.bit_count()))
    rest = need - chosen.bit_count()
    if rest:
        chosen |= _Search(layout, available & ~first, rules, held).take(rest)
    return chosen


class _Search:
    """One run of the algorithm. The letters of its methods' descriptions are those of the specification."""

    def __init__(self, layout: CoreLayout, available: int, rules: CPUSearchRules, held: HeldCPUs) -> None:
        self.layout = layout
        self.free = available
        self.taken = 0
        self.need = 0
        self.rules = rules
        self.sign = 1 if rules.strategy == NUMA_MOST_ALLOCATED else -1
        self.refs = held.refs if rules.max_refs > 1 else {}
        by_core = held.exclusive_cores if rules.exclusive == EXCLUSIVE_PCPU_LEVEL else 0
        by_node = held.exclusive_nodes if rules.exclusive == EXCLUSIVE_NUMA_NODE_LEVEL else 0
        self.on_exclusive_cores = _spanned(by_core, (core.cpus for core in layout.cores))
        """Mask of the CPUs on cores that the request should avoid."""
        self.on_exclusive_nodes = _spanned(by_node, layout.nodes.values())

    def take(self, need: int) -> int:
        self.need = need
        layout, full = self.layout, self.rules.policy == BIND_FULL_PCPUS
        if full or layout.cpus_per_core == 1:
            self._take_cores()
        if self.need and not full:
            self._take_cpus()
        if self.need:
            for restricted in self._passes():
                self._take_left_over(restricted)
        if self.need:
            raise AllocationFailed(ALLOCATION_FAILED)
        return self.taken

    def _passes(self) -> tuple[bool, ...]:
        """With and without the restriction by exclusivity."""
        return (True, False) if self.on_exclusive_cores or self.on_exclusive_nodes else (False,)

    def _keep(self, cpus: Iterable[int]) -> None:
        mask = mask_of(cpus)
        self.taken |= mask
        self.free &= ~mask
        self.need -= mask.bit_count()
        if self.rules.exclusive == EXCLUSIVE_PCPU_LEVEL:
            self.on_exclusive_cores |= _spanned(mask, (core.cpus for core in self.layout.cores))
        elif self.rules.exclusive == EXCLUSIVE_NUMA_NODE_LEVEL:
            self.on_exclusive_nodes |= _spanned(mask, self.layout.nodes.values())

    def _free_on(self, mask: int) -> int:
        """Key for the strategy: the free CPUs of a mask, so that the preferred set has the smallest key."""
        return self.sign * (self.free & mask).bit_count()

    def _core_refs(self, core: Core) -> int:
        return sum(self.refs.get(cpu, 0) for cpu in numbers_of(core.cpus)) if self.refs else 0

    # A: whole cores

    def _take_cores(self) -> None:
        layout = self.layout
        if self.need <= layout.cpus_per_node and self._take_cores_of_one_node():
            return
        if self.need <= layout.cpus_per_socket:
            groups = self._whole_cores(lambda core: core.socket, self.free)
            by_size = sorted(groups.items(), key=lambda group: (self.sign * _size(group[1]), group[0]))
            for _, cores in by_size:
                if _size(cores) >= self.need:
                    self._keep(_cpus(cores)[: self.need])
                    return
        self._take_sockets()

    def _take_cores_of_one_node(self) -> bool:
        layout = self.layout
        for restricted in self._passes():
            free = self.free & ~self.on_exclusive_nodes if restricted else self.free
            groups = self._whole_cores(lambda core: core.node, free)

            def rank(group: tuple[int, list[Core]]) -> tuple[int, int, int]:
                node, cores = group
                socket = layout.sockets[layout.socket_of_node[node]]
                return self.sign * _size(cores), self._free_on(socket), node

            for _, cores in sorted(groups.items(), key=rank):
                if _size(cores) >= self.need:
                    self._keep(_cpus(cores)[: self.need])
                    return True
        return False

    def _take_sockets(self) -> None:
        """Whole sockets while they fit, then whole cores of the smallest sockets."""
        layout = self.layout
        groups = self._whole_cores(lambda core: core.socket, self.free)
        remembered: list[list[Core]] = []
        for _, cores in sorted(groups.items(), key=lambda group: (-_size(group[1]), group[0])):
            if self.need and self.need >= _size(cores):
                self._keep(_cpus(cores))
            else:
                remembered.append(cores)
        for cores in sorted(remembered, key=_size):
            for core in cores:
                if self.need < layout.cpus_per_core:
                    return
                self._keep(numbers_of(core.cpus))

    def _whole_cores(self, group: Callable[[Core], int], free: int) -> dict[int, list[Core]]:
        """The completely free cores by NUMA node or socket, each list in the order in which cores are taken."""
        groups: dict[int, list[Core]] = {}
        for core in self.layout.full_cores:
            if core.cpus & free == core.cpus:
                groups.setdefault(group(core), []).append(core)
        if self.refs:
            for cores in groups.values():
                cores.sort(key=lambda core: (self._core_refs(core), core.key))
        return groups

    # B: single CPUs

    def _take_cpus(self) -> None:
        layout = self.layout
        avoided = self.on_exclusive_cores | self.on_exclusive_nodes

        def by_node(group: tuple[int, list[int]]) -> tuple[int, int, int]:
            node = group[0]
            socket = layout.sockets[layout.socket_of_node[node]]
            return self._free_on(layout.nodes[node]), self._free_on(socket), node

        def by_socket(group: tuple[int, list[int]]) -> tuple[int, int]:
            return self.sign * len(group[1]), group[0]

        if self.need <= layout.cpus_per_node and self._take_from(layout.nodes, avoided, by_node):
            return
        if self.need <= layout.cpus_per_socket:
            self._take_from(layout.sockets, self.on_exclusive_cores, by_socket)

    def _take_from(
        self,
        groups: Mapping[int, int],
        avoided: int,
        rank: Callable[[tuple[int, list[int]]], tuple[int, ...]],
    ) -> bool:
        """Take all CPUs from one of `groups`: first on different cores, then on any."""
        for one_per_core in (True, False):
            lists = {number: self._listed(mask, avoided, one_per_core) for number, mask in groups.items()}
            for _, cpus in sorted(lists.items(), key=rank):
                if len(cpus) >= self.need:
                    self._keep(self._spread(cpus)[: self.need])
                    return True
        return False

    def _listed(self, mask: int, avoided: int, one_per_core: bool) -> list[int]:
        cpus = list(numbers_of(self.free & mask & ~avoided if one_per_core else self.free & mask))
        if self.refs:
            cpus.sort(key=lambda cpu: (self.refs.get(cpu, 0), cpu))
        if not one_per_core:
            return cpus
        first: dict[int, int] = {}
        for cpu in cpus:
            first.setdefault(self.layout.core_of[cpu].key, cpu)
        return list(first.values())

    # C: left-overs

    def _take_left_over(self, restricted: bool) -> None:
        layout = self.layout
        free = self.free
        if restricted:
            free &= ~(self.on_exclusive_cores | self.on_exclusive_nodes)

        def rank(core: Core) -> tuple[int, ...]:
            socket = layout.sockets[core.socket]
            return (
                -(self.taken & socket).bit_count(),
                self._free_on(socket),
                self._free_on(layout.nodes[core.node]),
                (self.free & core.cpus).bit_count(),
                core.socket,
                self._core_refs(core),
                core.key,
            )

        cores = sorted((core for core in layout.cores if core.cpus & free), key=rank)
        cpus = [cpu for core in cores for cpu in numbers_of(core.cpus & free)]
        self._keep(self._spread(cpus)[: self.need])

    def _spread(self, cpus: Sequence[int]) -> list[int]:
        """One CPU of every core per pass, in order."""
        if len(cpus) <= self.layout.cpus_per_core:
            return list(cpus)
        passes: list[list[int]] = []
        uses: dict[int, int] = {}
        for cpu in cpus:
            core = self.layout.core_of[cpu].key
            use = uses.get(core, 0)
            uses[core] = use + 1
            if use == len(passes):
                passes.append([])
            passes[use].append(cpu)
        return [cpu for cpus_of_pass in passes for cpu in cpus_of_pass]


def usable(layout: CoreLayout, available: int, required: str) -> int:
    """Mask of the available CPUs that a pod can get under a required policy; "" for none (spec 06 §2.7)."""
    if required == BIND_FULL_PCPUS:
        return layout.whole_cores(available)
    return layout.first_of_cores(available) if required == BIND_SPREAD_BY_PCPUS else available


def satisfies(layout: CoreLayout, cpus: int, required: str) -> bool:
    """Whether a set of CPUs is what a required policy demands."""
    cores = sum(1 for core in layout.cores if core.cpus & cpus)
    if required == BIND_FULL_PCPUS:
        return cores * layout.cpus_per_core == cpus.bit_count()
    return required != BIND_SPREAD_BY_PCPUS or cores == cpus.bit_count()


def _size(cores: Sequence[Core]) -> int:
    return sum(core.cpus.bit_count() for core in cores)


def _cpus(cores: Iterable[Core]) -> list[int]:
    return [cpu for core in cores for cpu in numbers_of(core.cpus)]


def _spanned(mask: int, sets: Iterable[int]) -> int:
    """Mask of the sets that have some of the CPUs in `mask`."""
    return 0 if not mask else union(member for member in sets if member & mask)
