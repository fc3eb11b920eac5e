"""`begin_probes`: opens every probe independently, and reports where the figures of each come from.

Loading one probe takes tenths of a second, loading all of them longer than the rest of a start. `begin_probes` opens
only the probe that the first sample needs, and `ProbeSet.open_next` one more per call.

sched_latency tries these ways in order until one can be read:

    core       CO-RE object by libbpf: histograms, throttling, culprits
    bcc        the same tables from a reduced program that a child process compiles with kernel headers
    schedstat  sums of run delay from /proc
    pressure   cpu.pressure of cgroup v2
    none       status only

The choice ``auto`` tries all; ``core`` and ``bcc`` name the only program to try, with the files as fallback; ``off``
opens nothing. No way raises an exception.

The other probes have one program each, and some of them files as fallback: see `OPENERS`. bcc has sched_latency only.
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
from koordlet.probes.loading.frame import ProbeEnvironment, ProbeError, SourceOf
from koordlet.probes.memstall.probe import MemStallSource, open_mem_stall
from koordlet.probes.netstall.probe import NetStallSource, open_net_stall
from koordlet.probes.oom import OomSource, open_oom
from koordlet.probes.schedlatency.files import FilesUnavailable, PressureSource, SchedstatSource
from koordlet.probes.schedlatency.loader import PROBE, LoadedProbe, load_core
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.probes.status import ProbeStatus
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host

CHOICES = ("auto", "core", "bcc", "off")

SchedLatencySource = SourceOf[SchedLatencySnapshot]


class AnySource(Protocol):
    """What every probe's source has, besides its own `read`."""

    def reclaim(self, live: frozenset[int]) -> int:
        """See `SourceOf.reclaim`."""

    def close(self, keep: bool) -> None:
        """See `SourceOf.close`."""


Opener = Callable[[ProbeEnvironment], "tuple[AnySource | None, ProbeStatus]"]
"""Opens one probe; never raises for what a kernel lacks: the status contains it."""

OPENERS: Mapping[str, Opener] = {
    "mem_stall": open_mem_stall,
    "oom": open_oom,
    "block_io": open_block_io,
    "net_stall": open_net_stall,
    "cgroup_stats": open_cgroup_stats,
}
"""Probe -> opener, without sched_latency; the names are attributes of `ProbeSet`."""

FIRST = "cgroup_stats"
STARTING = ProbeStatus(False, "none", "starting")
"""The status of a probe that has not been opened yet."""


@dataclass
class ProbeSet:
    """All probes of a koordlet. A probe is None when it has no source at all; `status` has the reason."""

    status: dict[str, ProbeStatus]
    sched_latency: SchedLatencySource | None = None
    mem_stall: MemStallSource | None = None
    oom: OomSource | None = None
    block_io: BlockIOSource | None = None
    net_stall: NetStallSource | None = None
    cgroup_stats: CgroupStats | None = None
    _release: list[Callable[[], object]] = field(default_factory=list)
    _waiting: deque[tuple[str, Callable[[], tuple[AnySource | None, ProbeStatus]]]] = field(default_factory=deque)

    def open_next(self) -> str | None:
        """Open a probe that is still `STARTING`; returns its name, None when there is none."""
        if not self._waiting:
            return None
        name, opener = self._waiting.popleft()
        source, self.status[name] = opener()
        setattr(self, name, source)
        return name

    def drop(self, name: str, source: str, reason: str) -> None:
        """Close a probe that is switched off; its figures come from `source`."""
        opened = self._source(name)
        if opened is not None:
            opened.close(False)
            setattr(self, name, None)
            self.status[name] = ProbeStatus(False, source, reason)

    def reclaim(self, live: frozenset[int]) -> None:
        """Free the slots of dead cgroups in the tables of every probe; `live` are all cgroup ids that exist."""
        for name in (PROBE, *OPENERS):
            opened = self._source(name)
            if opened is not None:
                opened.reclaim(live)

    def close(self, keep: bool = False) -> None:
        """`keep`: leave pinned programs counting for the next koordlet; else remove the pins and the mount."""
        self._waiting.clear()
        for name in (PROBE, *OPENERS):
            opened = self._source(name)
            if opened is not None:
                opened.close(keep)
                setattr(self, name, None)
        if not keep:
            for release in self._release:
                release()

    def _source(self, name: str) -> AnySource | None:
        opened: AnySource | None = getattr(self, name)
        return opened


