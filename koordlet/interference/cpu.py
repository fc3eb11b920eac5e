"""Evidence about the CPU: a short window over the schedule-latency source's totals, summed by container. Pure.

Where a probe counts, waiting for a CPU that others held, waiting behind own threads (the culprit matrix has the victim
itself as runner) and waiting for the own quota are three figures. `schedstat` and cpu.pressure know only their sum:
there a container whose quota runs out in more than a tenth of its periods is taken to wait for its quota.

Who had the CPU is the expensive part of a reading. It is asked for now and then, and often while others may hold
somebody up noticeably. In between, whose doing the waiting is stays as it was last seen (`Shares`), and what a
container waits more than it did then counts as others' doing when it is decided whether to ask again (`suspicious`).

Where a hypervisor takes CPUs away, its part of the waiting is a fourth figure (`hypervisor`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.hypervisor import HYPERVISOR, Stolen
from koordlet.interference.model import Floats, ResourceEvidence, part_of
from koordlet.metricsadvisor.stalls.latency import Blame, Matrix, OwnerOf, culprit_owner, identity
from koordlet.probes.culprits.charges import PIECE
from koordlet.probes.loading.mapped import by_last_bits, place_of, sum_by
from koordlet.probes.schedlatency.layout import SPECIAL_KEYS
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, diff, quantiles
from koordlet.statesinformer.pods.cgroupindex import Owner

HARDLY = 0.02
"""Seconds a second added to what a container ran: one that hardly runs hardly suffers."""
THROTTLED_PERIODS = 0.1
UNTOLD = tuple(SPECIAL_KEYS[name] for name in ("older", "moved", "overflow"))
IDLE, KSOFTIRQD = SPECIAL_KEYS["idle"], SPECIAL_KEYS["ksoftirqd"]
_LEAST = min(SPECIAL_KEYS.values()) - 1
_KINDS = (0, 1, IDLE, KSOFTIRQD, *UNTOLD)
"""What the waiting behind somebody counts as: others' doing, its own (neither is a key), an idle CPU's ..."""
_OWN, _IDLE, _SOFTIRQS, _UNTOLD = 1, 2, 3, 4
_KIND = np.array([_KINDS.index(-number) if -number in _KINDS else 0 for number in range(1 - _LEAST)])
"""Place in `_KINDS` by a key without its sign."""
Ints = NDArray[np.int64]
PROBES = ("bpf", "bcc")
NAMED = 8
"""Culprits that one evaluation names: more than a verdict can hold, the container itself and an idle CPU among them."""
OTHERS = Owner("unknown", "others")
Naming = Callable[[int], Sequence[Blame]]
"""Whom a container's waiting is blamed on, by its row."""
Left = Callable[[int, Floats], Floats]
"""Row, and the parts of its waiting that were spent behind each container and, the last one, behind whatever is no
container -> what is left of each without the hypervisor's, 0..1."""


def lost_share(held_up: Floats, rest: Floats) -> Floats:
    """Part of the time wanted that was lost, 0..1; `rest` is what else it wanted, got or not, in seconds a second too.

    Time of tasks, not of the wall: where ten own tasks wait while a stranger has the CPU for a moment, ten wait for it,
    but they would have waited for each other otherwise, and that is in `rest`.
    """
    share: Floats = held_up / (held_up + np.nan_to_num(rest) + HARDLY)
    return share


@dataclass(frozen=True)
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
        table, numbers, beaten = self._table
        place = place_of(keys)
        found: NDArray[np.intp] = np.where(table[place] == keys, numbers[place], -1)
        for key, row in beaten:
            found[keys == key] = row
        return found

    @cached_property
    def _table(self) -> tuple[Ints, NDArray[np.intp], list[tuple[int, int]]]:
        """(key, row) by the last bits of a key, and the few that meet others there."""
        table, at, beaten = by_last_bits(self.keys)
        numbers = np.full(len(table), -1, dtype=np.intp)
        numbers[at] = self.rows
        return table, numbers, list(zip(self.keys[beaten].tolist(), self.rows[beaten].tolist(), strict=True))

    def sum(self, rows: NDArray[np.intp], values: Ints) -> Floats:
        """Sums by row, [count]; rows of -1 are left out."""
        known = rows >= 0
        sums = np.bincount(rows[known], weights=values[known].astype(np.float64), minlength=self.count)
        return sums.astype(np.float64)


