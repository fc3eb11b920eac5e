"""Who was charged to whom over a short while, place by place of the matrix.

`tables.Tables.read` merges the matrix of all CPUs by cgroup, which costs a sort of all that ever waited. An entry keeps
its place until its cgroup is gone, so a difference of two moments needs no names: numbers are taken from each other
where they stand, and only what grew, a few thousand entries at most times, is given names and merged. Used once a
second by whoever asks who had the CPU just now. 24 bytes an entry that is in use; where more than half of the places
are, all of them at 20 bytes, since what stands in the same place need not be looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from koordlet.probes.culprits.blame import Blames
from koordlet.probes.loading.mapped import Ints, sum_pairs


@dataclass(frozen=True, slots=True)
class Waits:
    """What `Charges` says without the number of waits, a piece at a time: nothing is copied before it is asked for."""

    slot_keys: Ints
    """Slot -> cgroup id or special key; 0 = free, and perhaps taken since."""
    pieces: Iterable[tuple[npt.NDArray[np.uint32], Ints]]
    """Of a few thousand places each `Charges.key` and `Charges.wait_ns`; once only."""


PIECE = 8192
"""Entries looked at in one go: arrays of 64 KB, which need not be mapped anew (`app.heap`)."""


@dataclass(frozen=True, slots=True)
class Charges:
    """The entries in use at one moment, cumulative; free places with zeros may be among them."""

    source: str
    time_ns: int
    size: int
    """Places of the matrix, all CPUs together."""
    at: npt.NDArray[np.int32]
    """Place of each entry."""
    key: npt.NDArray[np.uint32]
    """Victim's slot + 1 above 16 bits, culprit's below; 0 = free."""
    wait_ns: Ints
    count: Ints
    slot_keys: Ints
    """Slot -> cgroup id or special key; 0 = free."""

    def slots(self) -> tuple[Ints, Ints]:
        """(victim's, culprit's) of each entry."""
        return _slots(self.key)


def between(old: Charges, new: Charges, *, piece: int = PIECE) -> Blames:
    """What was charged between two moments of one source. An entry that ran back, or of which a slot belongs to another
    cgroup now, counts from zero, as `rows.subtract` has it; one with the same time as before did not change. Pure.

    Goes through the entries a *piece* at a time, in memory that need not be mapped anew (`app.heap`)."""
    moved = old.slot_keys != new.slot_keys
    anything_moved = bool(moved.any())
    if not len(old.at):
        old = replace(old, at=new.at, key=np.zeros_like(new.key), wait_ns=new.wait_ns * 0, count=new.count * 0)
    then = None if old.at is new.at or np.array_equal(old.at, new.at) else _Places(old, new)
    names, name = np.unique(new.slot_keys, return_inverse=True)
    many = len(names)
    found: list[tuple[Ints, Ints, Ints]] = []
    for at in range(0, len(new.at), piece):
        part = slice(at, at + piece)
        key, wait, count = new.key[part], new.wait_ns[part], new.count[part]
        had: npt.NDArray[np.bool_] | None = None
        before: slice | npt.NDArray[np.intp] = part
        if then is not None:
            had, before = then.next(part)
        then_key, then_wait, then_count = old.key[before], old.wait_ns[before], old.count[before]
        differs = (wait != then_wait) | (key != then_key)
        if had is not None:
            differs |= ~had
        if anything_moved:
            victim, culprit = _slots(key)
            gone = moved[victim] | moved[culprit]
            differs |= gone
        changed = np.flatnonzero(differs)
        if not len(changed):
            continue
        key, wait, count = key[changed], wait[changed], count[changed]
        then_wait, then_count = then_wait[changed], then_count[changed]
        same = (then_key[changed] == key) & (then_wait <= wait) & (then_count <= count)
        if had is not None:
            same &= had[changed]
        if anything_moved:
            same &= ~gone[changed]
        wait -= np.where(same, then_wait, 0)
        count -= np.where(same, then_count, 0)
        victim, culprit = (name[side] for side in _slots(key))
        known = (wait != 0) & (names[victim] != 0) & (names[culprit] != 0)  # not of a slot that was freed meanwhile
        found.append(((victim * many + culprit)[known], wait[known], count[known]))
    if not found:
        return Blames.none()
    codes, ns, waits = (np.concatenate([one[column] for one in found]) for column in range(3))
    pairs, wait_ns, wait_count = sum_pairs(codes, ns, waits, many * many)
    return Blames(victim=names[pairs // many], culprit=names[pairs % many], wait_ns=wait_ns, wait_count=wait_count)


class _Places:
    """Where an older reading has the entries of a newer one; both are in order of places."""

    def __init__(self, old: Charges, new: Charges) -> None:
        self._old, self._new = old.at, new.at
        self._last = 0

    def next(self, part: slice) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
        """For a part of the newer one, after the part before it: (whether the older one has each, where)."""
        wanted = self._new[part]
        end = self._last + int(np.searchsorted(self._old[self._last :], wanted[-1], side="right"))
        begin, self._last = self._last, end
        near = self._old[begin:end]
        if not len(near):
            return np.zeros(len(wanted), dtype=bool), np.zeros(len(wanted), dtype=np.intp)
        at = np.minimum(np.searchsorted(near, wanted), len(near) - 1)
        return near[at] == wanted, at + begin


def _slots(key: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """(victim's, culprit's) of entries."""
    both = key.astype(np.int64)
    return (both >> 16) - 1, (both & 0xFFFF) - 1
