"""block_io: loads and reads the probe. What is measured, its error and its cost: docs/probes.md.

Figures are by (cgroup, disk); times are of requests from arrival (after throttling) to issue to completion. Without BPF
`files.BlockFiles` gives bytes and operations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.probes.blockio.files import BlockFiles
from koordlet.probes.blockio.snapshot import BlockIOSnapshot, IoLosses
from koordlet.probes.columns import Ints, sum_by
from koordlet.probes.culprits.owners import OwnerIds
from koordlet.probes.culprits.reader import MatrixLosses, MatrixReader
from koordlet.probes.culprits.rows import CulpritSizes, set_rows
from koordlet.probes.culprits.slots import SPECIALS, TAG, SlotTable
from koordlet.probes.layouts import (
    BLOCK_IO_VERSION,
    DEVICES,
    IO_CONFIG,
    IO_CPU,
    IO_DEVICE,
    IO_STATS,
    TAG_DEVICE_SHIFT,
    TAG_SPACE_SHIFT,
)
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import (
    Attached,
    Build,
    MappedProbe,
    ProbeEnvironment,
    SourceOf,
    as_probe_error,
    load,
    open_or_files,
)
from koordlet.probes.loading.mapped import map_arrays
from koordlet.probes.status import ProbeStatus
from koordlet.system.proc.sysctl import read_sysctl

PROBE = "block_io"
SUMMED = tuple(name for name in IO_STATS.names or () if name != "reserved")
QUEUE = "block_bio_queue"
SPLIT = "block_split"
THROTTLE_TIMER = "timer_start"
ISSUE = "block_rq_issue"
COMPLETE = "block_rq_complete"
THROTTLE_FUNCTION = "throtl_pending_timer_fn"
"""The function of the timer that blk-throttle arms when it throttles a bio."""
KPTR_HIDDEN_FROM_ALL = 2
"""``kernel.kptr_restrict``: addresses are hidden even from privileged processes."""


@dataclass(frozen=True, slots=True)
class IoSizes(CulpritSizes):
    """The tables take ``rows*1024*(pairs+16) + 24*cpus*matrix + 16*pairs + 24*bios + 40*requests + 100 kB`` of kernel
    memory, resident in koordlet, which maps them: about 3 MB on two CPUs, 10 MB on eight, 13 MB from 32 CPUs on."""

    pairs: int = 1024
    """(cgroup, disk) that are counted separately."""
    bios: int = 8192
    requests: int = 4096

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.pairs,
            "stats": self.rows * (self.pairs + SPECIALS),
            "held": self.pairs,
            "matrix": self.cpus * self.matrix,
            "matrix_lost": self.cpus,
            "devices": DEVICES,
            "bios": self.bios,
            "requests": self.requests,
            "cpus": self.cpus,
        }

    def settings(self, cgroup_v2: bool) -> bytes:
        """``struct io_config``"""
        config = np.zeros((), IO_CONFIG)
        config["slots"] = cgroup_v2, self.pairs - 1
        set_rows(config, self.rows, self.cpus)
        config["matrix_mask"] = self.matrix - 1
        config["bio_mask"] = self.bios - 1
        config["request_mask"] = self.requests - 1
        return config.tobytes()


BlockIOSource = SourceOf[BlockIOSnapshot]


class BlockIO(MappedProbe):
    """The loaded probe."""

    def __init__(self, attached: Attached, sizes: IoSizes, ids: OwnerIds, conditions: Sequence[str] = ()) -> None:
        self.sizes = sizes
        self._ids = ids
        super().__init__(attached, conditions)

    def map_tables(self, maps: Mapping[str, int]) -> None:
        """See `MappedProbe.map_tables`."""
        sizes, entries = self.sizes, self.sizes.entries()
        tags, self._held, stats, self._devices, self._cpus = map_arrays(
            maps, entries, tags=TAG, held=TAG, stats=IO_STATS, devices=IO_DEVICE, cpus=IO_CPU
        )
        self._slots = SlotTable(tags)
        self._stats = stats.reshape(sizes.rows, sizes.pairs + SPECIALS)
        self._matrix = MatrixReader(maps, sizes.cpus, sizes.matrix)
        self._matrix_lost = MatrixLosses(maps, sizes.cpus)

    def read(self) -> BlockIOSnapshot:
        """Everything counted so far, summed over CPUs."""
        matrix = self._matrix.read(self.source, self._slots.keys)
        tags = matrix.slot_keys
        keys = self._ids.translate(without_device(tags))
        owned = np.flatnonzero(tags)
        stats = self._stats[:, owned]
        busy = (stats["ops"] + stats["bytes"]).any(axis=(0, 2)) | stats["throttled_count"].any(axis=0)
        used, stats = owned[busy], stats[:, busy]
        device = np.where(tags > 0, tags >> TAG_DEVICE_SHIFT & (1 << TAG_SPACE_SHIFT - TAG_DEVICE_SHIFT) - 1, DEVICES)
        numbers = np.append(self._devices["tag"].astype(np.int64) - 1, -1)[device]
        rows, group = np.unique(np.stack([keys[used], numbers[used]], axis=1), axis=0, return_inverse=True)
        return BlockIOSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=rows[:, 0],
            device=rows[:, 1],
            **{name: sum_by(group.ravel(), stats[name].sum(axis=0), len(rows)) for name in SUMMED},
            culprits=matrix.matrix(np.where(tags == 0, 0, keys)),
            lost=self._losses(),
        )

    def _losses(self) -> IoLosses:
        count, ns = self._matrix_lost.read()
        return IoLosses(count, ns, **{name: int(self._cpus[name].sum()) for name in IO_CPU.names or ()})

    def reclaim(self, live: frozenset[int]) -> int:
        """Free the slots of dead owners (`SlotTable.dead`); returns their number."""
        tags = self._slots.tags[self._slots.tags != 0].astype(np.int64)
        owners = without_device(tags)
        alive = self._ids.alive(owners, live)
        slots = self._slots.dead([int(tag) for tag, owner in zip(tags, owners, strict=True) if int(owner) in alive])
        if len(slots):
            self._ids.forget(without_device(self._slots.tags[slots].astype(np.int64)))
            self._matrix.forget(slots)
            self._stats[:, slots] = 0
            self._held[slots] = 0
            self._slots.free(slots)
        return len(slots)


def without_device(tags: Ints) -> Ints:
    """The owner tags (`culprits.owners`) in these tags; special keys are unchanged."""
    owner = tags >> TAG_SPACE_SHIFT << TAG_SPACE_SHIFT | tags & ((1 << TAG_DEVICE_SHIFT) - 1)
    return np.where(tags < 0, tags, owner)


def load_core(place: ProbeEnvironment, sizes: IoSizes | None = None, ids: OwnerIds | None = None) -> BlockIO:
    """The probe. Raises `ProbeError`."""
    ids = ids or OwnerIds.of(place.host)
    conditions = []
    with as_probe_error():
        skip = [name for name in (SPLIT, THROTTLE_TIMER) if not libbpf.kernel_has_tracepoint(name)]
        hidden = read_sysctl(place.host.roots, "kernel/kptr_restrict") == KPTR_HIDDEN_FROM_ALL
        if hidden or not libbpf.kernel_has_function(THROTTLE_FUNCTION):
            skip.append(THROTTLE_TIMER)
            why = "kptr_restrict hides addresses" if hidden else "the kernel has no blk-throttle"
            conditions.append(f"no throttling: {why}")
        sizes = sizes or IoSizes.of(place.cpus)
        build = Build(
            probe=PROBE,
            programs=tuple(name for name in (QUEUE, SPLIT, THROTTLE_TIMER, ISSUE, COMPLETE) if name not in skip),
            entries=sizes.entries(),
            settings=sizes.settings(place.cgroup_v2),
            skip=tuple(dict.fromkeys(skip)),
            shape=BLOCK_IO_VERSION,
        )
        return BlockIO(load(build, place.pins), sizes, ids, conditions)


def open_block_io(place: ProbeEnvironment) -> tuple[BlockIOSource | None, ProbeStatus]:
    """The probe, else the kernel's files, else nothing."""
    return open_or_files(place, load_core, BlockFiles.of)
