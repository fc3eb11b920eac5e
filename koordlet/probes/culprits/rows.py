"""Windows of cumulative columns: which row of an older reading is the same thing, and what came since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from koordlet.probes.loading.mapped import Ints


@dataclass(frozen=True, slots=True)
class Losses:
    """What a source could not tell, cumulative: whole numbers alone."""


L = TypeVar("L", bound=Losses)


def lost_since(old: L, new: L) -> L:
    """What was lost between two snapshots; nothing of what ran back."""
    return type(new)(**{one.name: max(0, getattr(new, one.name) - getattr(old, one.name)) for one in fields(new)})


def columns(snapshot: object, names: Iterable[str]) -> dict[str, Ints]:
    """A snapshot's columns by name."""
    return {name: getattr(snapshot, name) for name in names}


def distinct(values: Ints) -> Ints:
    """Sorted, each once. `np.unique` of values alone loads numpy's masked arrays, 1.3 MB, to ask whether it has any."""
    ordered = np.sort(values)
    new: npt.NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return ordered[new]


def align(old: Ints, new: Ints) -> Ints:
    """For each of *new* the index of the same number in *old* (sorted, unique), or -1."""
    if not len(old):
        return np.full(len(new), -1, dtype=np.int64)
    if len(old) == len(new) and (old == new).all():
        return np.arange(len(new), dtype=np.int64)
    at = np.minimum(np.searchsorted(old, new), len(old) - 1)
    return np.where(old[at] == new, at, -1).astype(np.int64)


def align_pairs(old: tuple[Ints, Ints], new: tuple[Ints, Ints]) -> Ints:
    """As `align` for rows named by two numbers, sorted by the first, then the second."""
    if all(len(one) == len(other) and (one == other).all() for one, other in zip(old, new, strict=True)):
        return np.arange(len(new[0]), dtype=np.int64)
    keys = distinct(np.concatenate([*old, *new]))

    def codes(side: tuple[Ints, Ints]) -> Ints:
        return np.searchsorted(keys, side[0]) * len(keys) + np.searchsorted(keys, side[1])

    return align(codes(old), codes(new))


def subtract(old: Mapping[str, Ints], new: Mapping[str, Ints], at: Ints) -> dict[str, Ints]:
    """*new* less *old*, column by column; *at* as `align` gives it.

    A row that *old* doesn't have counts from zero, and so does one of which any column ran back: its key was reused, or
    the probe was loaded anew.
    """
    known = at >= 0
    deltas = {}
    same = bool((at == np.arange(len(at))).all()) and all(len(column) == len(at) for column in old.values())
    for name, column in new.items():
        if same:  # the usual case
            deltas[name] = column - old[name]
        else:
            delta = deltas[name] = column.copy()
            delta[known] -= old[name][at[known]]
    if not any((delta < 0).any() for delta in deltas.values()):
        return deltas
    ran_back = np.zeros(len(at), dtype=bool)
    for delta in deltas.values():
        ran_back |= (delta < 0).any(axis=tuple(range(1, delta.ndim)))
    return {name: np.where(_like(ran_back, delta), new[name], delta) for name, delta in deltas.items()}


def _like(mask: npt.NDArray[np.bool_], array: Ints) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *(1,) * (array.ndim - 1))
