"""Who was charged to whom over a short while, place by place of the matrix.

`tables.Tables.read` merges the matrix of all CPUs by cgroup, which costs a sort of all that ever waited. An entry keeps
its place until its cgroup is gone, so a difference of two moments needs no names: numbers are taken from each other
where they stand, and only what grew, a few thousand entries at most times, is given names and merged. Used once a
second by whoever asks who had the CPU just now. 24 bytes an entry that is in use; where more than half of the places
are, all of them at 20 bytes, since what stands in the same place need not be looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from koordlet.probes.blame import Blames
from koordlet.probes.mapped import Ints, sum_pairs


@dataclass(frozen=True, slots=True)
class Waits:
    """What `Charges` says without the number of waits, a piece at a time: nothing is copied before it is asked for."""

    slot_keys: Ints
    """Slot -> cgroup id or special key; 0 = free, and perhaps taken since."""
    pieces: Iterable[tuple[npt.NDArray[np.uint32], Ints]]
    """Of a few thousand places each `Charges.key` and `Charges.wait_ns`; once only."""


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


def between(old: Charges, new: Charges) -> Blames:
    """What was charged between two moments of one source. An entry that ran back, or of which a slot belongs to another
    cgroup now, counts from zero, as `rows.subtract` has it; one with the same time as before did not change. Pure."""
    moved = old.slot_keys != new.slot_keys
    then: npt.NDArray[np.intp] | None = None
    """Where *old* has each entry of *new*, anywhere where it has none; None: where *new* has it."""
    shared = len(old.at)
    if old.at is new.at or np.array_equal(old.at, new.at):
        differs = (new.wait_ns != old.wait_ns) | (new.key != old.key)
    else:
        # Places are marked in small tables: fresh memory for large ones would cost more than the rest.
        there = np.zeros(new.size, dtype=bool)
        there[old.at] = True
        kept = there[new.at]
        shared = int(np.count_nonzero(kept))
        then = np.cumsum(kept, dtype=np.intp) - 1
        then_ns, then_key = old.wait_ns, old.key
        if shared < len(old.at):  # some went
            there[old.at] = False
            there[new.at] = True
            stays = np.flatnonzero(there[old.at])
            then_ns, then_key = then_ns[stays], then_key[stays]
            then = stays[then] if shared else then
        differs = ~kept
        differs[kept] = (new.wait_ns[kept] != then_ns) | (new.key[kept] != then_key)
    anything_moved = bool(moved.any())
    if anything_moved:
        victim, culprit = new.slots()
        differs |= moved[victim] | moved[culprit]
    changed = np.flatnonzero(differs)
    key, wait, count = new.key[changed], new.wait_ns[changed], new.count[changed]
    slots = _slots(key)
    if shared:
        at = changed if then is None else then[changed]
        then_ns, then_count = old.wait_ns[at], old.count[at]
        same = (old.at[at] == new.at[changed]) & (old.key[at] == key) & (then_ns <= wait) & (then_count <= count)
        if anything_moved:
            same &= ~(moved[slots[0]] | moved[slots[1]])
        wait -= np.where(same, then_ns, 0)
        count -= np.where(same, then_count, 0)
    names, name = np.unique(new.slot_keys, return_inverse=True)
    victim, culprit = (name[side] for side in slots)
    known = (wait != 0) & (names[victim] != 0) & (names[culprit] != 0)  # not of a slot that was freed meanwhile
    many = len(names)
    pairs, wait_ns, wait_count = sum_pairs((victim * many + culprit)[known], wait[known], count[known], many * many)
    return Blames(victim=names[pairs // many], culprit=names[pairs % many], wait_ns=wait_ns, wait_count=wait_count)


def _slots(key: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """(victim's, culprit's) of entries."""
    both = key.astype(np.int64)
    return (both >> 16) - 1, (both & 0xFFFF) - 1
