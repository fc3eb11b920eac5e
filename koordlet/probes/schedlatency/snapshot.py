"""Schedule latency by cgroup at one moment, and the window between two moments. Pure.

Everything is cumulative since the probe was loaded (or, for a cgroup, since it was first seen). Keys are cgroup ids as
`system.cgroup.tree.cgroup_id` returns them, or negative numbers for runners that are no cgroup (`slots.SPECIAL_KEYS`).
The culprits are not a part of the snapshot: `LoadedProbe.read_matrix`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.probes.columns import Ints, Losses, align, columns, lost_since, subtract


@dataclass(frozen=True, slots=True)
class SchedLatencyLosses(Losses):
    """What could not be counted or attributed, cumulative: charges that found no entry in a table (`matrix_lost_*`,
    `slot_lost`: raise `Sizes`), arrivals of tasks seen for the first time (`forgotten`) or never queued (`unstamped`),
    waits for which the clock went back, and switches that the program missed but accounted for later (`missed`)."""

    matrix_lost_count: int = 0
    matrix_lost_ns: int = 0
    slot_lost: int = 0
    unstamped: int = 0
    backwards: int = 0
    forgotten: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class SchedLatencySnapshot:
    """Row i of every ``[n]`` and ``[n, BUCKETS]`` array belongs to ``keys[i]`` (sorted, unique). Histograms are empty
    when `source` is not a probe."""

    source: str
    """``bpf``, ``bcc``, ``schedstat`` or ``pressure``."""
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
    lost: SchedLatencyLosses

    @property
    def hist(self) -> Ints:
        """Waits after wake-ups and after preemptions together, ``[n, BUCKETS]``."""
        return self.wakeup_hist + self.preempt_hist

    @property
    def sum_ns(self) -> Ints:
        """Time spent waiting for a CPU that another task had, without throttling, ``[n]``."""
        return self.wakeup_sum_ns + self.preempt_sum_ns


@dataclass(frozen=True, slots=True)
class WaitTotals:
    """Only the time spent waiting, cumulative: a small part of a snapshot, for frequent readings. Row i belongs to
    ``keys[i]`` (sorted, unique)."""

    time_ns: int
    """Monotonic clock."""
    keys: Ints
    waited_ns: Ints
    """Waiting for a CPU that another task had."""
    throttled_ns: Ints
    """Waiting for the cgroup's quota."""

    def since(self, old: WaitTotals) -> WaitTotals:
        """What was added since `old`."""
        names = ("waited_ns", "throttled_ns")
        added = subtract(columns(old, names), columns(self, names), align(old.keys, self.keys))
        return WaitTotals(self.time_ns, self.keys, **added)


_ROWS = ("wakeup_hist", "preempt_hist", "wakeup_sum_ns", "preempt_sum_ns", "throttled_ns", "throttled_count")


def diff(old: SchedLatencySnapshot, new: SchedLatencySnapshot) -> SchedLatencySnapshot:
    """What happened between two snapshots of one source; maxima stay those of `new`. For keys that appear, disappear or
    restart see `columns.subtract`."""
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), align(old.keys, new.keys))
    return replace(new, **rows, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]
