"""Looks at the GPUs of a machine: what there is, how busy, and what becomes of what fails (spec 08 §3.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordlet.devices.gpus import RETRY_SECONDS, Gpus, GpuUse, ProcessUse, fresh, held_memory, newest
from koordlet.devices.model import GpuInfo
from koordlet.devices.nvml import Nvml, NvmlError, Process, Sample
from koordlet.system.devices.pci import PciPlace
from koordlet.system.roots import Roots
from tests.nvidia import GIB, Gpu, Machine

FIRST, SECOND, THIRD = "0000:1a:00.0", "0000:c1:00.0", "0000:c2:00.0"
H100 = "NVIDIA H100 80GB HBM3"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpus(machine: Machine, roots: Roots, clock: Clock, connect: Callable[[], Nvml]) -> Gpus:
    return Gpus(roots, clock, connect)


def test_what_there_is(gpus: Gpus) -> None:
    look = gpus.look()
    assert list(look.gpus.values()) == [
        GpuInfo(0, "GPU-first", 80 * GIB, H100, PciPlace(FIRST, 0, "pci0000:1a")),
        GpuInfo(1, "GPU-second", 80 * GIB, H100, PciPlace(SECOND, 1, "pci0000:c1")),
    ]
    assert (look.driver, look.failures, look.problem, look.at) == ("535.129.03", {}, "", 1000.0)


def test_the_processes_of_the_specification(machine: Machine, gpus: Gpus) -> None:
    """pid 122: device 0 70 % and 1500, device 1 50 % and 1000; pid 222: 10 % and 1000, 40 % and 3000."""
    machine.processes = [(FIRST, "C", 122, 1500, 0), (FIRST, "C", 222, 1000, 0),
                         (SECOND, "C", 122, 1000, 0), (SECOND, "C", 222, 3000, 0)]  # fmt: skip
    machine.tell()
    assert gpus.look().use["GPU-first"].core is None  # whatever the driver remembers may be of long ago
    machine.samples = [(FIRST, 122, 5, 70), (FIRST, 222, 5, 10), (SECOND, 122, 5, 50), (SECOND, 222, 5, 40)]
    machine.gpus[0].used, machine.gpus[1].used = 2600, 4100
    machine.tell()
    assert gpus.look().use == {
        "GPU-first": GpuUse(2600, 80.0, {122: ProcessUse(1500, 70.0), 222: ProcessUse(1000, 10.0)}),
        "GPU-second": GpuUse(4100, 90.0, {122: ProcessUse(1000, 50.0), 222: ProcessUse(3000, 40.0)}),
    }


def test_each_sample_counts_once_and_the_newest_of_a_process_alone(machine: Machine, gpus: Gpus) -> None:
    machine.processes = [(FIRST, "C", 122, 1500, 0), (FIRST, "C", 5, 7, 0)]
    machine.samples = [(FIRST, 122, 100, 99)]
    machine.tell()
    gpus.look()
    machine.samples += [(FIRST, 122, 300, 20), (FIRST, 122, 200, 60), (FIRST, 666, 250, 50)]
    machine.tell()
    use = gpus.look().use["GPU-first"]
    assert (use.core, use.processes) == (20.0, {122: ProcessUse(1500, 20.0), 5: ProcessUse(7, 0.0)})
    use = gpus.look().use["GPU-first"]
    assert (use.core, use.processes) == (0.0, {122: ProcessUse(1500, 0.0), 5: ProcessUse(7, 0.0)})


def test_a_sample_of_nobody_does_not_hide_those_that_come(machine: Machine, gpus: Gpus) -> None:
    machine.processes = [(FIRST, "C", 122, 1500, 0)]
    machine.samples = [(FIRST, 0, 1 << 60, 0)]
    machine.tell()
    gpus.look()
    machine.samples.append((FIRST, 122, 300, 20))
    machine.tell()
    assert gpus.look().use["GPU-first"].core == 20.0


def test_a_sample_that_was_not_asked_for_is_none() -> None:
    told = [Sample(1, 5, 10), Sample(1, 6, 20), Sample(2, 7, 30)]
    assert fresh(told, {1}, 5) == [Sample(1, 6, 20)]


def test_an_idle_gpu(machine: Machine, gpus: Gpus) -> None:
    gpus.look()
    assert gpus.look().use["GPU-second"] == GpuUse(0, 0.0, {})


def test_a_mode_without_samples_leaves_memory(machine: Machine, gpus: Gpus) -> None:
    """MIG: processes of one GPU in several instances, and no utilisation."""
    machine.errors["nvmlDeviceGetProcessUtilization", FIRST] = 3
    machine.processes = [(FIRST, "C", 122, 1000, 1), (FIRST, "C", 122, 500, 2)]
    machine.tell()
    gpus.look()
    look = gpus.look()
    assert look.use["GPU-first"] == GpuUse(0, None, {122: ProcessUse(1500, None)})
    assert look.use["GPU-second"].core == 0.0
    assert look.failures == {}


@pytest.mark.parametrize(
    ("computing", "drawing", "expected"),
    [
        ([], [], {}),
        ([Process(1, 10)], [Process(2, 20)], {1: 10, 2: 20}),
        ([Process(1, 10)], [Process(1, 10)], {1: 10}),
        ([Process(1, 10), Process(1, 5)], [Process(1, 12)], {1: 15}),
        ([Process(1, 0)], [], {1: 0}),
    ],
    ids=["none", "one-each", "in-both-lists", "two-instances", "memory-not-told"],
)
def test_memory_by_process(computing: list[Process], drawing: list[Process], expected: dict[int, int]) -> None:
    assert held_memory(computing, drawing) == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([], {}), ([Sample(1, 5, 10), Sample(1, 9, 20), Sample(1, 7, 30), Sample(2, 1, 4)], {1: 20, 2: 4})],
    ids=["none", "in-any-order"],
)
def test_newest_by_process(samples: list[Sample], expected: dict[int, int]) -> None:
    assert newest(samples) == expected


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo_v2"],
)
def test_a_device_that_fails_costs_itself(machine: Machine, gpus: Gpus, clock: Clock, call: str) -> None:
    machine.errors[call, FIRST] = 999
    machine.tell()
    look = gpus.look()
    assert (list(look.gpus), list(look.use), list(look.failures)) == ([SECOND], ["GPU-second"], [FIRST])
    assert "Unknown Error" in look.failures[FIRST]
    machine.errors.clear()
    machine.tell()
    assert list(gpus.look().gpus) == [SECOND]
    clock.now += RETRY_SECONDS
    assert list(gpus.look().gpus) == [FIRST, SECOND]


def test_functions_of_which_none_can_be_described_are_not_known(machine: Machine, gpus: Gpus) -> None:
    """A driver that is still starting: the node may have GPUs all the same."""
    machine.errors["nvmlDeviceGetUUID", "-"] = 999
    machine.tell()
    look = gpus.look()
    assert (dict(look.gpus), look.unknown, list(look.failures)) == ({}, True, [FIRST, SECOND])


def test_hidden_from_nvml_or_from_sysfs(machine: Machine, gpus: Gpus) -> None:
    """One whose function the driver does not hold is not asked for, one that NVML does not have is skipped."""
    machine.gpus[0].bound = False
    machine.gpus.append(Gpu(THIRD, "GPU-third", 2))
    machine.tell()
    del machine.gpus[2]
    machine.tell()
    look = gpus.look()
    assert [gpu.minor for gpu in look.gpus.values()] == [1]
    assert look.failures == {THIRD: "nvmlDeviceGetHandleByPciBusId: Not Found"}


def test_a_gpu_that_falls_off_its_bus_stays_known(machine: Machine, gpus: Gpus, clock: Clock) -> None:
    gpus.look()
    for call in ("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetMemoryInfo_v2"):
        machine.errors[call, FIRST] = 15
    machine.tell()
    clock.now += RETRY_SECONDS
    look = gpus.look()
    assert list(look.gpus) == [FIRST, SECOND]
    assert list(look.use) == ["GPU-second"]
    assert look.failures == {FIRST: "nvmlDeviceGetMemoryInfo: GPU is lost"}
    machine.gpus[0].bound = False
    machine.tell()
    assert list(gpus.look().gpus) == [SECOND]


def test_gpus_that_come_later(machine: Machine, gpus: Gpus) -> None:
    gpus.look()
    machine.gpus.append(Gpu(THIRD, "GPU-third", 2))
    machine.tell()
    assert list(gpus.look().gpus) == [FIRST, SECOND, THIRD]


def test_what_does_not_change_is_not_asked_for_again(machine: Machine, gpus: Gpus, clock: Clock) -> None:
    gpus.look()
    clock.now += RETRY_SECONDS - 1
    gpus.look()
    assert machine.calls("nvmlDeviceGetUUID") == 2
    clock.now += 1
    gpus.look()
    assert machine.calls("nvmlDeviceGetUUID") == 4


def test_without_a_driver_nvml_is_not_touched(machine: Machine, gpus: Gpus) -> None:
    for gpu in machine.gpus:
        gpu.bound = False
    machine.tell()
    assert gpus.look().problem == "no PCI function is bound to the driver nvidia"
    assert machine.calls("nvmlInitWithFlags") == 0
    assert not gpus.look().unknown  # there are none
    machine.gpus[0].bound = True
    machine.tell()
    assert list(gpus.look().gpus) == [FIRST]


def test_one_try_in_five_minutes(machine: Machine, gpus: Gpus, clock: Clock) -> None:
    machine.errors["nvmlInitWithFlags", "-"] = 9
    machine.tell()
    problem = "nvmlInit: Driver Not Loaded"
    for _ in range(3):
        look = gpus.look()
        assert (look.problem, look.unknown) == (problem, True)
        clock.now += RETRY_SECONDS / 3
    assert machine.calls("nvmlInitWithFlags") == 1
    assert gpus.look().problem == problem
    assert machine.calls("nvmlInitWithFlags") == 2
    machine.errors.clear()
    machine.tell()
    clock.now += RETRY_SECONDS
    look = gpus.look()
    assert (look.problem, list(look.gpus)) == ("", [FIRST, SECOND])


def test_no_library(machine: Machine, roots: Roots, clock: Clock) -> None:
    def missing() -> Nvml:
        raise NvmlError("nvmlInit", 12, "NVML Shared Library Not Found")

    assert Gpus(roots, clock, missing).look().problem == "nvmlInit: NVML Shared Library Not Found"


def test_a_session_that_is_lost_is_opened_anew(machine: Machine, gpus: Gpus, clock: Clock) -> None:
    gpus.look()
    machine.errors["nvmlDeviceGetMemoryInfo_v2", SECOND] = 9
    machine.tell()
    assert gpus.look().problem == "nvmlDeviceGetMemoryInfo: Driver Not Loaded"
    assert gpus.nvml is None
    machine.errors.clear()
    machine.tell()
    assert gpus.look().problem
    clock.now += RETRY_SECONDS
    look = gpus.look()
    assert (look.problem, list(look.gpus)) == ("", [FIRST, SECOND])
    assert machine.calls("nvmlShutdown") == 1
    assert look.use["GPU-first"].core is None  # samples begin anew too
