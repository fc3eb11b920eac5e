"""From waiting times to limits in virtual time: short evidence, suspicions, verdicts and the throttling strategy
together, against a model of a service and batch pods on one CPU.

The model: while the service wants the CPU, it waits for it in proportion to the time that batch pods have it. It gives
the probe's counters (waiting times, culprit matrix) and the pods' CPU time; everything after that is koordlet's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import EXTENSION_KEY, effective
from koordlet.interference.attribution import WaitShares
from koordlet.interference.cadence import LOOK_SECONDS
from koordlet.interference.cpu import lost_share
from koordlet.interference.detector import Detector
from koordlet.interference.hypervisor import Steal
from koordlet.interference.model import Evidence, ResourceEvidence, WaitResource
from koordlet.interference.rows import ContainerRows
from koordlet.interference.shortevidence import MAX_MATRIX_CPU, ShortCpuEvidence
from koordlet.interference.suspicions import Suspicions
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.schedlatency.snapshot import WaitTotals
from koordlet.qosmanager.engine.view import InterferenceView
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import subjects_of
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

STRATEGY = effective({EXTENSION_KEY: {"actions": {"cpu": {"enable": True}}}})
WEB = make_pod("web", qos="LS", cpu=300)
BURN = make_pod("burn", qos="BE", kube="BestEffort", cpu=500)
CALM = make_pod("calm", qos="BE", kube="BestEffort", cpu=500)
PODS = (WEB, BURN, CALM)
SUBJECTS = tuple(subjects_of(pod.meta)[1] for pod in PODS)
KEYS = (100, 200, 300)
ROWS = ContainerRows(np.array(KEYS), np.arange(3), 3)
OWNERS = {key: owner_of(subject) for key, subject in zip(KEYS, SUBJECTS, strict=True)}
QUOTA = "cpu.cfs_quota_us"
EVALUATION_SECONDS = 1.0
CHANGES_PER_MINUTE = 12


@dataclass
class Reading:
    """The culprit matrix of WEB: cumulative seconds by culprit."""

    time_ns: int
    seconds: dict[int, float]
    source: str = "bpf"

    def minus(self, older: Reading) -> CulpritMatrix:
        culprit = np.array(sorted(self.seconds), dtype=np.int64)
        ns = [int((self.seconds[key] - older.seconds.get(key, 0.0)) * 1e9) for key in culprit.tolist()]
        return CulpritMatrix(np.full(len(ns), KEYS[0]), culprit, np.array(ns), np.ones(len(ns), dtype=np.int64))


@dataclass
class Machine:
    """The model. Cores: what the service wants, and what pods that are not limited use on its CPU."""

    now: float = 1000.0
    wants: float = 0.4
    burn: float = 0.0
    threads: float = 0.0
    """The service waits this long for its own threads."""
    strangers: float = 0.0
    """Cores used on the service's CPU by something that is not best effort."""
    quota: float = 10.0
    waited: float = 0.0
    behind: dict[int, float] = field(default_factory=lambda: dict.fromkeys((*KEYS, SPECIAL_KEYS["ksoftirqd"]), 0.0))
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("burn", "calm"), 0.0))
    loss: float = 0.0
    """Of the last step."""

    def pass_time(self, seconds: float) -> None:
        burn = min(self.burn, self.quota, 1.0 - 0.5 * self.wants)
        of_burn, of_strangers = self.wants * burn, self.wants * self.strangers
        for key, cores in ((KEYS[1], of_burn), (SPECIAL_KEYS["ksoftirqd"], of_strangers), (KEYS[0], self.threads)):
            self.behind[key] += cores * seconds
        waited = of_burn + of_strangers + self.threads
        self.waited += waited * seconds
        self.loss = (of_burn + of_strangers) / (waited + self.wants + 0.02)
        self.used["burn"] += burn * seconds
        self.used["calm"] += 0.5 * seconds  # on another CPU
        self.now += seconds


