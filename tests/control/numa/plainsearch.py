"""The CPU search of spec 06 §2.5 with plain sets, written down step by step; slow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class PlainCPU:
    id: int
    core: int
    socket: int
    node: int


@dataclass
class PlainRequest:
    need: int
    full: bool
    exclusive: str = ""
    most: bool = False
    shared: bool = False
    """CPUs may be held by several pods."""
    refs: dict[int, int] = field(default_factory=dict)
    exclusive_cpus: dict[int, str] = field(default_factory=dict)
    """CPU -> exclusive policy of its holder."""


def plain_take(cpus: list[PlainCPU], available: set[int], request: PlainRequest) -> set[int] | None:
    """The chosen CPUs; None if there are too few."""
    if request.need > len(available):
        return None
    by_id = {cpu.id: cpu for cpu in cpus}
    sockets = sorted({cpu.socket for cpu in cpus})
    nodes = sorted({cpu.node for cpu in cpus})
    cores = sorted({(cpu.socket, cpu.core) for cpu in cpus})
    per_core = max(sum((c.socket, c.core) == core for c in cpus) for core in cores)
    per_node, per_socket = len(cpus) // len(nodes), len(cpus) // len(sockets)
    taken: set[int] = set()
    sign = 1 if request.most else -1

    def free() -> list[PlainCPU]:
        return sorted((by_id[i] for i in available - taken), key=lambda c: c.id)

    def core(cpu: PlainCPU) -> tuple[int, int]:
        return cpu.socket, cpu.core

    def exclusive_cores() -> set[tuple[int, int]]:
        if request.exclusive != "PCPULevel":
            return set()
        held = {core(by_id[i]) for i, policy in request.exclusive_cpus.items() if policy == "PCPULevel"}
        return held | {core(by_id[i]) for i in taken}

    def exclusive_nodes() -> set[int]:
        if request.exclusive != "NUMANodeLevel":
            return set()
        held = {by_id[i].node for i, policy in request.exclusive_cpus.items() if policy == "NUMANodeLevel"}
        return held | {by_id[i].node for i in taken}

    def refs(cpus: Iterable[PlainCPU]) -> int:
        return sum(request.refs.get(c.id, 0) for c in cpus) if request.shared else 0

    def whole(allowed: list[PlainCPU]) -> list[list[PlainCPU]]:
        whole_cores = []
        for key in cores:
            members = [c for c in allowed if core(c) == key]
            if len(members) == per_core:
                whole_cores.append(members)
        return sorted(whole_cores, key=lambda members: (refs(members), core(members[0])))

    def flat(groups: list[list[PlainCPU]]) -> list[int]:
        return [c.id for members in groups for c in members]

    def spread(ids: list[int]) -> list[int]:
        if len(ids) <= per_core:
            return ids
        result: list[int] = []
        rest = list(ids)
        while rest:
            seen: set[tuple[int, int]] = set()
            later = []
            for i in rest:
                if core(by_id[i]) in seen:
                    later.append(i)
                else:
                    seen.add(core(by_id[i]))
                    result.append(i)
            rest = later
        return result

    def left() -> int:
        return request.need - len(taken)

    def on_socket(socket: int) -> int:
        return sum(c.socket == socket for c in free())

    def on_node(node: int) -> int:
        return sum(c.node == node for c in free())

    def socket_of(node: int) -> int:
        return min((c for c in cpus if c.node == node), key=core).socket

    def part_a() -> None:
        if left() <= per_node:
            for on in (True, False):
                allowed = [c for c in free() if not (on and c.node in exclusive_nodes())]
                lists = {n: flat([g for g in whole(allowed) if g[0].node == n]) for n in nodes}
                for n in sorted(nodes, key=lambda n: (sign * len(lists[n]), sign * on_socket(socket_of(n)), n)):
                    if lists[n] and len(lists[n]) >= left():
                        taken.update(lists[n][: left()])
                        return
        if left() <= per_socket:
            lists = {s: flat([g for g in whole(free()) if g[0].socket == s]) for s in sockets}
            for s in sorted(sockets, key=lambda s: (sign * len(lists[s]), s)):
                if lists[s] and len(lists[s]) >= left():
                    taken.update(lists[s][: left()])
                    return
        groups = {s: [g for g in whole(free()) if g[0].socket == s] for s in sockets}
        remembered = []
        for s in sorted(sockets, key=lambda s: (-len(flat(groups[s])), s)):
            if left() >= len(flat(groups[s])) > 0:
                taken.update(flat(groups[s]))
            elif groups[s]:
                remembered.append(groups[s])
        for group in sorted(remembered, key=lambda g: len(flat(g))):
            for members in group:
                if left() >= per_core:
                    taken.update(c.id for c in members)

    def part_b() -> None:
        for size, kinds, kind in ((per_node, nodes, "node"), (per_socket, sockets, "socket")):
            if left() > size:
                continue
            for on in (True, False):
                lists = {}
                for k in kinds:
                    listed = [c for c in free() if getattr(c, kind) == k]
                    listed.sort(key=lambda c: (refs([c]), c.id))
                    if on:
                        listed = [c for c in listed if core(c) not in exclusive_cores()]
                        if kind == "node":
                            listed = [c for c in listed if c.node not in exclusive_nodes()]
                        kept: dict[tuple[int, int], PlainCPU] = {}
                        for c in listed:
                            kept.setdefault(core(c), c)
                        listed = list(kept.values())
                    lists[k] = [c.id for c in listed]
                if kind == "node":
                    order = sorted(kinds, key=lambda n: (sign * on_node(n), sign * on_socket(socket_of(n)), n))
                else:
                    order = sorted(kinds, key=lambda s: (sign * len(lists[s]), s))
                for k in order:
                    if len(lists[k]) >= left():
                        taken.update(spread(lists[k])[: left()])
                        return

    def part_c(on: bool) -> None:
        candidates = free()
        if on:
            candidates = [c for c in candidates if core(c) not in exclusive_cores() and c.node not in exclusive_nodes()]
        members = {key: [c for c in candidates if core(c) == key] for key in cores}
        everything = {key: [c for c in cpus if core(c) == key] for key in cores}

        def rank(key: tuple[int, int]) -> tuple[object, ...]:
            first = everything[key][0]
            return (
                -sum(by_id[i].socket == first.socket for i in taken),
                sign * on_socket(first.socket),
                sign * on_node(first.node),
                sum(core(c) == key for c in free()),
                first.socket,
                refs(everything[key]),
                key,
            )

        listed = [c.id for core in sorted(cores, key=rank) for c in members[core]]
        taken.update(spread(listed)[: left()])

    if request.full or per_core == 1:
        part_a()
    if left() and not request.full:
        part_b()
    for on in (True, False):
        if left():
            part_c(on)
    return taken
