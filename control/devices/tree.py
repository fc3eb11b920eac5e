"""GPUs that are close to each other: the topology tree (spec 06 §3.5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from control.devices.requests import TypeRequest
from control.devices.room import TypeRoom
from control.devices.search import Score
from koordlet.api.annotations.device import TOPOLOGY_SCOPE_LEVELS

NODE: Final = TOPOLOGY_SCOPE_LEVELS["Node"]
NUMA: Final = TOPOLOGY_SCOPE_LEVELS["NUMANode"]
PCIE: Final = TOPOLOGY_SCOPE_LEVELS["PCIe"]
DEVICE: Final = TOPOLOGY_SCOPE_LEVELS["Device"]


@dataclass(frozen=True)
class GPUScope:
    """A part of the node with its GPUs, minors ascending."""

    level: int
    minors: tuple[int, ...]
    children: tuple[GPUScope, ...] = field(default=())


def gpu_tree(room: TypeRoom) -> GPUScope | None:
    """Node, NUMA nodes, PCIe switches; None if the place of a GPU is unknown."""
    switches: dict[int, dict[str, list[int]]] = {}
    for minor, unit in room.units.items():
        if unit.place is None:
            return None
        switches.setdefault(unit.place.numa, {}).setdefault(unit.place.pcie, []).append(minor)

    def numa(node: int) -> GPUScope:
        leaves = tuple(GPUScope(PCIE, tuple(minors)) for _, minors in sorted(switches[node].items()))
        return GPUScope(NUMA, tuple(sorted(minor for leaf in leaves for minor in leaf.minors)), leaves)

    return GPUScope(NODE, tuple(room.units), tuple(numa(node) for node in sorted(switches)))


@dataclass(frozen=True)
class _Pick:
    """`key`: larger is better (depth, scopes in use, score of a shared GPU)."""

    minors: tuple[int, ...]
    key: tuple[int, int, int]


def take_close(room: TypeRoom, tree: GPUScope, request: TypeRequest, level: int, score: Score) -> Sequence[int]:
    """GPUs in the narrowest scope that has enough, of these in the fullest one. `level`: the widest scope that is
    allowed. Empty if there are none."""
    if level >= DEVICE and request.count > 1:
        return ()
    pick = _search(room, tree, request, min(level, PCIE), score, 0, 0)
    return () if pick is None else pick.minors


def _search(
    room: TypeRoom, scope: GPUScope, request: TypeRequest, level: int, score: Score, depth: int, used: int
) -> _Pick | None:
    if len(scope.minors) < request.count:
        return None
    depth += 1
    used += any(minor in room.in_use for minor in scope.minors)
    best: _Pick | None = None
    for child in scope.children:
        pick = _search(room, child, request, level, score, depth, used)
        if pick is not None and (best is None or pick.key > best.key):
            best = pick
    if best is not None or scope.level < level:
        return best
    fitting = [minor for minor in scope.minors if room.fits(minor, request.amounts)]
    if len(fitting) < request.count:
        return None
    fitting.sort(key=lambda minor: (minor not in room.preferred, minor))
    if not request.shared:
        return _Pick(tuple(sorted(fitting[: request.count])), (depth, used, 0))
    chosen = max(fitting, key=lambda minor: (minor in room.preferred, score(minor), -minor))
    return _Pick((chosen,), (depth, used, score(chosen)))