class Chain:
    """koordlet's parts, and the series of what happened: (time, loss, level)."""

    def __init__(self, machine: Machine, *, matrix_cpu: float = 0.0, steal: Steal | None = None) -> None:
        self.machine, self.cpu_seconds, self._matrix_cpu = machine, 0.0, matrix_cpu
        self.readings = 0
        ran = np.array([machine.wants, 0.5, 0.5])
        reading = SimpleNamespace(rows=ROWS, ran=ran, steal=steal)
        source = SimpleNamespace(latest=(SimpleNamespace(subjects=SUBJECTS), reading), shares=WaitShares.none(3))
        self.detector = Detector()
        self.short = ShortCpuEvidence(
            self, source, self.detector.alarm_threshold, self._usage, lambda: self.cpu_seconds  # type: ignore[arg-type]
        )  # fmt: skip
        self.sched_latency = self
        self.index = SimpleNamespace(owner=lambda key: OWNERS.get(key, Owner("kernel", "ksoftirqd")))
        self.workloads = SimpleNamespace(pods={pod.meta.uid: pod.meta for pod in PODS})
        self.suspicions, self.acts = Suspicions(), ThrottleCulprits(lambda resource, directory: True)
        self.series: list[tuple[float, float, int]] = []
        self._losses: list[float] = []
        self._decided = -np.inf

    # --- as the advisor

    def waits(self) -> WaitTotals:
        waited = np.array([int(self.machine.waited * 1e9), 0, 0])
        return WaitTotals(int(self.machine.now * 1e9), np.array(KEYS), waited, np.zeros(3, dtype=np.int64))

    def read_matrix(self) -> Any:
        self.readings += 1
        self.cpu_seconds += self._matrix_cpu
        return Reading(int(self.machine.now * 1e9), dict(self.machine.behind))

    def look_up(self, keys: Any) -> None:
        assert set(keys.tolist()) == set(KEYS)

    def _usage(self, directory: str) -> int | None:
        return next((int(used * 1e9) for name, used in self.machine.used.items() if name in directory), None)

    # --- as the wiring

    def step(self) -> None:
        """Half a second: a look, every second an evaluation, and a decision once a second or at once."""
        self.machine.pass_time(LOOK_SECONDS)
        now = self.machine.now
        evidence = self.short.look(STRATEGY, now)
        at_once = evidence is not None and self.suspicions.update(evidence, 0.6, now)
        self._losses = [*self._losses, self.machine.loss][-6:]
        if at_once or now - self._decided >= EVALUATION_SECONDS:
            self._decide(now)
        self.series.append((now, self.machine.loss, self.acts.levels("cpu").get("uid-burn", 100)))

    def _decide(self, now: float) -> None:
        loss = float(np.mean(self._losses))
        measured = ResourceEvidence(
            "bpf", np.array([loss, 0.0, 0.0]), np.zeros(3), culprits=lambda row: self._blamed(), named=True
        )
        detected = self.detector.step(Evidence(SUBJECTS, 3.0, {WaitResource.CPU: measured}, now), now, STRATEGY)
        alarms = tuple(verdict for verdict in detected.verdicts if verdict.on)
        view = InterferenceView(alarms, STRATEGY, now, self.suspicions.verdicts, self.short.cores)
        decided = present(self.acts.decide(make_view(pods=PODS, now=now, interference=view)))
        quotas = {str(update.setting.cgroup_dir): update.value for update in decided.updates}
        assert not any("calm" in directory for directory in quotas), "a pod that delays no service"
        burn = [float(value) for directory, value in quotas.items() if "burn" in directory]
        self.machine.quota = min(burn) / 100_000 if burn else 10.0
        self._decided = now

    def _blamed(self) -> Sequence[CulpritTime]:
        if getattr(self.machine, "blamed", KEYS[1]) != KEYS[1] or not self.machine.burn:
            return []
        return [CulpritTime(OWNERS[KEYS[1]], self.machine.wants * self.machine.burn, 1)]

    def run(self, seconds: float, each: Callable[[float], None] = lambda second: None) -> None:
        begin = self.machine.now
        while self.machine.now - begin < seconds - 1e-9:
            each(self.machine.now - begin)
            self.step()

    def changes(self) -> list[float]:
        pairs = zip(self.series, self.series[1:], strict=False)
        return [after[0] for before, after in pairs if before[2] != after[2]]

    @property
    def level(self) -> int:
        return self.series[-1][2]


def started(wants: float = 0.4, **options: Any) -> Chain:
    """A service alone for ten seconds."""
    chain = Chain(Machine(wants=wants), **options)
    chain.run(10.0)
    assert chain.changes() == [] and chain.readings == 0, "the matrix is not read while no container is delayed"
    return chain


@pytest.mark.parametrize("wants", [0.3, 0.45, 0.6])
@pytest.mark.parametrize("into_a_look", [0.0, 0.1, 0.25, 0.45])
def test_a_culprit_is_limited_within_two_seconds(wants: float, into_a_look: float) -> None:
    chain = started(wants)
    chain.machine.pass_time(into_a_look)
    chain.machine.burn, begin = 1.0, chain.machine.now
    chain.run(30.0)
    limited = next(at for at, _, level in chain.series if level < 100)
    assert limited - begin <= 1.5
    assert chain.series[-1][2] < 80, "with the alarm it is limited further"


def test_the_limit_ends_when_the_culprit_stops() -> None:
    chain = started()
    chain.machine.burn = 1.0
    chain.run(1.5)
    assert chain.level == 80
    chain.machine.burn = 0.0
    chain.run(5.0)
    assert chain.level == 100


def test_bursts_do_not_make_the_limit_flap() -> None:
    chain = started()

    def burst(second: float) -> None:
        chain.machine.burn = 1.0 if second % 5.0 < 1.0 else 0.0

    chain.run(120.0, burst)
    assert any(level < 100 for _, _, level in chain.series)
    assert len(chain.changes()) <= 5


