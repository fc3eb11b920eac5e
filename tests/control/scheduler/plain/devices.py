"""Devices with plain lists, scope by scope and device by device (spec 06 §3); slow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
NPU_CORE, NPU_CPU = "huawei.com/npu-core", "huawei.com/npu-cpu"
NO_TEMPLATE = "no matched GPU shared resource template"
Templates = dict[str, dict[str, dict[str, int]]]
"""Model -> template -> its amounts."""
Taken = dict[str, list[tuple[int, dict[str, int], list[str]]]]
"""Type -> (minor, amounts, bus ids of virtual functions)."""


@dataclass
class PlainDevice:
    kind: str
    minor: int
    total: dict[str, int]
    numa: int | None = None
    """None: the place is unknown."""
    pcie: str = ""
    health: bool = True
    fast: list[str] = field(default_factory=list)
    """Bus ids of virtual functions."""


@dataclass
class PlainMachine:
    devices: list[PlainDevice]
    pods: dict[str, Taken] = field(default_factory=dict)
    partitions: dict[int, list[tuple[list[int], int]]] | None = None
    """Size -> (minors, score)."""
    honors: bool = False
    model: str = ""
    only: Taken = field(default_factory=dict)
    """What a pod designates: of these types it may get nothing else."""

    def of(self, kind: str) -> list[PlainDevice]:
        return sorted((device for device in self.devices if device.kind == kind), key=lambda device: device.minor)

    def used(self, plain_device: PlainDevice) -> dict[str, int]:
        used: dict[str, int] = {}
        for taken in self.pods.values():
            for minor, amounts, _ in taken.get(plain_device.kind, []):
                if minor == plain_device.minor:
                    for name, amount in amounts.items():
                        used[name] = used.get(name, 0) + amount
        return used

    def free(self, plain_device: PlainDevice) -> dict[str, int]:
        used = self.used(plain_device)
        if not plain_device.health:
            return {}
        free = {name: max(0, total - used.get(name, 0)) for name, total in plain_device.total.items()}
        if plain_device.kind not in self.only:
            return free
        listed = {minor: amounts for minor, amounts, _ in self.only[plain_device.kind]}
        if plain_device.minor not in listed:
            return {}
        return {name: min(amount, listed[plain_device.minor].get(name, amount)) for name, amount in free.items()}

    def functions(self, plain_device: PlainDevice) -> list[str]:
        """Free ones that may be given."""
        free = set(plain_device.fast) - self.functions_taken(plain_device.kind)
        named = {bus for _, _, buses in self.only.get(plain_device.kind, []) for bus in buses}
        return sorted(free & named if named else free)

    def functions_taken(self, kind: str) -> set[str]:
        return {bus for taken in self.pods.values() for _, _, buses in taken.get(kind, []) for bus in buses}


@dataclass
class PlainRequest:
    each: dict[str, int]
    count: int = 1
    shared: bool = False
    functions: bool = False
    for_all: bool = False
    scope: int = 0
    """1 node, 2 NUMA node, 3 PCIe switch."""


@dataclass
class PlainNeed:
    requests: dict[str, PlainRequest]
    joint: list[str] = field(default_factory=list)
    same_pcie: bool = False
    designated: Taken = field(default_factory=dict)


class Rejected(Exception):
    pass


def hopeless(need: PlainNeed, templates: Templates) -> bool:
    """No model has a template for the pod."""
    return _templated(need) and not any(_equal_to(need, listed) for listed in templates.values())


def template(need: PlainNeed, node: PlainMachine, templates: Templates) -> str:
    """The template that the pod gets there; "" if it needs none. Raises Rejected."""
    if not _templated(need):
        return ""
    equal = _equal_to(need, templates.get(node.model, {}))
    if not equal:
        raise Rejected(NO_TEMPLATE)
    return equal[0]


def _templated(need: PlainNeed) -> bool:
    gpu = need.requests.get("gpu")
    return gpu is not None and gpu.shared and NPU_CORE in gpu.each


def _equal_to(need: PlainNeed, listed: dict[str, dict[str, int]]) -> list[str]:
    return [name for name, amounts in listed.items() if amounts == need.requests["gpu"].each]


def decide(need: PlainNeed, node: PlainMachine, *, most: bool, templates: Templates) -> Taken:
    """What the pod gets; raises Rejected with the reason."""
    taken = _decide(need, replace(node, only=need.designated), most, templates)
    for kind, listed in need.designated.items():
        if _identity(taken.get(kind, [])) != _identity(listed):
            raise Rejected(f"Insufficient {kind} devices")
    return taken


def _identity(taken: list[Any]) -> list[Any]:
    return sorted((minor, sorted(buses)) for minor, _, buses in taken)


def _decide(need: PlainNeed, node: PlainMachine, most: bool, templates: Templates) -> Taken:
    template(need, node, templates)
    taken: Taken = {}
    if need.joint:
        first, *further = need.joint
        try:
            taken[first] = _take(need, node, first, most, None)
        except Rejected as rejected:
            raise Rejected("node(s) Insufficient primary device") from rejected
        switches = _switches(node, first, taken[first])
        for kind in further:
            taken[kind] = _take(need, node, kind, most, switches)
            if need.same_pcie and _switches(node, kind, taken[kind]) != switches:
                raise Rejected("node(s) Device Joint-Allocate rules violation")
    for kind in need.requests:
        if kind not in taken:
            taken[kind] = _take(need, node, kind, most, None)
    return taken


def score(need: PlainNeed, node: PlainMachine, *, most: bool) -> int:
    """Raw, of a node that accepts the pod."""
    points = 0
    for kind, request in need.requests.items():
        devices = [device for device in node.of(kind) if device.health and device.total]
        count = len(devices) if request.for_all else request.count
        figures = []
        for name in (RATIO, MEMORY, "koordinator.sh/rdma", "koordinator.sh/fpga"):
            total = sum(device.total.get(name, 0) for device in devices)
            free = sum(node.free(device).get(name, 0) for device in devices)
            figures.append((total - free + count * request.each.get(name, 0), total))
        points += _mean(figures, most)
    return points


def _mean(figures: list[tuple[int, int]], most: bool) -> int:
    points = [
        (min(used, total) if most else max(total - used, 0)) * 100 // total for used, total in figures if total > 0
    ]
    return sum(points) // len(points) if points else 0


def _switches(node: PlainMachine, kind: str, taken: list[Any]) -> set[str]:
    minors = {minor for minor, _, _ in taken}
    return {device.pcie for device in node.of(kind) if device.minor in minors and device.numa is not None}


def _amounts(plain_device: PlainDevice, each: dict[str, int]) -> dict[str, int]:
    filled = dict(each)
    if MEMORY in plain_device.total:
        if RATIO in each and MEMORY not in each:
            filled[MEMORY] = plain_device.total[MEMORY] * each[RATIO] // 100
        if MEMORY in each and RATIO not in each:
            filled[RATIO] = max(1, 100 * each[MEMORY] // plain_device.total[MEMORY])
    return filled


def _fits(node: PlainMachine, plain_device: PlainDevice, each: dict[str, int]) -> bool:
    free = node.free(plain_device)
    if not any(free.values()):
        return False
    return all(name not in free or amount <= free[name] for name, amount in _amounts(plain_device, each).items())


def _take(need: PlainNeed, node: PlainMachine, kind: str, most: bool, switches: set[str] | None) -> list[Any]:
    request, devices = need.requests[kind], node.of(kind)
    if not devices:
        raise Rejected(f"Insufficient {kind} devices")
    usable = [device for device in devices if device.health]
    count, limit = request.count, request.count
    if request.for_all:
        if not usable:
            raise Rejected(f"Insufficient {kind} devices")
        count = limit = len(usable)
    if request.functions and not any(device.fast for device in devices):
        raise Rejected(f"Insufficient {kind} VirtualFunctions")
    if switches and kind != "gpu":
        limit = max(count, len(switches))
        count = limit if need.same_pcie else count
    if kind == "gpu" and not switches:
        chosen = _gpus(request, node, usable, most)
        if chosen is not None:
            return [(device.minor, _amounts(device, request.each), []) for device in chosen]

    def points(device: PlainDevice) -> int:
        return _device_score(node, device, request.each, most)

    best = sorted(usable, key=lambda device: (-points(device), device.minor))
    order = []
    if switches:
        queues = {
            pcie: [device for device in best if device.numa is not None and device.pcie == pcie]
            for pcie in sorted(switches)
        }
        for turn in range(len(best)):
            order += sorted(
                (queue[turn] for queue in queues.values() if len(queue) > turn),
                key=lambda device: (-points(device), device.minor),
            )
    order += [device for device in best if device not in order]
    taken: list[Any] = []
    for candidate in order:
        functions = node.functions(candidate)
        if len(taken) < limit and _fits(node, candidate, request.each) and (functions or not request.functions):
            taken.append(
                (candidate.minor, _amounts(candidate, request.each), functions[:1] if request.functions else [])
            )
    if len(taken) < count:
        raise Rejected(f"Insufficient {kind} devices")
    return sorted(taken, key=lambda each: each[0])


def _device_score(node: PlainMachine, plain_device: PlainDevice, each: dict[str, int], most: bool) -> int:
    free = node.free(plain_device)
    names = (RATIO, MEMORY, "koordinator.sh/rdma", "koordinator.sh/fpga")
    return _mean(
        [(plain_device.total.get(n, 0) - free.get(n, 0) + each.get(n, 0), plain_device.total.get(n, 0)) for n in names],
        most,
    )


def _gpus(request: PlainRequest, node: PlainMachine, usable: list[PlainDevice], most: bool) -> Any:
    in_use = {device.minor for device in node.of("gpu") if any(node.used(device).values())}
    if not request.shared and node.partitions is not None:
        chosen = _partition(request, node, usable, in_use)
        if chosen is not None:
            return chosen
    if any(device.numa is None for device in node.of("gpu")) or (request.shared and request.count > 1):
        if request.scope:
            shared = all(device.numa is not None for device in node.of("gpu"))
            raise Rejected(
                "node(s) Unsupported Multi-Shared GPU" if shared else "node(s) missing GPU Device Topology Tree"
            )
        return None
    # Every scope with the scopes around it, outermost first.
    scopes: list[tuple[int, list[list[PlainDevice]]]] = [(1, [usable])]
    for numa in sorted({device.numa for device in usable if device.numa is not None}):
        near = [device for device in usable if device.numa == numa]
        scopes.append((2, [usable, near]))
        for pcie in sorted({device.pcie for device in near}):
            scopes.append((3, [usable, near, [device for device in near if device.pcie == pcie]]))
    best: tuple[tuple[int, int, int], list[PlainDevice]] | None = None
    for level, path in scopes:
        fitting = [device for device in path[-1] if _fits(node, device, request.each)]
        if level < request.scope or len(fitting) < request.count:
            continue
        chosen = fitting[: request.count]
        points = 0
        if request.shared:
            chosen = [min(fitting, key=lambda device: (-_device_score(node, device, request.each, most), device.minor))]
            points = _device_score(node, chosen[0], request.each, most)
        used = sum(any(device.minor in in_use for device in scope) for scope in path)
        key = (level, used, points)
        if best is None or key > best[0]:
            best = key, chosen
    if best is None:
        raise Rejected("Insufficient Topology Scoped GPU Devices" if request.scope else "Insufficient GPU Devices")
    return best[1]


def _partition(request: PlainRequest, node: PlainMachine, usable: list[PlainDevice], in_use: set[int]) -> Any:
    """None: no partition, and another method may be used."""
    assert node.partitions is not None
    listed = node.partitions.get(request.count, [])
    minors = {device.minor: device for device in usable}
    free = [
        (parts, points)
        for parts, points in listed
        if all(m in minors and m not in in_use and _fits(node, minors[m], request.each) for m in parts)
    ]
    if not free:
        if node.honors:
            raise Rejected(
                "Insufficient Partitioned GPU Devices" if listed else "node(s) Unsupported number of GPU requests"
            )
        return None
    top = max(points for _, points in free)

    def left(parts: list[int]) -> int:
        total = 0
        for size, weight in ((8, 10_000), (4, 100), (2, 1)):
            partitions = (node.partitions or {}).get(size, [])
            if size >= request.count and partitions:
                highest = max(points for _, points in partitions)
                total += sum(
                    weight * points
                    for other, points in partitions
                    if points == highest and not set(other) & (in_use | set(parts))
                )
        return total

    best = max((parts for parts, points in free if points == top), key=left)
    return [minors[minor] for minor in sorted(best)]
