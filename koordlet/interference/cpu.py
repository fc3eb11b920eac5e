"""Evidence about the CPU: a short window over the schedule-latency source's totals, summed by container. Pure.

Where a probe counts, waiting for a CPU that others held, waiting behind own threads (the culprit matrix has the victim
itself as runner) and waiting for the own quota are three figures. `schedstat` and cpu.pressure know only their sum:
there a container whose quota runs out in more than a tenth of its periods is taken to wait for its quota.

Who had the CPU is the expensive part of a reading. It is asked for only while somebody waits noticeably (`SCREEN`), and
now and then to compare with; without it all waiting is taken to be others' doing, which is then too little to matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats, ResourceEvidence
from koordlet.metricsadvisor.latency import Blame, Matrix, OwnerOf, culprit_owner, identity
from koordlet.probes.blame import Blames
from koordlet.probes.charges import Charges, between
from koordlet.probes.layout import SPECIAL_KEYS
from koordlet.probes.mapped import sum_by
from koordlet.probes.snapshot import SchedLatencySnapshot, diff, quantiles
from koordlet.statesinformer.cgroupindex import Owner

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


class Reading(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


R = TypeVar("R", bound=Reading)


class Recent(Generic[R]):
    """The readings of the last `seconds`, and one that is older."""

    def __init__(self, seconds: float = 3.0) -> None:
        self.seconds = seconds
        self._ring: deque[R] = deque()

    def push(self, reading: R) -> None:
        """One that was taken already changes nothing; another source starts anew."""
        ring = self._ring
        if ring and ring[-1].source != reading.source:
            ring.clear()
        if ring and ring[-1].time_ns >= reading.time_ns:
            return
        ring.append(reading)
        while len(ring) > 2 and reading.time_ns - ring[1].time_ns >= self.seconds * 1e9:
            ring.popleft()

    def span(self) -> tuple[R, R, float] | None:
        """(first, last, seconds between them); None before two readings."""
        if len(self._ring) < 2:
            return None
        return self._ring[0], self._ring[-1], (self._ring[-1].time_ns - self._ring[0].time_ns) / 1e9

    def due(self, now_ns: int) -> bool:
        """Whether the newest is as old as the window."""
        return not self._ring or now_ns - self._ring[-1].time_ns >= self.seconds * 1e9


class CpuWindow(Recent[SchedLatencySnapshot]):
    """How long everybody waited."""

    def sums(self) -> tuple[SchedLatencySnapshot, float] | None:
        """What happened in the window without culprits, and its seconds; None before two readings."""
        span = self.span()
        return None if span is None else (diff(span[0], span[1], matrix=False), span[2])


class CulpritWindow(Recent[Charges]):
    """Whom everybody waited for."""

    def matrix(self) -> tuple[Blames, float] | None:
        """What happened in the window, and its seconds; None before two readings."""
        span = self.span()
        return None if span is None else (between(span[0], span[1]), span[2])


def wants_matrix(sums: SchedLatencySnapshot, seconds: float, rows: Rows, ran: Floats) -> bool:
    """Whether any container waited enough to ask who had the CPU. Only probes can tell."""
    if sums.source not in PROBES or not rows.count:
        return False
    waited = rows.sum(rows.of(sums.keys), sums.sum_ns) / 1e9 / seconds
    return bool((lost_share(waited, ran) >= SCREEN).any())


def cpu_evidence(
    sums: tuple[SchedLatencySnapshot, float],
    matrix: tuple[Matrix, float] | None,
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


def _shares(matrix: Matrix, rows: Rows) -> tuple[Floats, Floats]:
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
    matrix: Matrix, seconds: float, window: float, owner: OwnerOf, rows: Rows
) -> Callable[[int], Sequence[Blame]]:
    """Blames of one container, on demand, scaled to the window of the sums; `latency.blame` for a row at a time."""
    victims = rows.of(matrix.victim)
    order = np.argsort(victims, kind="stable")
    begins = np.searchsorted(victims[order], np.arange(rows.count + 1)).tolist()
    scale = window / seconds / 1e9

    @cache
    def named() -> tuple[list[Owner], NDArray[np.bool_], NDArray[np.intp]]:
        """Everybody in the matrix, whether he is known, and who each entry's culprit is."""
        keys, entries = np.unique(matrix.culprit, return_inverse=True)
        number: dict[str, int] = {}
        owners: list[Owner] = []
        numbers = []
        for key in keys.tolist():
            who = culprit_owner(key, owner)
            name = identity(who)
            if name not in number:
                number[name] = len(owners)
                owners.append(who)
            numbers.append(number[name])
        known = np.array([who.kind != "unknown" for who in owners], dtype=bool)
        return owners, known, np.array(numbers, dtype=np.intp)[entries]

    def of(row: int) -> Sequence[Blame]:
        mine = order[begins[row] : begins[row + 1]]
        owners, known, numbers = named()
        whose = numbers[mine]
        ns = np.bincount(whose, matrix.wait_ns[mine], len(owners))
        seen = ns[known].sum()
        if seen:  # who ran lately ran while nobody is remembered, too
            ns = np.where(known, ns * (ns.sum() / seen), 0.0)
        counts = np.bincount(whose, matrix.wait_count[mine], len(owners))
        longest = np.argsort(-ns, kind="stable")[: np.count_nonzero(ns)].tolist()
        return [
            Blame(owners[i], s, int(n))
            for i, s, n in zip(longest, (ns[longest] * scale).tolist(), counts[longest].tolist(), strict=True)
        ]

    return of


def _nobody(_: int) -> Sequence[Blame]:
    return ()


def _p99(window: SchedLatencySnapshot, rows: Rows, at: NDArray[np.intp]) -> Floats | None:
    if window.source not in PROBES:
        return None
    known = at >= 0
    return quantiles(sum_by(at[known], window.hist[known], rows.count), 0.99) / 1e9
