"""Whether GPUs are sound: Xid errors as the driver tells them (spec 08 §4.7).

A thread of its own waits for events, as that blocks: in slices, so that new GPUs are taken up and an end is heeded. It
shares nothing with the loop but values that are replaced as a whole, and a queue of what came. A sick GPU stays sick
until koordlet starts anew, unless recovery is wanted: then it is sound again when it has answered for ten minutes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.devices.nvml import Event, Handle, Nvml, NvmlError, Unsupported

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""What a program did wrong, not the device."""
SLICE_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""Without the end of a slice for so long, nobody watches."""
RECOVERY_SECONDS = 600.0
RETRY_SECONDS = 300.0
NOT_SUPPORTED = DeviceFault("DeviceHealthCheckNotSupported", "device does not support health checking")
EVENTS_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of one GPU; no UUID: of one that NVML does not tell."""

    uuid: str
    number: int


def judge(event: Event, gpus: Mapping[str, GpuInfo], lost: Callable[[str], str]) -> dict[str, DeviceFault]:
    """Faults by UUID that an event means. *lost*: by PCI address, why a device can't be had any more, or ""."""
    if event.xid in APPLICATION_XIDS:
        return {}
    code = f"Xid{event.xid}"
    fault = DeviceFault(code, f"Xid error detected on device, error code: {event.xid}")
    if not event.bus_id:
        return {gpu.uuid: fault for gpu in gpus.values()}
    found = {}
    for bus_id, gpu in gpus.items():
        why = lost(bus_id)
        if why:
            found[gpu.uuid] = DeviceFault(code, f"failed to get device, error: {why}")
        elif bus_id == event.bus_id:
            found[gpu.uuid] = fault
    return found


class Health:
    """`watch` with every look at the GPUs, from the loop. *clock*: the boot clock, in seconds."""

    def __init__(self, clock: Callable[[], float], *, recovery: bool = False, seconds: float = SLICE_SECONDS) -> None:
        self._clock, self._recovery, self._slice = clock, recovery, seconds
        self._watcher: _Watcher | None = None
        self._events: deque[Xid] = deque(maxlen=EVENTS_KEPT)
        """Of all watchers: what one that has ended took is told all the same."""
        self.faults: Mapping[str, DeviceFault] = {}
        """By UUID; outlives sessions."""

    def watch(self, nvml: Nvml, gpus: Mapping[str, GpuInfo]) -> None:
        """These GPUs in this session, from now on. A watcher that gave up is replaced after five minutes."""
        now, watcher = self._clock(), self._watcher
        if watcher is None or watcher.nvml is not nvml or (watcher.ended and now - watcher.answered >= RETRY_SECONDS):
            self.stop()
            watcher = _Watcher(nvml, gpus, self._clock, self._slice, self._recovery, self.faults, self._events)
            watcher.start()
            self._watcher = watcher
        watcher.gpus = gpus
        self.faults = watcher.faults

    def stop(self) -> None:
        """Ends the watching with its slice; nobody waits for that."""
        if self._watcher is not None:
            self._watcher.end.set()
            self.faults = self._watcher.faults
            self._watcher = None

    @property
    def problem(self) -> str:
        """Why nobody knows whether GPUs are sound; "" while they are watched."""
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
        """What came since the last call, programs' errors too."""
        found: list[Xid] = []
        while self._events:
            found.append(self._events.popleft())
        return found


class _Watcher(threading.Thread):
    """Waits for events of one session. `gpus` is set from outside, all else from within."""

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
        self.nvml, self._clock, self._slice, self._recovery = nvml, clock, seconds, recovery
        self.gpus = gpus
        self.faults = faults
        self.unwatched: Mapping[str, str] = {}
        self._events = events
        self.problem = ""
        self.answered = clock()
        self.end, self.ended = threading.Event(), False
        self._registered: set[str] = set()
        self._refused: dict[str, float] = {}
        self._answers_since: dict[str, float] = {}
        self._looked = self.answered

    def run(self) -> None:
        """Until told to end, or until there is no session."""
        try:
            events = self.nvml.event_set()
            while not self.end.is_set():
                self._register(events)
                self._turn(events)
                self.answered = self._clock()
        except NvmlError as error:
            self.problem, self.answered = str(error), self._clock()
        finally:
            self.ended = True

    def _turn(self, events: Handle) -> None:
        try:
            event = self.nvml.wait(events, self._slice)
            self.problem = ""
        except NvmlError as error:
            if error.session_lost:
                raise
            self.problem = str(error)
            self.end.wait(self._slice)  # some errors come at once, again and again
            return
        if event is not None:
            self._take(event)
        if self._recovery and self._clock() - self._looked >= self._slice:
            self._looked = self._clock()
            self._recover()

    def _take(self, event: Event) -> None:
        gpu = self.gpus.get(event.bus_id)
        self._events.append(Xid(gpu.uuid if gpu is not None else "", event.xid))
        found = judge(event, self.gpus, self._lost)
        for uuid in found:
            self._answers_since.pop(uuid, None)
        self.faults = {**self.faults, **found}

    def _lost(self, bus_id: str) -> str:
        try:
            self.nvml.device(bus_id)
        except NvmlError as error:
            return error.text
        return ""

    def _register(self, events: Handle) -> None:
        """Those that are new, and once in a while those that were refused."""
        gpus, now = self.gpus, self._clock()
        here = {gpu.uuid for gpu in gpus.values()}
        self._registered &= here  # a GPU that the driver has let go of is registered no more
        self.unwatched = {uuid: why for uuid, why in self.unwatched.items() if uuid in here}
        for bus_id, gpu in gpus.items():
            if gpu.uuid in self._registered or now - self._refused.get(gpu.uuid, float("-inf")) < RETRY_SECONDS:
                continue
            try:
                self.nvml.register(self.nvml.device(bus_id), events)
            except Unsupported:
                self._registered.add(gpu.uuid)  # for ever: no use in asking again
                self.faults = {**self.faults, gpu.uuid: NOT_SUPPORTED}
            except NvmlError as error:
                if error.session_lost:
                    raise
                self._refused[gpu.uuid] = now
                self.unwatched = {**self.unwatched, gpu.uuid: str(error)}
            else:
                self._registered.add(gpu.uuid)
                self.unwatched = {uuid: why for uuid, why in self.unwatched.items() if uuid != gpu.uuid}

    def _recover(self) -> None:
        """What answered at every look of the last ten minutes is sound again."""
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
                self._answers_since.pop(gpu.uuid, None)
                continue
            if now - self._answers_since.setdefault(gpu.uuid, now) >= RECOVERY_SECONDS:
                del self._answers_since[gpu.uuid]
                self.faults = {uuid: one for uuid, one in self.faults.items() if uuid != gpu.uuid}
