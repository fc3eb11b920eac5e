"""Counters that never run back, made of sums that may.

What a probe counted for a cgroup ends when the cgroup goes, though it may have been one of several that make up a
container or a culprit. A counter that fell would be a restart to Prometheus, and its rate a lie: so a part that is
taken away stays counted here. Only what happened between the last two scrapes of such a part can be lost.
Bounded by the subjects of the node and the probe's matrix.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import numpy as np

from koordlet.metricsadvisor.latency import Blame
from koordlet.metricsadvisor.readings import Floats
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
    """The waiting of one victim by culprit. The longest get a series each; a culprit keeps its place while the probe
    knows it, and what all others add is counted as `other`."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._last: dict[str, float] = {}
        self.own: dict[str, tuple[Owner, float]] = {}
        """Culprit -> who it is and seconds."""
        self.other = 0.0

    def update(self, blames: Iterable[Blame]) -> None:
        """`blames`: all there is now, longest first."""
        now = {_key(one.owner): one for one in blames}
        self.own = {key: kept for key, kept in self.own.items() if key in now}
        for key, one in now.items():
            gained = max(one.seconds - self._last.get(key, 0.0), 0.0)
            if key in self.own:
                self.own[key] = (one.owner, self.own[key][1] + gained)
            elif len(self.own) < self._places:
                self.own[key] = (one.owner, one.seconds)
            else:
                self.other += gained
        self._last = {key: one.seconds for key, one in now.items()}


def _key(owner: Owner) -> str:
    """One object for all victims: a full node has fifty thousand pairs."""
    return sys.intern(f"{owner.kind} {owner.subject.key if owner.subject is not None else owner.label}")
