"""block_io: what each cgroup asks of each disk, how long it waits, and whose requests went before. Loads and reads the
probe.

Figures are by (cgroup, disk); times are of requests from arrival (after throttling) to issue to completion. What is
measured, its error and its cost: docs/probes.md. Without BPF `blockfiles.BlockFiles` tells bytes and operations.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordlet.probes.blockio.files import BlockFiles
from koordlet.probes.blockio.snapshot import BlockIOSnapshot, IoLost
from koordlet.probes.culprits.blame import BlameTable, merge
from koordlet.probes.culprits.owners import SPACE_SHIFT, OwnerIds
from koordlet.probes.culprits.slots import Slots
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import Attached, Build, Place, ProbeError, SourceOf, as_probe_error, load, open_core
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.loading.mapped import Ints, map_array, sum_by
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIALS, TAG
from koordlet.probes.status import ProbeStatus

PROBE = "block_io"
VERSION = 1
RING = 32
DEVICES = 128
DEVICE_SHIFT = 48

IO_STATS = np.dtype(
    [
        ("queue_hist", "u8", (2, BUCKETS)),
        ("device_hist", "u8", (2, BUCKETS)),
        ("ops", "u8", 4),
        ("bytes", "u8", 4),
        ("queue_ns", "u8", 4),
        ("device_ns", "u8", 4),
        ("ahead_ns", "u8"),
        ("throttled_ns", "u8"),
        ("throttled_count", "u8"),
        ("reserved", "u8", 5),
    ]
)
IO_SLICE = np.dtype([("start_ns", "u8"), ("end_ns", "u8"), ("slot", "u4"), ("reserved", "u4")])
IO_DEVICE = np.dtype([("tag", "u8"), ("last_ns", "u8"), ("head", "u4"), ("reserved", "u4"), ("ring", IO_SLICE, RING)])
IO_CPU = np.dtype([(name, "u8") for name in ("slot_lost", "device_lost", "request_lost", "unstamped")])
SUMMED = tuple(name for name in IO_STATS.names or () if name != "reserved")

QUEUE, SPLIT, HELD, ISSUE, COMPLETE = (
    "block_bio_queue", "block_split", "timer_start", "block_rq_issue", "block_rq_complete",
)  # fmt: skip
THROTTLE = "throtl_pending_timer_fn"
"""The function of the timer that blk-throttle arms when it holds a bio back."""


@dataclass(frozen=True, slots=True)
class IoSizes:
    """How large the tables are; all but ``cpus`` powers of two. Kernel memory is
    ``cpus*(1024*(pairs+16) + 24*matrix) + 16*pairs + 24*bios + 40*requests + 100 kB``."""

    cpus: int
    pairs: int = 1024
    """(cgroup, disk) that are told apart."""
    matrix: int = 4096
    """Pairs of pairs a CPU can hold."""
    bios: int = 8192
    requests: int = 4096

    @classmethod
    def of(cls, cpus: int) -> IoSizes:
        """About 3 MB on two CPUs, 10 MB on eight and on 16, 36 MB on 64: resident in koordlet, which maps them."""
        return cls(cpus) if cpus <= 8 else cls(cpus, pairs=512, matrix=2048)

    def entries(self) -> dict[str, int]:
        return {
            "tags": self.pairs,
            "stats": self.cpus * (self.pairs + SPECIALS),
            "held": self.pairs,
            "matrix": self.cpus * self.matrix,
            "blame_lost": self.cpus,
            "devices": DEVICES,
            "bios": self.bios,
            "requests": self.requests,
            "cpus": self.cpus,
        }

    def settings(self, cgroup_v2: bool) -> bytes:
        """``struct io_config``"""
        masks = (self.pairs - 1, self.matrix - 1, self.bios - 1, self.requests - 1)
        return struct.pack("=8I", cgroup_v2, *masks, 0, 0, 0)


BlockIOSource = SourceOf[BlockIOSnapshot]


class BlockIO:
    """The loaded probe."""

    source = "bpf"

    def __init__(self, attached: Attached, sizes: IoSizes, ids: OwnerIds, conditions: Sequence[str] = ()) -> None:
        entries, maps = sizes.entries(), attached.maps
        try:
            self._tags = map_array(maps["tags"], "tags", TAG, entries["tags"])
            self._held = map_array(maps["held"], "held", TAG, entries["held"])
            stats = map_array(maps["stats"], "stats", IO_STATS, entries["stats"])
            self._stats = stats.reshape(sizes.cpus, sizes.pairs + SPECIALS)
            self._devices = map_array(maps["devices"], "devices", IO_DEVICE, DEVICES)
            self._cpus = map_array(maps["cpus"], "cpus", IO_CPU, sizes.cpus)
            self._blame = BlameTable(maps, sizes.cpus, sizes.matrix)
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()
        self._attached, self._ids, self.sizes = attached, ids, sizes
        self.conditions, self.reused = tuple(conditions), attached.reused
        self._slots = Slots(self._tags)

    def read(self) -> BlockIOSnapshot:
        entries = self._blame.entries()  # before the tags, so that every slot in it has one
        tags = self._slots.keys()
        keys = self._ids.translate(without_device(tags))
        owned = np.flatnonzero(tags)
        mine = self._stats[:, owned]
        busy = (mine["ops"] + mine["bytes"]).any(axis=(0, 2)) | mine["throttled_count"].any(axis=0)
        used, stats = owned[busy], mine[:, busy]
        device = np.where(tags > 0, tags >> DEVICE_SHIFT & (1 << SPACE_SHIFT - DEVICE_SHIFT) - 1, DEVICES)
        numbers = np.append(self._devices["tag"].astype(np.int64) - 1, -1)[device]
        rows, group = np.unique(np.stack([keys[used], numbers[used]], axis=1), axis=0, return_inverse=True)
        sums = {name: sum_by(group.ravel(), stats[name].sum(axis=0), len(rows)) for name in SUMMED}
        blames = merge(entries, np.where(tags == 0, 0, keys))
        return BlockIOSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=rows[:, 0],
            device=rows[:, 1],
            **sums,
            victim=blames.victim,
            culprit=blames.culprit,
            wait_ns=blames.wait_ns,
            wait_count=blames.wait_count,
            lost=self._lost(),
        )

    def _lost(self) -> IoLost:
        matrix, ns = self._blame.lost()
        return IoLost(matrix, ns, **{name: int(self._cpus[name].sum()) for name in IO_CPU.names or ()})

    def reclaim(self, live: frozenset[int]) -> int:
        tags = self._tags[self._tags != 0].astype(np.int64)
        owners = without_device(tags)
        alive = self._ids.alive(owners, live)
        slots = self._slots.dead([int(one) for one, owner in zip(tags, owners, strict=True) if int(owner) in alive])
        if len(slots):
            self._ids.forget(without_device(self._tags[slots].astype(np.int64)))
            self._blame.forget(slots)
            self._stats[:, slots] = 0
            self._held[slots] = 0
            self._slots.free(slots)
        return len(slots)

    def programs(self) -> list[ProgramStats]:
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        self._attached.close(keep)


def without_device(tags: Ints) -> Ints:
    """The tags' owners, as `owners` has them; special keys stay."""
    owners: Ints = np.where(tags < 0, tags, tags >> SPACE_SHIFT << SPACE_SHIFT | tags & ((1 << DEVICE_SHIFT) - 1))
    return owners


