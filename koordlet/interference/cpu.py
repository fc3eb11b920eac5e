"""Evidence about the CPU: a short window over the schedule-latency source's totals, summed by container. Pure.

Where a probe counts, waiting for a CPU that others held, waiting behind own threads (the culprit matrix has the victim
itself as runner) and waiting for the own quota are three figures. `schedstat` and cpu.pressure know only their sum:
there a container whose quota runs out in more than a tenth of its periods is taken to wait for its quota.

The matrix is the expensive part of a reading. It is asked for only while somebody waits noticeably (`SCREEN`); without
it all waiting is taken to be others' doing, which is then too little to matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats, ResourceEvidence
from koordlet.metricsadvisor.latency import Blame, OwnerOf, blame
from koordlet.probes.layout import SPECIAL_KEYS
from koordlet.probes.snapshot import SchedLatencySnapshot, diff, quantiles

HARDLY = 0.02
"""Seconds a second added to what a container ran: one that hardly runs hardly suffers."""
SCREEN = 0.03
"""Share of time lost, for whatever reason, from which on it is worth knowing who had the CPU."""
THROTTLED_PERIODS = 0.1
UNTOLD = tuple(SPECIAL_KEYS[name] for name in ("older", "moved", "overflow"))
IDLE = SPECIAL_KEYS["idle"]
Ints = NDArray[np.int64]
PROBES = ("bpf", "bcc")


def lost_share(held_up: Floats, rest: Floats) -> Floats:
    """Part of the time wanted that was lost, 0..1; `rest` is what else it wanted, got or not, in seconds a second too.

    Time of tasks, not of the wall: where ten own tasks wait while a stranger has the CPU for a moment, ten wait for it,
    but they would have waited for each other otherwise, and that is in `rest`.
    """
    share: Floats = held_up / (held_up + np.nan_to_num(rest) + HARDLY)
    return share


@dataclass(frozen=True, slots=True)
class Rows:
    """Which container a cgroup id belongs to."""

    keys: Ints
    """Sorted."""
    rows: NDArray[np.intp]
    """Row for each key, -1 for what is no container."""
    count: int

    def of(self, keys: Ints) -> NDArray[np.intp]:
        """Row for each of `keys`, -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.intp)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.rows[at], -1)

    def sum(self, rows: NDArray[np.intp], values: Ints) -> Floats:
        """Sums by row, [count]; rows of -1 are left out."""
        known = rows >= 0
        sums = np.bincount(rows[known], weights=values[known].astype(np.float64), minlength=self.count)
        return sums.astype(np.float64)


class CpuWindow:
    """The last `seconds` of snapshots; whole ones are kept apart for the culprits."""

    def __init__(self, seconds: float = 3.0) -> None:
        self.seconds = seconds
        self._all: deque[SchedLatencySnapshot] = deque()
        self._whole: deque[SchedLatencySnapshot] = deque()

    def push(self, snapshot: SchedLatencySnapshot) -> None:
        """Take a reading, whole or not; one that was taken already changes nothing."""
        if self._all and self._all[-1].source != snapshot.source:
            self._all.clear()
            self._whole.clear()
        whole = len(snapshot.victim) > 0
        rings = [self._all, self._whole] if whole else [self._all]
        for ring in rings:
            if ring and ring[-1].time_ns >= snapshot.time_ns:
                continue
            ring.append(snapshot)
            while len(ring) > 2 and snapshot.time_ns - ring[1].time_ns >= self.seconds * 1e9:
                ring.popleft()

    def sums(self) -> tuple[SchedLatencySnapshot, float] | None:
        """What happened in the window without culprits, and its seconds; None before two readings."""
        return _between(self._all, matrix=False)

    def matrix(self) -> tuple[SchedLatencySnapshot, float] | None:
        """The same with culprits, up to the newest whole reading if that is recent enough to speak of this window."""
        if not self._whole or self._all[-1].time_ns - self._whole[-1].time_ns > self.seconds * 1e9:
            return None
        return _between(self._whole, matrix=True)


def _between(ring: deque[SchedLatencySnapshot], *, matrix: bool) -> tuple[SchedLatencySnapshot, float] | None:
    if len(ring) < 2:
        return None
    return diff(ring[0], ring[-1], matrix=matrix), (ring[-1].time_ns - ring[0].time_ns) / 1e9


