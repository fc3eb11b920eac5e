"""Arithmetic on columns of cumulative counters: sums by group, and windows between two readings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Losses:
    """Counts of what a source could not measure or attribute, cumulative. All members of subclasses are integers."""


L = TypeVar("L", bound=Losses)


def lost_since(old: L, new: L) -> L:
    """The losses between two snapshots; 0 for a count that went back."""
    return type(new)(
        **{field.name: max(0, getattr(new, field.name) - getattr(old, field.name)) for field in fields(new)}
    )


def columns(snapshot: object, names: Iterable[str]) -> dict[str, Ints]:
    """A snapshot's columns by name."""
    return {name: getattr(snapshot, name) for name in names}


def sum_by(group: npt.NDArray[np.intp], values: npt.NDArray[Any], groups: int) -> Ints:
    """Sums of the rows of `values` with equal group number (0 or more); a group without rows is zero."""
    total = np.zeros((groups, *values.shape[1:]), dtype=np.int64)
    if values.ndim > 1 and (group[1:] > group[:-1]).all():  # one row per group, the usual case
        total[group] = values
        return total
    if values.ndim > 1:  # `add.at` of scalars takes half the time of sorting the rows, and a third of `add.at` of rows
        group = np.arange(total.size).reshape(total.shape)[group].reshape(-1)
    signed = values.astype(np.int64, copy=False)  # `add` of int64 and uint64 would give float64
    np.add.at(total.reshape(-1), group, signed.reshape(-1))
    return total


def distinct(values: Ints) -> Ints:
    """The sorted distinct values. `np.unique` of values alone imports numpy's masked arrays: 1.3 MB of memory."""
    ordered = np.sort(values)
    new: npt.NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return ordered[new]


def align(old: Ints, new: Ints) -> Ints:
    """For each of `new` the index of the same number in `old` (sorted, unique), or -1."""
    if not len(old):
        return np.full(len(new), -1, dtype=np.int64)
    if len(old) == len(new) and (old == new).all():
        return np.arange(len(new), dtype=np.int64)
    index = np.minimum(np.searchsorted(old, new), len(old) - 1)
    return np.where(old[index] == new, index, -1).astype(np.int64)


def align_pairs(old: tuple[Ints, Ints], new: tuple[Ints, Ints]) -> Ints:
    """As `align` for rows identified by two numbers, sorted by the first, then by the second."""
    if all(len(before) == len(after) and (before == after).all() for before, after in zip(old, new, strict=True)):
        return np.arange(len(new[0]), dtype=np.int64)
    numbers = distinct(np.concatenate([*old, *new]))

    def codes(side: tuple[Ints, Ints]) -> Ints:
        return np.searchsorted(numbers, side[0]) * len(numbers) + np.searchsorted(numbers, side[1])

    return align(codes(old), codes(new))


def subtract(old: Mapping[str, Ints], new: Mapping[str, Ints], index: Ints) -> dict[str, Ints]:
    """`new` minus `old`, column by column; `index` as `align` returns it.

    A row that `old` does not have counts from zero. So does a row of which any column went back: its key was reused, or
    the probe was loaded again.
    """
    known = index >= 0
    deltas = {}
    same = bool((index == np.arange(len(index))).all()) and all(len(column) == len(index) for column in old.values())
    for name, column in new.items():
        if same:  # the usual case
            deltas[name] = column - old[name]
        else:
            delta = deltas[name] = column.copy()
            delta[known] -= old[name][index[known]]
    if not any((delta < 0).any() for delta in deltas.values()):
        return deltas
    ran_back = np.zeros(len(index), dtype=bool)
    for delta in deltas.values():
        ran_back |= (delta < 0).any(axis=tuple(range(1, delta.ndim)))
    return {name: np.where(_broadcast(ran_back, delta), new[name], delta) for name, delta in deltas.items()}


def _broadcast(mask: npt.NDArray[np.bool_], array: Ints) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *(1,) * (array.ndim - 1))
