"""What a network-stall source says at one moment, and the window between two moments. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.probes.culprits.rows import Losses, align, align_pairs, columns, lost_since, subtract
from koordlet.probes.loading.mapped import Ints


@dataclass(frozen=True, slots=True)
class NetLost(Losses):
    """What found no room, cumulative: charges to culprits, and owners (counted as overflow's)."""

    matrix_lost_count: int = 0
    matrix_lost_ns: int = 0
    slot_lost: int = 0


@dataclass(frozen=True, slots=True)
class NetStallSnapshot:
    """Cumulative. Row i belongs to ``keys[i]`` (cgroup ids or special keys, sorted, unique)."""

    source: str
    """``bpf`` or ``files``: then only retransmits, by network namespace."""
    time_ns: int
    keys: Ints
    softirq_hist: Ints
    """``[n, BUCKETS]``: interruptions by duration."""
    softirq_ns: Ints
    """Time that NET_RX and NET_TX took while a task of this cgroup had the CPU."""
    softirq_count: Ints
    caused_ns: Ints
    """Time that softirqs spent on packets for this cgroup, whoever was interrupted."""
    retransmits: Ints
    """Segments."""
    full: Ints
    """Packets dropped because a receive queue was full."""
    backlog_sum: Ints
    """Bytes not yet read that arriving TCP segments found, added up over ``backlog_count`` segments."""
    backlog_count: Ints
    backlog_max: Ints
    """Since the owner was first seen; a window keeps it."""
    victim: Ints
    culprit: Ints
    wait_ns: Ints
    """Entry j: tasks of ``victim[j]`` were interrupted for this long by work for ``culprit[j]``."""
    wait_count: Ints
    lost: NetLost


SUMMED = (
    "softirq_hist", "softirq_ns", "softirq_count", "caused_ns", "retransmits", "full", "backlog_sum", "backlog_count",
)  # fmt: skip
_MATRIX = ("wait_ns", "wait_count")


def diff(old: NetStallSnapshot, new: NetStallSnapshot) -> NetStallSnapshot:
    """What happened between two snapshots of one source; see `rows.subtract` for keys that come, go or start anew."""
    rows = subtract(columns(old, SUMMED), columns(new, SUMMED), align(old.keys, new.keys))
    at = align_pairs((old.victim, old.culprit), (new.victim, new.culprit))
    pairs = subtract(columns(old, _MATRIX), columns(new, _MATRIX), at)
    return replace(new, **rows, **pairs, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]
