"""What a block I/O source says at one moment, and the window between two moments. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.probes.culprits.rows import Losses, align_pairs, columns, lost_since, subtract
from koordlet.probes.loading.mapped import Ints

DIRECTIONS = ("read", "write", "discard", "flush")
"""The second axis of ``ops``, ``bytes`` and the times: ``enum io_direction``. Writing zeroes is *write*."""
READ, WRITE, DISCARD, FLUSH = range(4)
MINOR_BITS = 20


def device_name(number: int) -> str:
    """``major:minor``; a disk without a place is ``-``."""
    return f"{number >> MINOR_BITS}:{number & (1 << MINOR_BITS) - 1}" if number >= 0 else "-"


def device_number(name: str) -> int:
    """The kernel's own number of ``major:minor``."""
    major, _, minor = name.partition(":")
    return int(major) << MINOR_BITS | int(minor)


@dataclass(frozen=True, slots=True)
class IoLost(Losses):
    """What found no room, cumulative: charges to culprits (``matrix_*``), pairs of cgroup and disk (``slot``, counted
    as overflow's), requests of a disk without a place and requests without one while in service (not counted at all),
    and requests whose arrival was overwritten (``unstamped``: counted without time in the queue)."""

    matrix_lost_count: int = 0
    matrix_lost_ns: int = 0
    slot_lost: int = 0
    device_lost: int = 0
    request_lost: int = 0
    unstamped: int = 0


@dataclass(frozen=True, slots=True)
class BlockIOSnapshot:
    """Cumulative. Row i is what the cgroup ``keys[i]`` (an id or a special key) did to ``device[i]``; sorted."""

    source: str
    """``bpf`` or ``files``: then only bytes and operations, by what the kernel charges."""
    time_ns: int
    keys: Ints
    device: Ints
    queue_hist: Ints
    """``[n, 2, BUCKETS]``: from arrival to issue; reads, everything else."""
    device_hist: Ints
    """``[n, 2, BUCKETS]``: from issue to completion."""
    ops: Ints
    """``[n, 4]``: completed requests; bios merged into one request are one."""
    bytes: Ints
    """``[n, 4]``"""
    queue_ns: Ints
    device_ns: Ints
    ahead_ns: Ints
    """``[n]``: from arrival until the disk turned to the request; the sum of the matrix's row."""
    throttled_ns: Ints
    """``[n]``: time in which at least one bio was held back by the cgroup's own limit."""
    throttled_count: Ints
    victim: Ints
    culprit: Ints
    wait_ns: Ints
    """Entry j: ``victim[j]`` waited while the disk worked for ``culprit[j]``; all disks together."""
    wait_count: Ints
    lost: IoLost


_TIMES = ("queue_ns", "device_ns", "ahead_ns", "throttled_ns")
_ROWS = ("queue_hist", "device_hist", "ops", "bytes", *_TIMES, "throttled_count")
_MATRIX = ("wait_ns", "wait_count")


def diff(old: BlockIOSnapshot, new: BlockIOSnapshot) -> BlockIOSnapshot:
    """What happened between two snapshots of one source; see `rows.subtract` for keys that come, go or start anew."""
    at = align_pairs((old.keys, old.device), (new.keys, new.device))
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), at)
    at = align_pairs((old.victim, old.culprit), (new.victim, new.culprit))
    pairs = subtract(columns(old, _MATRIX), columns(new, _MATRIX), at)
    return replace(new, **rows, **pairs, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]
