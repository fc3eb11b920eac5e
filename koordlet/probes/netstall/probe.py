"""net_stall: loads and reads the probe. What is measured, the owner of a socket, and the limits: docs/probes.md.

Without BPF `files.NetFiles` gives retransmits.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.probes.columns import sum_by
from koordlet.probes.culprits.owners import OwnerIds
from koordlet.probes.culprits.reader import MatrixLosses, MatrixReader
from koordlet.probes.culprits.rows import CulpritSizes, set_rows
from koordlet.probes.culprits.slots import SPECIALS, TAG, SlotTable
from koordlet.probes.layouts import NET_CONFIG, NET_CPU, NET_STALL_VERSION, NET_STATS
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
from koordlet.probes.netstall.files import NetFiles
from koordlet.probes.netstall.snapshot import SUMMED, NetLosses, NetStallSnapshot
from koordlet.probes.status import ProbeStatus

PROBE = "net_stall"
REQUIRED = ("softirq_entry", "softirq_exit", "tcp_retransmit_skb")
OPTIONAL = {
    "netif_receive_skb": "no receivers of softirq time",
    "tcp_probe": "no backlog, and softirq time by pod only",
    "tcp_retransmit_synack": "no retransmits of SYN-ACKs",
    "sock_rcvqueue_full": "no full queues of raw sockets",
    "udp_fail_queue_rcv_skb": "no full queues of UDP sockets",
}
"""Program (and tracepoint) -> what is missing without it."""
PREEMPT_COUNT = ("__preempt_count", "pcpu_hot")
"""Per-CPU variables of x86 kernels that hold the preemption count; the second is that of v6.2 to v6.14."""
COUNT_IN_TASK = ("aarch64",)
"""Machines on which the probe reads the preemption count from the running task."""
RAISE = "softirq_raise"
ORIGIN_UNKNOWN = "softirqs that a task raises are attributed to their receivers"


@dataclass(frozen=True, slots=True)
class NetSizes(CulpritSizes):
    """The tables take ``rows*320*(owners+16) + cpus*(24*matrix + 64) + 8*owners`` bytes of kernel memory: under 1 MB on
    two CPUs, 8 MB from 32 CPUs on."""

    owners: int = 1024

    def entries(self) -> dict[str, int]:
        """Map name -> entries."""
        return {
            "tags": self.owners,
            "stats": self.rows * (self.owners + SPECIALS),
            "matrix": self.cpus * self.matrix,
            "matrix_lost": self.cpus,
            "cpus": self.cpus,
        }

    def settings(self, cgroup_v2: bool, preempt_count: int = 0) -> bytes:
        """``struct net_config``; `preempt_count` as `preempt_count_offset` returns it."""
        config = np.zeros((), NET_CONFIG)
        config["slots"] = cgroup_v2, self.owners - 1
        set_rows(config, self.rows, self.cpus)
        config["matrix_mask"] = self.matrix - 1
        config["preempt_count"] = preempt_count
        return config.tobytes()


NetStallSource = SourceOf[NetStallSnapshot]


class NetStall(MappedProbe):
    """The loaded probe."""

    def __init__(self, attached: Attached, sizes: NetSizes, ids: OwnerIds, conditions: Sequence[str] = ()) -> None:
        self.sizes = sizes
        self._ids = ids
        super().__init__(attached, conditions)

    def map_tables(self, maps: Mapping[str, int]) -> None:
        """See `MappedProbe.map_tables`."""
        sizes, entries = self.sizes, self.sizes.entries()
        tags, stats, self._cpus = map_arrays(maps, entries, tags=TAG, stats=NET_STATS, cpus=NET_CPU)
        self._slots = SlotTable(tags)
        self._stats = stats.reshape(sizes.rows, sizes.owners + SPECIALS)
        self._matrix = MatrixReader(maps, sizes.cpus, sizes.matrix)
        self._matrix_lost = MatrixLosses(maps, sizes.cpus)

    def read(self) -> NetStallSnapshot:
        """Everything counted so far, summed over CPUs."""
        self._clear_vacated()
        matrix = self._matrix.read(self.source, self._slots.keys)
        tags = matrix.slot_keys
        keys = self._ids.translate(tags)
        used = np.flatnonzero(tags)
        stats = self._stats[:, used]
        sums = {name: stats[name].sum(axis=0).astype(np.int64) for name in SUMMED}
        counted = np.any([column.reshape(len(used), -1).any(axis=1) for column in sums.values()], axis=0)
        rows, group = np.unique(keys[used[counted]], return_inverse=True)
        maxima = np.zeros(len(rows), dtype=np.int64)
        np.maximum.at(maxima, group, stats["backlog_max"][:, counted].max(axis=0).astype(np.int64))
        return NetStallSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=rows,
            **{name: sum_by(group, column[counted], len(rows)) for name, column in sums.items()},
            backlog_max=maxima,
            culprits=matrix.matrix(np.where(tags == 0, 0, keys)),
            lost=NetLosses(*self._matrix_lost.read(), int(self._cpus["slot_lost"].sum())),
        )

    def _clear_vacated(self) -> None:
        """The number of a namespace may be another pod's by now: its figures must not be attributed to that pod."""
        vacated = self._ids.take_vacated()
        if vacated:
            slots = np.flatnonzero(np.isin(self._slots.tags, np.array(vacated, dtype=np.uint64)))
            self._matrix.forget(slots)
            self._stats[:, slots] = 0

    def reclaim(self, live: frozenset[int]) -> int:
        """Free the slots of dead owners (`SlotTable.dead`); returns their number."""
        tags = self._slots.tags
        slots = self._slots.dead(self._ids.alive(tags[tags != 0].astype(np.int64), live))
        if len(slots):
            self._ids.forget(tags[slots].astype(np.int64))
            self._matrix.forget(slots)
            self._stats[:, slots] = 0
            self._slots.free(slots)
        return len(slots)


def preempt_count_offset() -> int:
    """Bytes from a CPU's run queue to its preemption count. 0 where that is not per CPU (not x86), or where BTF does
    not contain it."""
    offsets = libbpf.per_cpu_offsets(("runqueues", *PREEMPT_COUNT))
    count = next((offsets[name] for name in PREEMPT_COUNT if name in offsets), None)
    return 0 if count is None or "runqueues" not in offsets else count - offsets["runqueues"]


def load_core(place: ProbeEnvironment, sizes: NetSizes | None = None, ids: OwnerIds | None = None) -> NetStall:
    """The probe. Raises `ProbeError`."""
    ids = ids or OwnerIds.of(place.host)
    with as_probe_error():
        skip = tuple(name for name in OPTIONAL if not libbpf.kernel_has_tracepoint(name))
        conditions = [OPTIONAL[name] for name in skip]
        preempt_count = preempt_count_offset()
        if preempt_count == 0 and platform.machine() not in COUNT_IN_TASK:
            skip, conditions = (*skip, RAISE), [*conditions, ORIGIN_UNKNOWN]
        sizes = sizes or NetSizes.of(place.cpus)
        build = Build(
            probe=PROBE,
            programs=tuple(name for name in (*REQUIRED, *OPTIONAL, RAISE) if name not in skip),
            entries=sizes.entries(),
            settings=sizes.settings(place.cgroup_v2, preempt_count),
            skip=skip,
            shape=NET_STALL_VERSION,
        )
        return NetStall(load(build, place.pins), sizes, ids, conditions)


def open_net_stall(place: ProbeEnvironment) -> tuple[NetStallSource | None, ProbeStatus]:
    """The probe, else the kernel's files, else nothing."""
    return open_or_files(place, load_core, NetFiles.of)
