"""`open_probes`: open every probe, each by itself, and say of each where its numbers come from.

Loading one takes tenths of a second, of all together more than everything else in a start: `begin_probes` opens only
what the first sample is made of, and `ProbeSet.open_next` one more at a time.

sched_latency climbs down a ladder until something can be read:

    core       CO-RE object by libbpf: histograms, throttling, culprits
    bcc        the same tables from a reduced program that a child process compiles with kernel headers
    schedstat  sums of run delay from /proc
    pressure   cpu.pressure of cgroup v2
    none       status only

``auto`` tries them in this order; ``core`` and ``bcc`` name the only program to try and fall to the files when it
can't be loaded; ``off`` opens nothing. No rung raises out of here.

The other probes have one program each and, some of them, files to fall to: see `OPENERS`. bcc has sched_latency only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from koordlet.probes.blockio.probe import BlockIOSource, open_block_io
from koordlet.probes.cgroup_stats import CgroupStats, open_cgroup_stats
from koordlet.probes.loading import bcc, bpffs
from koordlet.probes.loading.frame import Place, ProbeError, SourceOf
from koordlet.probes.memstall import MemStallSource, open_mem_stall
from koordlet.probes.netstall.probe import NetStallSource, open_net_stall
from koordlet.probes.oom import OomSource, open_oom
from koordlet.probes.schedlatency.layout import Sizes
from koordlet.probes.schedlatency.loader import PROBE, LoadedProbe, load_core
from koordlet.probes.schedlatency.schedstat import FilesUnavailable, PressureSource, SchedstatSource
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.probes.status import ProbeStatus
from koordlet.system.host import Host

WANTED = ("auto", "core", "bcc", "off")


class SchedLatencySource(SourceOf[SchedLatencySnapshot], Protocol):
    """*matrix*: who waited for whom, too, the dear part."""

    def read(self, matrix: bool = True) -> SchedLatencySnapshot: ...


class Source(Protocol):
    """What every probe's source can do, beside its own ``read()``."""

    def close(self, keep: bool) -> None: ...


Opener = Callable[[Place], "tuple[Source | None, ProbeStatus]"]
"""Opens one probe at a place; never raises for what a kernel lacks: the status says it."""

OPENERS: Mapping[str, Opener] = {
    "mem_stall": open_mem_stall,
    "oom": open_oom,
    "block_io": open_block_io,
    "net_stall": open_net_stall,
    "cgroup_stats": open_cgroup_stats,
}
"""Probe -> opener, beside sched_latency; the names are attributes of `ProbeSet`."""

FIRST = "cgroup_stats"
STARTING = ProbeStatus(False, "none", "starting")
"""Of a probe whose turn has not come."""


@dataclass
class ProbeSet:
    """All probes of a koordlet. One is None when there is nothing at all to read for it; ``status`` says why."""

    status: dict[str, ProbeStatus]
    sched_latency: SchedLatencySource | None = None
    mem_stall: MemStallSource | None = None
    oom: OomSource | None = None
    block_io: BlockIOSource | None = None
    net_stall: NetStallSource | None = None
    cgroup_stats: CgroupStats | None = None
    _release: list[Callable[[], object]] = field(default_factory=list)
    _waiting: deque[tuple[str, Callable[[], tuple[Source | None, ProbeStatus]]]] = field(default_factory=deque)

    def open_next(self) -> str | None:
        """Open one that is still `STARTING`; its name, None when there is none."""
        if not self._waiting:
            return None
        name, opener = self._waiting.popleft()
        source, self.status[name] = opener()
        setattr(self, name, source)
        return name

    @property
    def programs(self) -> LoadedProbe | None:
        """The loaded probe, for its cost and occupancy; None on the file rungs."""
        return self.sched_latency if isinstance(self.sched_latency, LoadedProbe) else None

    def drop(self, name: str, source: str, reason: str) -> None:
        """Do without one that is there but not wanted; its numbers come from *source*."""
        opened: Source | None = getattr(self, name)
        if opened is not None:
            opened.close(False)
            setattr(self, name, None)
            self.status[name] = ProbeStatus(False, source, reason)

    def reclaim(self, live: frozenset[int]) -> None:
        """Give back what dead cgroups hold in every probe's tables; *live* are all cgroup ids that exist."""
        for name in (PROBE, *OPENERS):
            reclaim = getattr(getattr(self, name), "reclaim", None)
            if reclaim is not None:
                reclaim(live)

    def close(self, keep: bool = False) -> None:
        """``keep``: leave pinned programs counting for the next koordlet; else remove pins and our mount."""
        self._waiting.clear()
        for name in (PROBE, *OPENERS):
            source: Source | None = getattr(self, name)
            if source is not None:
                source.close(keep)
                setattr(self, name, None)
        if not keep:
            for release in self._release:
                release()


