"""Keeps the fact of accelerators that other programs describe in files (spec 02 §6.3, 08 §3.2; gate Accelerators).

Each round lists the directory and reads the files that changed. A file that cannot be used costs its own devices only,
and not at once: a writer that writes in place sometimes leaves half a file. A device that is described twice is taken
from the first file in the order of names. Bounds: `MAX_FILES` files of `MAX_BYTES`, `MAX_DEVICES` devices.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoTopology, read_descriptions
from koordlet.api.encoding.wire import WireError
from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.devices.model import DeviceFault
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_XPU, PeerLink, XpuInfo
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.prometheus import Registries
from koordlet.system.devices.pci import PciAddressError, PciPlace, canonical

log = get_logger(__name__)

NAME = "xpu"
MAX_FILES, MAX_BYTES, MAX_DEVICES = 64, 1 << 20, 1024
HOLD_S = 10.0
"""The last valid devices of a file are kept this long after the file became unusable."""
SETTLED_S = 2.0
"""A file that was younger than this when it was read is read again: the next write may leave its time stamp
unchanged."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_MAX_MINOR = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _File:
    """The result of reading one file."""

    identity: tuple[int, int, int] | None = None
    """(inode, modification time in ns, size); None = read it again."""
    devices: tuple[XpuInfo, ...] = ()
    good_at: float = float("-inf")
    problem: str = ""


class XpuCollector:
    """`read` is one round."""

    def __init__(
        self,
        directory: Path,
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        clock: Callable[[], float] = boot_clock,
        wall_ns: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._cache = cache
        self._registries = registries
        self._conditions = conditions
        self._clock = clock
        self._wall_ns = wall_ns
        self._files: dict[str, _File] = {}

    def read(self) -> None:
        """Read what changed, and store the fact. A missing directory counts as empty."""
        now = self._clock()
        try:
            names = _names(self._directory)
        except FileNotFoundError:
            names = []
        except OSError as error:
            self._conditions.down(NAME, f"{self._directory}: {error.strerror}", "files")
            return
        problems = [f"{self._directory}: {len(names)} files, {MAX_FILES} are read"] if len(names) > MAX_FILES else []
        self._files = {name: self._file(name, now) for name in names[:MAX_FILES]}
        problems += [file.problem for file in self._files.values() if file.problem]
        devices = _distinct((name, file.devices) for name, file in self._files.items())
        self._cache.facts.set(FACT_XPU, devices, now)
        for problem in problems:
            self._registries.count("collector_failures_total", NAME, "file")
            log.once(f"xpu:{problem}", "A description of accelerators is not used", error=problem)
        if devices:
            self._conditions.up(NAME, "files")
        else:
            self._conditions.waiting(NAME, problems[0] if problems else "no accelerator is described", "files")

    def _file(self, name: str, now: float) -> _File:
        path, old = self._directory / name, self._files.get(name, _File())
        try:
            status = path.stat()
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity == old.identity:
                return replace(old, good_at=now)
            descriptions = read_descriptions(_content(path), where=str(path))
        except (WireError, OSError) as error:
            text = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            held = old.devices if now - old.good_at < HOLD_S else ()
            return replace(old, identity=None, devices=held, problem=text)
        settled = self._wall_ns() - status.st_mtime_ns >= SETTLED_S * 1e9
        return _File(identity if settled else None, tuple(_devices(descriptions, path)), now)


def _names(directory: Path) -> list[str]:
    """The files to read, sorted: not hidden, not a writer's temporary file."""
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and not entry.name.endswith(".tmp") and entry.is_file()
        )


def _content(path: Path) -> bytes:
    """At most `MAX_BYTES`; does not block if a pipe replaced the file. Raises OSError, WireError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WireError("is no regular file", where=str(path))
        data = file.read(MAX_BYTES + 1) or b""
    if len(data) > MAX_BYTES:
        raise WireError(f"is larger than {MAX_BYTES} bytes", where=str(path))
    return data


def _devices(descriptions: Iterable[DeviceDescription], path: Path) -> Iterable[XpuInfo]:
    """Devices without a valid number are left out: they could not be allocated."""
    for index, description in enumerate(descriptions):
        minor = int(description.minor) if _NUMBER.fullmatch(description.minor) else -1
        if not 0 <= minor <= _MAX_MINOR:
            log.once(
                f"xpu:{path}:{index}:{description.minor}",
                "An accelerator is not reported",
                file=str(path),
                uuid=description.uuid,
                error=f"[{index}].minor: {description.minor!r} is not a valid number",
            )
            continue
        yield device(description, minor)


def device(description: DeviceDescription, minor: int) -> XpuInfo:
    """The fact for one description (spec 08 §4.4)."""
    topology, status = description.topology, description.status
    return XpuInfo(
        vendor=description.vendor,
        model=description.model,
        uuid=description.uuid,
        minor=minor,
        resources=dict(description.resources),
        links=tuple(PeerLink(link.peer_minor, link.type) for link in topology.p2p_links) if topology else (),
        must_honor_partition=topology is not None and topology.must_honor_partition,
        place=_place(topology) if topology else None,
        fault=DeviceFault(status.err_code, status.err_message) if status and not status.healthy else None,
        status_known=status is not None,
    )


def _place(topology: DeviceInfoTopology) -> PciPlace:
    """The position in the file, with the address as sysfs spells it. NUMA node: -1 if absent, 0 if not a number."""
    try:
        bus_id = canonical(topology.bus_id)
    except PciAddressError:
        bus_id = topology.bus_id
    try:
        node = int(topology.node_id or "-1")
    except ValueError:
        node = 0
    return PciPlace(bus_id, node if abs(node) <= _MAX_MINOR else 0, topology.pcie_id)


def _distinct(files: Iterable[tuple[str, tuple[XpuInfo, ...]]]) -> tuple[XpuInfo, ...]:
    """All devices in the order of their files, each once."""
    devices: list[XpuInfo] = []
    file_of: dict[str, str] = {}
    """By uuid."""
    for name, described in files:
        for xpu in described:
            if xpu.uuid in file_of:
                log.once(
                    f"xpu:{xpu.uuid}:{name}",
                    "An accelerator is described twice",
                    uuid=xpu.uuid,
                    taken=file_of[xpu.uuid],
                    passed_over=name,
                )
            elif len(devices) < MAX_DEVICES:
                devices.append(xpu)
                if xpu.uuid:
                    file_of[xpu.uuid] = name
            else:
                log.once("xpu:many", "Accelerators are not reported: there are too many", at_most=MAX_DEVICES)
    return tuple(devices)
