"""Readings of a machine's GPUs: descriptions, utilisation and failures (spec 08 §3.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordlet.devices.gpus import RETRY_SECONDS, GpuProcessUse, Gpus, GpuUse, held_memory, latest_percent, recent
from koordlet.devices.model import GpuInfo
from koordlet.devices.nvml import GpuProcess, Nvml, NvmlError, UtilizationSample
from koordlet.system.devices.pci import PciPlace
from koordlet.system.roots import Roots
from tests.fakeclock import SetTime
from tests.nvidia import GIB, Gpu, Machine

FIRST, SECOND, THIRD = "0000:1a:00.0", "0000:c1:00.0", "0000:c2:00.0"
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def clock() -> SetTime:
    return SetTime()


@pytest.fixture
def gpus(machine: Machine, roots: Roots, clock: SetTime, connect: Callable[[], Nvml]) -> Gpus:
    return Gpus(roots, clock, connect)


def test_gpus_are_described(gpus: Gpus) -> None:
    snapshot = gpus.read()
    assert list(snapshot.gpus.values()) == [
        GpuInfo(0, "GPU-first", 80 * GIB, H100, PciPlace(FIRST, 0, "pci0000:1a")),
        GpuInfo(1, "GPU-second", 80 * GIB, H100, PciPlace(SECOND, 1, "pci0000:c1")),
    ]
    assert (snapshot.driver, snapshot.failures, snapshot.problem, snapshot.at) == ("535.129.03", {}, "", 1000.0)


def test_process_use_follows_the_specifications_example(machine: Machine, gpus: Gpus) -> None:
    """pid 122: device 0 70 % and 1500, device 1 50 % and 1000; pid 222: 10 % and 1000, 40 % and 3000."""
    machine.processes = [(FIRST, "C", 122, 1500, 0), (FIRST, "C", 222, 1000, 0),
                         (SECOND, "C", 122, 1000, 0), (SECOND, "C", 222, 3000, 0)]  # fmt: skip
    machine.tell()
    assert gpus.read().use["GPU-first"].core is None  # the driver's samples may be old
    machine.samples = [(FIRST, 122, 5, 70), (FIRST, 222, 5, 10), (SECOND, 122, 5, 50), (SECOND, 222, 5, 40)]
    machine.gpus[0].used, machine.gpus[1].used = 2600, 4100
    machine.tell()
    assert gpus.read().use == {
        "GPU-first": GpuUse(2600, 80.0, {122: GpuProcessUse(1500, 70.0), 222: GpuProcessUse(1000, 10.0)}),
        "GPU-second": GpuUse(4100, 90.0, {122: GpuProcessUse(1000, 50.0), 222: GpuProcessUse(3000, 40.0)}),
    }


def test_only_the_newest_sample_of_a_process_counts_and_once(machine: Machine, gpus: Gpus) -> None:
    machine.processes = [(FIRST, "C", 122, 1500, 0), (FIRST, "C", 5, 7, 0)]
    machine.samples = [(FIRST, 122, 100, 99)]
    machine.tell()
    gpus.read()
    machine.samples += [(FIRST, 122, 300, 20), (FIRST, 122, 200, 60), (FIRST, 666, 250, 50)]
    machine.tell()
    use = gpus.read().use["GPU-first"]
    assert (use.core, use.processes) == (20.0, {122: GpuProcessUse(1500, 20.0), 5: GpuProcessUse(7, 0.0)})
    use = gpus.read().use["GPU-first"]
    assert (use.core, use.processes) == (0.0, {122: GpuProcessUse(1500, 0.0), 5: GpuProcessUse(7, 0.0)})


def test_a_sample_without_process_does_not_hide_later_samples(machine: Machine, gpus: Gpus) -> None:
    machine.processes = [(FIRST, "C", 122, 1500, 0)]
    machine.samples = [(FIRST, 0, 1 << 60, 0)]
    machine.tell()
    gpus.read()
    machine.samples.append((FIRST, 122, 300, 20))
    machine.tell()
    assert gpus.read().use["GPU-first"].core == 20.0


def test_older_samples_and_other_processes_are_dropped() -> None:
    samples = [UtilizationSample(1, 5, 10), UtilizationSample(1, 6, 20), UtilizationSample(2, 7, 30)]
    assert recent(samples, {1}, 5) == [UtilizationSample(1, 6, 20)]


def test_an_idle_gpu_uses_nothing(machine: Machine, gpus: Gpus) -> None:
    gpus.read()
    assert gpus.read().use["GPU-second"] == GpuUse(0, 0.0, {})


def test_a_mode_without_samples_still_has_memory(machine: Machine, gpus: Gpus) -> None:
    """MIG: processes of one GPU in several instances, and no utilisation."""
    machine.errors["nvmlDeviceGetProcessUtilization", FIRST] = 3
    machine.processes = [(FIRST, "C", 122, 1000, 1), (FIRST, "C", 122, 500, 2)]
    machine.tell()
    gpus.read()
    snapshot = gpus.read()
    assert snapshot.use["GPU-first"] == GpuUse(0, None, {122: GpuProcessUse(1500, None)})
    assert snapshot.use["GPU-second"].core == 0.0
    assert snapshot.failures == {}


@pytest.mark.parametrize(
    ("compute", "graphics", "expected"),
    [
        ([], [], {}),
        ([GpuProcess(1, 10)], [GpuProcess(2, 20)], {1: 10, 2: 20}),
        ([GpuProcess(1, 10)], [GpuProcess(1, 10)], {1: 10}),
        ([GpuProcess(1, 10), GpuProcess(1, 5)], [GpuProcess(1, 12)], {1: 15}),
        ([GpuProcess(1, 0)], [], {1: 0}),
    ],
    ids=["none", "one-each", "in-both-lists", "two-instances", "memory-not-reported"],
)
def test_memory_by_process(compute: list[GpuProcess], graphics: list[GpuProcess], expected: dict[int, int]) -> None:
    assert held_memory(compute, graphics) == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], {}),
        (
            [
                UtilizationSample(1, 5, 10),
                UtilizationSample(1, 9, 20),
                UtilizationSample(1, 7, 30),
                UtilizationSample(2, 1, 4),
            ],
            {1: 20, 2: 4},
        ),
    ],
    ids=["none", "in-any-order"],
)
def test_latest_percent_by_process(samples: list[UtilizationSample], expected: dict[int, int]) -> None:
    assert latest_percent(samples) == expected


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo_v2"],
)
def test_a_failing_device_does_not_affect_the_others(machine: Machine, gpus: Gpus, clock: SetTime, call: str) -> None:
    machine.errors[call, FIRST] = 999
    machine.tell()
    snapshot = gpus.read()
    assert (list(snapshot.gpus), list(snapshot.use), list(snapshot.failures)) == ([SECOND], ["GPU-second"], [FIRST])
    assert "Unknown Error" in snapshot.failures[FIRST]
    machine.errors.clear()
    machine.tell()
    assert list(gpus.read().gpus) == [SECOND]
    clock.now += RETRY_SECONDS
    assert list(gpus.read().gpus) == [FIRST, SECOND]


def test_bound_functions_without_descriptions_are_unknown_gpus(machine: Machine, gpus: Gpus) -> None:
    """A driver that is still starting: the node may have GPUs."""
    machine.errors["nvmlDeviceGetUUID", "-"] = 999
    machine.tell()
    snapshot = gpus.read()
    assert (dict(snapshot.gpus), snapshot.unknown, list(snapshot.failures)) == ({}, True, [FIRST, SECOND])


def test_gpus_hidden_from_nvml_or_from_sysfs_are_skipped(machine: Machine, gpus: Gpus) -> None:
    """An unbound function is not read; one that NVML does not know is skipped."""
    machine.gpus[0].bound = False
    machine.gpus.append(Gpu(THIRD, "GPU-third", 2))
    machine.tell()
    del machine.gpus[2]
    machine.tell()
    snapshot = gpus.read()
    assert [gpu.minor for gpu in snapshot.gpus.values()] == [1]
    assert snapshot.failures == {THIRD: "nvmlDeviceGetHandleByPciBusId: Not Found"}


def test_a_gpu_that_falls_off_its_bus_stays_known(machine: Machine, gpus: Gpus, clock: SetTime) -> None:
    gpus.read()
    for call in ("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetMemoryInfo_v2"):
        machine.errors[call, FIRST] = 15
    machine.tell()
    clock.now += RETRY_SECONDS
    snapshot = gpus.read()
    assert list(snapshot.gpus) == [FIRST, SECOND]
    assert list(snapshot.use) == ["GPU-second"]
    assert snapshot.failures == {FIRST: "nvmlDeviceGetMemoryInfo: GPU is lost"}
    machine.gpus[0].bound = False
    machine.tell()
    assert list(gpus.read().gpus) == [SECOND]


def test_gpus_that_appear_later_are_read(machine: Machine, gpus: Gpus) -> None:
    gpus.read()
    machine.gpus.append(Gpu(THIRD, "GPU-third", 2))
    machine.tell()
    assert list(gpus.read().gpus) == [FIRST, SECOND, THIRD]


def test_constant_properties_are_read_every_five_minutes(machine: Machine, gpus: Gpus, clock: SetTime) -> None:
    gpus.read()
    clock.now += RETRY_SECONDS - 1
    gpus.read()
    assert machine.calls("nvmlDeviceGetUUID") == 2
    clock.now += 1
    gpus.read()
    assert machine.calls("nvmlDeviceGetUUID") == 4


def test_without_a_driver_nvml_is_not_opened(machine: Machine, gpus: Gpus) -> None:
    for gpu in machine.gpus:
        gpu.bound = False
    machine.tell()
    assert gpus.read().problem == "no PCI function is bound to the driver nvidia"
    assert machine.calls("nvmlInitWithFlags") == 0
    assert not gpus.read().unknown  # there are no GPUs
    machine.gpus[0].bound = True
    machine.tell()
    assert list(gpus.read().gpus) == [FIRST]


def test_nvml_is_retried_every_five_minutes(machine: Machine, gpus: Gpus, clock: SetTime) -> None:
    machine.errors["nvmlInitWithFlags", "-"] = 9
    machine.tell()
    problem = "nvmlInit: Driver Not Loaded"
    for _ in range(3):
        snapshot = gpus.read()
        assert (snapshot.problem, snapshot.unknown) == (problem, True)
        clock.now += RETRY_SECONDS / 3
    assert machine.calls("nvmlInitWithFlags") == 1
    assert gpus.read().problem == problem
    assert machine.calls("nvmlInitWithFlags") == 2
    machine.errors.clear()
    machine.tell()
    clock.now += RETRY_SECONDS
    snapshot = gpus.read()
    assert (snapshot.problem, list(snapshot.gpus)) == ("", [FIRST, SECOND])


def test_a_missing_library_is_the_problem(machine: Machine, roots: Roots, clock: SetTime) -> None:
    def missing() -> Nvml:
        raise NvmlError("nvmlInit", 12, "NVML Shared Library Not Found")

    assert Gpus(roots, clock, missing).read().problem == "nvmlInit: NVML Shared Library Not Found"


def test_a_lost_session_is_reopened(machine: Machine, gpus: Gpus, clock: SetTime) -> None:
    gpus.read()
    machine.errors["nvmlDeviceGetMemoryInfo_v2", SECOND] = 9
    machine.tell()
    assert gpus.read().problem == "nvmlDeviceGetMemoryInfo: Driver Not Loaded"
    assert gpus.nvml is None
    machine.errors.clear()
    machine.tell()
    assert gpus.read().problem
    clock.now += RETRY_SECONDS
    snapshot = gpus.read()
    assert (snapshot.problem, list(snapshot.gpus)) == ("", [FIRST, SECOND])
    assert machine.calls("nvmlShutdown") == 1
    assert snapshot.use["GPU-first"].core is None  # samples start again, too
