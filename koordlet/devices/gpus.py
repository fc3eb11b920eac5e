"""NVIDIA GPUs: which there are and how busy each is, one `look` at a time (spec 02 §6.1, 08 §3.3).

A GPU is known by its PCI address among the functions that the driver holds; indexes of NVML shift when one is hidden.
What does not change is asked for when the set of addresses does, and every five minutes. A device that fails costs
itself, and one that answered before stays known for as long as the driver holds it: a GPU that fell off its bus is a
sick one, not none. Where NVML can't be had it is tried again every five minutes, and not at all while the driver holds
nothing.

Not for the event loop: calls may block. One thread looks; health.py has its own and shares only the library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from koordlet.devices.model import GpuInfo
from koordlet.devices.nvml import Handle, Nvml, NvmlError, Process, Sample, Unsupported
from koordlet.system.devices import pci
from koordlet.system.roots import Roots

DRIVER = "nvidia"
RETRY_SECONDS = 300.0
NO_FUNCTION = f"no PCI function is bound to the driver {DRIVER}"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process has of one GPU."""

    memory: int
    """bytes"""
    core: float | None
    """percent of the GPU's multiprocessors; 0 for a process that did nothing, None where NVML does not tell"""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU at one moment."""

    memory: int
    """bytes, by the device's own count"""
    core: float | None
    """percent: the sum of its processes', which may be over 100"""
    processes: Mapping[int, ProcessUse]
    """by pid"""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at all GPUs; with a `problem` there is nothing else in it."""

    at: float
    gpus: Mapping[str, GpuInfo] = field(default_factory=dict)
    """PCI address -> what does not change; in the order of minors"""
    use: Mapping[str, GpuUse] = field(default_factory=dict)
    """by UUID; without the GPUs that failed, and those seen for the first time have no `core` yet"""
    driver: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)
    """PCI address -> what went wrong with this device"""
    problem: str = ""
    unknown: bool = False
    """NVML can't be had, or could describe none of the functions that the driver holds: there may be GPUs"""


class Gpus:
    """`look` from one thread. `connect` opens NVML; *clock*: the boot clock, in seconds."""

    def __init__(self, roots: Roots, clock: Callable[[], float], connect: Callable[[], Nvml] = Nvml) -> None:
        self._roots, self._clock, self._connect = roots, clock, connect
        self.nvml: Nvml | None = None
        """The open session; None while there is none."""
        self._lost: Nvml | None = None
        """To be given back before the next: until then somebody may still wait in it."""
        self._driver, self._problem = "", ""
        self._due = float("-inf")
        """When to try, or to ask again for what does not change."""
        self._bound: tuple[str, ...] = ()
        self._known: dict[str, tuple[GpuInfo, Handle]] = {}
        self._unknown: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        """PCI address -> time of the newest sample."""

    def look(self) -> Look:
        """Everything, now. Raises nothing of NVML's."""
        at = self._clock()
        try:
            return self._look(at)
        except NvmlError as error:
            self._problem = str(error)
            return Look(at, problem=self._problem, unknown=True)

    def _look(self, at: float) -> Look:
        bound = pci.bound_to(self._roots, DRIVER)
        if self.nvml is None:
            if not bound:
                return Look(at, problem=NO_FUNCTION)
            if at < self._due:
                return Look(at, problem=self._problem, unknown=True)
            self._due = at + RETRY_SECONDS
            if self._lost is not None:
                lost, self._lost = self._lost, None
                lost.close()
            self.nvml = self._connect()
            self._driver = self.nvml.driver_version()
            self._due = at
        try:
            return self._ask(self.nvml, bound, at)
        except NvmlError:  # the session is lost: all that belongs to it is void
            self._lost, self.nvml = self.nvml, None
            self._bound, self._known, self._unknown, self._seen = (), {}, {}, {}
            self._due = at + RETRY_SECONDS
            raise

    def _ask(self, nvml: Nvml, bound: tuple[str, ...], at: float) -> Look:
        if bound != self._bound or at >= self._due:
            self._discover(nvml, bound)
            self._bound, self._due = bound, at + RETRY_SECONDS
        use, failures = {}, dict(self._unknown)
        for bus_id, (gpu, handle) in self._known.items():
            try:
                use[gpu.uuid] = self._use(nvml, bus_id, handle)
            except NvmlError as error:
                if error.session_lost:
                    raise
                failures[bus_id] = str(error)
        gpus = {bus_id: gpu for bus_id, (gpu, _) in sorted(self._known.items(), key=lambda one: one[1][0].minor)}
        return Look(at, gpus, use, self._driver, failures, unknown=not gpus and bool(failures))

    def _discover(self, nvml: Nvml, bound: Iterable[str]) -> None:
        known: dict[str, tuple[GpuInfo, Handle]] = {}
        self._unknown = {}
        for bus_id in bound:
            try:
                known[bus_id] = self._describe(nvml, bus_id)
            except NvmlError as error:
                if error.session_lost:
                    raise
                if bus_id in self._known:
                    known[bus_id] = self._known[bus_id]
                else:
                    self._unknown[bus_id] = str(error)
        self._known = known
        self._seen = {bus_id: seen for bus_id, seen in self._seen.items() if bus_id in known}

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
        untold = GpuUse(memory, None, {pid: ProcessUse(amount, None) for pid, amount in held.items()})
        first = bus_id not in self._seen
        since = self._seen.get(bus_id, 0)
        try:
            samples = fresh(nvml.samples(handle, since), held, since)
        except Unsupported:  # MIG, virtual and old GPUs
            return untold
        self._seen[bus_id] = max((sample.at for sample in samples), default=since)
        if first:  # what the driver remembers may be of long ago
            return untold
        core = newest(samples)
        processes = {pid: ProcessUse(amount, float(core.get(pid, 0))) for pid, amount in held.items()}
        return GpuUse(memory, sum(one.core or 0.0 for one in processes.values()), processes)


def held_memory(computing: Iterable[Process], drawing: Iterable[Process]) -> dict[int, int]:
    """Bytes by pid: a process in both lists is told of twice, one in several MIG instances holds memory in each."""
    found: dict[int, int] = {}
    for listed in (computing, drawing):
        sums: dict[int, int] = {}
        for process in listed:
            sums[process.pid] = sums.get(process.pid, 0) + process.memory
        for pid, amount in sums.items():
            found[pid] = max(found.get(pid, 0), amount)
    return found


def fresh(samples: Iterable[Sample], pids: Collection[int], since: int) -> list[Sample]:
    """Those of processes that hold memory, newer than asked for: drivers add old ones, and some of nobody's whose time,
    once taken for the newest, would hide all that come."""
    return [sample for sample in samples if sample.pid in pids and sample.at > since]


def newest(samples: Iterable[Sample]) -> dict[int, int]:
    """The latest percentage by pid; a driver gives a process several, in any order."""
    latest: dict[int, Sample] = {}
    for sample in samples:
        known = latest.get(sample.pid)
        if known is None or sample.at > known.at:
            latest[sample.pid] = sample
    return {pid: sample.percent for pid, sample in latest.items()}
