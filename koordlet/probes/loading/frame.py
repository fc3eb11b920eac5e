"""Loading a probe: one CO-RE object, its tables and links pinned as one set, taken over at a restart.

With a bpf file system the tables and the links are pinned below ``<pin_dir>/<probe>/<key>``: the programs keep counting
while koordlet does not run, and the next koordlet reads on without attaching anything twice. Without it everything ends
with this process. Probes are independent: whatever keeps one from loading is its `ProbeError`, one sentence, and its
`ProbeStatus`; the others are not affected.

A new probe consists of a `Build` (what to load), a source around the `Attached` that `load` returns, and an opener in
``koordlet.probes.openprobes.OPENERS``, usually `open_core`.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from koordlet.probes.loading import bpffs, libbpf
from koordlet.probes.loading.libbpf import BpfError, ProgramStats
from koordlet.probes.loading.mapped import LayoutMismatch
from koordlet.probes.status import ProbeStatus
from koordlet.system.host import Host

OBJECTS = Path(__file__).parents[1] / "objects"
SETTINGS = ".rodata.config"


class ProbeError(Exception):
    """The probe cannot be loaded here; the message is written for the user."""


S_co = TypeVar("S_co", covariant=True)


class SourceOf(Protocol[S_co]):
    """A probe, or the files that replace it, by the type of its readings."""

    @property
    def source(self) -> str:
        """Where the figures come from: ``bpf``, or the name of the files."""

    def read(self) -> S_co:
        """Cumulative."""

    def reclaim(self, live: frozenset[int]) -> int:
        """Free the slots of dead cgroups; `live` are all cgroup ids that exist. Returns the number of freed slots."""

    def close(self, keep: bool) -> None:
        """`keep`: leave pinned programs counting."""


class FileSource:
    """A source that reads kernel files: it holds nothing open, and keeps nothing per cgroup."""

    source: ClassVar[str]

    def reclaim(self, live: frozenset[int]) -> int:
        """See `SourceOf.reclaim`."""
        return 0

    def close(self, keep: bool) -> None:
        """See `SourceOf.close`."""


@dataclass(frozen=True, slots=True)
class ProbeEnvironment:
    """Where probes are opened: the argument of an opener."""

    host: Host
    cpus: int
    """Highest possible CPU number + 1."""
    pins: Path | None
    """The directory in bpffs for all probes; None = nothing is pinned."""
    refusal: str = ""
    """Why no program can be loaded here; empty = one can."""
    note: str = ""
    """Why nothing is pinned; part of every status."""

    @property
    def cgroup_v2(self) -> bool:
        """Whether ids are those of the default hierarchy."""
        return self.host.facts.cgroup_version == 2


@dataclass(frozen=True, slots=True)
class Build:
    """One object and how it is loaded here."""

    probe: str
    """Name of the probe, of its directory of pins and of its object."""
    programs: tuple[str, ...]
    """Programs to attach. All others of the object must be in `skip`."""
    entries: Mapping[str, int]
    """Map -> entries; 0 keeps the object's own number. All maps named here are pinned."""
    settings: bytes = b""
    """Content of ``.rodata.config``."""
    skip: tuple[str, ...] = ()
    """Programs that this kernel cannot load or does not need."""
    iterate: Mapping[str, bytes] = field(default_factory=dict)
    """Iterator program -> ``union bpf_iter_link_info`` (`libbpf.cgroup_iter`)."""
    shape: object = None
    """Anything else that decides whether two builds may share tables; its repr is a part of the key."""


class Loaded(Protocol):
    """A source, as far as `open_core` uses it."""

    @property
    def source(self) -> str:
        """``bpf``"""

    @property
    def reused(self) -> bool:
        """Whether an earlier process loaded it."""

    @property
    def conditions(self) -> Sequence[str]:
        """What this kernel does not provide although the probe counts, one sentence each."""

    def close(self, keep: bool) -> None:
        """`keep`: leave pinned programs counting."""


_L = TypeVar("_L", bound=Loaded)
_F = TypeVar("_F", bound=FileSource)


def open_core(place: ProbeEnvironment, load: Callable[[ProbeEnvironment], _L]) -> tuple[_L | None, ProbeStatus]:
    """The usual opener: `load` raises `ProbeError` when the probe cannot be loaded here."""
    refusal = place.refusal or ("" if place.host.facts.btf else place.host.facts.reasons()["btf"])
    if refusal:
        return None, ProbeStatus(False, "none", refusal)
    try:
        source = load(place)
    except ProbeError as error:
        return None, ProbeStatus(False, "none", "; ".join(filter(None, [place.note, f"core: {error}"])))
    reason = "; ".join(filter(None, [place.note, *source.conditions]))
    return source, ProbeStatus(True, source.source, reason, place.pins is not None, source.reused)


def open_or_files(
    place: ProbeEnvironment, load: Callable[[ProbeEnvironment], _L], files_of: Callable[[Host], _F]
) -> tuple[_L | _F | None, ProbeStatus]:
    """The probe, else the kernel's files, else nothing. `files_of` raises `ProbeError` where there are no files."""
    probe, status = open_core(place, load)
    if probe is not None:
        return probe, status
    try:
        files = files_of(place.host)
    except ProbeError as error:
        return None, replace(status, reason=f"{status.reason}; {error}")
    return files, replace(status, source=files.source)


