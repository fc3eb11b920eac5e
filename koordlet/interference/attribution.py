"""Attributes the containers' waiting for CPU to culprits, from the probe's culprit matrix. Pure.

Reading the matrix is the expensive part of the CPU's evidence, so it is read only now and then (`cadence`). From one
reading, `Attribution.shares` gives each container's waiting by kind of culprit; these `WaitShares` stay in use until
the next reading. `Attribution.top` names the culprits of one container, for the few containers that have a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.hypervisor import HYPERVISOR, Steal
from koordlet.interference.model import Floats, ratio
from koordlet.interference.rows import ContainerRows, Ints
from koordlet.metricsadvisor.stalls.attribution import CulpritTime, OwnerOf, culprit_owner, identity
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.reader import ENTRIES_PER_PIECE
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.statesinformer.pods.cgroupindex import Owner

MIN_WANTED_CORES = 0.02
"""Added to the wanted time: a container that hardly runs loses hardly anything, whatever the ratio."""
TOP_CULPRITS = 8
"""Culprits named for one container: more than a verdict holds, as the container itself and an idle CPU are among
them."""
REST = Owner("unknown", "others")

_UNATTRIBUTED = tuple(SPECIAL_KEYS[name] for name in ("older", "moved", "overflow"))
_KIND_KEYS = (0, 1, SPECIAL_KEYS["idle"], SPECIAL_KEYS["ksoftirqd"], *_UNATTRIBUTED)
"""Kinds of culprits by special key. The first two are no keys: other cgroups, and the victim itself."""
_OWN, _IDLE, _KSOFTIRQD, _FIRST_UNATTRIBUTED = 1, 2, 3, 4
_LOWEST_KEY = min(SPECIAL_KEYS.values()) - 1
_KIND_OF = np.array([_KIND_KEYS.index(-key) if -key in _KIND_KEYS else 0 for key in range(1 - _LOWEST_KEY)])
"""Index in `_KIND_KEYS` by the negated key."""


def wanted_time(waited: Floats, ran: Floats) -> Floats:
    """[containers]: seconds per second in which they wanted to run, whether they did or not."""
    wanted_cores: Floats = waited + np.nan_to_num(ran) + MIN_WANTED_CORES
    return wanted_cores


@dataclass(frozen=True, slots=True)
class WaitShares:
    """Kinds of culprits of each container's waiting when the matrix was last read, [containers]."""

    own: Floats
    """Fraction behind the container's own tasks."""
    idle: Floats
    """Fraction behind an idle CPU: tasks on their way to a CPU that nothing used."""
    waited: Floats
    """Waiting at that time, in seconds per second."""
    ksoftirqd: Floats
    """Fraction behind the kernel's softirq thread; part of `others`."""
    hypervisor: Floats
    """Fraction caused by a hypervisor."""

    @classmethod
    def none(cls, count: int) -> WaitShares:
        """Before the first reading: all waiting counts as caused by others."""
        return cls(*(np.zeros(count) for _ in range(5)))

    @property
    def others(self) -> Floats:
        """The remaining fraction, caused by others."""
        remainder: Floats = np.maximum(1.0 - self.own - self.idle - self.hypervisor, 0.0)
        return remainder

    def moved(self, before: Sequence[str], now: Sequence[str]) -> WaitShares:
        """The same shares for another list of containers, matched by key; 0 for new containers."""
        row_of = {key: row for row, key in enumerate(before)}
        rows = np.array([row_of.get(key, -1) for key in now], dtype=np.intp)
        known = rows >= 0
        columns = (self.own, self.idle, self.waited, self.ksoftirqd, self.hypervisor)
        return WaitShares(
            *(np.where(known, column[rows], 0.0) if len(column) else np.zeros(len(rows)) for column in columns)
        )

    def capped(self, waited: Floats, steal: Steal | None) -> WaitShares:
        """With the hypervisor's share limited to what can be stolen now: the reading may be old."""
        if not self.hypervisor.any():
            return self
        limit = np.zeros(len(waited)) if steal is None else ratio(steal.limit(waited), waited)
        return replace(self, hypervisor=np.minimum(self.hypervisor, limit))


