"""pynvml with a library of NVML's ABI: values and errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.devices.nvml import (
    XID,
    Absent,
    DeviceMemory,
    GpuProcess,
    NotSupported,
    Nvml,
    NvmlError,
    UtilizationSample,
    XidEvent,
)
from tests.nvidia import GIB, Machine

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"
Connect = Callable[[], Nvml]


def test_a_device_is_found_by_its_address(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    for address in (SECOND, "00000000:C1:00.0"):
        handle = nvml.device(address)
        assert (nvml.uuid(handle), nvml.minor(handle), nvml.name(handle)) == ("GPU-second", 1, "NVIDIA H100 80GB HBM3")
    assert nvml.driver_version() == "535.129.03"
    with pytest.raises(Absent, match=r"^nvmlDeviceGetHandleByPciBusId: Not Found$"):
        nvml.device("0000:09:00.0")


def test_memory_by_the_newer_and_the_older_call(machine: Machine, connect: Connect) -> None:
    """The older call counts the driver's reservation as used."""
    machine.gpus[0].used = GIB
    machine.tell()
    nvml = connect()
    assert nvml.memory(nvml.device(FIRST)) == DeviceMemory(80 * GIB, GIB)
    machine.errors["nvmlDeviceGetMemoryInfo_v2", "-"] = 3
    machine.tell()
    assert nvml.memory(nvml.device(FIRST)) == DeviceMemory(80 * GIB, GIB + (480 << 20))


def test_process_lists_of_any_length(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    handle = nvml.device(FIRST)
    assert nvml.processes(handle) == ([], [])
    machine.processes = [(FIRST, "C", pid, pid * 1000, 0) for pid in range(100, 140)] + [
        (FIRST, "G", 7, 5, 0), (SECOND, "C", 8, 5, 0),
    ]  # fmt: skip
    machine.tell()
    assert nvml.processes(handle) == ([GpuProcess(pid, pid * 1000) for pid in range(100, 140)], [GpuProcess(7, 5)])


def test_unknown_memory_of_a_process_is_0(machine: Machine, connect: Connect) -> None:
    machine.processes = [(FIRST, "C", 9, 2**64 - 1, 0)]
    machine.tell()
    nvml = connect()
    assert nvml.processes(nvml.device(FIRST))[0] == [GpuProcess(9, 0)]


def test_a_mode_without_lists_has_empty_lists(machine: Machine, connect: Connect) -> None:
    machine.errors = {("nvmlDeviceGetGraphicsRunningProcesses_v3", FIRST): 3}
    machine.processes = [(FIRST, "C", 9, 1, 0)]
    machine.tell()
    nvml = connect()
    assert nvml.processes(nvml.device(FIRST)) == ([GpuProcess(9, 1)], [])


def test_impossible_samples_are_dropped(machine: Machine, connect: Connect) -> None:
    machine.samples = [(FIRST, 1, 10, 100), (FIRST, 2, 10, 4294967295), (FIRST, 3, 10, 101)]
    machine.tell()
    nvml = connect()
    assert nvml.samples(nvml.device(FIRST), 0) == [UtilizationSample(1, 10, 100)]


def test_samples_are_newer_than_since(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    handle = nvml.device(FIRST)
    assert nvml.samples(handle, 0) == []
    machine.samples = [(FIRST, 1, 10, 70), (FIRST, 1, 20, 60), (SECOND, 1, 30, 50)]
    machine.tell()
    assert nvml.samples(handle, 10) == [UtilizationSample(1, 20, 60)]
    assert nvml.samples(handle, 20) == []


@pytest.mark.parametrize(
    ("status", "kind", "lost"),
    [(3, NotSupported, False), (15, NvmlError, False), (9, NvmlError, True), (4, NvmlError, False)],
    ids=["not-supported", "gpu-is-lost", "no-driver", "no-permission"],
)
def test_errors_by_kind(machine: Machine, connect: Connect, status: int, kind: type[NvmlError], lost: bool) -> None:
    machine.errors["nvmlDeviceGetUUID", FIRST] = status
    machine.tell()
    nvml = connect()
    handle = nvml.device(FIRST)
    with pytest.raises(NvmlError) as raised:
        nvml.uuid(handle)
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.session_lost) == (status, lost)


def test_unsupported_descriptions_are_empty(machine: Machine, connect: Connect) -> None:
    machine.errors = {("nvmlSystemGetDriverVersion", "-"): 3, ("nvmlDeviceGetName", "-"): 3}
    machine.tell()
    nvml = connect()
    assert (nvml.driver_version(), nvml.name(nvml.device(FIRST))) == ("", "")


def test_a_library_without_driver_raises(machine: Machine) -> None:
    machine.errors["nvmlInitWithFlags", "-"] = 9
    machine.tell()
    with pytest.raises(NvmlError, match="Driver Not Loaded"):
        Nvml()


def test_events_of_registered_devices_are_returned_once(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    events = nvml.event_set()
    nvml.register(nvml.device(FIRST), events)
    nvml.device(SECOND)
    machine.events = [(SECOND, XID, 48), (FIRST, XID, 79), ("?", XID, 94)]
    machine.tell()
    assert nvml.wait(events, 60) == XidEvent(FIRST, 79)
    assert nvml.wait(events, 60) == XidEvent("", 94)
    assert nvml.wait(events, 0.01) is None


def test_an_event_of_an_unreadable_device_has_no_address(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    events = nvml.event_set()
    nvml.register(nvml.device(FIRST), events)
    machine.errors["nvmlDeviceGetUUID", FIRST] = 15
    machine.events = [(FIRST, XID, 79)]
    machine.tell()
    assert nvml.wait(events, 60) == XidEvent("", 79)


def test_closing_twice_is_allowed(machine: Machine) -> None:
    nvml = Nvml()
    nvml.close()
    nvml.close()
    with pytest.raises(NvmlError, match="Uninitialized"):
        nvml.device(FIRST)


def test_the_test_library_rejects_what_nvml_rejects(library: Path, machine: Machine) -> None:
    """By the ABI directly: a test library that accepts everything would prove nothing."""
    raw = ctypes.CDLL(str(library))
    count, handle, buffer = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(FIRST.encode(), ctypes.byref(handle)) == 1  # uninitialised
    assert raw.nvmlShutdown() == 1
    assert raw.nvmlInitWithFlags(0) == 0
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(FIRST.encode(), ctypes.byref(handle)) == 0
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(b"gpu0", ctypes.byref(handle)) == 2
    assert handle.value is not None
    assert raw.nvmlDeviceGetUUID(ctypes.c_void_p(handle.value + 1), buffer, 96) == 2
    assert raw.nvmlDeviceGetUUID(None, buffer, 96) == 2
    assert raw.nvmlDeviceGetUUID(handle, buffer, 4) == 7
    assert raw.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.create_string_buffer(40)) == 25
    machine.processes = [(FIRST, "C", 1, 1, 0)]
    machine.tell()
    assert raw.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None) == 7
    assert count.value == 1
    assert raw.nvmlEventSetWait_v2(ctypes.c_void_p(1), buffer, 0) == 2
    assert raw.nvmlShutdown() == 0
    assert raw.nvmlDeviceGetUUID(handle, buffer, 96) == 1
