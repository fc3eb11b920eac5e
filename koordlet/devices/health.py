"""GPU health: Xid errors reported by the driver (spec 08 §4.7).

A separate thread waits for events, because waiting blocks: in slices, so that it registers new GPUs and stops in time.
It shares only values that are replaced as a whole, and a queue of events, with the event loop. An unhealthy GPU stays
unhealthy until koordlet restarts, unless recovery is enabled: then it is healthy again after it has responded for ten
minutes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.devices.nvml import Handle, NotSupported, Nvml, NvmlError, XidEvent

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of a program, not of the device."""
SLICE_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""Without the end of a slice for this long, the health is unknown."""
RECOVERY_SECONDS = 600.0
RETRY_SECONDS = 300.0
NOT_SUPPORTED = DeviceFault("DeviceHealthCheckNotSupported", "device does not support health checking")
MAX_QUEUED_EVENTS = 1024


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of one GPU; the UUID is empty where NVML does not report the GPU."""

    uuid: str
    number: int


def faults_of(event: XidEvent, gpus: Mapping[str, GpuInfo], lost: Callable[[str], str]) -> dict[str, DeviceFault]:
    """Faults by UUID after an event. `lost`: PCI address -> why the device no longer responds, or ""."""
    if event.xid in APPLICATION_XIDS:
        return {}
    code = f"Xid{event.xid}"
    fault = DeviceFault(code, f"Xid error detected on device, error code: {event.xid}")
    if not event.bus_id:
        return {gpu.uuid: fault for gpu in gpus.values()}
    faults = {}
    for bus_id, gpu in gpus.items():
        error = lost(bus_id)
        if error:
            faults[gpu.uuid] = DeviceFault(code, f"failed to get device, error: {error}")
        elif bus_id == event.bus_id:
            faults[gpu.uuid] = fault
    return faults


