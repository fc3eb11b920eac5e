"""NVML through pynvml, typed; the only module that uses either. Loaded at first use, callable from any thread.

Every call may block without limit in the driver, so none is made on the event loop. Errors of the library are
`NvmlError`; a feature that the driver or device does not have raises `NotSupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koordlet.system.devices.pci import PciAddressError, canonical

XID = 8
"""Event type: an Xid error."""
_LIST_ATTEMPTS = 3
"""A list's length is read before its entries, and may have grown in between."""


class NvmlError(Exception):
    """NVML returned an error; `code` is its number, the message has the call and NVML's text."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code = code
        self.text = text

    @property
    def session_lost(self) -> bool:
        """Whether the library must be initialised again, rather than one device having failed."""
        return self.code in (1, 9, 12, 18)  # uninitialised, no driver, no library, version mismatch


class NotSupported(NvmlError):
    """The device, its mode or the installed driver does not support the call."""


class Absent(NvmlError):
    """No such device, no sample in the period, or no event before the timeout."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one device; `used` excludes the driver's reservation where NVML reports it separately."""

    total: int
    used: int


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process in one of a device's lists, with its bytes."""

    pid: int
    memory: int


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """Use of a device's multiprocessors by one process, in percent, in the driver's period up to `at` (us)."""

    pid: int
    at: int
    percent: int


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid error; `bus_id` is empty where NVML does not report the device."""

    bus_id: str
    xid: int


Handle = Any
"""Opaque; valid in the session that returned it."""


class Nvml:
    """The initialised library. Devices are addressed by PCI address, because indexes shift when a device is hidden."""

    def __init__(self) -> None:
        import pynvml  # does not load NVIDIA's library yet, but uses 4 MB

        self._nvml = pynvml
        self._call("nvmlInit")

    def close(self) -> None:
        """Shut the library down; handles become invalid. Does nothing if it is uninitialised already."""
        try:
            self._call("nvmlShutdown")
        except NvmlError as error:
            if not error.session_lost:
                raise

    def driver_version(self) -> str:
        """535.129.03; "" where NVML does not report it."""
        try:
            return str(self._call("nvmlSystemGetDriverVersion"))
        except NotSupported:
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
        """NVIDIA H100 80GB HBM3; "" where NVML does not report it."""
        try:
            return str(self._call("nvmlDeviceGetName", handle))
        except NotSupported:
            return ""

    def memory(self, handle: Handle) -> DeviceMemory:
        """By the newer call where the driver has it; the older call counts reserved memory (480 MiB) as used."""
        try:
            info = self._call("nvmlDeviceGetMemoryInfo", handle, version=self._nvml.nvmlMemory_v2)
        except NotSupported:
            info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return DeviceMemory(int(info.total), int(info.used))

    def processes(self, handle: Handle) -> tuple[list[GpuProcess], list[GpuProcess]]:
        """(compute processes, graphics processes); a process that does both is in both lists."""
        return self._processes("Compute", handle), self._processes("Graphics", handle)

    def samples(self, handle: Handle, since: int) -> list[UtilizationSample]:
        """Samples of processes newer than `since` (us of the driver's clock); possibly none."""
        try:
            entries = self._list("nvmlDeviceGetProcessUtilization", handle, since)
        except Absent:
            return []
        samples = [UtilizationSample(int(entry.pid), int(entry.timeStamp), int(entry.smUtil)) for entry in entries]
        return [sample for sample in samples if sample.percent <= 100]  # some drivers leave entries unset

    def event_set(self) -> Handle:
        """For `register` and `wait`; released with the session."""
        return self._call("nvmlEventSetCreate")

    def register(self, handle: Handle, events: Handle) -> None:
        """Add a device's Xid errors to an event set; raises NotSupported if the device cannot."""
        self._call("nvmlDeviceRegisterEvents", handle, XID, events)

    def wait(self, events: Handle, seconds: float) -> XidEvent | None:
        """The next Xid error; None after `seconds`. Blocks."""
        try:
            event = self._call("nvmlEventSetWait", events, int(seconds * 1000))
        except Absent:
            return None
        return XidEvent(self._bus_id(event.device), int(event.eventData)) if event.eventType == XID else None

    def _bus_id(self, handle: Handle) -> str:
        """PCI address of an event's device; "" if the device no longer reports it."""
        try:
            self.uuid(handle)
            raw = self._call("nvmlDeviceGetPciInfo", handle).busId
            return canonical(raw.decode() if isinstance(raw, bytes) else raw)
        except (NvmlError, PciAddressError):
            return ""

    def _processes(self, what: str, handle: Handle) -> list[GpuProcess]:
        name = f"nvmlDeviceGet{what}RunningProcesses"
        try:
            entries = self._list(f"{name}_v3", handle)
        except NotSupported as error:
            if error.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return []  # no lists in this mode
            entries = self._list(f"{name}_v2", handle)  # drivers before 510
        return [GpuProcess(int(entry.pid), int(entry.usedGpuMemory or 0)) for entry in entries]

    def _list(self, name: str, *arguments: Any) -> list[Any]:
        for attempt in range(_LIST_ATTEMPTS):
            try:
                return list(self._call(name, *arguments))
            except NvmlError as error:
                if error.code == self._nvml.NVML_SUCCESS:  # pynvml raises this for an empty list
                    return []
                if error.code != self._nvml.NVML_ERROR_INSUFFICIENT_SIZE or attempt == _LIST_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        call: Callable[..., Any] = getattr(self._nvml, name)
        try:
            return call(*arguments, **named)
        except self._nvml.NVMLError as error:
            raise self._typed(name, int(error.value), str(error)) from error
        except self._nvml.NVMLLibraryMismatchError as error:  # raised for versions of a call that the driver lacks
            raise NotSupported(name, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND, str(error)) from error

    def _typed(self, name: str, code: int, text: str) -> NvmlError:
        nvml = self._nvml
        lacking = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        )
        if code in lacking:
            return NotSupported(name, code, text)
        if code in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_TIMEOUT):
            return Absent(name, code, text)
        return NvmlError(name, code, text)
