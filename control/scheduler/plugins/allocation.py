"""Resource usage of nodes with a pod added, for scores by resource (spec 05 §4).

cpu and memory include defaults for containers without requests (`nonzero`), unless a plugin uses plain requests. A
resource that a node lacks is left out of that node's score. An extended resource is left out for pods that do not
request it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from control.scheduler.config.args import WeightedResource
from control.scheduler.state.columns import IntArray, Rows
from control.scheduler.state.credit import RowCredit, nonzero_key
from control.scheduler.state.pods import Shape
from control.scheduler.state.table import CPU, MEMORY, NodeTable

_ALWAYS: Final = frozenset(("cpu", "memory", "ephemeral-storage"))
_NEVER: Final = frozenset(("pods",))


@dataclass(frozen=True, slots=True)
class ScoredResource:
    """A resource for one shape: its column, the amount that the pod adds, and whether to read the `nonzero` column."""

    column: int
    amount: int
    nonzero: bool
    weight: int
    key: int
    """In a credit."""


def measured(
    table: NodeTable, shape: Shape, resources: Iterable[WeightedResource], *, nonzero: bool
) -> list[ScoredResource]:
    """The configured resources that are scored for pods of this shape, in order."""
    counted = []
    defaults = {"cpu": shape.nonzero_cpu, "memory": shape.nonzero_memory} if nonzero else {}
    for resource in resources:
        amount = defaults.get(resource.name, shape.requests.get(resource.name, 0))
        if resource.name in _NEVER or (amount == 0 and resource.name not in _ALWAYS):
            continue
        column = table.resource(resource.name)
        with_defaults = nonzero and column in (CPU, MEMORY)
        key = nonzero_key(column) if with_defaults else column
        counted.append(ScoredResource(column, amount, with_defaults, resource.weight or 1, key))
    return counted


def columns(
    table: NodeTable, resource: ScoredResource, rows: Rows, credit: RowCredit | None
) -> tuple[IntArray, IntArray]:
    """(allocatable, used with the pod), one column each."""
    used = table.nonzero if resource.nonzero else table.requested
    with_pod = used[resource.column, rows] + resource.amount
    if credit is not None:
        with_pod -= credit.column(resource.key, rows)
    return table.allocatable[resource.column, rows], with_pod


def amounts(table: NodeTable, resource: ScoredResource, row: int, room: Mapping[int, int]) -> tuple[int, int]:
    """`columns` for a single row, with its credit."""
    used = table.nonzero if resource.nonzero else table.requested
    with_pod = used.item(resource.column, row) + resource.amount
    return table.allocatable.item(resource.column, row), with_pod - room.get(resource.key, 0) if room else with_pod
