"""Block I/O by cgroup and disk at one moment, and the window between two moments. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.probes.columns import Ints, Losses, align_pairs, columns, lost_since, subtract
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.layouts import IO_DIRECTION

DIRECTIONS = tuple(name.removeprefix("IO_").lower() for name in IO_DIRECTION if name != "IO_DIRECTIONS")
"""The second axis of `ops`, `bytes` and the times: ``enum io_direction``. Writing zeroes is *write*."""
READ, WRITE, DISCARD, FLUSH = range(4)


@dataclass(frozen=True, slots=True)
class IoLosses(Losses):
    """What found no entry, cumulative: charges to culprits (`matrix_*`), pairs of cgroup and disk (`slot_lost`, counted
    for *overflow*), requests of a disk without an entry and requests without one while in service (not counted at all),
    and requests whose arrival was overwritten (`unstamped`: counted without queue time)."""

    matrix_lost_count: int = 0
    matrix_lost_ns: int = 0
    slot_lost: int = 0
    device_lost: int = 0
    request_lost: int = 0
    unstamped: int = 0


@dataclass(frozen=True, slots=True)
class BlockIOSnapshot:
    """Cumulative. Row i is the use of ``device[i]`` by the cgroup ``keys[i]`` (an id or a special key); sorted."""

    source: str
    """``bpf`` or ``files``: then only bytes and operations, as the kernel charges them."""
    time_ns: int
    keys: Ints
    device: Ints
    """The kernel's device number (`blockdev.device_number`); -1 for a disk without an entry."""
    queue_hist: Ints
    """``[n, 2, BUCKETS]``: from arrival to issue; reads, everything else."""
    device_hist: Ints
    """``[n, 2, BUCKETS]``: from issue to completion."""
    ops: Ints
    """``[n, 4]``: completed requests; bios merged into one request count once."""
    bytes: Ints
    """``[n, 4]``"""
    queue_ns: Ints
    device_ns: Ints
    ahead_ns: Ints
    """``[n]``: from arrival until the disk began to work for the request; the sum of the victim's row of `culprits`."""
    throttled_ns: Ints
    """``[n]``: time in which at least one bio was throttled by the cgroup's own limit."""
    throttled_count: Ints
    culprits: CulpritMatrix
    """How long requests of the victim waited while the disk worked for the culprit; all disks together."""
    lost: IoLosses


_TIMES = ("queue_ns", "device_ns", "ahead_ns", "throttled_ns")
_ROWS = ("queue_hist", "device_hist", "ops", "bytes", *_TIMES, "throttled_count")


def diff(old: BlockIOSnapshot, new: BlockIOSnapshot) -> BlockIOSnapshot:
    """What happened between two snapshots of one source. For keys that appear, disappear or restart see
    `columns.subtract`."""
    index = align_pairs((old.keys, old.device), (new.keys, new.device))
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), index)
    culprits = new.culprits.minus(old.culprits)
    return replace(new, **rows, culprits=culprits, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]
