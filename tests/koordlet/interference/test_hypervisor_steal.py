"""CPUs that a hypervisor takes away: the delay is not attributed to neighbours, and a CPU hog is still detected.

`Simulation` models a CPU that is stolen now and then: to the guest, the running task keeps the CPU while it is stolen,
and waiting for the CPU is charged to that task, as the probe does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference.attribution import MIN_WANTED_CORES, Attribution, WaitShares, wanted_time
from koordlet.interference.cpu import CpuReading, cpu_evidence
from koordlet.interference.cpusource import NodeTicks
from koordlet.interference.detector import Detector, other_culprits
from koordlet.interference.hypervisor import HYPERVISOR, Steal
from koordlet.interference.model import Evidence, ResourceEvidence, WaitResource
from koordlet.interference.rows import ContainerRows
from koordlet.metricsadvisor.usage.node import NodeUse
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject
from tests.koordlet.interference.conftest import Make
from tests.present import present

SECONDS = 3.0
FIRST = 100
"""Cgroup id of container 0; container i has FIRST + i."""
SERVICE = 99
"""Cgroup id of something outside containers."""


class Simulation:
    """One CPU for `SECONDS`: container i requests it every `period[i]` seconds for `burst[i]`, or all the time with
    period 0. Requests run to completion in order of arrival."""

    def __init__(self, period: list[float], burst: list[float], *, stolen: float, stall: float, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.away = list(self._stalls(stolen, stall))
        self.stolen = sum(min(end, SECONDS) - begin for begin, end in self.away if begin < SECONDS) / SECONDS
        count = len(period)
        self.waits, self.ran = np.zeros((count, count)), np.zeros(count)
        requests = [(self.random.random() * every, container) for container, every in enumerate(period)]
        heapq.heapify(requests)
        now = 0.0
        slices: list[Any] = []
        while now < SECONDS:
            since, container = heapq.heappop(requests)
            now = max(now, since)
            for begin, end, runner in reversed(slices):
                if end <= since:
                    break
                self.waits[container, runner] += end - max(begin, since)
            done = self._done(now, burst[container])
            slices.append((now, done, container))
            self.ran[container] += burst[container]
            heapq.heappush(requests, (done + period[container], container))
            now = done
        self.waits /= SECONDS
        self.ran /= SECONDS

    def _stalls(self, part: float, length: float) -> Iterator[tuple[float, float]]:
        now = 0.0
        while part and now < SECONDS:
            begin = now + self.random.expovariate(part / (1.0 - part) / length)
            now = begin + self.random.expovariate(1.0 / length)
            yield begin, now

    def _done(self, now: float, work: float) -> float:
        for begin, end in self.away:
            if end > now:
                if now + work <= begin:
                    break
                work, now = work - max(begin - now, 0.0), end
        return now + work

    def evidence(self, make: type[Make], *, steal_reported: bool = True) -> ResourceEvidence:
        """Koordlet's evidence; `steal_reported`: whether /proc/stat has the stolen time."""
        count = len(self.ran)
        steal = Steal(self.stolen, float(self.ran.sum()), self.ran) if steal_reported and self.stolen else None
        return evidence_of(self.waits, self.ran, steal, [make.container(f"c{i}") for i in range(count)])


def window_of(
    waits: NDArray[Any], extra: Sequence[tuple[int, int, float]] = ()
) -> tuple[SchedLatencySnapshot, CulpritMatrix]:
    """Totals and matrix of `SECONDS`. `waits` in seconds per second; `extra`: (container, culprit's key, same unit)."""
    count = len(waits)
    victim, culprit = (FIRST + at for at in np.nonzero(waits))
    ns = waits[waits > 0] * 1e9 * SECONDS
    for row, key, seconds in extra:
        victim, culprit = np.append(victim, FIRST + row), np.append(culprit, key)
        ns = np.append(ns, seconds * 1e9 * SECONDS)
    order = np.lexsort((culprit, victim))
    none = np.zeros(count, dtype=np.int64)
    hist = np.zeros((count, BUCKETS), dtype=np.int64)
    total = np.bincount(victim - FIRST, ns, count)
    snapshot = SchedLatencySnapshot(
        source="bpf",
        time_ns=int(SECONDS * 1e9),
        keys=np.arange(FIRST, FIRST + count),
        wakeup_hist=hist,
        preempt_hist=hist,
        wakeup_sum_ns=total.astype(np.int64),
        preempt_sum_ns=none,
        wakeup_max_ns=none,
        preempt_max_ns=none,
        throttled_ns=none,
        throttled_count=none,
        lost=SchedLatencyLosses(),
    )
    columns = (column[order].astype(np.int64) for column in (victim, culprit, ns))
    return snapshot, CulpritMatrix(*columns, np.ones(len(ns), dtype=np.int64))  # type: ignore[call-arg]