def wants_matrix(sums: SchedLatencySnapshot, seconds: float, rows: Rows, ran: Floats) -> bool:
    """Whether any container waited enough to ask who had the CPU. Only probes can tell."""
    if sums.source not in PROBES or not rows.count:
        return False
    waited = rows.sum(rows.of(sums.keys), sums.sum_ns) / 1e9 / seconds
    return bool((lost_share(waited, ran) >= SCREEN).any())


def cpu_evidence(
    sums: tuple[SchedLatencySnapshot, float],
    matrix: tuple[SchedLatencySnapshot, float] | None,
    rows: Rows,
    ran: Floats,
    owner: OwnerOf,
    *,
    throttled_periods: Floats,
    pressure: Floats | None,
    guess: Callable[[int], Sequence[Blame]],
) -> ResourceEvidence:
    """Symptoms of `rows.count` containers; `ran` in cores; `guess` names culprits where nothing was seen."""
    window, seconds = sums
    at = rows.of(window.keys)
    waited, quota = (rows.sum(at, column) / 1e9 / seconds for column in (window.sum_ns, window.throttled_ns))
    own_share, nobody = np.zeros(rows.count), np.zeros(rows.count)
    named = False
    culprits: Callable[[int], Sequence[Blame]] = _nobody
    if window.source in PROBES:
        if matrix is not None:
            own_share, nobody = _shares(matrix[0], rows)
            named, culprits = True, _culprits(*matrix, seconds, owner, rows)
    else:  # one sum for everything
        stopped = np.nan_to_num(throttled_periods) > THROTTLED_PERIODS
        quota = np.where(stopped, waited, 0.0)
        waited = np.where(stopped, 0.0, waited)
        culprits = guess
    threads = waited * own_share
    others = waited * np.maximum(1.0 - own_share - nobody, 0.0)
    own = threads + quota  # both causes are parts of one whole: all that it wanted
    return ResourceEvidence(
        source=window.source,
        others=lost_share(others, ran + own),
        own=lost_share(own, ran + others),
        parts={"quota": quota, "threads": threads},
        latency=_p99(window, rows, at),
        pressure=pressure,
        culprits=culprits,
        named=named,
    )


def _shares(matrix: SchedLatencySnapshot, rows: Rows) -> tuple[Floats, Floats]:
    """[containers]: part of the waiting whose runner is known that its own tasks caused, and that an idle CPU did
    (a task on its way to a CPU that nobody used)."""
    victim, culprit = rows.of(matrix.victim), rows.of(matrix.culprit)
    told = ~np.isin(matrix.culprit, UNTOLD)
    known = rows.sum(victim, np.where(told, matrix.wait_ns, 0))
    own = rows.sum(victim, np.where(told & (victim == culprit), matrix.wait_ns, 0))
    idle = rows.sum(victim, np.where(matrix.culprit == IDLE, matrix.wait_ns, 0))
    whole = np.maximum(known, 1.0)
    return own / whole, idle / whole


def _culprits(
    matrix: SchedLatencySnapshot, seconds: float, window: float, owner: OwnerOf, rows: Rows
) -> Callable[[int], Sequence[Blame]]:
    """Blames of one container, on demand, scaled to the window of the sums."""
    victims = rows.of(matrix.victim)
    scale = window / seconds

    def of(row: int) -> Sequence[Blame]:
        mine = np.flatnonzero(victims == row)
        columns = {name: getattr(matrix, name)[mine] for name in ("victim", "culprit", "wait_ns", "wait_count")}
        found = blame(replace(matrix, **columns), owner)
        return [Blame(one.owner, one.seconds * scale, one.count) for blames in found.values() for one in blames]

    return of


def _nobody(_: int) -> Sequence[Blame]:
    return ()


def _p99(window: SchedLatencySnapshot, rows: Rows, at: NDArray[np.intp]) -> Floats | None:
    if window.source not in PROBES:
        return None
    hist = np.zeros((rows.count, window.hist.shape[1]), dtype=np.int64)
    known = at >= 0
    np.add.at(hist, at[known], window.hist[known])
    return quantiles(hist, 0.99) / 1e9
