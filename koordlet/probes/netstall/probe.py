"""net_stall: segments sent again, CPU time taken by network softirqs, and received data that nobody reads, by cgroup.
Loads and reads the probe.

What is measured, whose a socket is, and the limits: docs/probes.md. Without BPF `netfiles.NetFiles` tells retransmits.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordlet.probes.culprits.blame import BlameTable, merge
from koordlet.probes.culprits.owners import OwnerIds
from koordlet.probes.culprits.slots import Slots
from koordlet.probes.loading import libbpf
from koordlet.probes.loading.frame import Attached, Build, Place, ProbeError, SourceOf, as_probe_error, load, open_core
from koordlet.probes.loading.libbpf import ProgramStats
from koordlet.probes.loading.mapped import map_array, sum_by
from koordlet.probes.netstall.files import NetFiles
from koordlet.probes.netstall.snapshot import SUMMED, NetLost, NetStallSnapshot
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIALS, TAG
from koordlet.probes.status import ProbeStatus

PROBE = "net_stall"
VERSION = 2

NET_STATS = np.dtype(
    [
        ("softirq_hist", "u8", BUCKETS),
        ("softirq_ns", "u8"),
        ("softirq_count", "u8"),
        ("caused_ns", "u8"),
        ("retransmits", "u8"),
        ("full", "u8"),
        ("backlog_sum", "u8"),
        ("backlog_count", "u8"),
        ("backlog_max", "u8"),
        ("reserved", "u8", 6),
    ]
)
NET_CPU = np.dtype(
    [
        ("slot_lost", "u8"),
        ("start_ns", "u8"),
        ("mark_ns", "u8"),
        ("owner", "u8"),
        ("owner_slot", "u4"),
        ("victim", "u4"),
        ("own", "u4"),
        ("raised", "u4"),
        ("reserved", "u8", 2),
    ]
)

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
"""Per-CPU variables of x86 kernels that hold it; the second is that of v6.2 to v6.14."""
OWN = "softirq_raise"
OWN_UNKNOWN = "softirqs that a task raises count as their receivers' doing"


@dataclass(frozen=True, slots=True)
class NetSizes:
    """How large the tables are; all but ``cpus`` powers of two. Kernel memory is
    ``cpus*(320*(owners+16) + 24*matrix + 64) + 8*owners``."""

    cpus: int
    owners: int = 1024
    matrix: int = 4096

    @classmethod
    def of(cls, cpus: int) -> NetSizes:
        """Under 1 MB on two CPUs, 24 MB on 64."""
        return cls(cpus) if cpus <= 16 else cls(cpus, matrix=2048)

    def entries(self) -> dict[str, int]:
        return {
            "tags": self.owners,
            "stats": self.cpus * (self.owners + SPECIALS),
            "matrix": self.cpus * self.matrix,
            "blame_lost": self.cpus,
            "cpus": self.cpus,
        }

    def settings(self, cgroup_v2: bool, preempt_count: int = 0) -> bytes:
        """``struct net_config``; *preempt_count* is `preempt_count_offset`'s."""
        return struct.pack("=3Ii", cgroup_v2, self.owners - 1, self.matrix - 1, preempt_count)


NetStallSource = SourceOf[NetStallSnapshot]