def evidence_of(
    waits: NDArray[Any],
    ran: NDArray[Any],
    steal: Steal | None,
    subjects: Sequence[Subject],
    extra: Sequence[tuple[int, int, float]] = (),
    source: str = "bpf",
) -> ResourceEvidence:
    count = len(waits)
    rows = ContainerRows(np.arange(FIRST, FIRST + count), np.arange(count), count)
    window, matrix = window_of(waits, extra)
    owners = {FIRST + row: owner_of(subject) for row, subject in enumerate(subjects)}
    object.__setattr__(window, "source", source)
    reading = CpuReading(window, SECONDS, rows, ran, np.zeros(count), steal=steal)
    attribution = Attribution.of(matrix, SECONDS, rows, lambda key: owners.get(key) or Owner("system", "some.service"))
    shares = attribution.without_hypervisor(steal, reading.waited).shares(reading.waited)
    return cpu_evidence(reading, shares, attribution, lambda _: ())


CROWD = 110
THEFTS = {
    "a twentieth, in short pieces": (0.05, 0.003),
    "a twentieth, in long pieces": (0.05, 0.02),
    "two fifths, in short pieces": (0.4, 0.004),
    "two fifths, in long pieces": (0.4, 0.1),
    "two thirds": (0.65, 0.05),
}


@pytest.mark.parametrize(("stolen", "stall"), THEFTS.values(), ids=THEFTS)
@pytest.mark.parametrize("burst", [30e-6, 100e-6])
def test_containers_that_hardly_run_do_not_delay_each_other(
    make: type[Make], stolen: float, stall: float, burst: float
) -> None:
    """Containers that run briefly ten times per second, on a CPU that a hypervisor takes away."""
    simulation = Simulation([0.1] * CROWD, [burst] * CROWD, stolen=stolen, stall=stall)
    measured = simulation.evidence(make)
    assert DEFAULT.cpu is not None
    assert DEFAULT.cpu.min_lost_percent is not None
    assert DEFAULT.cpu is not None
    assert measured.others.max() < DEFAULT.cpu.min_lost_percent / 100
    waited = simulation.waits.sum(axis=1)
    attributed = (measured.others + measured.own + measured.hypervisor) * (waited + simulation.ran + MIN_WANTED_CORES)  # type: ignore[operator]
    assert attributed == pytest.approx(waited, abs=1e-8), "all waiting is attributed"


def test_without_reported_steal_the_containers_would_be_culprits(make: type[Make]) -> None:
    """Shows that the effect of the previous test exists."""
    simulation = Simulation([0.1] * CROWD, [100e-6] * CROWD, stolen=0.4, stall=0.02)
    assert DEFAULT.cpu is not None
    assert DEFAULT.cpu.lost_percent is not None
    assert DEFAULT.cpu is not None
    assert simulation.evidence(make, steal_reported=False).others.min() >= DEFAULT.cpu.lost_percent / 100


