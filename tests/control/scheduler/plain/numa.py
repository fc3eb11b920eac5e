"""CPUs and NUMA zones with plain sets, node by node and combination by combination (spec 06 §2); slow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import combinations, product
from math import ceil

from tests.control.numa.plainsearch import PlainCPU, PlainRequest, plain_take

Amounts = dict[str, int]


@dataclass
class PlainHolding:
    cpus: set[int] = field(default_factory=set)
    zones: dict[int, Amounts] = field(default_factory=dict)
    exclusive: str = ""


@dataclass
class PlainNode:
    cpus: list[PlainCPU]
    zones: dict[int, Amounts]
    """Without reserved CPUs."""
    allocatable: Amounts
    reserved: set[int] = field(default_factory=set)
    bind: str = ""
    """FullPCPUs or SpreadByPCPUs if the node demands it."""
    numa: str = ""
    most: bool = False
    ratio: Fraction = Fraction(1)
    pods: dict[str, tuple[Amounts, PlainHolding]] = field(default_factory=dict)
    """By uid: (requests, what it holds)."""
    only: PlainHolding | None = None
    """What a pod designates: nothing else may be given to it."""


@dataclass
class PlainPod:
    requests: Amounts
    bound: bool = False
    """Class LSE or LSR with a binding policy."""
    policy: str = ""
    required: bool = False
    exclusive: str = ""
    numa: str = ""
    single: str = ""
    designated: PlainHolding | None = None


class Rejected(Exception):
    pass


def decide(pod: PlainPod, node: PlainNode) -> tuple[PlainHolding, list[int] | None]:
    """(what the pod gets, the chosen zones); raises Rejected with the reasons."""
    designated = pod.designated
    if designated is None:
        return _decide(pod, node)
    holding, chosen = _decide(pod, replace(node, only=designated))
    if (holding.cpus, holding.zones) != (designated.cpus, designated.zones):
        raise Rejected("not enough cpus available to satisfy request")
    return holding, chosen


def _decide(pod: PlainPod, node: PlainNode) -> tuple[PlainHolding, list[int] | None]:
    cpu = pod.requests.get("cpu", 0)
    if node.numa and pod.numa and node.numa != pod.numa:
        raise Rejected("node(s) NUMA Topology policy not match")
    bound = pod.bound or bool(cpu and node.bind)
    if bound and cpu % 1000:
        raise Rejected("the requested CPUs must be integer")
    if node.ratio > 1 and cpu:
        own = sum(len(held.cpus) for _, held in node.pods.values()) * 1000
        used = sum(requests.get("cpu", 0) for requests, _ in node.pods.values())
        if used >= own > 0:
            used += ceil(own * node.ratio) - own
        if (ceil(cpu * node.ratio) if bound else cpu) > node.allocatable["cpu"] - used:
            raise Rejected("Insufficient amplified cpu")
    policy, required = pod.policy, pod.required
    if bound:
        if not node.cpus:
            raise Rejected("node(s) invalid CPU Topology")
        if pod.bound and pod.required and node.bind and node.bind != pod.policy:
            raise Rejected("node(s) cpu bind policy conflicts with pod's required cpu bind policy")
        if not (pod.bound and pod.required) and node.bind:
            policy, required = node.bind, True
        if required and policy == "FullPCPUs" and cpu // 1000 % _per_core(node):
            raise Rejected("node(s) requested cpus not multiple cpus per core")
    request = _Request(pod, bound, policy, required and bound)
    numa = node.numa or pod.numa
    if not numa:
        return _allocate(node, request, None), None
    if not node.zones:
        best = numa == "BestEffort"
        raise Rejected("node(s) Insufficient NUMA Node resources" if best else "node(s) missing NUMA resources")
    chosen = _merged(node, request, numa)
    return _allocate(node, request, chosen), chosen


def score(pod: PlainPod, node: PlainNode, chosen: list[int] | None, *, most: bool) -> int:
    """Of a node that accepts the pod."""
    node = replace(node, only=pod.designated)
    cpu = pod.requests.get("cpu", 0)
    bound = pod.bound or bool(cpu and node.bind)
    own = ceil(cpu * node.ratio) if bound else cpu
    if chosen is None:
        held = sum(len(holding.cpus) for _, holding in node.pods.values()) * 1000
        used = sum(requests.get("cpu", 0) for requests, _ in node.pods.values())
        used += (ceil(held * node.ratio) - held) if used >= held else 0
        memory = sum(requests.get("memory", 0) for requests, _ in node.pods.values())
        figures = {
            "cpu": (used + own, node.allocatable["cpu"]),
            "memory": (memory + pod.requests.get("memory", 0), node.allocatable["memory"]),
        }
    else:
        figures = {}
        for name, request in (("cpu", own), ("memory", pod.requests.get("memory", 0))):
            total = sum(_total(node, zone)[name] for zone in chosen)
            free = sum(_available(node, zone)[name] for zone in chosen)
            figures[name] = (max(total - free, 0) + request, total)
    return _mean(figures, most=most)


def _mean(figures: dict[str, tuple[int, int]], *, most: bool) -> int:
    def score_of(requested: int, capacity: int) -> int:
        if capacity == 0:
            return 0
        if most:
            return min(requested, capacity) * 100 // capacity
        return 0 if requested > capacity else (capacity - requested) * 100 // capacity

    return sum(score_of(*figure) for figure in figures.values()) // len(figures)


@dataclass
class _Request:
    pod: PlainPod
    bound: bool
    policy: str
    required: bool

    @property
    def need(self) -> int:
        return self.pod.requests.get("cpu", 0) // 1000 if self.bound else 0


def _core(cpu: PlainCPU) -> tuple[int, int]:
    return cpu.socket, cpu.core


def _per_core(node: PlainNode) -> int:
    counts: dict[tuple[int, int], int] = {}
    for cpu in node.cpus:
        counts[_core(cpu)] = counts.get(_core(cpu), 0) + 1
    return max(counts.values())


def _free(node: PlainNode) -> set[int]:
    held = {cpu for _, holding in node.pods.values() for cpu in holding.cpus}
    free = {cpu.id for cpu in node.cpus} - held - node.reserved
    return free & node.only.cpus if node.only is not None and node.only.cpus else free


def _usable(node: PlainNode, request: _Request) -> set[int]:
    free = _free(node)
    if not request.required:
        return free
    by_core: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(node.cpus, key=lambda cpu: cpu.id):
        if cpu.id in free:
            by_core.setdefault(_core(cpu), []).append(cpu.id)
    if request.policy == "FullPCPUs":
        return {cpu for cpus in by_core.values() if len(cpus) == _per_core(node) for cpu in cpus}
    return {cpus[0] for cpus in by_core.values()}


def _total(node: PlainNode, zone: int) -> Amounts:
    return {name: ceil(amount * node.ratio) for name, amount in node.zones[zone].items()}


def _available(node: PlainNode, zone: int) -> Amounts:
    here = {cpu.id for cpu in node.cpus if cpu.node == zone}
    available = _total(node, zone)
    bound = 0
    for _, held in node.pods.values():
        bound += len(held.cpus & here) * 1000
        if not held.zones:
            available["cpu"] -= len(held.cpus & here) * 1000
        for name, amount in held.zones.get(zone, {}).items():
            available[name] -= amount
    available["cpu"] -= ceil(bound * node.ratio) - bound
    if node.only is not None and node.only.zones:
        here_only = node.only.zones.get(zone, {})
        named = {name for amounts in node.only.zones.values() for name in amounts}
        available |= {name: min(available[name], here_only.get(name, 0)) for name in named}
    return {name: max(0, amount) for name, amount in available.items()}


def _room(node: PlainNode, request: _Request, zone: int, name: str) -> int:
    available = _available(node, zone)[name]
    if name != "cpu" or not request.bound:
        return available
    usable = len(_usable(node, request) & {cpu.id for cpu in node.cpus if cpu.node == zone})
    cpus = min(available // 1000, usable)
    if request.required and request.policy == "FullPCPUs":
        cpus -= cpus % _per_core(node)
    return cpus * 1000


def _allocate(node: PlainNode, request: _Request, chosen: list[int] | None) -> PlainHolding:
    zones: dict[int, Amounts] = {}
    for name, amount in request.pod.requests.items() if chosen is not None else ():
        unit = 1
        if name == "cpu" and request.bound:
            unit = 1000
            if request.required and request.policy == "FullPCPUs":
                unit *= _per_core(node)
        left = amount
        order = sorted(chosen or [], key=lambda zone: (_room(node, request, zone, name), zone))
        for visited, zone in enumerate(order):
            part = min(left // unit // (len(order) - visited) * unit, _room(node, request, zone, name))
            if part:
                zones.setdefault(zone, {})[name] = part
            left -= part
        if left:
            raise Rejected(f"Insufficient NUMA {name}")
    if not request.bound:
        return PlainHolding(set(), zones)
    usable = _usable(node, request)
    if len(usable) < request.need:
        raise Rejected("not enough cpus available to satisfy request")
    parts = [({cpu.id for cpu in node.cpus}, request.need)]
    if zones:
        parts = [
            ({cpu.id for cpu in node.cpus if cpu.node == zone}, amounts.get("cpu", 0) // 1000)
            for zone, amounts in sorted(zones.items())
        ]
    cpus: set[int] = set()
    for here, need in parts:
        if need:
            cpus |= plain_take(node.cpus, usable & here, _search(node, request, need)) or set()
    assert len(cpus) == request.need
    return PlainHolding(cpus, zones, request.pod.exclusive)


def _search(node: PlainNode, request: _Request, need: int) -> PlainRequest:
    exclusive = {cpu: held.exclusive for _, held in node.pods.values() for cpu in held.cpus}
    return PlainRequest(need, request.policy == "FullPCPUs", request.pod.exclusive, node.most, exclusive_cpus=exclusive)


def _merged(node: PlainNode, request: _Request, policy: str) -> list[int] | None:
    """The chosen zones; None: no affinity."""
    ids = sorted(node.zones)
    sets = [chosen for size in range(1, len(ids) + 1) for chosen in combinations(ids, size)]
    hints: dict[str, list[tuple[tuple[int, ...], int]]] = {name: [] for name in request.pod.requests}
    for chosen in sets:
        try:
            _allocate(node, request, list(chosen))
        except Rejected:
            continue
        for name in request.pod.requests:
            if all(_room(node, request, zone, name) for zone in chosen):
                hints[name].append((chosen, _set_score(node, request.pod, chosen)))
    missing = [f"Unsatisfied NUMA {name}" for name, zone_hints in hints.items() if not zone_hints]
    if missing and policy != "BestEffort":
        raise Rejected(", ".join(missing))
    best: tuple[bool, int, int, int] = (False, -len(ids), 0, -sum(1 << ids.index(zone) for zone in ids))
    choice, satisfied = tuple(ids), False
    for combination in product(*(hint for hint in hints.values() if hint)) if not missing else ():
        members = [
            set(chosen)
            for (chosen, _), zone_hints in zip(combination, hints.values(), strict=True)
            if policy != "SingleNUMANode" or (len(chosen) == 1 and _preferred(chosen, zone_hints, policy))
        ]
        if len(members) < len(combination):
            continue
        merged = reduce(lambda a, b: a & b, members)
        if not merged:
            continue
        preferred = all(members[0] == member for member in members) and all(
            _preferred(chosen, zone_hints, policy)
            for (chosen, _), zone_hints in zip(combination, hints.values(), strict=True)
        )
        preferred = preferred and not _violated(node, request.pod, merged)
        points = sum(score for chosen, score in combination if set(chosen) == merged)
        key = (preferred, -len(merged), points, -sum(1 << ids.index(zone) for zone in merged))
        aligned = len(merged) == max(map(len, members))
        if key > best or (key == best and aligned):
            best, choice, satisfied = key, tuple(sorted(merged)), aligned
    if policy == "BestEffort":
        return list(choice) if satisfied else ids
    if not best[0]:
        raise Rejected("Unaligned NUMA Hint")
    return None if policy == "SingleNUMANode" and len(choice) == len(ids) else list(choice)


def _preferred(chosen: tuple[int, ...], hints: list[tuple[tuple[int, ...], int]], policy: str) -> bool:
    return policy == "Restricted" or len(chosen) == min(len(zones) for zones, _ in hints)


def _set_score(node: PlainNode, pod: PlainPod, chosen: tuple[int, ...]) -> int:
    figures = {}
    for name in ("cpu", "memory"):
        total = sum(_total(node, zone)[name] for zone in chosen)
        free = sum(_available(node, zone)[name] for zone in chosen)
        figures[name] = (max(total - free, 0) + pod.requests.get(name, 0), total)
    return _mean(figures, most=False)


def _violated(node: PlainNode, pod: PlainPod, zones: set[int]) -> bool:
    if pod.single != "Required":
        return False
    by_id = {cpu.id: cpu.node for cpu in node.cpus}
    spans = [{by_id[cpu] for cpu in held.cpus} for _, held in node.pods.values() if held.cpus]
    for zone in zones:
        here = [span for span in spans if zone in span]
        shared = any(len(span) > 1 for span in here)
        if (len(zones) == 1 and shared) or (len(zones) > 1 and here and not shared):
            return True
    return False