@dataclass(frozen=True, slots=True)
class _StolenWait:
    """CPU steal together with the waiting that it is part of."""

    steal: Steal
    waited: Floats

    @property
    def wanted_cores(self) -> Floats:
        return wanted_time(self.waited, self.steal.ran)

    def kept(self, row: int, parts: Floats) -> Floats:
        """Fraction of each part of one container's waiting that remains after removing steal, 0..1. `parts`: fraction
        of the waiting behind each container and, last, behind everything outside containers."""
        waits = parts[None] * self.waited[row]
        taken = self.steal.taken_by_container(np.array([row]), waits, self.wanted_cores[row : row + 1])
        return 1.0 - ratio(taken[0], waits[0])


class _Culprits:
    """Numbers for the culprits of one matrix: a container's is its row, others follow in the order of their
    appearance. Filled on demand, because only a few rows are read."""

    def __init__(self, matrix: CulpritMatrix, rows: ContainerRows, owner: OwnerOf) -> None:
        self._matrix = matrix
        self._rows = rows
        self._owner = owner
        self._number_of_key: dict[int, int] = {}
        self._number_of_identity: dict[str, int] = {}
        self.unknown: list[int] = []
        self.idle: list[int] = []

    @property
    def count(self) -> int:
        """Containers, and the other culprits that were met so far."""
        return self._rows.count + len(self._number_of_identity)

    @cached_property
    def victim_rows(self) -> NDArray[np.intp]:
        """Row of each entry's victim."""
        return self._rows.of(self._matrix.victim)

    def numbers(self, keys: Ints) -> NDArray[np.intp]:
        """Number of each key's culprit."""
        numbers = self._rows.of(keys)
        outside = np.flatnonzero(numbers < 0)
        numbers[outside] = [self._number(key) for key in keys[outside].tolist()]
        return numbers

    def _number(self, key: int) -> int:
        number = self._number_of_key.get(key)
        if number is None:
            owner = culprit_owner(key, self._owner)
            number = self._number_of_identity.setdefault(identity(owner), self.count)
            self._number_of_key[key] = number
            if owner.kind == "unknown":
                self.unknown.append(number)
            elif owner.kind == "idle":
                self.idle.append(number)
        return number