def begin_probes(
    host: Host,
    choice: str = "auto",
    pin_dir: Path | None = None,
    *,
    mount_bpffs: bool = True,
    sizes: Sizes | None = None,
) -> ProbeSet:
    """Open `FIRST`; the others are `STARTING`. `pin_dir` defaults to ``<sys_fs>/bpf/koordlet``; `mount_bpffs` permits
    mounting bpffs there. Raises ValueError for an unknown `choice`, nothing else."""
    if choice not in CHOICES:
        raise ValueError(f"probes: {choice!r} is none of {', '.join(CHOICES)}")
    if choice == "off":
        return ProbeSet({name: ProbeStatus(False, "none", "switched off") for name in (PROBE, *OPENERS)})
    place, release = _environment(host, pin_dir, mount_bpffs)
    sizes = sizes or Sizes(cpus=place.cpus)
    core = replace(place, refusal="bcc has sched_latency only") if choice == "bcc" else place
    openers: dict[str, Callable[[], tuple[AnySource | None, ProbeStatus]]] = {
        PROBE: partial(_open_sched_latency, place, choice, sizes),
        **{name: partial(opener, core) for name, opener in OPENERS.items()},
    }
    waiting = deque(sorted(openers.items(), key=lambda item: item[0] != FIRST))
    probes = ProbeSet(dict.fromkeys(openers, STARTING), _release=release, _waiting=waiting)
    probes.open_next()
    return probes


def _environment(
    host: Host, pin_dir: Path | None, may_mount: bool
) -> tuple[ProbeEnvironment, list[Callable[[], object]]]:
    """Where programs may be loaded and pinned, and the functions that undo its preparation."""
    place = ProbeEnvironment(host, possible_cpus(host.roots), None)
    mount_point = host.roots.sys_fs / "bpf"
    pins = pin_dir or mount_point / "koordlet"
    if not host.facts.has("cap_bpf"):
        return replace(place, refusal=host.facts.reasons()["cap_bpf"]), []
    try:
        bpffs.ensure(pins, mount_point, may_mount)
    except bpffs.BpffsUnavailable as error:
        return replace(place, note=f"not pinned: {error}"), []
    return replace(place, pins=pins), [lambda: _tidy(pins, mount_point)]


def _open_sched_latency(
    place: ProbeEnvironment, choice: str, sizes: Sizes
) -> tuple[SchedLatencySource | None, ProbeStatus]:
    reasons = [reason for reason in (place.refusal, place.note) if reason]
    if not place.refusal:
        probe = _load_program(place, choice, sizes, reasons)
        if probe is not None:
            status = ProbeStatus(True, probe.source, "; ".join(reasons), place.pins is not None, probe.reused)
            return probe, status
    files = _open_files(place.host, reasons)
    return files, ProbeStatus(False, files.source if files is not None else "none", "; ".join(reasons))


def _load_program(place: ProbeEnvironment, choice: str, sizes: Sizes, reasons: list[str]) -> LoadedProbe | None:
    facts, v2, pins = place.host.facts, place.cgroup_v2, place.pins
    loaders: dict[str, Callable[[], LoadedProbe]] = {
        "core": lambda: load_core(sizes, v2, pins),
        "bcc": lambda: bcc.load(sizes, v2, pins),
    }
    for name, load in loaders.items():
        if choice not in ("auto", name):
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
            return SchedstatSource(cpu_root, host.roots)
        reasons.append("schedstat: no cpu hierarchy is mounted")
    except FilesUnavailable as error:
        reasons.append(f"schedstat: {error}")
    try:
        # Ids of another hierarchy would name no container: on v1 the unified tree is no fallback.
        return PressureSource(mounts.unified if mounts.version == 2 else None)
    except FilesUnavailable as error:
        reasons.append(f"pressure: {error}")
    return None


def _tidy(pins: Path, mount_point: Path) -> None:
    for name in (PROBE, *OPENERS):
        bpffs.remove_empty(pins / name, pins)
    bpffs.remove_empty(pins, mount_point)
    bpffs.unmount_if_ours(mount_point)