@pytest.mark.parametrize("stolen", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_a_cpu_hog_is_detected_at_any_steal(make: type[Make], stolen: float) -> None:
    """Container 1 always wants the CPU and keeps it for 4 ms each time."""
    simulation = Simulation([0.01, 0.0, *[0.1] * 20], [0.001, 0.004, *[50e-6] * 20], stolen=stolen, stall=0.01)
    measured = simulation.evidence(make)
    assert DEFAULT.cpu is not None
    assert DEFAULT.cpu.lost_percent is not None
    assert DEFAULT.cpu is not None
    assert measured.others[0] >= DEFAULT.cpu.lost_percent / 100
    victim = make.container("c0")
    culprits = other_culprits(victim, measured.culprits(0))
    assert culprits[0].owner.name == "c1"
    assert sum(culprit.share for culprit in culprits) <= 1.0
    assert measured.hypervisor is not None
    assert culprits[0].share >= 0.9 * (1.0 - measured.hypervisor[0] / (measured.hypervisor[0] + measured.others[0]))


def test_both_of_two_cpu_hogs_are_detected(make: type[Make]) -> None:
    simulation = Simulation([0.01, 0.0, 0.0], [0.001, 0.003, 0.003], stolen=0.2, stall=0.01)
    measured = simulation.evidence(make)
    named = [culprit.owner.name for culprit in other_culprits(make.container("c0"), measured.culprits(0))]
    assert sorted(named) == ["c1", "c2"]
    assert DEFAULT.cpu is not None
    assert DEFAULT.cpu.lost_percent is not None
    assert DEFAULT.cpu is not None
    assert measured.others[0] >= DEFAULT.cpu.lost_percent / 100


def test_without_steal_nothing_is_attributed_to_the_hypervisor(make: type[Make]) -> None:
    simulation = Simulation([0.01, 0.0, 0.02], [0.001, 0.004, 0.002], stolen=0.0, stall=0.01)
    measured = simulation.evidence(make)
    waited, own = simulation.waits.sum(axis=1), np.diag(simulation.waits)
    wanted_cores = waited + simulation.ran + MIN_WANTED_CORES
    assert measured.others == pytest.approx((waited - own) / wanted_cores)
    assert measured.own == pytest.approx(own / wanted_cores)
    assert measured.hypervisor is not None
    assert not measured.hypervisor.any()
    assert all(culprit.owner.kind != "hypervisor" for row in range(3) for culprit in measured.culprits(row))


def test_a_runner_is_charged_no_more_than_it_can_have_caused(make: type[Make]) -> None:
    """0.3 s waited per second behind a container that used 0.1 CPU, with the CPU stolen half of the time."""
    steal = Steal(cores=0.5, busy=0.5, ran=np.array([0.1, 0.1]))
    waits = np.array([[0.0, 0.3], [0.0, 0.0]])
    measured = evidence_of(waits, steal.ran, steal, [make.container("web"), make.container("batch")])
    wanted_cores = 0.3 + 0.1 + MIN_WANTED_CORES
    assert measured.others[0] == pytest.approx(0.1), "the CPU use of batch, applied to the wanted time"
    assert measured.hypervisor is not None
    assert measured.hypervisor[0] == pytest.approx((0.3 - 0.1 * wanted_cores) / wanted_cores)
    seconds = {culprit.owner.name: culprit.seconds for culprit in measured.culprits(0)}
    assert seconds == pytest.approx({"hypervisor": 0.3 - 0.1 * wanted_cores, "batch": 0.1 * wanted_cores})


def test_no_more_than_the_stolen_time_is_attributed_to_the_hypervisor(make: type[Make]) -> None:
    """0.6 s per second behind a container that used 0.2 CPU, but only 0.01 CPU was stolen."""
    steal = Steal(cores=0.01, busy=0.5, ran=np.array([0.1, 0.2]))
    measured = evidence_of(np.array([[0.0, 0.6], [0.0, 0.0]]), steal.ran, steal, [make.container(n) for n in "ab"])
    assert measured.hypervisor is not None
    assert measured.hypervisor[0] == pytest.approx(0.01 / (0.6 + 0.1 + MIN_WANTED_CORES))


def test_own_threads_keep_the_waiting_that_was_not_stolen(make: type[Make]) -> None:
    steal = Steal(cores=0.25, busy=0.75, ran=np.array([0.1]))
    measured = evidence_of(np.array([[0.8]]), steal.ran, steal, [make.container("web")])
    assert measured.parts["threads"][0] == pytest.approx(0.6)
    assert measured.hypervisor is not None
    assert measured.hypervisor[0] == pytest.approx(0.2 / (0.8 + 0.1 + MIN_WANTED_CORES))


def test_waiting_for_an_idle_cpu_stays_with_the_idle_cpu(make: type[Make]) -> None:
    steal = Steal(cores=1.0, busy=0.2, ran=np.array([0.1]))
    measured = evidence_of(
        np.zeros((1, 1)), steal.ran, steal, [make.container("web")], [(0, SPECIAL_KEYS["idle"], 0.4)]
    )
    assert measured.hypervisor is not None
    assert (measured.others[0], measured.own[0], measured.hypervisor[0]) == (0.0, 0.0, 0.0)
    assert [culprit.owner.kind for culprit in measured.culprits(0)] == ["idle"]


def test_culprits_outside_containers_share_the_cpu_used_outside(make: type[Make]) -> None:
    """Two culprits outside containers, in equal parts: together they keep the CPU that both used, applied to the wanted
    time."""
    steal = Steal(cores=1.0, busy=0.3, ran=np.array([0.2]))
    extra = [(0, SERVICE, 0.2), (0, SPECIAL_KEYS["ksoftirqd"], 0.2)]
    measured = evidence_of(np.zeros((1, 1)), steal.ran, steal, [make.container("web")], extra)
    assert measured.others[0] == pytest.approx(0.1)
    seconds = {culprit.owner.kind: culprit.seconds for culprit in measured.culprits(0)}
    each = 0.1 * (0.4 + 0.2 + MIN_WANTED_CORES) / 2
    assert seconds == pytest.approx({"hypervisor": 0.4 - 2 * each, "system": each, "kernel": each})


def test_without_a_probe_the_rest_of_the_node_is_one_neighbour(make: type[Make]) -> None:
    steal = Steal(cores=0.5, busy=0.5, ran=np.array([0.3]))
    measured = evidence_of(np.array([[0.4]]), steal.ran, steal, [make.container("web")], source="schedstat")
    assert measured.others[0] == pytest.approx(0.2), "the CPU use of the others, applied to the wanted time"
    assert measured.own[0] == 0.0
    assert measured.hypervisor is not None
    assert measured.hypervisor[0] == pytest.approx(0.4 / (0.4 + 0.3 + MIN_WANTED_CORES) - 0.2)


def test_a_verdict_has_the_hypervisors_share_as_a_signal_without_culprit(make: type[Make]) -> None:
    steal = Steal(cores=0.5, busy=1.0, ran=np.array([0.1, 0.9]))
    subjects = (make.container("web"), make.container("batch", qos="BE"))
    measured = evidence_of(np.array([[0.0, 0.9], [0.0, 0.0]]), steal.ran, steal, subjects)
    (verdict,) = Detector().step(Evidence(subjects, SECONDS, {WaitResource.CPU: measured}), 0.0, DEFAULT).verdicts
    assert [(culprit.owner.name, round(culprit.share, 3)) for culprit in verdict.culprits] == [("batch", 0.667)]
    (signal,) = [figure for figure in verdict.signals if figure.name == "lost to the hypervisor"]
    assert signal.now == pytest.approx(0.3 / (0.9 + 0.1 + MIN_WANTED_CORES))


@pytest.mark.parametrize(
    ("stolen_cores", "waited", "part"),
    [(None, 0.4, 0.0), (0.04, 0.4, 0.1), (0.04, 2.0, 0.04), (1.0, 0.4, 0.9), (1.0, 0.0, 0.9)],
    ids=["steal ended", "less now", "many tasks", "as much", "no waiting"],
)
def test_an_old_hypervisor_share_is_capped_by_the_current_steal(
    stolen_cores: float | None, waited: float, part: float
) -> None:
    steal = None if stolen_cores is None else Steal(stolen_cores, 0.5, np.zeros(1))
    before = WaitShares(np.zeros(1), np.array([0.05]), np.array([0.4]), np.zeros(1), np.array([0.9]))
    now = before.capped(np.array([waited]), steal)
    assert now.hypervisor[0] == pytest.approx(part)
    assert now.others[0] == pytest.approx(0.95 - part), "the rest may be caused by a neighbour"
    assert WaitShares.none(1).capped(np.ones(1), steal).others[0] == 1.0


amounts = st.floats(0.0, 3.0)
cores = st.floats(0.0, 2.0)
steal_cores = st.floats(1e-3, 2.0)


@given(
    st.lists(st.lists(amounts, min_size=4, max_size=4), min_size=3, max_size=3),
    st.lists(cores, min_size=3, max_size=3),
    steal_cores,
    cores,
)
def test_the_hypervisors_part_stays_within_its_bounds(
    waits: list[list[float]], ran: list[float], stolen: float, rest: float
) -> None:
    """Three containers and everything outside containers."""
    waits, ran = np.array(waits), np.array(ran)  # type: ignore[assignment]
    steal = Steal(stolen, float(ran.sum()) + rest, ran)  # type: ignore[arg-type, attr-defined]
    waited = waits.sum(axis=1)  # type: ignore[attr-defined]
    wanted_cores = wanted_time(waited, ran)  # type: ignore[arg-type]
    taken = steal.taken_by_container(np.arange(3), waits, wanted_cores)  # type: ignore[arg-type]
    left = waits - taken
    assert (taken >= 0.0).all()
    assert (left >= -1e-12).all(), "no negative waiting remains"
    limit = stolen * np.maximum(waited, 1.0)
    assert (taken.sum(axis=1) <= limit * (1 + 1e-9)).all(), "no more than was stolen"
    within = taken.sum(axis=1) < limit * (1 - 1e-6)
    most = np.append(ran, rest)[None, :] * wanted_cores[:, None]
    most[np.arange(3), np.arange(3)] = np.inf
    assert (left <= most + 1e-9)[within].all(), "no culprit is charged more than it ran"
    assert (left <= waits * (1.0 - steal.fraction) + 1e-9)[within].all()  # type: ignore[operator]


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(1e-3, 1.0))
def test_a_culprit_is_charged_at_most_the_time_that_it_ran(ran: float, while_stolen: float, stolen: float) -> None:
    """A task waits for another task that holds a CPU, also while the CPU is stolen."""
    waited = ran + min(stolen * while_stolen, 1.0 - ran)
    steal, waits = Steal(stolen, ran, np.array([0.0, ran])), np.array([[0.0, waited, 0.0]])
    taken = steal.taken_by_container(np.array([0]), waits, wanted_time(waits.sum(axis=1), np.zeros(1)))
    assert (waits - taken)[0, 1] <= ran * (1.0 + MIN_WANTED_CORES) + 1e-9


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), steal_cores)
def test_the_culprits_sum_to_the_waiting(make: type[Make], behind: float, own: float, stolen: float) -> None:
    ran = np.array([0.3, 0.7])
    steal = Steal(stolen, 1.2, ran)
    measured = evidence_of(np.array([[own, behind], [0.0, 0.0]]), ran, steal, [make.container(n) for n in "ab"])
    assert measured.hypervisor is not None
    assert measured.others[0] + measured.own[0] + measured.hypervisor[0] <= 1.0 + 1e-9
    whole = sum(culprit.seconds for culprit in measured.culprits(0))
    assert whole == pytest.approx(behind + own, abs=1e-6)
    kept = {culprit.owner.kind: culprit.seconds for culprit in measured.culprits(0)}
    assert kept.get(HYPERVISOR.kind, 0.0) == pytest.approx(
        measured.hypervisor[0] * (behind + own + ran[0] + MIN_WANTED_CORES), abs=1e-6
    )