@dataclass(frozen=True)
class Attribution:
    """One culprit matrix over a window, by container. `without_hypervisor` gives the same without stolen time."""

    matrix: CulpritMatrix
    seconds: float
    """Length of the matrix's window."""
    rows: ContainerRows
    owner: OwnerOf
    _culprits: _Culprits
    _stolen: _StolenWait | None = None

    @classmethod
    def of(cls, matrix: CulpritMatrix, seconds: float, rows: ContainerRows, owner: OwnerOf) -> Attribution:
        return cls(matrix, seconds, rows, owner, _Culprits(matrix, rows, owner))

    def without_hypervisor(self, steal: Steal | None, waited: Floats) -> Attribution:
        """With the hypervisor's part of `waited` (seconds per second, [containers]) separated."""
        return replace(self, _stolen=None if steal is None else _StolenWait(steal, waited))

    def shares(self, waited: Floats) -> WaitShares:
        """Shares by kind of culprit, over the waiting whose runner is known. Goes through the matrix
        `ENTRIES_PER_PIECE` entries at a time."""
        count, width = self.rows.count, self.rows.count + 1
        by_kind = np.zeros(count * len(_KIND_KEYS))
        by_runner = np.zeros(0 if self._stolen is None else count * width)
        for start in range(0, len(self.matrix.victim), ENTRIES_PER_PIECE):
            piece = slice(start, start + ENTRIES_PER_PIECE)
            victim_rows = self.rows.of(self.matrix.victim[piece])
            entries = np.flatnonzero(victim_rows >= 0)
            victim, culprit = victim_rows[entries], self.matrix.culprit[piece][entries]
            runner = self.rows.of(culprit)
            kind = _KIND_OF[-np.clip(culprit, _LOWEST_KEY, 0)]
            kind[runner == victim] = _OWN
            waits = self.matrix.ns[piece][entries]
            by_kind += np.bincount(victim * len(_KIND_KEYS) + kind, waits, len(by_kind))
            if self._stolen is not None:
                held_cpu = (kind != _IDLE) & (kind < _FIRST_UNATTRIBUTED)
                cell = victim * width + np.where(runner < 0, count, runner)
                by_runner += np.bincount(cell, waits * held_cpu, len(by_runner))
        known = by_kind.reshape(count, len(_KIND_KEYS))[:, :_FIRST_UNATTRIBUTED]
        whole = np.maximum(known.sum(axis=1), 1.0)
        own, idle, ksoftirqd = (known[:, kind] / whole for kind in (_OWN, _IDLE, _KSOFTIRQD))
        shares = WaitShares(own, idle, waited, ksoftirqd, np.zeros(count))
        if self._stolen is None:
            return shares
        return _without_hypervisor(shares, by_runner.reshape(count, width) / whole[:, None], self._stolen)

    def top(self, row: int, count: int = TOP_CULPRITS) -> list[CulpritTime]:
        """The `count` culprits that one container waited longest for, per second; the rest is summed up as `REST`.
        Waiting without a known runner is spread over the known ones. The same as `attribution.culprits_by_subject`, for
        one row."""
        culprits = self._culprits
        entries = np.flatnonzero(culprits.victim_rows == row)
        keys = self.matrix.culprit[entries]
        numbers = culprits.numbers(keys)
        size = culprits.count
        key_of = np.zeros(size, dtype=np.int64)
        key_of[numbers] = keys
        known = np.ones(size, dtype=bool)
        known[culprits.unknown] = False
        ns, waits = (
            np.bincount(numbers, column[entries], size).astype(np.float64)
            for column in (self.matrix.ns, self.matrix.count)
        )
        whole, attributed = ns.sum(), ns[known].sum()
        if attributed:  # a culprit that ran recently also ran in the part of the window that was not recorded
            ns = np.where(known, ns * (whole / attributed), 0.0)
        kept = whole
        if attributed and self._stolen is not None:
            ns = self._reduced(ns, row, self._stolen)
            kept = ns.sum()
        scale = 1e-9 / self.seconds
        longest = np.argsort(-ns, kind="stable")[: min(count, np.count_nonzero(ns))]
        culprit_times = [
            CulpritTime(culprit_owner(key, self.owner), waited * scale, int(number))
            for key, waited, number in zip(key_of[longest].tolist(), ns[longest].tolist(), waits[longest], strict=True)
        ]
        if np.count_nonzero(ns) > len(longest):
            rest = float(kept - ns[longest].sum()) * scale
            culprit_times.append(CulpritTime(REST, rest, int(waits.sum() - waits[longest].sum())))
        if whole - kept > 1.0:
            culprit_times.append(CulpritTime(HYPERVISOR, float(whole - kept) * scale, 0))
            culprit_times.sort(key=lambda item: -item.seconds)
        return culprit_times

    def _reduced(self, ns: Floats, row: int, stolen: _StolenWait) -> Floats:
        """Without the hypervisor's part; waiting behind an idle CPU stays with the idle CPU."""
        containers, idle = self.rows.count, self._culprits.idle
        parts = ns / ns.sum()
        parts[idle] = 0.0
        kept = stolen.kept(row, np.append(parts[:containers], parts[containers:].sum()))
        factors = np.append(kept[:-1], np.full(len(ns) - containers, kept[-1]))
        factors[idle] = 1.0
        reduced: Floats = ns * factors
        return reduced


def _without_hypervisor(shares: WaitShares, parts: Floats, stolen: _StolenWait) -> WaitShares:
    """`shares` without the hypervisor's. `parts`: of each container's waiting, the fraction behind each container and,
    in the last column, behind everything outside containers."""
    waits, every_row = parts * shares.waited[:, None], np.arange(len(parts))
    taken = ratio(stolen.steal.taken_by_container(every_row, waits, stolen.wanted_cores), shares.waited[:, None])
    return replace(
        shares,
        own=np.maximum(shares.own - taken[every_row, every_row], 0.0),
        ksoftirqd=shares.ksoftirqd * (1.0 - ratio(taken[:, -1], parts[:, -1])),
        hypervisor=taken.sum(axis=1),
    )