class Attached:
    """A loaded probe: attached links, and maps to read until `release_maps`. Close it; ``keep=True`` leaves pinned
    programs counting."""

    def __init__(
        self,
        maps: Mapping[str, int],
        links: Mapping[str, int],
        *,
        pins: Path | None,
        reused: bool,
        owner: libbpf.BpfObject | None = None,
    ) -> None:
        self._maps = dict(maps)
        self._links = dict(links)
        self._owner = owner
        self.pins = pins
        self.reused = reused

    @property
    def maps(self) -> Mapping[str, int]:
        """Map -> descriptor, owned by this object."""
        return self._maps

    @property
    def links(self) -> Mapping[str, int]:
        """Program -> descriptor of its link, owned by this object."""
        return self._links

    def release_maps(self) -> None:
        """Close the descriptors of maps; mappings of them remain."""
        maps, self._maps = self._maps, {}
        if self._owner is None:
            for fd in maps.values():
                os.close(fd)

    def programs(self) -> list[ProgramStats]:
        """Run counts and times of the attached programs (zero unless kernel.bpf_stats_enabled)."""
        return [libbpf.link_stats(fd) for fd in self._links.values()]

    def close(self, keep: bool) -> None:
        """`keep`: leave pinned programs counting."""
        self.release_maps()
        links, self._links = self._links, {}
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        else:
            for fd in links.values():
                os.close(fd)
        if self.pins is not None and not keep:
            bpffs.remove_pins(self.pins)


class MappedProbe(ABC):
    """A loaded probe with mapped tables: what the sources of all pinned probes share."""

    source = "bpf"

    def __init__(self, attached: Attached, conditions: Sequence[str] = ()) -> None:
        self._attached = attached
        self.conditions = tuple(conditions)
        self.reused = attached.reused
        try:
            self.map_tables(attached.maps)
        except BaseException:
            attached.close(keep=True)
            raise
        attached.release_maps()

    @abstractmethod
    def map_tables(self, maps: Mapping[str, int]) -> None:
        """Map the tables; `maps` is map -> descriptor."""

    def programs(self) -> list[ProgramStats]:
        """Run counts and times of the attached programs (zero unless kernel.bpf_stats_enabled)."""
        return self._attached.programs()

    def close(self, keep: bool) -> None:
        """See `SourceOf.close`."""
        self._attached.close(keep)


def load(
    build: Build,
    pin_dir: Path | None,
    path: Path | None = None,
    prepare: Callable[[Mapping[str, int]], None] | None = None,
) -> Attached:
    """Load and attach `build`, or take over the pins that an earlier process left of exactly the same build.

    `prepare` is called with map -> descriptor of the loaded tables, before any program is attached. Raises
    `ProbeError`.
    """
    path = path or OBJECTS / f"{build.probe}.bpf.o"
    with as_probe_error():
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ProbeError(f"{path}: {error.strerror}; build it with make bpf") from error
        pins = None
        if pin_dir is not None:
            pins = claim_pins(pin_dir, build.probe, pin_key(content, build))
            if (pins / bpffs.READY).is_dir():
                return open_pins(pins, tuple(build.entries), reused=True)
        return _load(build, path, pins, prepare)


@contextmanager
def as_probe_error() -> Iterator[None]:
    """Turn every error of loading into a `ProbeError`."""
    try:
        yield
    except (BpfError, LayoutMismatch, OSError) as error:
        raise ProbeError(str(error)) from error


def pin_key(program: bytes, build: Build) -> str:
    """Digest of everything that decides whether two builds may share tables."""
    digest = hashlib.sha256(program)
    shape = (sorted(build.entries.items()), build.settings, build.programs, sorted(build.iterate.items()), build.shape)
    digest.update(repr(shape).encode())
    return digest.hexdigest()[:12]


def claim_pins(pin_dir: Path, probe: str, key: str) -> Path:
    """The directory for the pins of this key; those of other keys are removed."""
    bpffs.remove_other_pins(pin_dir / probe, key)
    pins = pin_dir / probe / key
    pins.mkdir(mode=0o700, parents=True, exist_ok=True)
    return pins


def open_pins(pins: Path, maps: tuple[str, ...], *, reused: bool) -> Attached:
    """Open a complete set of pins; raises `BpfError` when it is not complete."""
    opened: dict[str, int] = {}
    links: dict[str, int] = {}
    try:
        for name in maps:
            opened[name] = libbpf.open_pinned(pins / name)
        for entry in sorted(pins.glob("link_*")):
            links[entry.name.removeprefix("link_")] = libbpf.open_pinned(entry)
    except BaseException:
        for fd in (*opened.values(), *links.values()):
            os.close(fd)
        raise
    return Attached(opened, links, pins=pins, reused=reused)


def _load(build: Build, path: Path, pins: Path | None, prepare: Callable[[Mapping[str, int]], None] | None) -> Attached:
    if pins is not None:
        for link in pins.glob("link_*"):  # left by a loader that was killed while it pinned them
            link.unlink()
    obj = libbpf.BpfObject(path)
    try:
        if build.settings:
            obj.set_rodata(SETTINGS, build.settings)
        for name, entries in build.entries.items():
            if entries:
                obj.set_map_size(name, entries)
            if pins is not None:
                obj.pin_map(name, pins / name)
        for program in build.skip:
            obj.skip_program(program)
        obj.load()
        maps = {name: obj.map_fd(name) for name in build.entries}
        if prepare is not None:
            prepare(maps)
        links = {name: obj.attach(name, build.iterate.get(name)) for name in (*build.programs, *build.iterate)}
        if pins is None:
            return Attached(maps, links, pins=None, reused=False, owner=obj)
        for name, fd in links.items():
            libbpf.pin(fd, pins / f"link_{name}")
        (pins / bpffs.READY).mkdir()
        attached = open_pins(pins, tuple(build.entries), reused=False)
    except BaseException:
        obj.close()
        raise
    obj.close()
    return attached
