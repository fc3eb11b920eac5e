"""The network cost of each cgroup at one moment, and the window between two moments. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.probes.columns import Ints, Losses, align, columns, lost_since, subtract
from koordlet.probes.culprits.matrix import CulpritMatrix


@dataclass(frozen=True, slots=True)
class NetLosses(Losses):
    """What found no entry, cumulative: charges to culprits, and owners (counted for *overflow*)."""

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
    """Time that softirqs spent on packets for this cgroup, whatever task they interrupted."""
    retransmits: Ints
    """Segments sent again."""
    full: Ints
    """Packets dropped because a receive queue was full."""
    backlog_sum: Ints
    """Unread bytes that arriving TCP segments found, added up over `backlog_count` segments."""
    backlog_count: Ints
    backlog_max: Ints
    """Since the owner was first seen; a window has the same."""
    culprits: CulpritMatrix
    """How long tasks of the victim were interrupted by work for the culprit."""
    lost: NetLosses


SUMMED = (
    "softirq_hist",
    "softirq_ns",
    "softirq_count",
    "caused_ns",
    "retransmits",
    "full",
    "backlog_sum",
    "backlog_count",
)


def diff(old: NetStallSnapshot, new: NetStallSnapshot) -> NetStallSnapshot:
    """What happened between two snapshots of one source. For keys that appear, disappear or restart see
    `columns.subtract`."""
    rows = subtract(columns(old, SUMMED), columns(new, SUMMED), align(old.keys, new.keys))
    culprits = new.culprits.minus(old.culprits)
    return replace(new, **rows, culprits=culprits, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]
