"""Counters that never run back, made of sums that may.

What a probe counted for a cgroup ends when the cgroup goes, though it may have been one of several that make up a
container or a culprit. A counter that fell would be a restart to Prometheus, and its rate a lie: so a part that is
taken away stays counted here. Only what happened between the last two scrapes of such a part can be lost.
Bounded by the subjects of the node and the probe's matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from koordlet.metricsadvisor.stalls.latency import identity
from koordlet.metricsadvisor.stalls.waiting import Waiting
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.probes.loading.mapped import Ints
from koordlet.statesinformer.pods.cgroupindex import Owner

LEAST_SHARE = 0.01
LEAST_NS = 10_000_000
"""Below these a culprit gets no series of its own: on a full node everybody waits a little for everybody."""


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

    The longest get a series each, if they matter: with `LEAST_SHARE` of all that the victim waited, and `LEAST_NS`. A
    culprit keeps its place while the probe knows it, and what all others add is counted under no name. A full node has
    fifty thousand pairs: a table of victims by culprits all the way. A pair's cell is its victim's number times the
    number of culprits, plus its culprit's.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._victims: list[str] = []
        self._culprits: list[str] = []
        self._ns = np.zeros((0, 0), dtype=np.int64)
        """The table of the last scrape."""
        none = np.zeros(0, dtype=np.int64)
        self._placed, self._counted = none, none
        """Cells of those with places, by victim, and what they count."""
        self._other = none
        """By victim."""

    def update(self, waiting: Waiting) -> Iterator[tuple[str, Owner | None, float]]:
        """(victim, culprit, seconds) now; the culprit is None for all that have no place. *waiting* is kept."""
        names = [identity(one) for one in waiting.culprits]
        placed, counted, other = self._placed, self._counted, self._other
        gained = self._ns
        if names != self._culprits or waiting.victims != self._victims:
            gained, placed, counted, other = self._moved(waiting.victims, names)
        np.subtract(waiting.ns, gained, out=gained)
        np.maximum(gained, 0, out=gained)

        there = waiting.ns.take(placed) > 0
        placed = placed[there]
        counted = counted[there] + gained.take(placed)
        placed, counted = self._fill(waiting.ns, gained, placed, counted)

        other = other + gained.sum(axis=1)
        np.subtract.at(other, placed // max(len(names), 1), gained.take(placed))
        other[~waiting.ns.any(axis=1)] = 0  # one without any pair ends

        self._victims, self._culprits, self._ns = waiting.victims, names, waiting.ns
        self._placed, self._counted, self._other = placed, counted, other
        return self._rows(waiting)

    def _moved(self, victims: Sequence[str], culprits: Sequence[str]) -> tuple[Ints, Ints, Ints, Ints]:
        """The last scrape's table, places, what they and the others count, by today's numbers; what went is out."""
        of_victim, of_culprit = _renaming(self._victims, victims), _renaming(self._culprits, culprits)
        rows, columns = np.flatnonzero(of_victim >= 0), np.flatnonzero(of_culprit >= 0)
        table = np.zeros((len(victims), len(culprits)), dtype=np.int64)
        table[np.ix_(of_victim[rows], of_culprit[columns])] = self._ns[np.ix_(rows, columns)]
        victim, culprit = np.divmod(self._placed, max(len(self._culprits), 1))
        known = (of_victim[victim] >= 0) & (of_culprit[culprit] >= 0)
        placed = of_victim[victim[known]] * len(culprits) + of_culprit[culprit[known]]
        order = np.argsort(placed // max(len(culprits), 1), kind="stable")
        other = np.zeros(len(victims), dtype=np.int64)
        other[of_victim[rows]] = self._other[rows]
        return table, placed[order], self._counted[known][order], other

    def _fill(self, table: Ints, gained: Ints, placed: Ints, counted: Ints) -> tuple[Ints, Ints]:
        """Give places that are free to the longest; by victim, those that had theirs first. What one added while it had
        none stays counted with the others', so that all series of a victim sum up to what it waited."""
        wide = max(table.shape[1], 1)
        had = np.bincount(placed // wide, minlength=len(table))
        least = np.maximum(LEAST_SHARE * table.sum(axis=1), LEAST_NS)
        matters = table >= least[:, np.newaxis]
        matters.reshape(-1)[placed] = False
        new = [placed]
        for victim in np.flatnonzero(matters.any(axis=1) & (had < self._places)).tolist():
            found = np.flatnonzero(matters[victim])
            longest = np.argsort(-table[victim, found], kind="stable")[: self._places - had[victim]]
            new.append(victim * wide + found[longest])
        if len(new) == 1:
            return placed, counted
        cells = np.concatenate(new)
        counted = np.concatenate([counted, gained.take(cells[len(counted) :])])
        order = np.argsort(cells // wide, kind="stable")
        return cells[order], counted[order]

    def _rows(self, waiting: Waiting) -> Iterator[tuple[str, Owner | None, float]]:
        victim, culprit = np.divmod(self._placed, max(len(waiting.culprits), 1))
        ends = np.searchsorted(victim, np.arange(len(waiting.victims)), side="right").tolist()
        culprits, seconds = culprit.tolist(), (self._counted / 1e9).tolist()
        begin = 0
        for name, end, other in zip(waiting.victims, ends, (self._other / 1e9).tolist(), strict=True):
            for at in range(begin, end):
                yield name, waiting.culprits[culprits[at]], seconds[at]
            begin = end
            if other:
                yield name, None, other


def _renaming(before: Sequence[str], now: Sequence[str]) -> Ints:
    """For each name of before its number now, or -1."""
    number = {name: at for at, name in enumerate(now)}
    return np.array([number.get(name, -1) for name in before], dtype=np.int64)