class GpuHealth:
    """Call `watch` after every reading of the GPUs, from the event loop. `clock`: the boot clock, in seconds."""

    def __init__(self, clock: Callable[[], float], *, recovery: bool = False, seconds: float = SLICE_SECONDS) -> None:
        self._clock = clock
        self._recovery = recovery
        self._slice = seconds
        self._watcher: _Watcher | None = None
        self._events: deque[Xid] = deque(maxlen=MAX_QUEUED_EVENTS)
        """Of all watchers, including ended ones."""
        self.faults: Mapping[str, DeviceFault] = {}
        """By UUID; outlives sessions."""

    def watch(self, nvml: Nvml, gpus: Mapping[str, GpuInfo]) -> None:
        """Watch these GPUs in this session from now on. A watcher that ended is replaced after five minutes."""
        now, watcher = self._clock(), self._watcher
        if watcher is None or watcher.nvml is not nvml or (watcher.ended and now - watcher.answered >= RETRY_SECONDS):
            self.stop()
            watcher = _Watcher(nvml, gpus, self._clock, self._slice, self._recovery, self.faults, self._events)
            watcher.start()
            self._watcher = watcher
        watcher.gpus = gpus
        self.faults = watcher.faults

    def stop(self) -> None:
        """Stop watching after the current slice, without waiting for it."""
        if self._watcher is not None:
            self._watcher.end.set()
            self.faults = self._watcher.faults
            self._watcher = None

    @property
    def problem(self) -> str:
        """Why the health of GPUs is unknown; "" while they are watched."""
        watcher = self._watcher
        if watcher is None:
            return "NVML is not open"
        if not watcher.problem and self._clock() - watcher.answered > SILENT_SECONDS:
            return f"NVML has not answered for {SILENT_SECONDS:g} s"
        return watcher.problem

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why a GPU is not watched, by UUID."""
        return {} if self._watcher is None else self._watcher.unwatched

    def events(self) -> list[Xid]:
        """Events since the last call, including errors of programs."""
        events: list[Xid] = []
        while self._events:
            events.append(self._events.popleft())
        return events


class _Watcher(threading.Thread):
    """Waits for the events of one session. Only `gpus` is set from outside."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: Mapping[str, GpuInfo],
        clock: Callable[[], float],
        seconds: float,
        recovery: bool,
        faults: Mapping[str, DeviceFault],
        events: deque[Xid],
    ) -> None:
        super().__init__(name="gpu-health", daemon=True)
        self.nvml = nvml
        self._clock = clock
        self._slice = seconds
        self._recovery = recovery
        self.gpus = gpus
        self.faults = faults
        self.unwatched: Mapping[str, str] = {}
        self._events = events
        self.problem = ""
        self.answered = clock()
        """Time of the last completed slice."""
        self.end = threading.Event()
        self.ended = False
        self._registered: set[str] = set()
        self._refused: dict[str, float] = {}
        self._responding_since: dict[str, float] = {}
        self._checked = self.answered

    def run(self) -> None:
        """Until `end` is set, or the session is lost."""
        try:
            events = self.nvml.event_set()
            while not self.end.is_set():
                self._register(events)
                self._wait_slice(events)
                self.answered = self._clock()
        except NvmlError as error:
            self.problem = str(error)
            self.answered = self._clock()
        finally:
            self.ended = True

    def _wait_slice(self, events: Handle) -> None:
        try:
            event = self.nvml.wait(events, self._slice)
            self.problem = ""
        except NvmlError as error:
            if error.session_lost:
                raise
            self.problem = str(error)
            self.end.wait(self._slice)  # some errors return at once and repeatedly
            return
        if event is not None:
            self._handle(event)
        if self._recovery and self._clock() - self._checked >= self._slice:
            self._checked = self._clock()
            self._recover()

    def _handle(self, event: XidEvent) -> None:
        gpu = self.gpus.get(event.bus_id)
        self._events.append(Xid(gpu.uuid if gpu is not None else "", event.xid))
        faults = faults_of(event, self.gpus, self._lost)
        for uuid in faults:
            self._responding_since.pop(uuid, None)
        self.faults = {**self.faults, **faults}

    def _lost(self, bus_id: str) -> str:
        try:
            self.nvml.device(bus_id)
        except NvmlError as error:
            return error.text
        return ""

    def _register(self, events: Handle) -> None:
        """Register new GPUs, and retry refused ones every `RETRY_SECONDS`."""
        gpus, now = self.gpus, self._clock()
        present = {gpu.uuid for gpu in gpus.values()}
        self._registered &= present  # a GPU that was unbound from the driver is no longer registered
        self.unwatched = {uuid: text for uuid, text in self.unwatched.items() if uuid in present}
        for bus_id, gpu in gpus.items():
            if gpu.uuid in self._registered or now - self._refused.get(gpu.uuid, float("-inf")) < RETRY_SECONDS:
                continue
            try:
                self.nvml.register(self.nvml.device(bus_id), events)
            except NotSupported:
                self._registered.add(gpu.uuid)  # not retried
                self.faults = {**self.faults, gpu.uuid: NOT_SUPPORTED}
            except NvmlError as error:
                if error.session_lost:
                    raise
                self._refused[gpu.uuid] = now
                self.unwatched = {**self.unwatched, gpu.uuid: str(error)}
            else:
                self._registered.add(gpu.uuid)
                self.unwatched = {uuid: text for uuid, text in self.unwatched.items() if uuid != gpu.uuid}

    def _recover(self) -> None:
        """A GPU that responded to every check of the last ten minutes is healthy again."""
        now = self._clock()
        for bus_id, gpu in self.gpus.items():
            fault = self.faults.get(gpu.uuid)
            if fault is None or fault == NOT_SUPPORTED:
                continue
            try:
                self.nvml.memory(self.nvml.device(bus_id))
            except NvmlError as error:
                if error.session_lost:
                    raise
                self._responding_since.pop(gpu.uuid, None)
                continue
            if now - self._responding_since.setdefault(gpu.uuid, now) >= RECOVERY_SECONDS:
                del self._responding_since[gpu.uuid]
                self.faults = {uuid: other for uuid, other in self.faults.items() if uuid != gpu.uuid}