def picture(at: float, busy: float, stolen: float) -> Any:
    return SimpleNamespace(at=at, node=NodeUse(0, 0, 0, 0, busy_seconds=busy, stolen_seconds=stolen))


def test_steal_is_measured_over_one_and_a_half_windows() -> None:
    ticks, ran = NodeTicks(), np.array([0.1])
    measured = [ticks.steal(picture(at, at * 0.5, 0.2 if at >= 2 else 0.0), ran, 2.0) for at in (0.0, 1.0, 2.0, 3.0)]
    assert measured[:2] == [None, None]
    assert [(present(steal).cores, present(steal).busy) for steal in measured[2:]] == [
        (0.1, 0.5),
        (pytest.approx(0.2 / 3), 0.5),
    ]
    assert present(ticks.steal(picture(4.0, 2.0, 0.2), ran, 2.0)).cores == pytest.approx(0.2 / 3)
    assert ticks.steal(picture(5.0, 2.5, 0.2), ran, 2.0) is None


def test_steal_below_the_minimum_is_not_separated() -> None:
    ticks, ran = NodeTicks(), np.array([0.1])
    measured = [
        ticks.steal(picture(at, at * 0.5, took), ran, 2.0) for at, took in ((0.0, 0.0), (2.0, 0.01), (4.0, 0.05))
    ]
    assert measured[:2] == [None, None]
    assert present(measured[2]).cores == pytest.approx(0.0125)


def test_counters_that_run_back_restart_the_measurement() -> None:
    ticks, ran = NodeTicks(), np.array([0.1])
    assert ticks.steal(picture(0.0, 5.0, 1.0), ran, 2.0) is None
    assert ticks.steal(picture(1.0, 1.0, 0.5), ran, 2.0) is None
    assert present(ticks.steal(picture(2.0, 2.0, 0.75), ran, 2.0)).cores == 0.25
    assert ticks.steal(SimpleNamespace(at=3.0, node=None), ran, 2.0) is None  # type: ignore[arg-type]
