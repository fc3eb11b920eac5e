"""What every probe is loaded by: one CO-RE object, its tables and links pinned as one set, taken over at restart.

With a bpf file system the tables and the links are pinned below ``<pin_dir>/<probe>/<key>``: the programs go on
counting while koordlet is away, and the next one reads on without attaching anything twice. Without it everything ends
with this process. A probe stands alone: whatever keeps one from loading is its `ProbeError`, one sentence, and its
`ProbeStatus`; the others never notice.

A new probe is a `Build` (what to load), a source around the `Attached` that `load` returns, and an opener in
``koordlet.probes.openprobes.OPENERS``, usually `open_core`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from koordlet.probes.loading import bpffs, libbpf
from koordlet.probes.loading.libbpf import BpfError, ProgramStats
from koordlet.probes.loading.mapped import LayoutMismatch
from koordlet.probes.status import ProbeStatus
from koordlet.system.host import Host

OBJECTS = Path(__file__).parents[1] / "objects"
SETTINGS = ".rodata.config"


class ProbeError(Exception):
    """The probe can't be loaded here; the message is fit for a user."""


S_co = TypeVar("S_co", covariant=True)


class SourceOf(Protocol[S_co]):
    """A probe, or the files that stand in for it, by what its readings are."""

    @property
    def source(self) -> str: ...

    def read(self) -> S_co:
        """Cumulative."""

    def reclaim(self, live: frozenset[int]) -> int:
        """Give back what dead cgroups hold; *live* are all cgroup ids that exist. Returns how many were freed."""

    def close(self, keep: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where probes are opened: what an opener gets."""

    host: Host
    cpus: int
    """Highest possible CPU number + 1."""
    pins: Path | None
    """The directory in bpffs for all probes; None = nothing is pinned."""
    refusal: str = ""
    """Why no program can be loaded at all here; empty = try."""
    note: str = ""
    """Why nothing is pinned; goes into every status."""

    @property
    def cgroup_v2(self) -> bool:
        return self.host.facts.cgroup_version == 2


@dataclass(frozen=True, slots=True)
class Build:
    """One object and how it is loaded here."""

    probe: str
    """Name of the probe, of its pins' directory and of its object."""
    programs: tuple[str, ...]
    """To attach. Programs of the object that are not named must be in ``skip``."""
    entries: Mapping[str, int]
    """Map -> entries; 0 leaves the object's own number. All maps named here are pinned."""
    settings: bytes = b""
    """Content of ``.rodata.config``."""
    skip: tuple[str, ...] = ()
    """Programs that this kernel can't load or does without."""
    iterate: Mapping[str, bytes] = field(default_factory=dict)
    """Iterator program -> ``union bpf_iter_link_info`` (`libbpf.cgroup_iter`)."""
    shape: object = None
    """Whatever else decides whether two builds may share tables; its repr goes into the key."""


class Loaded(Protocol):
    """What `open_core` asks of a source."""

    @property
    def source(self) -> str:
        """``bpf``"""

    @property
    def reused(self) -> bool: ...

    @property
    def conditions(self) -> Sequence[str]:
        """What this kernel can't tell although the probe counts, a sentence each."""

    def close(self, keep: bool) -> None: ...


_L = TypeVar("_L", bound=Loaded)


def open_core(place: Place, load: Callable[[Place], _L]) -> tuple[_L | None, ProbeStatus]:
    """The usual opener: *load* raises `ProbeError` when there is no way here."""
    refusal = place.refusal or ("" if place.host.facts.btf else place.host.facts.reasons()["btf"])
    if refusal:
        return None, ProbeStatus(False, "none", refusal)
    try:
        source = load(place)
    except ProbeError as error:
        return None, ProbeStatus(False, "none", "; ".join(filter(None, [place.note, f"core: {error}"])))
    reason = "; ".join(filter(None, [place.note, *source.conditions]))
    return source, ProbeStatus(True, source.source, reason, place.pins is not None, source.reused)


class Attached:
    """A loaded probe: links that count, and maps to read until `release_maps`. Close it; ``keep=True`` leaves pinned
    programs counting."""

    def __init__(
        self,
        maps: Mapping[str, int],
        links: Mapping[str, int],
        *,
        pins: Path | None,
        reused: bool,
        owner: libbpf.Object | None = None,
    ) -> None:
        self._maps, self._links, self._owner = dict(maps), dict(links), owner
        self.pins, self.reused = pins, reused

    @property
    def maps(self) -> Mapping[str, int]:
        """Map -> descriptor, ours."""
        return self._maps

    @property
    def links(self) -> Mapping[str, int]:
        """Program -> descriptor of its link, ours."""
        return self._links

    def release_maps(self) -> None:
        """Close the descriptors of maps; mappings of them stay."""
        maps, self._maps = self._maps, {}
        if self._owner is None:
            for fd in maps.values():
                os.close(fd)

    def programs(self) -> list[ProgramStats]:
        """Run counts and times of the attached programs (zero unless kernel.bpf_stats_enabled)."""
        return [libbpf.link_stats(fd) for fd in self._links.values()]

    def close(self, keep: bool) -> None:
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


def load(
    build: Build,
    pin_dir: Path | None,
    path: Path | None = None,
    prepare: Callable[[Mapping[str, int]], None] | None = None,
) -> Attached:
    """Load and attach *build*, or take over what an earlier process left pinned of exactly the same.

    *prepare* gets map -> descriptor of tables that are complete, before any program is attached to them. Raises
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
    """Everything that loading can meet, as `ProbeError`."""
    try:
        yield
    except (BpfError, LayoutMismatch, OSError) as error:
        raise ProbeError(str(error)) from error


def pin_key(program: bytes, build: Build) -> str:
    """Digest of everything that decides whether two tables may be mixed."""
    digest = hashlib.sha256(program)
    shape = (sorted(build.entries.items()), build.settings, build.programs, sorted(build.iterate.items()), build.shape)
    digest.update(repr(shape).encode())
    return digest.hexdigest()[:12]


def claim_pins(pin_dir: Path, probe: str, key: str) -> Path:
    """The directory of this key's pins, other keys' removed."""
    bpffs.remove_other_pins(pin_dir / probe, key)
    pins = pin_dir / probe / key
    pins.mkdir(mode=0o700, parents=True, exist_ok=True)
    return pins


def open_pins(pins: Path, maps: tuple[str, ...], *, reused: bool) -> Attached:
    """A complete set of pins; raises `BpfError` when it isn't one."""
    opened: dict[str, dict[str, int]] = {"": {}, "link_": {}}
    try:
        for name in maps:
            opened[""][name] = libbpf.open_pinned(pins / name)
        for entry in sorted(pins.glob("link_*")):
            opened["link_"][entry.name.removeprefix("link_")] = libbpf.open_pinned(entry)
    except BaseException:
        for fd in [*opened[""].values(), *opened["link_"].values()]:
            os.close(fd)
        raise
    return Attached(opened[""], opened["link_"], pins=pins, reused=reused)


def _load(build: Build, path: Path, pins: Path | None, prepare: Callable[[Mapping[str, int]], None] | None) -> Attached:
    if pins is not None:
        for link in pins.glob("link_*"):  # of a loader that was killed between two of them
            link.unlink()
    obj = libbpf.Object(path)
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
