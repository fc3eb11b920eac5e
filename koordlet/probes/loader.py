"""Loads the CO-RE object of sched_latency, or takes over what an earlier process left pinned.

With a bpf file system the tables and the links are pinned: the programs go on counting while koordlet is away, and the
next one reads on without attaching anything twice. Without it everything ends with this process.

Every failure is `ProbeError` with one sentence; `koordlet.probes.open_probes` turns it into a status.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from koordlet.probes import bpffs, libbpf
from koordlet.probes.layout import LAYOUT_VERSION, Sizes
from koordlet.probes.libbpf import BpfError, ProgramStats
from koordlet.probes.snapshot import SchedLatencySnapshot
from koordlet.probes.tables import READ_MAPS, LayoutMismatch, Occupancy, Tables

PROBE = "sched_latency"
OBJECT = Path(__file__).parent / "objects" / "sched_latency.bpf.o"
MAPS = (*READ_MAPS, "stamps")
SWITCH = "sched_switch"
WAKEUPS = ("sched_wakeup", "sched_wakeup_new")
TASK_THROTTLE = "throttle_cfs_rq_work"
"""Kernels that have this function throttle tasks one by one (v6.18); the others need the wakeup programs."""


class ProbeError(Exception):
    """The probe can't be loaded here; the message is fit for a user."""


class LoadedProbe:
    """A probe that counts, and its tables. Close it; ``keep=True`` leaves pinned programs counting."""

    def __init__(
        self,
        tables: Tables,
        links: Mapping[str, int],
        *,
        pins: Path | None,
        reused: bool,
        owner: libbpf.Object | None = None,
    ) -> None:
        self._tables: Tables | None = tables
        self._links = dict(links)
        self._owner = owner
        self.pins = pins
        self.reused = reused

    @property
    def tables(self) -> Tables:
        if self._tables is None:
            raise ProbeError(f"{PROBE}: closed")
        return self._tables

    @property
    def source(self) -> str:
        return self.tables.source

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        return self.tables.read(matrix)

    def reclaim(self, live: frozenset[int]) -> int:
        """See `Tables.reclaim`."""
        return self.tables.reclaim(live)

    def occupancy(self) -> Occupancy:
        return self.tables.occupancy()

    def programs(self) -> list[ProgramStats]:
        """Run counts and times of the attached programs (zero unless kernel.bpf_stats_enabled)."""
        return [libbpf.link_stats(fd) for fd in self._links.values()]

    def close(self, keep: bool) -> None:
        self._tables = None
        links, self._links = self._links, {}
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        else:
            for fd in links.values():
                os.close(fd)
        if self.pins is not None and not keep:
            bpffs.remove_pins(self.pins)


def load_core(sizes: Sizes, cgroup_v2: bool, pin_dir: Path | None, path: Path = OBJECT) -> LoadedProbe:
    """The probe from its CO-RE object; pinned below *pin_dir*, or not at all when that is None."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProbeError(f"{path}: {error.strerror}; build it with make bpf") from error
    pins = None
    try:
        if pin_dir is not None:
            pins = claim_pins(pin_dir, pin_key(content, sizes, cgroup_v2))
            if (pins / bpffs.READY).is_dir():
                return open_pins(pins, sizes, "bpf", reused=True)
        return _load(path, sizes, cgroup_v2, pins)
    except BpfError as error:
        raise ProbeError(str(error)) from error
    except (LayoutMismatch, OSError) as error:
        raise ProbeError(str(error)) from error


def pin_key(program: bytes, sizes: Sizes, cgroup_v2: bool) -> str:
    """Digest of everything that decides whether two tables may be mixed."""
    digest = hashlib.sha256(program)
    digest.update(repr((LAYOUT_VERSION, sizes, cgroup_v2)).encode())
    return digest.hexdigest()[:12]


def claim_pins(pin_dir: Path, key: str) -> Path:
    """The directory of this key's pins, other keys' removed."""
    bpffs.remove_other_pins(pin_dir / PROBE, key)
    pins = pin_dir / PROBE / key
    pins.mkdir(mode=0o700, parents=True, exist_ok=True)
    return pins


def open_pins(pins: Path, sizes: Sizes, source: str, *, reused: bool) -> LoadedProbe:
    """Read a complete set of pins; raises `BpfError` or `LayoutMismatch` when it isn't one."""
    fds: dict[str, int] = {}
    links: dict[str, int] = {}
    try:
        for name in READ_MAPS:
            fds[name] = libbpf.open_pinned(pins / name)
        for entry in sorted(pins.glob("link_*")):
            links[entry.name.removeprefix("link_")] = libbpf.open_pinned(entry)
        return LoadedProbe(Tables(fds, sizes, source), links, pins=pins, reused=reused)
    except BaseException:
        for fd in links.values():
            os.close(fd)
        raise
    finally:
        for fd in fds.values():
            os.close(fd)  # the mappings hold the maps


def _load(path: Path, sizes: Sizes, cgroup_v2: bool, pins: Path | None) -> LoadedProbe:
    skip = WAKEUPS if libbpf.kernel_has_function(TASK_THROTTLE) else ()
    if pins is not None:
        for link in pins.glob("link_*"):  # of a loader that was killed between two of them
            link.unlink()
    obj = libbpf.Object(path)
    try:
        obj.set_rodata(".rodata.config", sizes.settings(cgroup_v2))
        for name, entries in sizes.entries().items():
            obj.set_map_size(name, entries)
            if pins is not None:
                obj.pin_map(name, pins / name)
        for program in skip:
            obj.skip_program(program)
        obj.load()
        tables = Tables({name: obj.map_fd(name) for name in READ_MAPS}, sizes, "bpf")
        tables.forget_runners()
        links = {name: obj.attach(name) for name in (SWITCH, *WAKEUPS) if name not in skip}
        if pins is None:
            return LoadedProbe(tables, links, pins=None, reused=False, owner=obj)
        for name, fd in links.items():
            libbpf.pin(fd, pins / f"link_{name}")
        (pins / bpffs.READY).mkdir()
        probe = open_pins(pins, sizes, "bpf", reused=False)
    except BaseException:
        obj.close()
        raise
    obj.close()
    return probe
