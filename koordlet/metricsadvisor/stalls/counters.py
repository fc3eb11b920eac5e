"""Monotonic Prometheus counters from per-cgroup sums that drop when a cgroup is deleted. Pure.

The counts of a cgroup disappear with it, though it may be one of several that make up a container or a culprit.
Prometheus reads a falling counter as a restart and computes a wrong rate. So the part that disappears stays counted
here. Only what that cgroup added between its last two scrapes can be lost. Bounded by the subjects of the node and the
probe's matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from koordlet.metricsadvisor.stalls.attribution import identity
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.probes.columns import Ints
from koordlet.probes.culprits.matrix import SubjectTable
from koordlet.statesinformer.pods.cgroupindex import Owner

MAX_CULPRITS = 10
"""Culprits that a victim exports at most; what the others add is counted under `other`."""
MIN_SHARE = 0.01
MIN_NS = 10_000_000
"""Below these a culprit gets no series of its own: on a full node every container waits a little for every other."""


class MonotonicSums:
    """Counters by subject key: numbers or histograms."""

    def __init__(self) -> None:
        self._last: dict[str, Floats] = {}
        self._removed: dict[str, Floats] = {}
        """What disappeared from the sums so far."""

    def update(self, sums: Mapping[str, Floats]) -> dict[str, Floats]:
        """The counters for these sums; a key that is missing ends."""
        removed = {
            key: self._removed.get(key, 0) + np.maximum(self._last.get(key, 0) - now, 0) for key, now in sums.items()
        }
        self._last = dict(sums)
        self._removed = removed
        return {key: now + removed[key] for key, now in sums.items()}


class MonotonicTable:
    """`MonotonicSums` of a table of integers: row i belongs to keys[i]."""

    def __init__(self) -> None:
        self._keys: Sequence[str] = ()
        self._last: Ints | None = None
        self._removed: Ints | None = None

    def update(self, keys: Sequence[str], sums: Ints) -> Ints:
        """The counters for these sums; a key that is missing ends."""
        if self._last is None or self._removed is None:
            removed = np.zeros_like(sums)
        elif self._keys == keys:
            removed = self._removed + np.maximum(self._last - sums, 0)
        else:
            row_of = {key: row for row, key in enumerate(self._keys)}
            rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.intp)
            removed, known = np.zeros_like(sums), rows >= 0
            before = rows[known]
            removed[known] = self._removed[before] + np.maximum(self._last[before] - sums[known], 0)
        self._keys = keys
        self._last = sums
        self._removed = removed
        return sums + removed


class CulpritCounters:
    """The waiting of each victim by culprit, at each scrape.

    At most `max_culprits` of a victim get a series each, if they are large enough: `MIN_SHARE` of all that the victim
    waited, and `MIN_NS`. A culprit keeps its series while the probe has it; what all others add is counted without a
    name. A full node has fifty thousand pairs, so all state is a table of victims by culprits. A pair's cell is its
    victim's index times the number of culprits, plus its culprit's index.
    """

    def __init__(self, max_culprits: int = MAX_CULPRITS) -> None:
        self._max_culprits = max_culprits
        self._victims: list[str] = []
        self._culprits: list[str] = []
        """Identities."""
        self._ns = np.zeros((0, 0), dtype=np.int64)
        """The table of the last scrape."""
        self._cells = np.zeros(0, dtype=np.int64)
        """Cells with a series, by victim."""
        self._counted = np.zeros(0, dtype=np.int64)
        """The counters of `_cells`."""
        self._other = np.zeros(0, dtype=np.int64)
        """The counters of all other cells together, by victim."""

    def update(self, table: SubjectTable[Owner]) -> Iterator[tuple[str, Owner | None, float]]:
        """(victim, culprit, seconds) now; the culprit is None for all without a series. Keeps a reference to
        `table`."""
        names = [identity(culprit) for culprit in table.culprits]
        cells, counted, other = self._cells, self._counted, self._other
        gained = self._ns
        if names != self._culprits or table.victims != self._victims:
            gained, cells, counted, other = self._renumbered(table.victims, names)
        np.subtract(table.ns, gained, out=gained)
        np.maximum(gained, 0, out=gained)

        alive = table.ns.take(cells) > 0
        cells = cells[alive]
        counted = counted[alive] + gained.take(cells)
        cells, counted = self._fill(table.ns, gained, cells, counted)

        other = other + gained.sum(axis=1)
        np.subtract.at(other, cells // max(len(names), 1), gained.take(cells))
        other[~table.ns.any(axis=1)] = 0  # a victim without any pair ends

        self._victims = table.victims
        self._culprits = names
        self._ns = table.ns
        self._cells = cells
        self._counted = counted
        self._other = other
        return self._rows(table)

    def _renumbered(self, victims: Sequence[str], culprits: Sequence[str]) -> tuple[Ints, Ints, Ints, Ints]:
        """(table, cells, counters, counters of others) of the last scrape by the present indices; what disappeared is
        left out."""
        of_victim, of_culprit = _new_indices(self._victims, victims), _new_indices(self._culprits, culprits)
        rows, columns = np.flatnonzero(of_victim >= 0), np.flatnonzero(of_culprit >= 0)
        table = np.zeros((len(victims), len(culprits)), dtype=np.int64)
        table[np.ix_(of_victim[rows], of_culprit[columns])] = self._ns[np.ix_(rows, columns)]
        victim, culprit = np.divmod(self._cells, max(len(self._culprits), 1))
        known = (of_victim[victim] >= 0) & (of_culprit[culprit] >= 0)
        cells = of_victim[victim[known]] * len(culprits) + of_culprit[culprit[known]]
        order = np.argsort(cells // max(len(culprits), 1), kind="stable")
        other = np.zeros(len(victims), dtype=np.int64)
        other[of_victim[rows]] = self._other[rows]
        return table, cells[order], self._counted[known][order], other

    def _fill(self, table: Ints, gained: Ints, cells: Ints, counted: Ints) -> tuple[Ints, Ints]:
        """Give free series to the longest pairs; by victim, those that had one first. What a pair added before it had a
        series stays counted with the others, so that all series of a victim add up to its waiting."""
        width = max(table.shape[1], 1)
        used = np.bincount(cells // width, minlength=len(table))
        least = np.maximum(MIN_SHARE * table.sum(axis=1), MIN_NS)
        candidate = table >= least[:, np.newaxis]
        candidate.reshape(-1)[cells] = False
        parts = [cells]
        for victim in np.flatnonzero(candidate.any(axis=1) & (used < self._max_culprits)).tolist():
            columns = np.flatnonzero(candidate[victim])
            longest = np.argsort(-table[victim, columns], kind="stable")[: self._max_culprits - used[victim]]
            parts.append(victim * width + columns[longest])
        if len(parts) == 1:
            return cells, counted
        filled = np.concatenate(parts)
        counted = np.concatenate([counted, gained.take(filled[len(counted) :])])
        order = np.argsort(filled // width, kind="stable")
        return filled[order], counted[order]

    def _rows(self, table: SubjectTable[Owner]) -> Iterator[tuple[str, Owner | None, float]]:
        victim, culprit = np.divmod(self._cells, max(len(table.culprits), 1))
        ends = np.searchsorted(victim, np.arange(len(table.victims)), side="right").tolist()
        culprits, seconds = culprit.tolist(), (self._counted / 1e9).tolist()
        begin = 0
        for name, end, other in zip(table.victims, ends, (self._other / 1e9).tolist(), strict=True):
            for row in range(begin, end):
                yield name, table.culprits[culprits[row]], seconds[row]
            begin = end
            if other:
                yield name, None, other


def _new_indices(before: Sequence[str], now: Sequence[str]) -> Ints:
    """For each name of `before` its index in `now`, or -1."""
    index_of = {name: index for index, name in enumerate(now)}
    return np.array([index_of.get(name, -1) for name in before], dtype=np.int64)
