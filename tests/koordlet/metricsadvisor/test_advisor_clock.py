"""The advisor under clocks that jump: no rate is negative or absurd, nothing is committed twice."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.advisor import FRUITLESS, MetricsAdvisor
from koordlet.metricsadvisor.usage.readings import Readings
from koordlet.probes.openprobes import ProbeSet
from koordlet.probes.schedlatency.schedstat import _sums_only
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.host import Host
from koordlet.system.proc.procfs import CpuTicks, MemInfo
from koordlet.system.roots import Roots

MAIN = Subject(SubjectKind.CONTAINER, "containerd://1", "kubepods/pod1/1", "main", qos="LS", pod_uid="uid-1")
WORKLOADS = Workloads(1, MappingProxyType({}), (MAIN,))


class Machine:
    """One container that uses exactly one core, and nothing else; `now` is true time, `clock` what koordlet is told."""

    def __init__(self) -> None:
        self.now, self.clock = 100.0, 100.0
        self.errors: dict[str, str] = {}

    def read(self, workloads: Workloads, at: float) -> Readings:
        names = [
            f"memory_{name}" for name in ("inactive_anon", "active_anon", "unevictable", "inactive_file", "active_file")
        ]
        columns = {
            **{name: np.zeros(1) for name in names},
            "cpu_usage_ns": np.array([self.now * 1e9]),
            "nr_periods": np.zeros(1),
            "nr_throttled": np.zeros(1),
        }
        off = np.zeros(1, dtype=bool)
        table = CgroupTable((MAIN.cgroup_dir,), np.array([7], dtype=np.uint64), off, off, columns)
        ticks = CpuTicks(int(self.now * 100), {0: int(self.now * 100)})
        return Readings(
            at=at, workloads=workloads, table=table, ticks=ticks, memory=MemInfo(2 << 30, 1 << 30, 1 << 30, {})
        )


def advisor(machine: Machine, **how: Any) -> tuple[MetricsAdvisor, MetricCache]:
    cache = MetricCache()
    made = MetricsAdvisor(
        Host(Roots.host()),
        machine,  # type: ignore[arg-type]
        lambda: WORKLOADS,
        cache,
        Registries(),
        probes=ProbeSet({}),
        index=CgroupIndex(lambda: ()),
        clock=lambda: machine.clock,
        **how,
    )
    return made, cache


def step(machine: Machine, made: MetricsAdvisor, true: float, told: float) -> float | None:
    """Time passes; the container's cores afterwards."""
    machine.now += true
    machine.clock += told
    made.tick()
    return None if made.picture is None else float(made.picture.use.cores[0])


def test_a_clock_that_keeps_time_gives_the_rate() -> None:
    machine = Machine()
    made, _ = advisor(machine)
    assert step(machine, made, 0, 0) is None
    assert step(machine, made, 1, 1) == pytest.approx(1.0)
    assert made.picture is not None
    assert made.picture.node is not None
    assert made.picture.node.cores == pytest.approx(1.0)


@pytest.mark.parametrize("late", [1.5, 19.9])
def test_a_late_tick_is_a_longer_mean(late: float) -> None:
    machine = Machine()
    made, cache = advisor(machine)
    step(machine, made, 0, 0)
    assert step(machine, made, late, late) == pytest.approx(1.0)
    assert len(cache.query("container_cpu_usage", 0, 1e9).values) == 1


@pytest.mark.parametrize("late", [20.1, 3600])
def test_a_tick_later_than_twenty_begins_anew(late: float) -> None:
    """A suspended machine or a stopped process: both clocks go on, and the reading before is no baseline."""
    machine = Machine()
    made, cache = advisor(machine)
    step(machine, made, 0, 0)
    assert step(machine, made, late, late) is None
    assert step(machine, made, 1, 1) == pytest.approx(1.0)
    assert len(cache.query("container_cpu_usage", 0, 1e9).values) == 1


@pytest.mark.parametrize(("late", "known", "expected"), [(9.9, True, True), (10.1, True, False), (1, False, False)])
def test_system_use_takes_fresh_inputs_and_known_pods(late: float, known: bool, expected: bool) -> None:
    """Older than 10 s, or before the kubelet was heard: node samples go on, system samples stop."""
    machine = Machine()
    made, cache = advisor(machine, pods_known=lambda: known)
    step(machine, made, 0, 0)
    step(machine, made, late, late)
    assert len(cache.query("node_cpu_usage", 0, 1e9).values) == 1
    assert len(cache.query("sys_cpu_usage", 0, 1e9).values) == expected
    assert made.picture is not None
    assert (made.picture.system is not None) == expected


def test_a_clock_that_stands_still_or_runs_back_gives_no_sample() -> None:
    machine = Machine()
    made, cache = advisor(machine)
    step(machine, made, 0, 0)
    step(machine, made, 1, 1)
    for told in (0, -30):
        assert step(machine, made, 1, told) == pytest.approx(1.0), "the last picture stays"
    assert len(cache.query("container_cpu_usage", -1e9, 1e9).values) == 1
    assert step(machine, made, 1, 1) == pytest.approx(1.0), "and the next tick is right again"


@given(st.lists(st.floats(-5000, 5000), min_size=1, max_size=20))
def test_no_jump_leaves_a_trace_after_two_good_ticks(jumps: list[float]) -> None:
    machine = Machine()
    made, cache = advisor(machine)
    for jump in jumps:
        step(machine, made, 1, jump)
    step(machine, made, 1, 1)
    assert step(machine, made, 1, 1) == pytest.approx(1.0)
    points = cache.query("container_cpu_usage", -1e9, 1e9)
    assert (points.values >= 0).all()
    assert (points.times[1:] >= points.times[:-1]).all()


def test_every_other_reading_of_latency_is_left_out_while_nobody_hurries() -> None:
    made, _ = advisor(Machine())
    source = Latency()
    made._probes.sched_latency = source
    for unhurried, readings in ((False, 4), (True, 2), (False, 4)):
        made.unhurried, before = unhurried, source.read_so_far
        for _ in range(4):
            made.read_latency()
        assert source.read_so_far - before == readings


class Latency:
    """A source of nothing that counts its readings."""

    source = "schedstat"

    def __init__(self) -> None:
        self.read_so_far = 0

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        self.read_so_far += 1
        return _sums_only(self.source, {})


def test_pressure_that_is_nowhere_is_looked_for_now_and_then() -> None:
    """Once in `FRUITLESS` rounds, and in each as soon as any is found."""
    looks: list[float] = []
    total = [np.nan]

    class Pressing(Machine):
        def read_pressure(self, workloads: Workloads) -> CgroupTable:
            looks.append(self.clock)
            off = np.zeros(1, dtype=bool)
            columns = {"cpu_some_total": np.array([total[0]]), "cpu_some_avg10": np.array([total[0]])}
            return CgroupTable((MAIN.cgroup_dir,), np.array([7], dtype=np.uint64), off, off, columns)

    made, _ = advisor(Pressing())
    made._host = SimpleNamespace(facts=SimpleNamespace(psi=True))  # type: ignore[assignment]
    for _ in range(2 * FRUITLESS):
        made.read_pressure()
    assert len(looks) == 2
    total[0] = 5.0
    for _ in range(3):
        made.read_pressure()
    assert len(looks) == 5
