"""NVIDIA GPUs: their description and utilisation, one `read` at a time (spec 02 §6.1, 08 §3.3).

A GPU is identified by its PCI address among the functions bound to the driver, because NVML's indexes shift when a
device is hidden. Constant properties are read when the set of addresses changes, and every five minutes. A failing
device does not affect the others, and a device that was described before stays known while it is bound to the driver: a
GPU that fell off its bus is unhealthy, not absent. If NVML cannot be opened, it is retried every five minutes, and not
at all while no function is bound to the driver.

Not for the event loop: calls may block. One thread reads; `health` has its own thread and shares only the library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from koordlet.devices.model import GpuInfo
from koordlet.devices.nvml import GpuProcess, Handle, NotSupported, Nvml, NvmlError, UtilizationSample
from koordlet.system.devices import pci
from koordlet.system.roots import Roots

DRIVER = "nvidia"
RETRY_SECONDS = 300.0
NO_FUNCTION = f"no PCI function is bound to the driver {DRIVER}"


@dataclass(frozen=True, slots=True)
class GpuProcessUse:
    """Use of one GPU by one process."""

    memory: int
    """bytes"""
    core: float | None
    """percent of the GPU's multiprocessors; 0 for an idle process, None where NVML does not report it"""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of one GPU."""

    memory: int
    """bytes, by the device's own count"""
    core: float | None
    """percent: the sum over its processes, which may exceed 100"""
    processes: Mapping[int, GpuProcessUse]
    """by pid"""


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All GPUs at one time; with a `problem`, everything else is empty."""

    at: float
    gpus: Mapping[str, GpuInfo] = field(default_factory=dict)
    """PCI address -> constant properties; ordered by minor"""
    use: Mapping[str, GpuUse] = field(default_factory=dict)
    """by UUID; without GPUs that failed; GPUs read for the first time have no `core` yet"""
    driver: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)
    """PCI address -> error of this device"""
    problem: str = ""
    unknown: bool = False
    """Whether there may be GPUs that cannot be described: NVML cannot be opened, or described none of the functions
    bound to the driver"""


class Gpus:
    """Call `read` from one thread. `connect` opens NVML; `clock`: the boot clock, in seconds."""

    def __init__(self, roots: Roots, clock: Callable[[], float], connect: Callable[[], Nvml] = Nvml) -> None:
        self._roots = roots
        self._clock = clock
        self._connect = connect
        self.nvml: Nvml | None = None
        """The open session."""
        self._lost: Nvml | None = None
        """To be closed before the next one is opened: until then a thread may still wait in it."""
        self._driver = ""
        self._problem = ""
        self._due = float("-inf")
        """Time of the next attempt, or of the next reading of constant properties."""
        self._bound: tuple[str, ...] = ()
        self._known: dict[str, tuple[GpuInfo, Handle]] = {}
        self._undescribed: dict[str, str] = {}
        """PCI address -> error."""
        self._newest: dict[str, int] = {}
        """PCI address -> time of the newest sample."""

    def read(self) -> GpuSnapshot:
        """All GPUs now. Does not raise NvmlError."""
        at = self._clock()
        try:
            return self._read(at)
        except NvmlError as error:
            self._problem = str(error)
            return GpuSnapshot(at, problem=self._problem, unknown=True)

    def _read(self, at: float) -> GpuSnapshot:
        bound = pci.bound_to(self._roots, DRIVER)
        if self.nvml is None:
            if not bound:
                return GpuSnapshot(at, problem=NO_FUNCTION)
            if at < self._due:
                return GpuSnapshot(at, problem=self._problem, unknown=True)
            self._due = at + RETRY_SECONDS
            if self._lost is not None:
                lost, self._lost = self._lost, None
                lost.close()
            self.nvml = self._connect()
            self._driver = self.nvml.driver_version()
            self._due = at
        try:
            return self._read_devices(self.nvml, bound, at)
        except NvmlError:  # the session is lost, and everything that belongs to it is invalid
            self._lost = self.nvml
            self.nvml = None
            self._bound = ()
            self._known = {}
            self._undescribed = {}
            self._newest = {}
            self._due = at + RETRY_SECONDS
            raise

    def _read_devices(self, nvml: Nvml, bound: tuple[str, ...], at: float) -> GpuSnapshot:
        if bound != self._bound or at >= self._due:
            self._discover(nvml, bound)
            self._bound = bound
            self._due = at + RETRY_SECONDS
        use, failures = {}, dict(self._undescribed)
        for bus_id, (gpu, handle) in self._known.items():
            try:
                use[gpu.uuid] = self._use(nvml, bus_id, handle)
            except NvmlError as error:
                if error.session_lost:
                    raise
                failures[bus_id] = str(error)
        gpus = {bus_id: gpu for bus_id, (gpu, _) in sorted(self._known.items(), key=lambda item: item[1][0].minor)}
        return GpuSnapshot(at, gpus, use, self._driver, failures, unknown=not gpus and bool(failures))

    def _discover(self, nvml: Nvml, bound: Iterable[str]) -> None:
        known: dict[str, tuple[GpuInfo, Handle]] = {}
        self._undescribed = {}
        for bus_id in bound:
            try:
                known[bus_id] = self._describe(nvml, bus_id)
            except NvmlError as error:
                if error.session_lost:
                    raise
                if bus_id in self._known:
                    known[bus_id] = self._known[bus_id]
                else:
                    self._undescribed[bus_id] = str(error)
        self._known = known
        self._newest = {bus_id: newest for bus_id, newest in self._newest.items() if bus_id in known}

    def _describe(self, nvml: Nvml, bus_id: str) -> tuple[GpuInfo, Handle]:
        handle = nvml.device(bus_id)
        gpu = GpuInfo(
            minor=nvml.minor(handle),
            uuid=nvml.uuid(handle),
            memory_total=nvml.memory(handle).total,
            model=nvml.name(handle),
            place=pci.place(self._roots, bus_id),
        )
        return gpu, handle

    def _use(self, nvml: Nvml, bus_id: str, handle: Handle) -> GpuUse:
        memory = nvml.memory(handle).used
        held = held_memory(*nvml.processes(handle))
        unknown = GpuUse(memory, None, {pid: GpuProcessUse(amount, None) for pid, amount in held.items()})
        first = bus_id not in self._newest
        since = self._newest.get(bus_id, 0)
        try:
            samples = recent(nvml.samples(handle, since), held, since)
        except NotSupported:  # MIG, virtual and old GPUs
            return unknown
        self._newest[bus_id] = max((sample.at for sample in samples), default=since)
        if first:  # the driver's samples may be old
            return unknown
        core = latest_percent(samples)
        processes = {pid: GpuProcessUse(amount, float(core.get(pid, 0))) for pid, amount in held.items()}
        return GpuUse(memory, sum(process.core or 0.0 for process in processes.values()), processes)


def held_memory(compute: Iterable[GpuProcess], graphics: Iterable[GpuProcess]) -> dict[int, int]:
    """Bytes by pid. A process in both lists is reported twice; one in several MIG instances has memory in each."""
    held: dict[int, int] = {}
    for listed in (compute, graphics):
        sums: dict[int, int] = {}
        for process in listed:
            sums[process.pid] = sums.get(process.pid, 0) + process.memory
        for pid, amount in sums.items():
            held[pid] = max(held.get(pid, 0), amount)
    return held


def recent(samples: Iterable[UtilizationSample], pids: Collection[int], since: int) -> list[UtilizationSample]:
    """Samples of processes that hold memory, newer than `since`. Drivers add older samples, and samples without a
    process; the time of the latter, if taken as the newest, would hide all later samples."""
    return [sample for sample in samples if sample.pid in pids and sample.at > since]


def latest_percent(samples: Iterable[UtilizationSample]) -> dict[int, int]:
    """The latest percentage by pid; a driver returns several per process, in any order."""
    latest: dict[int, UtilizationSample] = {}
    for sample in samples:
        known = latest.get(sample.pid)
        if known is None or sample.at > known.at:
            latest[sample.pid] = sample
    return {pid: sample.percent for pid, sample in latest.items()}
