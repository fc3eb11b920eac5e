"""The memory layout of the sched_latency tables, as ``bpf/sched_latency.h`` defines it.

A test parses the header and compares; the loader checks value sizes of every map it opens. Nothing else in Python
knows an offset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

LAYOUT_VERSION = 1
BUCKETS = 26
FIRST_BUCKET_BITS = 10
RING = 32
PROBES = 8
SPECIALS = 16
MAX_CGROUPS = 16384
"""Slots go into 16 bits of a matrix key."""

SPECIAL_NAMES = (
    "idle", "ksoftirqd", "kworker", "migration", "rcu", "irq", "reclaim", "kthread", "overflow", "older", "moved",
)  # fmt: skip
"""By ``enum special_slot``. *overflow*: a cgroup that got no slot; *older*: began before the remembered slices;
*moved*: waited on another CPU first."""

SLOT_STATS = np.dtype(
    [
        ("wakeup_hist", "u8", BUCKETS),
        ("preempt_hist", "u8", BUCKETS),
        ("wakeup_sum_ns", "u8"),
        ("preempt_sum_ns", "u8"),
        ("wakeup_max_ns", "u8"),
        ("preempt_max_ns", "u8"),
        ("throttled_ns", "u8"),
        ("throttled_count", "u8"),
        ("reserved", "u8", 6),
    ]
)
MATRIX_ENTRY = np.dtype([("key", "u4"), ("reserved", "u4"), ("count", "u8"), ("wait_ns", "u8")])
SLICE = np.dtype([("start_ns", "u8"), ("slot", "u4"), ("reserved", "u4")])
CPU_STATE = np.dtype(
    [
        ("matrix_lost_count", "u8"),
        ("matrix_lost_ns", "u8"),
        ("slot_lost", "u8"),
        ("unstamped", "u8"),
        ("backwards", "u8"),
        ("forgotten", "u8"),
        ("missed", "u8"),
        ("head", "u4"),
        ("pid", "u4"),
        ("ring", SLICE, RING),
    ]
)
TAG = np.dtype("u8")
STAMP_SIZE = 64


def special_key(index: int) -> int:
    """The number that stands for a special slot where a cgroup id could stand: -1, -2, …"""
    return -1 - index


SPECIAL_KEYS = {name: special_key(index) for index, name in enumerate(SPECIAL_NAMES)}


def key_name(key: int) -> str | None:
    """Name of a special key, None for a cgroup id."""
    return SPECIAL_NAMES[-1 - key] if -len(SPECIAL_NAMES) <= key < 0 else None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the tables are; all but ``cpus`` powers of two. Memory is
    ``8*cgroups + cpus*(512*(cgroups+16) + 24*matrix + 576) + 64*stamps`` bytes of the kernel's."""

    cpus: int
    cgroups: int = 1024
    matrix: int = 0
    """Pairs a CPU can hold; 0 = as many as share 3 MiB, at least 8192 and at most 65536 (two CPUs and 220 containers
    that all wait for each other need 50,000)."""
    stamps: int = 32768

    def __post_init__(self) -> None:
        if self.matrix == 0:
            share = 1 << (131072 // max(1, self.cpus)).bit_length() - 1
            object.__setattr__(self, "matrix", min(65536, max(8192, share)))
        for name in ("cgroups", "matrix", "stamps"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name}: {value} is not a power of two")
        if self.cgroups > MAX_CGROUPS:
            raise ValueError(f"cgroups: {self.cgroups} is more than {MAX_CGROUPS}")
        if self.cpus < 1:
            raise ValueError(f"cpus: {self.cpus}")

    @property
    def slots(self) -> int:
        return self.cgroups + SPECIALS

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.cgroups,
            "stats": self.cpus * self.slots,
            "matrix": self.cpus * self.matrix,
            "cpus": self.cpus,
            "stamps": self.stamps,
        }

    def settings(self, cgroup_v2: bool) -> bytes:
        """``struct probe_config``."""
        masks = (self.cgroups - 1, self.matrix - 1, self.stamps - 1)
        return struct.pack("=8I", cgroup_v2, *masks, self.cpus, 0, 0, 0)


VALUE_SIZES = {
    "tags": TAG.itemsize,
    "stats": SLOT_STATS.itemsize,
    "matrix": MATRIX_ENTRY.itemsize,
    "cpus": CPU_STATE.itemsize,
    "stamps": STAMP_SIZE,
}