def load_core(place: Place, sizes: IoSizes | None = None, ids: OwnerIds | None = None) -> BlockIO:
    """The probe. Raises `ProbeError`."""
    ids = ids or OwnerIds.of(place.host)
    if ids is None:
        raise ProbeError("no cgroup hierarchy is mounted")
    conditions = []
    with as_probe_error():
        skip = [name for name in (SPLIT, HELD) if not libbpf.kernel_has_tracepoint(name)]
        hidden = (place.host.roots.proc / "sys/kernel/kptr_restrict").read_text().strip() == "2"
        if hidden or not libbpf.kernel_has_function(THROTTLE):
            skip.append(HELD)
            why = "kptr_restrict hides addresses" if hidden else "the kernel has no blk-throttle"
            conditions.append(f"no throttling: {why}")
        sizes = sizes or IoSizes.of(place.cpus)
        build = Build(
            probe=PROBE,
            programs=tuple(name for name in (QUEUE, SPLIT, HELD, ISSUE, COMPLETE) if name not in skip),
            entries=sizes.entries(),
            settings=sizes.settings(place.cgroup_v2),
            skip=tuple(dict.fromkeys(skip)),
            shape=VERSION,
        )
        return BlockIO(load(build, place.pins), sizes, ids, conditions)


def open_block_io(place: Place) -> tuple[BlockIOSource | None, ProbeStatus]:
    """The probe, else the kernel's files, else nothing."""
    probe, status = open_core(place, load_core)
    if probe is not None:
        return probe, status
    try:
        files = BlockFiles.of(place.host)
    except ProbeError as error:
        return None, replace(status, reason=f"{status.reason}; {error}")
    return files, replace(status, source=files.source)
