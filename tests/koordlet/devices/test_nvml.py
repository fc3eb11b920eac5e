"""pynvml against a library with NVML's ABI: what it tells, and what it refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.devices.nvml import XID, Absent, Event, Memory, Nvml, NvmlError, Process, Sample, Unsupported
from tests.nvidia import GIB, Machine

FIRST, SECOND = "0000:1a:00.0", "0000:c1:00.0"
Connect = Callable[[], Nvml]


def test_a_device_by_its_address(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    for address in (SECOND, "00000000:C1:00.0"):
        handle = nvml.device(address)
        assert (nvml.uuid(handle), nvml.minor(handle), nvml.name(handle)) == ("GPU-second", 1, "NVIDIA H100 80GB HBM3")
    assert nvml.driver_version() == "535.129.03"
    with pytest.raises(Absent, match=r"^nvmlDeviceGetHandleByPciBusId: Not Found$"):
        nvml.device("0000:09:00.0")


def test_memory_by_either_call(machine: Machine, connect: Connect) -> None:
    """The older one counts what the driver reserved."""
    machine.gpus[0].used = GIB
    machine.tell()
    nvml = connect()
    assert nvml.memory(nvml.device(FIRST)) == Memory(80 * GIB, GIB)
    machine.errors["nvmlDeviceGetMemoryInfo_v2", "-"] = 3
    machine.tell()
    assert nvml.memory(nvml.device(FIRST)) == Memory(80 * GIB, GIB + (480 << 20))


def test_lists_of_any_length(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    handle = nvml.device(FIRST)
    assert nvml.processes(handle) == ([], [])
    machine.processes = [(FIRST, "C", pid, pid * 1000, 0) for pid in range(100, 140)] + [
        (FIRST, "G", 7, 5, 0), (SECOND, "C", 8, 5, 0),
    ]  # fmt: skip
    machine.tell()
    assert nvml.processes(handle) == ([Process(pid, pid * 1000) for pid in range(100, 140)], [Process(7, 5)])


def test_memory_of_a_process_that_nobody_knows(machine: Machine, connect: Connect) -> None:
    machine.processes = [(FIRST, "C", 9, 2**64 - 1, 0)]
    machine.tell()
    nvml = connect()
    assert nvml.processes(nvml.device(FIRST))[0] == [Process(9, 0)]


def test_a_mode_without_lists(machine: Machine, connect: Connect) -> None:
    machine.errors = {("nvmlDeviceGetGraphicsRunningProcesses_v3", FIRST): 3}
    machine.processes = [(FIRST, "C", 9, 1, 0)]
    machine.tell()
    nvml = connect()
    assert nvml.processes(nvml.device(FIRST)) == ([Process(9, 1)], [])


def test_samples_that_no_driver_can_mean(machine: Machine, connect: Connect) -> None:
    machine.samples = [(FIRST, 1, 10, 100), (FIRST, 2, 10, 4294967295), (FIRST, 3, 10, 101)]
    machine.tell()
    nvml = connect()
    assert nvml.samples(nvml.device(FIRST), 0) == [Sample(1, 10, 100)]


def test_samples_since(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    handle = nvml.device(FIRST)
    assert nvml.samples(handle, 0) == []
    machine.samples = [(FIRST, 1, 10, 70), (FIRST, 1, 20, 60), (SECOND, 1, 30, 50)]
    machine.tell()
    assert nvml.samples(handle, 10) == [Sample(1, 20, 60)]
    assert nvml.samples(handle, 20) == []


@pytest.mark.parametrize(
    ("status", "kind", "lost"),
    [(3, Unsupported, False), (15, NvmlError, False), (9, NvmlError, True), (4, NvmlError, False)],
    ids=["not-supported", "gpu-is-lost", "no-driver", "no-permission"],
)
def test_refusals_by_kind(machine: Machine, connect: Connect, status: int, kind: type[NvmlError], lost: bool) -> None:
    machine.errors["nvmlDeviceGetUUID", FIRST] = status
    machine.tell()
    nvml = connect()
    handle = nvml.device(FIRST)
    with pytest.raises(NvmlError) as found:
        nvml.uuid(handle)
    assert type(found.value) is kind
    assert (found.value.code, found.value.session_lost) == (status, lost)


def test_what_the_driver_does_not_tell_is_empty(machine: Machine, connect: Connect) -> None:
    machine.errors = {("nvmlSystemGetDriverVersion", "-"): 3, ("nvmlDeviceGetName", "-"): 3}
    machine.tell()
    nvml = connect()
    assert (nvml.driver_version(), nvml.name(nvml.device(FIRST))) == ("", "")


def test_a_library_that_does_not_initialise(machine: Machine) -> None:
    machine.errors["nvmlInitWithFlags", "-"] = 9
    machine.tell()
    with pytest.raises(NvmlError, match="Driver Not Loaded"):
        Nvml()


def test_events_of_registered_devices_once(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    events = nvml.event_set()
    nvml.register(nvml.device(FIRST), events)
    nvml.device(SECOND)
    machine.events = [(SECOND, XID, 48), (FIRST, XID, 79), ("?", XID, 94)]
    machine.tell()
    assert nvml.wait(events, 60) == Event(FIRST, 79)
    assert nvml.wait(events, 60) == Event("", 94)
    assert nvml.wait(events, 0.01) is None


def test_an_event_of_a_device_that_cannot_say_who_it_is(machine: Machine, connect: Connect) -> None:
    nvml = connect()
    events = nvml.event_set()
    nvml.register(nvml.device(FIRST), events)
    machine.errors["nvmlDeviceGetUUID", FIRST] = 15
    machine.events = [(FIRST, XID, 79)]
    machine.tell()
    assert nvml.wait(events, 60) == Event("", 79)


def test_closing_twice_does_no_harm(machine: Machine) -> None:
    nvml = Nvml()
    nvml.close()
    nvml.close()
    with pytest.raises(NvmlError, match="Uninitialized"):
        nvml.device(FIRST)


def test_the_library_refuses_what_nvml_refuses(library: Path, machine: Machine) -> None:
    """Straight through the ABI: a test library that took anything would prove nothing."""
    raw = ctypes.CDLL(str(library))
    count, handle, buffer = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(FIRST.encode(), ctypes.byref(handle)) == 1  # uninitialised
    assert raw.nvmlShutdown() == 1
    assert raw.nvmlInitWithFlags(0) == 0
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(FIRST.encode(), ctypes.byref(handle)) == 0
    assert raw.nvmlDeviceGetHandleByPciBusId_v2(b"gpu0", ctypes.byref(handle)) == 2
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