class CpuWindow:
    """The snapshots of the last `seconds`, and one that is older."""

    def __init__(self, seconds: float = 3.0) -> None:
        self.seconds = seconds
        self._ring: deque[SchedLatencySnapshot] = deque()

    def push(self, snapshot: SchedLatencySnapshot) -> None:
        """One that was taken already changes nothing; another source starts anew."""
        ring = self._ring
        if ring and ring[-1].source != snapshot.source:
            ring.clear()
        if ring and ring[-1].time_ns >= snapshot.time_ns:
            return
        ring.append(snapshot)
        while len(ring) > 2 and snapshot.time_ns - ring[1].time_ns >= self.seconds * 1e9:
            ring.popleft()

    def sums(self) -> tuple[SchedLatencySnapshot, float] | None:
        """What happened in the window without culprits, and its seconds; None before two readings."""
        if len(self._ring) < 2:
            return None
        old, new = self._ring[0], self._ring[-1]
        return diff(old, new, matrix=False), (new.time_ns - old.time_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Shares:
    """Whose doing the waiting of containers was when the matrix was last read, [containers]: the part that their own
    tasks caused, the part that an idle CPU did (a task on its way to a CPU that nobody used), the seconds a second
    that they waited then, the part (of others') in which the kernel worked off softirqs in its thread, and the part
    that a hypervisor caused."""

    own: Floats
    nobody: Floats
    waited: Floats
    softirqs: Floats
    hypervisor: Floats

    @classmethod
    def none(cls, count: int) -> Shares:
        """Nothing seen yet: all waiting is others' doing."""
        return cls(*(np.zeros(count) for _ in range(5)))

    @property
    def others(self) -> Floats:
        """The part that is left for others."""
        left: Floats = np.maximum(1.0 - self.own - self.nobody - self.hypervisor, 0.0)
        return left

    def moved(self, before: Sequence[str], now: Sequence[str]) -> Shares:
        """The same for other containers; by key."""
        at = {key: row for row, key in enumerate(before)}
        rows = np.array([at.get(key, -1) for key in now], dtype=np.intp)
        known = rows >= 0
        return Shares(
            *(
                np.where(known, column[rows], 0.0) if len(column) else np.zeros(len(rows))
                for column in (self.own, self.nobody, self.waited, self.softirqs, self.hypervisor)
            )
        )


def bounded(shares: Shares, waited: Floats, stolen: Stolen | None) -> Shares:
    """`shares` of which the hypervisor's are no more than what it takes now: what was seen last may be long ago."""
    if not shares.hypervisor.any():
        return shares
    most = np.zeros(len(waited)) if stolen is None else part_of(stolen.limit(waited), waited)
    return replace(shares, hypervisor=np.minimum(shares.hypervisor, most))


def waiting(sums: SchedLatencySnapshot, seconds: float, rows: Rows) -> Floats:
    """[containers]: seconds a second spent waiting for a CPU, throttling excluded."""
    return rows.sum(rows.of(sums.keys), sums.sum_ns) / 1e9 / seconds


def suspicious(waited: Floats, shares: Shares, ran: Floats) -> Floats:
    """[containers]: the share of their time that others may have taken at the most, by what was seen last."""
    known = np.minimum(waited, shares.waited)
    return lost_share(known * shares.others + (waited - known), ran)


def cpu_evidence(
    sums: tuple[SchedLatencySnapshot, float],
    matrix: tuple[Matrix, float] | None,
    shares: Shares,
    rows: Rows,
    ran: Floats,
    owner: OwnerOf,
    *,
    throttled_periods: Floats,
    pressure: Floats | None,
    guess: Naming,
    naming: Callable[..., Callable[..., Sequence[Blame]]] | None = None,
    stolen: Stolen | None = None,
) -> ResourceEvidence:
    """Symptoms of `rows.count` containers; `ran` in cores; `guess` names culprits where nothing was seen. `matrix` and
    `shares` are of a probe's; without the matrix nobody is named. `naming` is `names_of` that may remember. `stolen`:
    what a hypervisor took, if it took anything."""
    window, seconds = sums
    at = rows.of(window.keys)
    waited, quota = (rows.sum(at, column) / 1e9 / seconds for column in (window.sum_ns, window.throttled_ns))
    named = False
    culprits: Naming = _nobody
    if window.source in PROBES:
        if matrix is not None:
            named, of = True, (naming or names_of)(*matrix, owner, rows)
            left = None if stolen is None else left_by(stolen, waited, ran)
            culprits = of if left is None else lambda row: of(row, left)
    else:  # one sum for everything
        stopped = np.nan_to_num(throttled_periods) > THROTTLED_PERIODS
        quota = np.where(stopped, waited, 0.0)
        waited = np.where(stopped, 0.0, waited)
        culprits = guess
        shares = Shares.none(rows.count)
        if stolen is not None:
            most = np.maximum(stolen.busy - ran, 0.0)[:, None]
            gone = stolen.taken(waited[:, None], wanted_by(waited, ran), most)[:, 0]
            shares = replace(shares, hypervisor=part_of(gone, waited))
    threads, others, taken = waited * shares.own, waited * shares.others, waited * shares.hypervisor
    own = threads + quota  # all causes are parts of one whole: all that it wanted
    return ResourceEvidence(
        source=window.source,
        others=lost_share(others, ran + own + taken),
        own=lost_share(own, ran + others + taken),
        hypervisor=lost_share(taken, ran + own + others),
        parts={"quota": quota, "threads": threads},
        latency=_p99(window, rows, at),
        pressure=pressure,
        culprits=culprits,
        named=named,
    )


def wanted_by(waited: Floats, ran: Floats) -> Floats:
    """[containers]: seconds a second that they wanted to run, as `lost_share` has it."""
    found: Floats = waited + np.nan_to_num(ran) + HARDLY
    return found


def left_by(stolen: Stolen, waited: Floats, ran: Floats) -> Left:
    """What neighbours and the kernel keep of their parts in one container's waiting."""
    wanted = wanted_by(waited, ran)

    def of(row: int, parts: Floats) -> Floats:
        waits = parts[None] * waited[row]
        gone = stolen.taken_from(np.array([row]), waits, wanted[row : row + 1])
        return 1.0 - part_of(gone[0], waits[0])

    return of


def shares_of(matrix: Matrix, rows: Rows, waited: Floats, ran: Floats, stolen: Stolen | None = None) -> Shares:
    """From the waiting whose runner is known."""
    sums = np.zeros(rows.count * len(_KINDS))
    wide = rows.count + 1
    pairs = np.zeros(0 if stolen is None else rows.count * wide)
    for at in range(0, len(matrix.victim), PIECE):
        part = slice(at, at + PIECE)
        mine = rows.of(matrix.victim[part])
        taken = np.flatnonzero(mine >= 0)
        victim, culprit = mine[taken], matrix.culprit[part][taken]
        kind = _KIND[-np.clip(culprit, _LEAST, 0)]
        theirs = rows.of(culprit)
        kind[theirs == victim] = _OWN
        waits = matrix.wait_ns[part][taken]
        sums += np.bincount(victim * len(_KINDS) + kind, waits, len(sums))
        if stolen is not None:
            ran_then = (kind != _IDLE) & (kind < _UNTOLD)
            place = victim * wide + np.where(theirs < 0, rows.count, theirs)
            pairs += np.bincount(place, waits * ran_then, len(pairs))
    known = sums.reshape(rows.count, len(_KINDS))[:, : -len(UNTOLD)]
    own, idle, softirqs = (known[:, which] for which in (_OWN, _IDLE, _SOFTIRQS))
    whole = np.maximum(known.sum(axis=1), 1.0)
    found = Shares(own / whole, idle / whole, waited, softirqs / whole, np.zeros(rows.count))
    if stolen is None:
        return found
    return _without_hypervisor(found, pairs.reshape(rows.count, wide) / whole[:, None], ran, stolen)


def _without_hypervisor(shares: Shares, parts: Floats, ran: Floats, stolen: Stolen) -> Shares:
    """`shares` less the hypervisor's. `parts`: of each container's waiting, behind each container and, the last column,
    behind whatever is no container."""
    waits, every = parts * shares.waited[:, None], np.arange(len(parts))
    gone = part_of(stolen.taken_from(every, waits, wanted_by(shares.waited, ran)), shares.waited[:, None])
    return replace(
        shares,
        own=np.maximum(shares.own - gone[every, every], 0.0),
        softirqs=shares.softirqs * (1.0 - part_of(gone[:, -1], parts[:, -1])),
        hypervisor=gone.sum(axis=1),
    )


def names_of(matrix: Matrix, seconds: float, owner: OwnerOf, rows: Rows) -> Callable[..., Sequence[Blame]]:
    """(row, `Left` or None) -> the `NAMED` longest blames of one container, on demand, a second; all others are one of
    kind unknown. `latency.blame` for a row at a time: few are asked for of one matrix."""
    scale = 1e-9 / seconds
    strangers: dict[int, int] = {}
    """Number of those culprits met that are no container, by key; a container's is its row."""
    told: dict[str, int] = {}
    unknown: list[int] = []
    idle: list[int] = []

    @cache
    def victims() -> NDArray[np.intp]:
        return rows.of(matrix.victim)

    def number_of(key: int) -> int:
        number = strangers.get(key)
        if number is None:
            who = culprit_owner(key, owner)
            number = strangers[key] = told.setdefault(identity(who), rows.count + len(told))
            if who.kind == "unknown":
                unknown.append(number)
            elif who.kind == "idle":
                idle.append(number)
        return number

    def of(row: int, left: Left | None = None) -> Sequence[Blame]:
        mine = np.flatnonzero(victims() == row)
        culprit = matrix.culprit[mine]
        numbers = rows.of(culprit)
        others = np.flatnonzero(numbers < 0)
        numbers[others] = [number_of(key) for key in culprit[others].tolist()]
        many = rows.count + len(told)
        key_of, known = np.zeros(many, dtype=np.int64), np.ones(many, dtype=bool)
        key_of[numbers], known[unknown] = culprit, False
        ns, waits = (
            np.bincount(numbers, column[mine], many).astype(np.float64)
            for column in (matrix.wait_ns, matrix.wait_count)
        )
        whole, seen = ns.sum(), ns[known].sum()
        if seen:  # who ran lately ran while nobody is remembered, too
            ns = np.where(known, ns * (whole / seen), 0.0)
        kept = whole
        if seen and left is not None:
            ns = lessened(ns, row, left)
            kept = ns.sum()
        longest = np.argsort(-ns, kind="stable")[: min(NAMED, np.count_nonzero(ns))]
        blames = [
            Blame(culprit_owner(key, owner), waited * scale, int(count))
            for key, waited, count in zip(key_of[longest].tolist(), ns[longest].tolist(), waits[longest], strict=True)
        ]
        if np.count_nonzero(ns) > len(longest):
            rest = float(kept - ns[longest].sum()) * scale
            blames.append(Blame(OTHERS, rest, int(waits.sum() - waits[longest].sum())))
        if whole - kept > 1.0:
            blames.append(Blame(HYPERVISOR, float(whole - kept) * scale, 0))
            blames.sort(key=lambda one: -one.seconds)
        return blames

    def lessened(ns: Floats, row: int, left: Left) -> Floats:
        """Without the hypervisor's part; an idle CPU stays nobody's."""
        behind = ns / ns.sum()
        behind[idle] = 0.0
        kept = left(row, np.append(behind[: rows.count], behind[rows.count :].sum()))
        factors = np.append(kept[:-1], np.full(len(ns) - rows.count, kept[-1]))
        factors[idle] = 1.0
        less: Floats = ns * factors
        return less

    return of


class Names:
    """`names_of` that goes on with what it worked out while matrix and rows are the same objects."""

    def __init__(self) -> None:
        self._last: tuple[Matrix, Rows, Callable[..., Sequence[Blame]]] | None = None

    def __call__(self, matrix: Matrix, seconds: float, owner: OwnerOf, rows: Rows) -> Callable[..., Sequence[Blame]]:
        if self._last is None or self._last[0] is not matrix or self._last[1] is not rows:
            self._last = matrix, rows, names_of(matrix, seconds, owner, rows)
        return self._last[2]


def _nobody(_: int) -> Sequence[Blame]:
    return ()


def _p99(window: SchedLatencySnapshot, rows: Rows, at: NDArray[np.intp]) -> Floats | None:
    if window.source not in PROBES:
        return None
    known = at >= 0
    return quantiles(sum_by(at[known], window.hist[known], rows.count), 0.99) / 1e9