class NetStall:
    """The loaded probe."""

    source = "bpf"

    def __init__(self, attached: Attached, sizes: NetSizes, ids: OwnerIds, conditions: Sequence[str] = ()) -> None:
        entries, maps = sizes.entries(), attached.maps
        try:
            self._tags = map_array(maps["tags"], "tags", TAG, entries["tags"])
            stats = map_array(maps["stats"], "stats", NET_STATS, entries["stats"])
            self._stats = stats.reshape(sizes.cpus, sizes.owners + SPECIALS)
            self._cpus = map_array(maps["cpus"], "cpus", NET_CPU, sizes.cpus)
            self._blame = BlameTable(maps, sizes.cpus, sizes.matrix)
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()
        self._attached, self._ids, self.sizes = attached, ids, sizes
        self.conditions, self.reused = tuple(conditions), attached.reused
        self._slots = Slots(self._tags)

    def read(self) -> NetStallSnapshot:
        self._vacate()
        entries = self._blame.entries()  # before the tags, so that every slot in it has one
        tags = self._slots.keys()
        keys = self._ids.translate(tags)
        live = np.flatnonzero(tags)
        stats = self._stats[:, live]
        sums = {name: stats[name].sum(axis=0).astype(np.int64) for name in SUMMED}
        counted = np.any([column.reshape(len(live), -1).any(axis=1) for column in sums.values()], axis=0)
        rows, group = np.unique(keys[live[counted]], return_inverse=True)
        maxima = np.zeros(len(rows), dtype=np.int64)
        np.maximum.at(maxima, group, stats["backlog_max"][:, counted].max(axis=0).astype(np.int64))
        blames = merge(entries, np.where(tags == 0, 0, keys))
        matrix, ns = self._blame.lost()
        return NetStallSnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=rows,
            **{name: sum_by(group, column[counted], len(rows)) for name, column in sums.items()},
            backlog_max=maxima,
            victim=blames.victim,
            culprit=blames.culprit,
            wait_ns=blames.wait_ns,
            wait_count=blames.wait_count,
            lost=NetLost(matrix, ns, int(self._cpus["slot_lost"].sum())),
        )

    def _vacate(self) -> None:
        """A namespace's number may be another pod's by now: what was counted is not for the new one."""
        gone = self._ids.moved_out()
        if gone:
            slots = np.flatnonzero(np.isin(self._tags, np.array(gone, dtype=np.uint64)))
            self._blame.forget(slots)
            self._stats[:, slots] = 0

    def reclaim(self, live: frozenset[int]) -> int:
        slots = self._slots.dead(self._ids.alive(self._tags[self._tags != 0].astype(np.int64), live))
        if len(slots):
            self._ids.forget(self._tags[slots].astype(np.int64))
            self._blame.forget(slots)
            self._stats[:, slots] = 0
            self._slots.free(slots)
        return len(slots)

    def programs(self) -> list[ProgramStats]:
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        self._attached.close(keep)


def preempt_count_offset() -> int:
    """Bytes from a CPU's run queue to what holds its preemption count; 0 where that is not per CPU (not x86) or the
    kernel does not say where it is: then softirqs that a task raises itself are taken to be their receivers' doing.
    """
    offsets = libbpf.per_cpu_offsets(("runqueues", *PREEMPT_COUNT))
    held = next((offsets[name] for name in PREEMPT_COUNT if name in offsets), None)
    return 0 if held is None or "runqueues" not in offsets else held - offsets["runqueues"]


def load_core(place: Place, sizes: NetSizes | None = None, ids: OwnerIds | None = None) -> NetStall:
    """The probe. Raises `ProbeError`."""
    ids = ids or OwnerIds.of(place.host)
    if ids is None:
        raise ProbeError("no cgroup hierarchy is mounted")
    with as_probe_error():
        skip = tuple(name for name in OPTIONAL if not libbpf.kernel_has_tracepoint(name))
        conditions = [OPTIONAL[name] for name in skip]
        own = preempt_count_offset()
        if own == 0:
            skip, conditions = (*skip, OWN), [*conditions, OWN_UNKNOWN]
        sizes = sizes or NetSizes.of(place.cpus)
        build = Build(
            probe=PROBE,
            programs=tuple(name for name in (*REQUIRED, *OPTIONAL, OWN) if name not in skip),
            entries=sizes.entries(),
            settings=sizes.settings(place.cgroup_v2, own),
            skip=skip,
            shape=VERSION,
        )
        return NetStall(load(build, place.pins), sizes, ids, conditions)


def open_net_stall(place: Place) -> tuple[NetStallSource | None, ProbeStatus]:
    """The probe, else the kernel's files, else nothing."""
    probe, status = open_core(place, load_core)
    if probe is not None:
        return probe, status
    try:
        files = NetFiles.of(place.host)
    except ProbeError as error:
        return None, replace(status, reason=f"{status.reason}; {error}")
    return files, replace(status, source=files.source)