@pytest.mark.parametrize(
    "machine",
    [
        {"threads": 0.8},
        {"strangers": 0.9},
        {"wants": 0.01, "burn": 1.0},
        {"burn": 0.05},
    ],
    ids=["its-own-threads", "not-best-effort", "hardly-wants-to-run", "hardly-in-the-way"],
)
def test_batch_work_that_hurts_nobody_is_not_limited(machine: dict[str, float]) -> None:
    chain = started(machine.get("wants", 0.4))
    for name, value in machine.items():
        setattr(chain.machine, name, value)
    chain.run(2.5)  # before the detector has an alarm of its own
    assert chain.changes() == []


def test_stolen_time_is_nobodys_fault() -> None:
    """The CPU is stolen most of the time: the neighbour, which uses a tenth, only seems to be in the way."""
    steal = Steal(cores=0.8, busy=0.5, ran=np.array([0.4, 0.1, 0.0]))
    chain = started(steal=steal)
    chain.machine.burn = 0.8
    chain.run(2.5)
    assert chain.changes() == []


def test_an_expensive_matrix_is_read_rarely() -> None:
    chain = started(matrix_cpu=0.05)
    chain.machine.threads = 0.8
    chain.run(60.0)
    assert chain.readings * 0.05 <= 60.0 * MAX_MATRIX_CPU + 0.1


phases = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(0.05, 0.9), st.sampled_from([0.5, 1.0, 2.5, 5.0, 20.0])),
    min_size=1,
    max_size=5,
)


@settings(max_examples=8, deadline=None)
@given(phases)
def test_any_history_changes_the_limit_rarely_and_ends_without_one(history: list[tuple[float, float, float]]) -> None:
    """Phases of (neighbour's cores, service's cores, seconds)."""
    chain = Chain(Machine())
    for burn, wants, seconds in history:
        chain.machine.burn, chain.machine.wants = burn, wants
        harmless = burn * wants == 0.0
        before = chain.level if chain.series else 100
        chain.run(seconds)
        assert not harmless or chain.level >= before or seconds < 5.0
    changes = chain.changes()
    for first in changes:
        assert sum(first <= at < first + 60.0 for at in changes) <= CHANGES_PER_MINUTE
    chain.machine.burn = 0.0
    end = chain.machine.now + 450.0  # five steps up, the longest release time each
    while chain.level < 100 and chain.machine.now < end:
        chain.run(10.0)
    assert chain.level == 100


def test_the_loss_counts_more_wanted_time_than_a_verdicts() -> None:
    """Four milliseconds of waiting in half a second, of a service that hardly runs, are a fifth of its wanted time by
    the verdicts' definition."""
    waited, ran = np.array([0.008]), np.array([0.01])
    assert lost_share(waited, ran)[0] > 0.2
    chain = started(0.01)
    chain.machine.burn = 0.8
    chain.run(2.0)
    assert chain.changes() == []


# --- replay of a real machine


RECORDED = json.loads(Path(__file__).with_name("reactions.json").read_text())
"""Series that `make bench BENCH=reaction` wrote on a busy machine, in steps of half a second, from 3 s before the
neighbour's start: the service's cores, its waiting in seconds per second, the neighbour's cores."""
RECORDED_BEFORE_SECONDS = 3.0


@dataclass
class Recording(Machine):
    """Replays a series: limits have no effect. `blamed`: who had the CPU while the service waited."""

    rows: Sequence[Sequence[float]] = ()
    blamed: int = KEYS[1]

    def pass_time(self, seconds: float) -> None:
        ran, waited, batch = self.rows[min(round((self.now - 1000.0) / LOOK_SECONDS), len(self.rows) - 1)]
        self.wants, self.burn = ran, batch
        self.behind[self.blamed] += waited * seconds
        self.waited += waited * seconds
        self.loss = waited / (waited + ran + 0.02)
        self.used["burn"] += batch * seconds
        self.used["calm"] += 0.5 * seconds
        self.now += seconds


def replayed(name: str, blamed: int = KEYS[1]) -> Chain:
    rows = RECORDED[name]
    chain = Chain(Recording(rows=rows, blamed=blamed))
    chain.run(len(rows) * LOOK_SECONDS)
    return chain


@pytest.mark.parametrize("name", ["steady-34", "steady-55", "blip-38", "bursts"])
def test_a_recorded_culprit_is_limited_within_two_seconds(name: str) -> None:
    limited = [at for at, _, level in replayed(name).series if level < 100]
    assert 0.0 < limited[0] - 1000.0 - RECORDED_BEFORE_SECONDS <= 2.0


@pytest.mark.parametrize(("name", "most"), [("steady-34", 6), ("steady-55", 6), ("blip-38", 2), ("bursts", 5)])
def test_the_limit_of_a_recorded_culprit_does_not_flap(name: str, most: int) -> None:
    chain = replayed(name)
    assert len(chain.changes()) <= most
    if name == "blip-38":
        chain.run(4.0)  # as the last half second recorded
        assert chain.level == 100, "it stopped after a second and a half"


def test_recorded_batch_work_that_hurts_nobody_is_not_limited() -> None:
    """One waits for strangers while its neighbour has the other CPU, one has an idle neighbour on its own CPU."""
    for chain in (replayed("innocent-30", SPECIAL_KEYS["ksoftirqd"]), replayed("idle-60")):
        assert chain.changes() == []