def open_probes(
    host: Host,
    wanted: str = "auto",
    pin_dir: Path | None = None,
    *,
    mount_bpffs: bool = True,
    sizes: Sizes | None = None,
) -> ProbeSet:
    """Open every probe the host allows; arguments and errors as `begin_probes`."""
    probes = begin_probes(host, wanted, pin_dir, mount_bpffs=mount_bpffs, sizes=sizes)
    while probes.open_next() is not None:
        pass
    return probes


def begin_probes(
    host: Host,
    wanted: str = "auto",
    pin_dir: Path | None = None,
    *,
    mount_bpffs: bool = True,
    sizes: Sizes | None = None,
) -> ProbeSet:
    """Open `FIRST`; the others are `STARTING`. ``pin_dir`` defaults to ``<sys_fs>/bpf/koordlet``; *mount_bpffs* permits
    mounting bpffs there. Raises ValueError for an unknown *wanted*, nothing else."""
    if wanted not in WANTED:
        raise ValueError(f"probes: {wanted!r} is none of {', '.join(WANTED)}")
    if wanted == "off":
        return ProbeSet({name: ProbeStatus(False, "none", "switched off") for name in (PROBE, *OPENERS)})
    place, release = _place(host, pin_dir, mount_bpffs)
    sizes = sizes or Sizes(cpus=place.cpus)
    core = replace(place, refusal="the bcc rung has sched_latency only") if wanted == "bcc" else place
    openers: dict[str, Callable[[], tuple[Source | None, ProbeStatus]]] = {
        PROBE: partial(_open_sched_latency, place, wanted, sizes),
        **{name: partial(opener, core) for name, opener in OPENERS.items()},
    }
    waiting = deque(sorted(openers.items(), key=lambda one: one[0] != FIRST))
    probes = ProbeSet(dict.fromkeys(openers, STARTING), _release=release, _waiting=waiting)
    probes.open_next()
    return probes


def _place(host: Host, pin_dir: Path | None, may_mount: bool) -> tuple[Place, list[Callable[[], object]]]:
    """Where programs may be loaded and pinned, and what undoes it."""
    place = Place(host, possible_cpus(host), None)
    mount_point = host.roots.sys_fs / "bpf"
    pins = pin_dir or mount_point / "koordlet"
    if not host.facts.has("cap_sys_admin"):
        return replace(place, refusal=host.facts.reasons()["cap_sys_admin"]), []
    try:
        bpffs.ensure(pins, mount_point, may_mount)
    except bpffs.BpffsUnavailable as error:
        return replace(place, note=f"not pinned: {error}"), []
    return replace(place, pins=pins), [lambda: _tidy(pins, mount_point)]


def _open_sched_latency(place: Place, wanted: str, sizes: Sizes) -> tuple[SchedLatencySource | None, ProbeStatus]:
    reasons = [reason for reason in (place.refusal, place.note) if reason]
    if not place.refusal:
        probe = _load_program(place, wanted, sizes, reasons)
        if probe is not None:
            status = ProbeStatus(True, probe.source, "; ".join(reasons), place.pins is not None, probe.reused)
            return probe, status
    files = _open_files(place.host, reasons)
    return files, ProbeStatus(False, files.source if files is not None else "none", "; ".join(reasons))


def possible_cpus(host: Host) -> int:
    """Highest possible CPU number + 1: per-CPU rows are indexed by CPU number."""
    text = (host.roots.sys / "devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1


def _load_program(place: Place, wanted: str, sizes: Sizes, reasons: list[str]) -> LoadedProbe | None:
    facts, v2, pins = place.host.facts, place.cgroup_v2, place.pins
    rungs: dict[str, Callable[[], LoadedProbe]] = {
        "core": lambda: load_core(sizes, v2, pins),
        "bcc": lambda: bcc.load(sizes, v2, pins),
    }
    for name, load in rungs.items():
        if wanted not in ("auto", name):
            continue
        if name == "core" and not facts.btf:
            reasons.append(f"core: {facts.reasons()['btf']}")
            continue
        try:
            return load()
        except ProbeError as error:
            reasons.append(f"{name}: {error}")
    return None


def _open_files(host: Host, reasons: list[str]) -> SchedLatencySource | None:
    mounts = host.facts.cgroup_mounts
    cpu_root = mounts.hierarchy("cpu")
    try:
        if cpu_root is not None:
            return SchedstatSource(cpu_root, host.roots.proc)
        reasons.append("schedstat: no cpu hierarchy is mounted")
    except FilesUnavailable as error:
        reasons.append(f"schedstat: {error}")
    try:
        # Ids of another hierarchy would name no container: on v1 the unified tree can't stand in.
        return PressureSource(mounts.unified if mounts.version == 2 else None)
    except FilesUnavailable as error:
        reasons.append(f"pressure: {error}")
    return None


def _tidy(pins: Path, mount_point: Path) -> None:
    for name in (PROBE, *OPENERS):
        bpffs.remove_empty(pins / name, pins)
    bpffs.remove_empty(pins, mount_point)
    bpffs.unmount_if_ours(mount_point)
