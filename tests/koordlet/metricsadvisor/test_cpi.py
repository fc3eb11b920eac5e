"""Cycles and instructions per container: the rules with given counts, and real counters of software events."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import generate_latest

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorCondition, CollectorConditions
from koordlet.metricsadvisor.periodic import cpi
from koordlet.metricsadvisor.periodic.cpi import MIN_CYCLES_PER_SECOND, CpiCollector, CpiFigure
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cpu.perf import CPI_EVENTS, PerfError, PerfEvent, PerfUnavailable
from koordlet.system.kernel import Feature
from tests.koordlet.metriccache.lastvalue import last

MAIN = Subject(SubjectKind.CONTAINER, "containerd://1", "pod1/1", "main", pod_uid="uid-1", pod_name="web")
OTHER = replace(MAIN, key="containerd://2", cgroup_dir="pod1/2", name="other")
ENDED = replace(MAIN, key="containerd://3", cgroup_dir="pod1/3", running=False)
POD = replace(MAIN, kind=SubjectKind.POD, key="uid-1", cgroup_dir="pod1")
ALL = Workloads(1, MappingProxyType({}), (POD, MAIN, OTHER, ENDED))


class Counted:
    """Stands in for `CgroupCounters`: what each directory answers, and what is open."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.opened: list[Any] = []
        self.open: list[Any] = []

    def __call__(self, directory: str, cpus: Any, events: Any) -> Any:
        self.opened.append((directory, cpus))
        answer = self.answers[directory]
        if isinstance(answer, Exception):
            raise answer
        return _Counter(self, directory, answer)


class _Counter:
    def __init__(self, owner: Counted, directory: str, answer: Any) -> None:
        self._owner, self._directory, self._answer = owner, directory, answer
        owner.open.append(directory)

    def read(self) -> dict[str, float]:
        if callable(self._answer):
            raise self._answer()
        return dict(zip(("cycles", "instructions"), self._answer, strict=True))

    def close(self) -> None:
        if self._directory in self._owner.open:
            self._owner.open.remove(self._directory)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[CpiCollector, Counted, MetricCache, Any]]:
    def make(answers: dict[str, Any], feature: Feature = Feature(True)) -> Any:
        counted = Counted(answers)
        monkeypatch.setattr(cpi, "CgroupCounters", counted)
        clock = [100.0]

        async def sleep(seconds: float) -> None:
            assert seconds == 10
            clock[0] += seconds

        registries = Registries()
        registries.node = "n"
        cache = MetricCache()
        conditions = CollectorConditions(registries)
        collector = CpiCollector(
            lambda: ALL, cache, registries, conditions, perf_dir=lambda path: f"/perf/{path}", cpus=lambda: (0, 2, 3),
            feature=feature, clock=lambda: clock[0], sleep=sleep,
        )  # fmt: skip
        return collector, counted, cache, (registries, conditions)

    return make


async def test_running_containers_are_counted_on_the_online_cpus(make: Any) -> None:
    collector, counted, cache, (registries, conditions) = make({"/perf/pod1/1": (3e9, 2e9), "/perf/pod1/2": (5e9, 1e9)})
    await collector.read()
    running = [("/perf/pod1/1", (0, 2, 3)), ("/perf/pod1/2", (0, 2, 3))]
    assert counted.opened == running, "not the ended one, not the pod"
    assert not counted.open, "all are closed"
    assert collector.window == {"containerd://1": 1.5, "containerd://2": 5.0}
    labels = {"pod_uid": "uid-1", "container_id": "containerd://1"}
    assert last(cache, "container_cpi", 0, 1e9, **labels, cpi_resource="cycle") == pytest.approx(3e9)
    assert last(cache, "container_cpi", 0, 1e9, **labels, cpi_resource="instruction") == pytest.approx(2e9)
    row = {"node": "n", "pod_namespace": "", "pod_name": "web", "container_name": "other", "cpi_field": "instructions"}
    row |= labels | {"container_id": "containerd://2"}
    assert registries.external.get_sample_value("koordlet_container_cpi", row) == 1e9
    assert conditions.states["cpi"] == CollectorCondition(True, "perf_event")


TROUBLE = {
    "the container left": PerfError(errno.ENOENT, "gone"),
    "refused": PerfError(errno.EACCES, "no"),
    "a CPU went offline": PerfUnavailable(errno.ENODEV, "no such CPU"),
    "left before it was read": lambda: PerfError(errno.EIO, "short"),
}


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
async def test_one_container_that_fails_costs_its_own_figure(make: Any, trouble: Any) -> None:
    collector, counted, _, _ = make({"/perf/pod1/1": trouble, "/perf/pod1/2": (4e9, 2e9)})
    await collector.read()
    assert collector.window == {"containerd://2": 2.0}
    assert not counted.open


async def test_without_descriptors_the_other_containers_wait_for_the_next_round(make: Any) -> None:
    answers = {"/perf/pod1/1": (4e9, 2e9), "/perf/pod1/2": PerfError(errno.EMFILE, "too many")}
    collector, counted, _, (registries, _) = make(answers)
    await collector.read()
    assert set(collector.figures) == {"containerd://1"}
    assert not counted.open
    assert b"koordlet_collector_failures_total" in generate_latest(registries.internal)


async def test_removed_containers_are_not_shown(make: Any) -> None:
    collector, counted, _, (registries, _) = make({"/perf/pod1/1": (4e9, 2e9), "/perf/pod1/2": (4e9, 2e9)})
    await collector.read()
    counted.answers["/perf/pod1/1"] = PerfError(errno.ENOENT, "gone")
    await collector.read()
    page = generate_latest(registries.external).decode()
    assert "containerd://2" in page
    assert "containerd://1" not in page


