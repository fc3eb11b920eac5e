"""What a schedule-latency source says at one moment, the window between two moments, and questions to it.

Everything is cumulative since the probe was loaded (or, for a cgroup, since it was first seen). Keys are cgroup ids
as `system.cgroup.cgroup_id` gives them, or negative numbers for runners that are no cgroup (`layout.SPECIAL_KEYS`).
All functions here are pure.

**Error of a quantile.** Buckets are powers of two and values are placed linearly inside one, so an estimate is within
a factor of two of the true value, and the sum, count and mean are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from koordlet.probes.culprits.rows import Losses, align, align_pairs, columns, lost_since, subtract
from koordlet.probes.loading.mapped import Ints
from koordlet.probes.schedlatency.layout import BUCKETS, FIRST_BUCKET_BITS

BOUNDS_NS: Ints = np.left_shift(np.int64(1), FIRST_BUCKET_BITS + np.arange(BUCKETS - 1, dtype=np.int64))
"""Upper bounds of all buckets but the last, which has none."""


@dataclass(frozen=True, slots=True)
class Lost(Losses):
    """What could not be told, cumulative: table entries that found no room (``matrix_lost_*``, ``slot_lost``: raise
    `Sizes`), arrivals of tasks seen for the first time (``forgotten``) or never queued (``unstamped``), clocks that ran
    back, and switches that were not reported but made up for (``missed``)."""

    matrix_lost_count: int = 0
    matrix_lost_ns: int = 0
    slot_lost: int = 0
    unstamped: int = 0
    backwards: int = 0
    forgotten: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class SchedLatencySnapshot:
    """Row i of every ``[n]`` and ``[n, BUCKETS]`` array belongs to ``keys[i]`` (sorted, unique). Entry j of the matrix
    (sorted by victim, then culprit) says that ``victim[j]`` waited ``wait_ns[j]`` while ``culprit[j]`` held the CPU, in
    ``wait_count[j]`` waits. Histograms and the matrix are empty when ``source`` is not a probe."""

    source: str
    """``bpf``, ``bcc`` or ``schedstat``."""
    time_ns: int
    """Monotonic clock at the end of the reading."""
    keys: Ints
    wakeup_hist: Ints
    preempt_hist: Ints
    wakeup_sum_ns: Ints
    preempt_sum_ns: Ints
    wakeup_max_ns: Ints
    preempt_max_ns: Ints
    throttled_ns: Ints
    throttled_count: Ints
    victim: Ints
    culprit: Ints
    wait_ns: Ints
    wait_count: Ints
    lost: Lost

    @property
    def hist(self) -> Ints:
        """Wakeup and preemption waits together, ``[n, BUCKETS]``."""
        return self.wakeup_hist + self.preempt_hist

    @property
    def sum_ns(self) -> Ints:
        """Time spent waiting for a CPU that somebody else had, throttling excluded, ``[n]``."""
        return self.wakeup_sum_ns + self.preempt_sum_ns

    @property
    def count(self) -> Ints:
        counts: Ints = self.hist.sum(axis=1)
        return counts

    @property
    def max_ns(self) -> Ints:
        """The longest wait since the cgroup was first seen; a window keeps it."""
        return np.maximum(self.wakeup_max_ns, self.preempt_max_ns)

    def row(self, key: int) -> int | None:
        """Index of *key*, None when nothing of it has run."""
        i = int(np.searchsorted(self.keys, key))
        return i if i < len(self.keys) and self.keys[i] == key else None

    def culprits(self, victim: int, limit: int | None = None) -> list[Culprit]:
        """Who held the CPU while *victim* waited, most first."""
        picked = np.flatnonzero(self.victim == victim)
        order = picked[np.argsort(-self.wait_ns[picked], kind="stable")][:limit]
        return [Culprit(int(self.culprit[j]), int(self.wait_ns[j]), int(self.wait_count[j])) for j in order]


@dataclass(frozen=True, slots=True)
class Culprit:
    key: int
    wait_ns: int
    count: int


_ROWS = ("wakeup_hist", "preempt_hist", "wakeup_sum_ns", "preempt_sum_ns", "throttled_ns", "throttled_count")
_MATRIX = ("wait_ns", "wait_count")


def diff(old: SchedLatencySnapshot, new: SchedLatencySnapshot, *, matrix: bool = True) -> SchedLatencySnapshot:
    """What happened between two snapshots of one source; ``matrix=False`` leaves the culprits out, which is cheaper.

    A key that *old* doesn't have counts from zero, and so does one whose counters ran back (its id was reused, or
    the probe was loaded anew). Keys that *new* doesn't have are gone. Maxima stay those of *new*.
    """
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), align(old.keys, new.keys))
    pairs = {name: getattr(new, name)[:0] for name in ("victim", "culprit", *_MATRIX)}
    if matrix:
        at = align_pairs((old.victim, old.culprit), (new.victim, new.culprit))
        pairs = subtract(columns(old, _MATRIX), columns(new, _MATRIX), at)
    return replace(new, **rows, **pairs, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]


def quantiles(hist: npt.ArrayLike, q: float) -> npt.NDArray[np.float64]:
    """The q-quantile in nanoseconds of each histogram (``[n, BUCKETS]``), NaN for an empty one.

    Interpolated inside the bucket: ``start + (end - start) * rank / count`` (spec 02 §11.1 L2). The open last bucket
    is taken to be as wide as its start is high.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile: {q} is not within 0..1")
    counts = np.asarray(hist, dtype=np.float64)
    cumulative = counts.cumsum(axis=1)
    total = cumulative[:, -1:]
    rank = q * total
    # The first bucket that reaches the rank and holds something: q = 0 lands before the first value.
    at = np.argmax((cumulative >= rank) & (counts > 0), axis=1)
    row = np.arange(len(counts))
    inside = np.maximum(0.0, rank[:, 0] - (cumulative[row, at] - counts[row, at]))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = _STARTS_NS[at] + (_ENDS_NS[at] - _STARTS_NS[at]) * inside / counts[row, at]
    return np.where(total[:, 0] > 0, value, np.nan)


_STARTS_NS = np.concatenate([[0.0], BOUNDS_NS.astype(np.float64)])
_ENDS_NS = np.concatenate([BOUNDS_NS.astype(np.float64), [2.0 * BOUNDS_NS[-1]]])


def quantile(hist: npt.ArrayLike, q: float) -> float | None:
    """`quantiles` of one histogram (``[BUCKETS]``), None when it is empty."""
    value = float(quantiles(np.asarray(hist)[np.newaxis, :], q)[0])
    return None if np.isnan(value) else value
