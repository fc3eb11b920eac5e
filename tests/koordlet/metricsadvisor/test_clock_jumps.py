"""The collectors under clocks that jump: no rate is negative or absurd, nothing is committed twice."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.collector import ProbeContext
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.stalls.schedlatency import SchedLatencyCollector
from koordlet.metricsadvisor.usage.pressurecollector import RETRY_ROUNDS, PressureCollector
from koordlet.metricsadvisor.usage.readings import Readings
from koordlet.metricsadvisor.usage.usecollector import UseCollector, UseOptions
from koordlet.probes.schedlatency.files import sums_only
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.proc.procfs import CpuTicks, MemInfo

MAIN = Subject(SubjectKind.CONTAINER, "containerd://1", "kubepods/pod1/1", "main", qos="LS", pod_uid="uid-1")
WORKLOADS = Workloads(1, MappingProxyType({}), (MAIN,))


class Machine:
    """One container that uses exactly one core, and nothing else; `now` is true time, `clock` the time that koordlet
    reads."""

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
        table = CgroupTable((MAIN.cgroup_dir,), np.array([7], dtype=np.uint64), off, columns)
        ticks = CpuTicks(int(self.now * 100), {0: int(self.now * 100)})
        return Readings(
            at=at, workloads=workloads, table=table, ticks=ticks, memory=MemInfo(2 << 30, 1 << 30, 1 << 30, {})
        )


def collector(machine: Machine, pods_known: bool = True) -> tuple[UseCollector, MetricCache]:
    cache = MetricCache()
    reader: Any = machine
    collector = UseCollector(
        reader,
        lambda: WORKLOADS,
        cache,
        Registries(),
        node_of_cpu=dict,
        pods_known=lambda: pods_known,
        options=UseOptions(),
        clock=lambda: machine.clock,
    )
    return collector, cache


def step(machine: Machine, use_collector: UseCollector, true: float, shown: float) -> float | None:
    """Time passes; the container's cores afterwards."""
    machine.now += true
    machine.clock += shown
    use_collector.tick()
    return None if use_collector.snapshot is None else float(use_collector.snapshot.use.cores[0])


def test_a_clock_that_keeps_time_gives_the_rate() -> None:
    machine = Machine()
    use_collector, _ = collector(machine)
    assert step(machine, use_collector, 0, 0) is None
    assert step(machine, use_collector, 1, 1) == pytest.approx(1.0)
    assert use_collector.snapshot is not None
    assert use_collector.snapshot.node is not None
    assert use_collector.snapshot.node.cores == pytest.approx(1.0)


@pytest.mark.parametrize("late", [1.5, 19.9])
def test_a_late_tick_is_a_longer_mean(late: float) -> None:
    machine = Machine()
    use_collector, cache = collector(machine)
    step(machine, use_collector, 0, 0)
    assert step(machine, use_collector, late, late) == pytest.approx(1.0)
    assert len(cache.query("container_cpu_usage", 0, 1e9).values) == 1


@pytest.mark.parametrize("late", [20.1, 3600])
def test_a_tick_later_than_twenty_is_a_new_baseline(late: float) -> None:
    """A suspended machine or a stopped process: both clocks go on, and the reading before is no baseline."""
    machine = Machine()
    use_collector, cache = collector(machine)
    step(machine, use_collector, 0, 0)
    assert step(machine, use_collector, late, late) is None
    assert step(machine, use_collector, 1, 1) == pytest.approx(1.0)
    assert len(cache.query("container_cpu_usage", 0, 1e9).values) == 1


@pytest.mark.parametrize(("late", "known", "expected"), [(9.9, True, True), (10.1, True, False), (1, False, False)])
def test_system_use_takes_fresh_inputs_and_known_pods(late: float, known: bool, expected: bool) -> None:
    """Older than 10 s, or before the kubelet answered: node samples go on, system samples stop."""
    machine = Machine()
    use_collector, cache = collector(machine, pods_known=known)
    step(machine, use_collector, 0, 0)
    step(machine, use_collector, late, late)
    assert len(cache.query("node_cpu_usage", 0, 1e9).values) == 1
    assert len(cache.query("sys_cpu_usage", 0, 1e9).values) == expected
    assert use_collector.snapshot is not None
    assert (use_collector.snapshot.system is not None) == expected


def test_a_clock_that_stands_still_or_runs_back_gives_no_sample() -> None:
    machine = Machine()
    use_collector, cache = collector(machine)
    step(machine, use_collector, 0, 0)
    step(machine, use_collector, 1, 1)
    for shown in (0, -30):
        assert step(machine, use_collector, 1, shown) == pytest.approx(1.0), "the last figures stay"
    assert len(cache.query("container_cpu_usage", -1e9, 1e9).values) == 1
    assert step(machine, use_collector, 1, 1) == pytest.approx(1.0), "the next tick is correct again"


@given(st.lists(st.floats(-5000, 5000), min_size=1, max_size=20))
def test_no_jump_leaves_a_trace_after_two_good_ticks(jumps: list[float]) -> None:
    machine = Machine()
    use_collector, cache = collector(machine)
    for jump in jumps:
        step(machine, use_collector, 1, jump)
    step(machine, use_collector, 1, 1)
    assert step(machine, use_collector, 1, 1) == pytest.approx(1.0)
    points = cache.query("container_cpu_usage", -1e9, 1e9)
    assert (points.values >= 0).all()
    assert (points.times[1:] >= points.times[:-1]).all()


def test_every_other_round_of_latency_is_skipped_while_relaxed() -> None:
    context = ProbeContext(lambda: WORKLOADS, Registries(), CgroupIndex(lambda: ()), clock=lambda: 0.0)
    collector, source = SchedLatencyCollector(context), Latency()
    collector.attach(source)
    for relaxed, readings in ((False, 4), (True, 2), (False, 4)):
        collector.relax(relaxed)
        before = source.readings
        for _ in range(4):
            collector.read()
        assert source.readings - before == readings


class Latency:
    """A source without figures that counts its readings."""

    source = "schedstat"

    def __init__(self) -> None:
        self.readings = 0

    def read(self) -> SchedLatencySnapshot:
        self.readings += 1
        return sums_only(self.source, {})

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Holds nothing."""


def test_absent_pressure_files_are_looked_for_now_and_then() -> None:
    """Once in `RETRY_ROUNDS` rounds, and in each round as soon as there are any."""
    rounds: list[int] = []
    total = [np.nan]

    class Pressing:
        def read_pressure(self, workloads: Workloads) -> CgroupTable:
            rounds.append(len(rounds))
            off = np.zeros(1, dtype=bool)
            columns = {"cpu_some_total": np.array([total[0]]), "cpu_some_avg10": np.array([total[0]])}
            return CgroupTable((MAIN.cgroup_dir,), np.array([7], dtype=np.uint64), off, columns)

    registries, reader = Registries(), Pressing()
    collector = PressureCollector(
        reader,  # type: ignore[arg-type]
        lambda: WORKLOADS,
        MetricCache(),
        registries,
        CollectorConditions(registries),
        psi=True,
        clock=lambda: 0.0,
    )
    for _ in range(2 * RETRY_ROUNDS):
        collector.read()
    assert len(rounds) == 2
    total[0] = 5.0
    for _ in range(3):
        collector.read()
    assert len(rounds) == 5
