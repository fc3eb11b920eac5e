"""NVML through pynvml, typed: the only module that knows either. Loaded at first use, called from any thread.

Every call may block for as long as the driver likes, so nobody makes one on the event loop. Errors of the library are
`NvmlError`; what a driver or device does not offer is `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koordlet.system.devices.pci import PciAddressError, canonical

XID = 8
"""Event type: an Xid error."""
_ATTEMPTS = 3
"""Lists are asked for their length first, and may have grown when their entries are asked for."""


class NvmlError(Exception):
    """NVML refused a call; `code` is its number, the text its own words and the call."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code, self.text = code, text

    @property
    def session_lost(self) -> bool:
        """Not this device's trouble: library and driver must be joined anew."""
        return self.code in (1, 9, 12, 18)  # uninitialised, no driver, no library, versions differ


class Unsupported(NvmlError):
    """The device, its mode or the installed driver does not offer this."""


class Absent(NvmlError):
    """There is none: no such device, no sample since then, no event in time."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a device, in bytes; `used` leaves out what the driver reserved wherever NVML tells that apart."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process in one of a device's lists; bytes that it holds there."""

    pid: int
    memory: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process had of a device's multiprocessors, in percent, in the driver's period up to `at` (us)."""

    pid: int
    at: int
    percent: int


@dataclass(frozen=True, slots=True)
class Event:
    """An Xid error; `bus_id` is empty where NVML does not tell the device."""

    bus_id: str
    xid: int


Handle = Any
"""Opaque; belongs to the session in which it was got."""


class Nvml:
    """The library, initialised. Handles are got by PCI address: indexes shift when a device is hidden."""

    def __init__(self) -> None:
        import pynvml  # loads nothing of NVIDIA's yet, but 4 MB of its own

        self._nvml = pynvml
        self._call("nvmlInit")

    def close(self) -> None:
        """Give the library back; handles are void then. Nothing to do where it is uninitialised already."""
        try:
            self._call("nvmlShutdown")
        except NvmlError as error:
            if not error.session_lost:
                raise

    def driver_version(self) -> str:
        """535.129.03; "" where NVML does not tell."""
        try:
            return str(self._call("nvmlSystemGetDriverVersion"))
        except Unsupported:
            return ""

    def device(self, bus_id: str) -> Handle:
        """The handle of the device at a PCI address."""
        return self._call("nvmlDeviceGetHandleByPciBusId", bus_id)

    def uuid(self, handle: Handle) -> str:
        return str(self._call("nvmlDeviceGetUUID", handle))

    def minor(self, handle: Handle) -> int:
        """N of /dev/nvidiaN."""
        return int(self._call("nvmlDeviceGetMinorNumber", handle))

    def name(self, handle: Handle) -> str:
        """NVIDIA H100 80GB HBM3; "" where NVML does not tell."""
        try:
            return str(self._call("nvmlDeviceGetName", handle))
        except Unsupported:
            return ""

    def memory(self, handle: Handle) -> Memory:
        """By the newer call where the driver has it: the older one counts as used what is reserved (480 MiB)."""
        try:
            found = self._call("nvmlDeviceGetMemoryInfo", handle, version=self._nvml.nvmlMemory_v2)
        except Unsupported:
            found = self._call("nvmlDeviceGetMemoryInfo", handle)
        return Memory(int(found.total), int(found.used))

    def processes(self, handle: Handle) -> tuple[list[Process], list[Process]]:
        """Those that compute and those that draw; one that does both is in both lists."""
        return self._processes("Compute", handle), self._processes("Graphics", handle)

    def samples(self, handle: Handle, since: int) -> list[Sample]:
        """Of processes, newer than `since` (us of the driver's clock); none is no error."""
        try:
            found = self._list("nvmlDeviceGetProcessUtilization", handle, since)
        except Absent:
            return []
        samples = [Sample(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found]
        return [sample for sample in samples if sample.percent <= 100]  # some drivers leave entries unset

    def event_set(self) -> Handle:
        """For `register` and `wait`; given back with the session."""
        return self._call("nvmlEventSetCreate")

    def register(self, handle: Handle, events: Handle) -> None:
        """Have a device's Xid errors told to a set; Unsupported where it can't."""
        self._call("nvmlDeviceRegisterEvents", handle, XID, events)

    def wait(self, events: Handle, seconds: float) -> Event | None:
        """The next Xid error; None after `seconds`. Blocks."""
        try:
            found = self._call("nvmlEventSetWait", events, int(seconds * 1000))
        except Absent:
            return None
        return Event(self._bus_id(found.device), int(found.eventData)) if found.eventType == XID else None

    def _bus_id(self, handle: Handle) -> str:
        """Where a device is that an event came with; "" if it can't say who it is any more."""
        try:
            self.uuid(handle)
            raw = self._call("nvmlDeviceGetPciInfo", handle).busId
            return canonical(raw.decode() if isinstance(raw, bytes) else raw)
        except (NvmlError, PciAddressError):
            return ""

    def _processes(self, what: str, handle: Handle) -> list[Process]:
        name = f"nvmlDeviceGet{what}RunningProcesses"
        try:
            found = self._list(f"{name}_v3", handle)
        except Unsupported as error:
            if error.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return []  # no lists in this mode: nothing that can be joined
            found = self._list(f"{name}_v2", handle)  # drivers before 510
        return [Process(int(one.pid), int(one.usedGpuMemory or 0)) for one in found]

    def _list(self, name: str, *arguments: Any) -> list[Any]:
        for attempt in range(_ATTEMPTS):
            try:
                return list(self._call(name, *arguments))
            except NvmlError as error:
                if error.code == self._nvml.NVML_SUCCESS:  # how pynvml tells of an empty list
                    return []
                if error.code != self._nvml.NVML_ERROR_INSUFFICIENT_SIZE or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        call: Callable[..., Any] = getattr(self._nvml, name)
        try:
            return call(*arguments, **named)
        except self._nvml.NVMLError as error:
            raise self._typed(name, int(error.value), str(error)) from error
        except self._nvml.NVMLLibraryMismatchError as error:  # says so of versions of calls that a driver lacks
            raise Unsupported(name, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND, str(error)) from error

    def _typed(self, name: str, code: int, text: str) -> NvmlError:
        nvml = self._nvml
        lacking = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        )
        if code in lacking:
            return Unsupported(name, code, text)
        if code in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_TIMEOUT):
            return Absent(name, code, text)
        return NvmlError(name, code, text)
