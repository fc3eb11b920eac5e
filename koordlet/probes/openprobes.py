"""`open_probes`: climb down the ladder until something can be read, and say why it is not the top rung.

    core       CO-RE object by libbpf: histograms, throttling, culprits
    bcc        the same tables from a reduced program that a child process compiles with kernel headers
    schedstat  sums of run delay from /proc
    pressure   cpu.pressure of cgroup v2
    none       status only

``auto`` tries them in this order; ``core`` and ``bcc`` name the only program to try and fall to the files when it
can't be loaded; ``off`` opens nothing. No rung raises out of here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from koordlet.probes import bcc, bpffs
from koordlet.probes.layout import Sizes
from koordlet.probes.loader import PROBE, LoadedProbe, ProbeError, load_core
from koordlet.probes.schedstat import FilesUnavailable, PressureSource, SchedstatSource
from koordlet.probes.snapshot import SchedLatencySnapshot
from koordlet.probes.status import ProbeStatus
from koordlet.system.host import Host

WANTED = ("auto", "core", "bcc", "off")


class SchedLatencySource(Protocol):
    @property
    def source(self) -> str: ...

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        """Cumulative numbers of all cgroups."""

    def reclaim(self, live: frozenset[int]) -> int:
        """Give back what dead cgroups hold; *live* are all cgroup ids that exist. Returns how many were freed."""

    def close(self, keep: bool) -> None: ...


@dataclass
class ProbeSet:
    """All probes of a koordlet. ``sched_latency`` is None only when there is nothing to read at all."""

    status: dict[str, ProbeStatus]
    sched_latency: SchedLatencySource | None = None
    _release: list[Callable[[], object]] = field(default_factory=list)

    @property
    def programs(self) -> LoadedProbe | None:
        """The loaded probe, for its cost and occupancy; None on the file rungs."""
        return self.sched_latency if isinstance(self.sched_latency, LoadedProbe) else None

    def close(self, keep: bool = False) -> None:
        """``keep``: leave pinned programs counting for the next koordlet; else remove pins and our mount."""
        if self.sched_latency is not None:
            self.sched_latency.close(keep)
            self.sched_latency = None
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
    """Open every probe the host allows. ``pin_dir`` defaults to ``<sys_fs>/bpf/koordlet``; *mount_bpffs* permits
    mounting bpffs there. Raises ValueError for an unknown *wanted*, nothing else."""
    if wanted not in WANTED:
        raise ValueError(f"probes: {wanted!r} is none of {', '.join(WANTED)}")
    if wanted == "off":
        return ProbeSet({PROBE: ProbeStatus(False, "none", "switched off")})
    reasons: list[str] = []
    sizes = sizes or Sizes(cpus=possible_cpus(host))
    mount_point = host.roots.sys_fs / "bpf"
    wanted_pins = pin_dir or mount_point / "koordlet"
    pins: Path | None = None
    release: list[Callable[[], object]] = []
    if not host.facts.has("cap_sys_admin"):
        reasons.append(host.facts.reasons()["cap_sys_admin"])
    else:
        try:
            bpffs.ensure(wanted_pins, mount_point, mount_bpffs)
            pins = wanted_pins
            release = [lambda: _tidy(wanted_pins, mount_point)]
        except bpffs.BpffsUnavailable as error:
            reasons.append(f"not pinned: {error}")
        probe = _load_program(host, wanted, sizes, pins, reasons)
        if probe is not None:
            status = ProbeStatus(True, probe.source, "; ".join(reasons), pins is not None, probe.reused)
            return ProbeSet({PROBE: status}, probe, release)
    files = _open_files(host, reasons)
    source = files.source if files is not None else "none"
    return ProbeSet({PROBE: ProbeStatus(False, source, "; ".join(reasons))}, files, release)


def possible_cpus(host: Host) -> int:
    """Highest possible CPU number + 1: per-CPU rows are indexed by CPU number."""
    text = (host.roots.sys / "devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1


def _load_program(host: Host, wanted: str, sizes: Sizes, pins: Path | None, reasons: list[str]) -> LoadedProbe | None:
    v2 = host.facts.cgroup_version == 2
    rungs: dict[str, Callable[[], LoadedProbe]] = {
        "core": lambda: load_core(sizes, v2, pins),
        "bcc": lambda: bcc.load(sizes, v2, pins),
    }
    for name, load in rungs.items():
        if wanted not in ("auto", name):
            continue
        if name == "core" and not host.facts.btf:
            reasons.append(f"core: {host.facts.reasons()['btf']}")
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
    bpffs.remove_empty(pins / PROBE, mount_point)
    bpffs.unmount_if_ours(mount_point)