async def test_a_round_that_is_cancelled_closes_everything(make: Any) -> None:
    collector, counted, _, _ = make({"/perf/pod1/1": (4e9, 2e9), "/perf/pod1/2": (4e9, 2e9)})

    async def cancelled(_: float) -> None:
        assert len(counted.open) == 2
        raise KeyboardInterrupt

    collector._sleep = cancelled
    with pytest.raises(KeyboardInterrupt):
        await collector.read()
    assert not counted.open


async def test_a_machine_without_counters_is_a_condition(make: Any) -> None:
    collector, counted, _, (_, conditions) = make({}, Feature(False, "no counters"))
    await collector.read()
    assert conditions.states["cpi"] == CollectorCondition(False, "perf_event", "no counters")
    assert not counted.opened


IDLE = {
    "enough": (MIN_CYCLES_PER_SECOND * 10, 1e8, 1.0),
    "hardly ran": (MIN_CYCLES_PER_SECOND * 10 - 1, 1e8, None),
    "never ran": (0.0, 0.0, None),
    "cycles without instructions": (1e9, 0.0, None),
}


@pytest.mark.parametrize(("cycles", "instructions", "expected"), IDLE.values(), ids=IDLE)
def test_a_container_that_hardly_ran_has_no_cpi(cycles: float, instructions: float, expected: float | None) -> None:
    assert CpiFigure(MAIN, cycles, instructions, 10.0).cpi == expected


# --- the real kernel: task clock for cycles, context switches for instructions

PERF_TYPE_SOFTWARE = 1
SOFTWARE = (
    PerfEvent("cycles", PERF_TYPE_SOFTWARE, 1),
    PerfEvent("instructions", PERF_TYPE_SOFTWARE, 3),
)


def until_charged(fs: Any, directory: str, nanoseconds: int) -> None:
    before = fs.cpu_usage(directory)
    while fs.cpu_usage(directory) - before < nanoseconds:
        time.sleep(0.02)


def stolen() -> int:
    """Nanoseconds that a hypervisor took from all CPUs: the task clock goes on meanwhile, the charge does not."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@pytest.mark.kernel
async def test_each_cgroup_is_counted_by_itself(
    kernel_fs: Any, kernel_host: Any, cgroup_child: Any, spawn: Any
) -> None:
    """Task clock within 2 % + 60 ms of the CPU time that the kernel charged the same cgroup: no less than between two
    readings while it counts, no more than between two around that and what a hypervisor took."""
    busy, calm, empty = cgroup_child("busy"), cgroup_child("calm"), cgroup_child("empty")
    subjects = [replace(MAIN, key=child.dir, cgroup_dir=child.dir) for child in (busy, calm, empty)]
    napping = spawn(["sh", "-c", "while :; do sleep 0.01; done"], calm)
    # Without a nap a CPU of its own would never be taken from it, and nothing would stand for instructions.
    spawn(["sh", "-c", "while :; do i=9999; while [ $i -gt 0 ]; do i=$((i - 1)); done; sleep 0.001; done"], busy)
    used: dict[str, list[int]] = {}

    def usages() -> list[int]:
        return [kernel_fs.cpu_usage(child.dir) for child in (busy, calm, empty)]

    async def until_used(_: float) -> None:
        used["before"] = usages()
        until_charged(kernel_fs, busy.dir, 400_000_000)
        used["after"] = usages()

    registries = Registries()
    collector = CpiCollector(
        lambda: Workloads(1, MappingProxyType({}), tuple(subjects)), MetricCache(), registries,
        CollectorConditions(registries), perf_dir=kernel_fs.perf_dir, cpus=lambda: kernel_host.facts.online_cpus,
        feature=Feature(True), events=SOFTWARE, sleep=until_used,
    )  # fmt: skip
    first, lost = usages(), stolen()
    await collector.read()
    last, lost = usages(), stolen() - lost
    assert napping.poll() is None
    for i, child in enumerate((busy, calm, empty)):
        least, most = used["after"][i] - used["before"][i], last[i] - first[i]
        assert 0.98 * least - 6e7 <= collector.figures[child.dir].cycles <= 1.02 * most + lost + 6e7, child.dir
    assert collector.figures[calm.dir].instructions > 0, "it sleeps and wakes"
    assert collector.figures[empty.dir].cycles == 0
    assert busy.dir in collector.window
    assert empty.dir not in collector.window


@pytest.mark.kernel
async def test_hardware_counts_where_there_are_counters(
    kernel_fs: Any, kernel_host: Any, cgroup_child: Any, burner: Any
) -> None:
    """A busy loop has a CPI between 0.1 and 20; without counters the condition has the reason."""
    child = cgroup_child()
    burner(child)
    feature = kernel_host.facts.features["perf_hardware"]
    registries = Registries()
    conditions = CollectorConditions(registries)
    subject = replace(MAIN, key=child.dir, cgroup_dir=child.dir)

    async def until_used(_: float) -> None:
        until_charged(kernel_fs, child.dir, 100_000_000)

    collector = CpiCollector(
        lambda: Workloads(1, MappingProxyType({}), (subject,)), MetricCache(), registries, conditions,
        perf_dir=kernel_fs.perf_dir, cpus=lambda: kernel_host.facts.online_cpus, feature=feature, events=CPI_EVENTS,
        sleep=until_used,
    )  # fmt: skip
    await collector.read()
    if feature:
        assert 0.1 < collector.window[child.dir] < 20
    else:
        assert "perf_event_open" in conditions.states["cpi"].reason
        assert not collector.window
