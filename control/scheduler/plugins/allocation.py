"""What nodes would have in use with a pod on them, for scores by resource (spec 05 §4).

cpu and memory count with defaults where a container requests none (`nonzero`), unless a plugin wants plain requests.
A resource that a node has nothing of is left out of that node's score; an extended one is left out altogether for pods
that don't request it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from control.scheduler.config.args import WeightedResource
from control.scheduler.state.columns import IntArray, Rows
from control.scheduler.state.pods import Shape
from control.scheduler.state.table import CPU, MEMORY, NodeTable

_ALWAYS: Final = frozenset(("cpu", "memory", "ephemeral-storage"))
_NEVER: Final = frozenset(("pods",))


@dataclass(frozen=True, slots=True)
class Measured:
    """A resource for one shape: its column, what the pod adds, and whether the node's `nonzero` column is read."""

    column: int
    amount: int
    nonzero: bool
    weight: int


def measured(table: NodeTable, shape: Shape, resources: Iterable[WeightedResource], *, nonzero: bool) -> list[Measured]:
    """The configured resources that count for pods of this shape, in order."""
    found = []
    defaults = {"cpu": shape.nonzero_cpu, "memory": shape.nonzero_memory} if nonzero else {}
    for one in resources:
        amount = defaults.get(one.name, shape.requests.get(one.name, 0))
        if one.name in _NEVER or (amount == 0 and one.name not in _ALWAYS):
            continue
        column = table.resource(one.name)
        found.append(Measured(column, amount, nonzero and column in (CPU, MEMORY), one.weight or 1))
    return found


def columns(table: NodeTable, one: Measured, rows: Rows) -> tuple[IntArray, IntArray]:
    """(allocatable, used with the pod) by row."""
    used = table.nonzero if one.nonzero else table.requested
    return table.allocatable[one.column, rows], used[one.column, rows] + one.amount


def amounts(table: NodeTable, one: Measured, row: int) -> tuple[int, int]:
    """The same for a single row."""
    used = table.nonzero if one.nonzero else table.requested
    return table.allocatable.item(one.column, row), used.item(one.column, row) + one.amount


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one: it has a domain, and not Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")
