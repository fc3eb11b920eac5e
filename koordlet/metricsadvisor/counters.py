"""Counters that never run back, made of sums that may.

What a probe counted for a cgroup ends when the cgroup goes, though it may have been one of several that make up a
container or a culprit. A counter that fell would be a restart to Prometheus, and its rate a lie: so a part that is
taken away stays counted here. Only what happened between the last two scrapes of such a part can be lost.
Bounded by the subjects of the node and the probe's matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from koordlet.metricsadvisor.latency import Pairs, identity
from koordlet.metricsadvisor.readings import Floats
from koordlet.probes.mapped import Ints, sum_by
from koordlet.statesinformer.cgroupindex import Owner


class SteadySums:
    """Sums by subject key: numbers or histograms."""

    def __init__(self) -> None:
        self._last: dict[str, Floats] = {}
        self._taken: dict[str, Floats] = {}

    def update(self, sums: Mapping[str, Floats]) -> dict[str, Floats]:
        """The counters now; a key that is left out ends."""
        taken = {
            key: self._taken.get(key, 0) + np.maximum(self._last.get(key, 0) - now, 0) for key, now in sums.items()
        }
        self._last, self._taken = dict(sums), taken
        return {key: now + taken[key] for key, now in sums.items()}


class SteadyTable:
    """`SteadySums` of a whole table of integers: row i belongs to keys[i]."""

    def __init__(self) -> None:
        self._keys: Sequence[str] = ()
        self._last: Ints | None = None
        self._taken: Ints | None = None

    def update(self, keys: Sequence[str], now: Ints) -> Ints:
        """The counters now; a key that is left out ends."""
        if self._last is None or self._taken is None:
            taken = np.zeros_like(now)
        elif self._keys == keys:
            taken = self._taken + np.maximum(self._last - now, 0)
        else:
            at = {key: row for row, key in enumerate(self._keys)}
            rows = np.array([at.get(key, -1) for key in keys], dtype=np.intp)
            taken, known = np.zeros_like(now), rows >= 0
            before = rows[known]
            taken[known] = self._taken[before] + np.maximum(self._last[before] - now[known], 0)
        self._keys, self._last, self._taken = keys, now, taken
        return now + taken


class CulpritCounters:
    """The waiting of each victim by culprit, at each scrape.

    The longest get a series each; a culprit keeps its place while the probe knows it, and what all others add is
    counted under no name. A full node has fifty thousand pairs: columns all the way. A pair's code is its victim's
    number times the number of culprits, plus its culprit's.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._victims: list[str] = []
        self._culprits: list[str] = []
        none = np.zeros(0, dtype=np.int64)
        self._codes, self._ns = none, none
        """Pairs of the last scrape, in any order."""
        self._placed, self._counted = none, none
        """Codes of those with places, by victim, and what they count."""
        self._other = none
        """By victim."""

    def update(self, pairs: Pairs) -> Iterator[tuple[str, Owner | None, float]]:
        """(victim, culprit, seconds) now; the culprit is None for all that have no place."""
        names = [identity(one) for one in pairs.culprits]
        victims, width, count = len(pairs.victims), max(len(names), 1), len(pairs.ns)
        codes = pairs.victim * width + pairs.culprit
        renamed = _renaming(self._culprits, names)
        moved = _renaming(self._victims, pairs.victims)

        table = np.zeros(victims * width, dtype=np.int64)
        known, at = self._now(self._codes, moved, renamed, width)
        table[at] = self._ns[known]
        gained = np.maximum(pairs.ns - table[codes], 0)

        table[:] = -1
        table[codes] = np.arange(count)
        known, at = self._now(self._placed, moved, renamed, width)
        rows, counted = table[at], self._counted[known]
        rows, counted = rows[rows >= 0], counted[rows >= 0]
        counted = counted + gained[rows]
        rows, counted = self._fill(pairs, rows, counted)

        other = np.zeros(victims, dtype=np.int64)
        other[moved[moved >= 0]] = self._other[moved >= 0]
        rest = np.ones(count, dtype=bool)
        rest[rows] = False
        there = np.zeros(victims, dtype=bool)
        there[pairs.victim] = True  # one without any pair ends
        other = np.where(there, other + sum_by(pairs.victim[rest], gained[rest], victims), 0)

        self._victims, self._culprits = pairs.victims, names
        self._codes, self._ns = codes, pairs.ns
        self._placed, self._counted, self._other = codes[rows], counted, other
        return self._rows(pairs, rows)

    def _now(self, codes: Ints, moved: Ints, renamed: Ints, width: int) -> tuple[Ints, Ints]:
        """Which *codes* of the last scrape are of parties that are still there, and what their codes are now."""
        before = max(len(self._culprits), 1)
        victim, culprit = (names[of] for names, of in zip((moved, renamed), np.divmod(codes, before), strict=True))
        known = np.flatnonzero((victim >= 0) & (culprit >= 0))
        return known, victim[known] * width + culprit[known]

    def _fill(self, pairs: Pairs, rows: Ints, counted: Ints) -> tuple[Ints, Ints]:
        """Give places that are free to the longest; by victim, those that had theirs first."""
        had = np.bincount(pairs.victim[rows], minlength=len(pairs.victims))
        wanted = np.minimum(np.bincount(pairs.victim, minlength=len(pairs.victims)), self._places) - had
        waits = pairs.ns.copy()
        waits[rows] = 0
        new = [rows]
        for victim in np.flatnonzero(wanted > 0).tolist():
            begin, end = np.searchsorted(pairs.victim, [victim, victim + 1]).tolist()
            new.append(begin + np.argsort(-waits[begin:end], kind="stable")[: wanted[victim]])
        rows = np.concatenate(new)
        counted = np.concatenate([counted, pairs.ns[rows[len(counted) :]]])
        order = np.argsort(pairs.victim[rows], kind="stable")
        return rows[order], counted[order]

    def _rows(self, pairs: Pairs, rows: Ints) -> Iterator[tuple[str, Owner | None, float]]:
        last = -1
        others = (self._other / 1e9).tolist()
        columns = (pairs.victim[rows].tolist(), pairs.culprit[rows].tolist(), (self._counted / 1e9).tolist())
        for victim, culprit, seconds in zip(*columns, strict=True):
            if victim != last and last >= 0 and others[last]:
                yield pairs.victims[last], None, others[last]
            last = victim
            yield pairs.victims[victim], pairs.culprits[culprit], seconds
        if last >= 0 and others[last]:
            yield pairs.victims[last], None, others[last]


def _renaming(before: Sequence[str], now: Sequence[str]) -> Ints:
    """For each name of before its number now, or -1."""
    number = {name: at for at, name in enumerate(now)}
    return np.array([number.get(name, -1) for name in before], dtype=np.int64)
