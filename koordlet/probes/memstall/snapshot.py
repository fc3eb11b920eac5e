"""Memory stalls by cgroup at one moment, and the window between two moments. Pure.

Kinds (``bpf/mem_stall.h``): *direct* reclaim because the node is short, *own_limit* and *ancestor* reclaim because a
memory cgroup is at its limit, *compaction*, *refault* and *swapin* (waiting for evicted pages), *throttle* (put to
sleep because memory.high is exceeded), *other*. The last four are only seen where the kernel keeps PSI.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from koordlet.probes.columns import Ints, Losses, align, columns, lost_since, subtract
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.layouts import BUCKETS, STALL_KIND

KINDS = tuple(name.removeprefix("STALL_").lower() for name in STALL_KIND if name != "STALLS")
"""By ``enum stall_kind``: the second axis of `MemStallSnapshot`'s arrays."""
SLEEP_KINDS = KINDS[4:]
"""Kinds that the task sleeps through."""
NODE = 0
"""The culprit in `MemStallSnapshot.limits` when the whole node was short."""


@dataclass(frozen=True, slots=True)
class StallLosses(Losses):
    """What found no entry, cumulative: stalls of cgroups without a slot (counted for *overflow*), reclaims without an
    entry in `limits` (included in all other figures), stalls that were not counted at all (`tasks`)."""

    slots: int = 0
    limits: int = 0
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class MemStallSnapshot:
    """Cumulative since the probe was loaded. Row i belongs to ``keys[i]`` (cgroup ids or special keys, sorted,
    unique)."""

    source: str
    """``bpf`` or ``pressure``."""
    time_ns: int
    keys: Ints
    hist: Ints
    """``[n, kinds, BUCKETS]``: stalls by duration."""
    sum_ns: Ints
    """``[n, kinds]``"""
    max_ns: Ints
    """``[n, kinds]``: since the cgroup was first seen; a window has the same."""
    wakeups: Ints
    """``[n]``: allocations that found the node below its low watermark and woke kswapd."""
    direct_pages: Ints
    """``[n]``: pages reclaimed in *direct*."""
    limit_pages: Ints
    """``[n]``: pages reclaimed in *own_limit* and *ancestor*."""
    limits: CulpritMatrix
    """How long and how often tasks of the victim reclaimed because the culprit was at its limit: a memory cgroup, by
    its id in the hierarchy with the memory controller, or `NODE`."""
    lost: StallLosses


_ROWS = ("hist", "sum_ns", "wakeups", "direct_pages", "limit_pages")


def diff(old: MemStallSnapshot, new: MemStallSnapshot) -> MemStallSnapshot:
    """What happened between two snapshots of one source. For keys that appear, disappear or restart see
    `columns.subtract`."""
    rows = subtract(columns(old, _ROWS), columns(new, _ROWS), align(old.keys, new.keys))
    limits = new.limits.minus(old.limits)
    return replace(new, **rows, limits=limits, lost=lost_since(old.lost, new.lost))  # type: ignore[arg-type]


def sums_only(
    totals_ns: Mapping[int, int], *, source: str = "pressure", lost: StallLosses | None = None
) -> MemStallSnapshot:
    """A snapshot of nanoseconds by key, all of kind *other*."""
    keys = np.array(sorted(totals_ns), dtype=np.int64)
    n, kinds = len(keys), len(KINDS)
    zeros = np.zeros(n, dtype=np.int64)
    sums = np.zeros((n, kinds), dtype=np.int64)
    sums[:, KINDS.index("other")] = [totals_ns[int(key)] for key in keys]
    return MemStallSnapshot(
        source=source,
        time_ns=time.monotonic_ns(),
        keys=keys,
        hist=np.zeros((n, kinds, BUCKETS), dtype=np.int64),
        sum_ns=sums,
        max_ns=np.zeros((n, kinds), dtype=np.int64),
        wakeups=zeros,
        direct_pages=zeros,
        limit_pages=zeros,
        limits=CulpritMatrix.empty(),
        lost=lost or StallLosses(),
    )
