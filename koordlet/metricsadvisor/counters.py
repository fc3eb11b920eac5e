"""Counters that never run back, made of sums that may.

What a probe counted for a cgroup ends when the cgroup goes, though it may have been one of several that make up a
container or a culprit. A counter that fell would be a restart to Prometheus, and its rate a lie: so a part that is
taken away stays counted here. Only what happened between the last two scrapes of such a part can be lost.
Bounded by the subjects of the node and the probe's matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from koordlet.metricsadvisor.latency import Pairs, identity
from koordlet.metricsadvisor.readings import Floats
from koordlet.probes.mapped import Ints
from koordlet.probes.rows import align
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


class CulpritCounters:
    """The waiting of each victim by culprit, at each scrape.

    The longest get a series each; a culprit keeps its place while the probe knows it, and what all others add is
    counted under no name. A full node has fifty thousand pairs: all but those in places stay columns.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._victims: list[str] = []
        self._culprits: list[str] = []
        self._codes: Ints = np.zeros(0, dtype=np.int64)
        """Pairs of the last scrape, victim's number x culprits + culprit's; sorted."""
        self._ns: Ints = self._codes
        self._own: dict[str, dict[str, tuple[Owner, int]]] = {}
        """Victim -> culprit -> who it is and ns."""
        self._other: dict[str, int] = {}

    def update(self, pairs: Pairs) -> Iterator[tuple[str, Owner | None, float]]:
        """(victim, culprit, seconds) now; the culprit is None for all that have no place."""
        names = [identity(one) for one in pairs.culprits]
        number = {name: at for at, name in enumerate(names)}
        gained = np.maximum(pairs.ns - self._before(pairs, names), 0)
        own: dict[str, dict[str, tuple[Owner, int]]] = {}
        other = {}
        for victim, at in pairs.of_victims():
            placed = np.zeros(at.stop - at.start, dtype=bool)
            where = {who: row for row, who in enumerate(pairs.culprit[at].tolist())}
            kept = own[victim] = {}
            for name, (_, ns) in self._own.get(victim, {}).items():
                who = number.get(name, -1)
                row = where.get(who)
                if row is not None:
                    placed[row] = True
                    kept[name] = (pairs.culprits[who], ns + int(gained[at][row]))
            if len(kept) < min(self._places, len(placed)):
                for row in np.argsort(-np.where(placed, 0, pairs.ns[at]), kind="stable")[: self._places - len(kept)]:
                    if not placed[row]:
                        placed[row] = True
                        who = int(pairs.culprit[at][row])
                        kept[names[who]] = (pairs.culprits[who], int(pairs.ns[at][row]))
            other[victim] = self._other.get(victim, 0) + int(gained[at][~placed].sum())
        self._own, self._other = own, other
        return self._rows()

    def _before(self, pairs: Pairs, names: list[str]) -> Ints:
        """What each pair had at the last scrape; 0 for a new one. Remembers this one."""
        victims = {name: number for number, name in enumerate(self._victims)}
        culprits = {name: number for number, name in enumerate(self._culprits)}
        victim = np.array([victims.get(name, -1) for name in pairs.victims], dtype=np.int64)[pairs.victim]
        culprit = np.array([culprits.get(name, -1) for name in names], dtype=np.int64)[pairs.culprit]
        found = align(self._codes, np.where((victim < 0) | (culprit < 0), -1, victim * len(culprits) + culprit))
        before = np.zeros(len(pairs.ns), dtype=np.int64)
        before[found >= 0] = self._ns[found[found >= 0]]
        codes = pairs.victim * len(names) + pairs.culprit
        order = np.argsort(codes)
        self._victims, self._culprits = pairs.victims, names
        self._codes, self._ns = codes[order], pairs.ns[order]
        return before

    def _rows(self) -> Iterator[tuple[str, Owner | None, float]]:
        for victim, kept in self._own.items():
            for owner, ns in kept.values():
                yield victim, owner, ns / 1e9
            if self._other[victim]:
                yield victim, None, self._other[victim] / 1e9
