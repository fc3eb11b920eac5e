"""The pace of judging: every other round while everything is quiet or judging is expensive, otherwise every round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.audit import NullAuditor
from koordlet.interference.cadence import (
    EXPENSIVE_CPU_SECONDS,
    FIRST_ROUNDS,
    IDLE_MATRIX_SECONDS,
    NOTICEABLE_RATIO,
    Cadence,
)
from koordlet.interference.model import WaitResource
from koordlet.interference.service import Interference, StallCollectors
from koordlet.prometheus import Registries
from tests.koordlet.interference.conftest import Make

assert DEFAULT.cpu is not None
assert DEFAULT.cpu.lost_percent is not None
HALF_WAY = NOTICEABLE_RATIO * DEFAULT.cpu.lost_percent / 100


class Collector:
    """Records the pace; its snapshot is set by the test."""

    latest: object = None
    relaxed = False
    source = "none"

    def relax(self, relaxed: bool) -> None:
        self.relaxed = relaxed


class Advisor:
    """Counts evaluations by the reads of the usage snapshot; there is none."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.sched_latency = Collector()
        self.block_io, self.net_stall = Collector(), Collector()
        self.use = self
        self.pressure = None

    @property
    def snapshot(self) -> None:
        self.evaluations += 1


def service(advisor: Any, cpu_clock: Any = lambda: 0.0) -> Interference:
    return Interference(
        advisor,
        Registries(),
        StallCollectors(Collector(), advisor.block_io, advisor.net_stall, cpi=None),  # type: ignore[arg-type]
        node_slo=lambda: None,
        auditor=NullAuditor(),
        recorder=None,
        clock=lambda: 0.0,
        wall=lambda: 0.0,
        cpu_usage=lambda directory: None,
        cpu_clock=cpu_clock,
    )


@pytest.fixture
def advisor() -> Any:
    return Advisor()


def lose(
    interference: Interference, make: type[Make], *losses: float, resource: WaitResource = WaitResource.CPU
) -> None:
    """Let a container lose these shares of its time, one per second."""
    node = make.node(make.container("web"))
    for second, loss in enumerate(losses):
        interference.evaluator.detector.step(node.evidence([loss], resource=resource), float(second), DEFAULT)


def evaluations(interference: Interference, advisor: Any, steps: int = 6) -> int:
    interference.step()
    before = advisor.evaluations
    for _ in range(steps):
        interference.step()
    return int(advisor.evaluations - before)


def test_every_other_round_is_skipped_while_everything_is_quiet(advisor: Any) -> None:
    assert evaluations(service(advisor), advisor) == 3
    assert advisor.sched_latency.relaxed


def test_a_new_snapshot_is_never_left_unjudged(advisor: Any) -> None:
    interference = service(advisor)
    interference.step()
    for number in range(1, 5):
        advisor.sched_latency.latest = object()
        interference.step()
        assert advisor.evaluations == 1 + number


def test_a_score_halfway_to_an_alarm_keeps_every_round(advisor: Any, make: type[Make]) -> None:
    interference = service(advisor)
    lose(interference, make, HALF_WAY)
    assert evaluations(interference, advisor) == 6
    assert not advisor.sched_latency.relaxed


def test_a_verdict_keeps_every_round(advisor: Any) -> None:
    interference = service(advisor)
    interference.evaluator.verdicts = {"web": ()}
    assert evaluations(interference, advisor) == 6


def test_a_noticeable_loss_keeps_every_round_and_reads_the_matrix_often() -> None:
    cadence, snapshot = Cadence(lambda: 0.0), object()

    def judged(rounds: int) -> int:
        number = 0
        for _ in range(rounds):
            if not cadence.skips(snapshot):
                number += 1
                with cadence.judging(lambda: False):
                    pass
        return number

    for _ in range(FIRST_ROUNDS):
        cadence.suspect(True)
        assert (judged(1), cadence.matrix_interval(3.0)) == (1, 0.0)
    cadence.suspect(True)
    assert (judged(6), cadence.matrix_interval(3.0)) == (6, 1.5)
    cadence.suspect(False)
    judged(1)
    assert (judged(6), cadence.matrix_interval(3.0)) == (3, IDLE_MATRIX_SECONDS)


@pytest.mark.parametrize(
    ("cpu_seconds", "interval"),
    [(EXPENSIVE_CPU_SECONDS / 2, 1.5), (2 * EXPENSIVE_CPU_SECONDS, 3.0)],
    ids=["cheap", "expensive"],
)
def test_the_matrix_is_read_once_per_window_while_judging_is_expensive(cpu_seconds: float, interval: float) -> None:
    readings = iter(np.arange(0.0, 1000.0, cpu_seconds))
    cadence = Cadence(lambda: float(next(readings)))
    for _ in range(FIRST_ROUNDS + 1):
        cadence.suspect(True)
    with cadence.judging(lambda: True):
        pass
    assert cadence.matrix_interval(3.0) == interval


@pytest.mark.parametrize(
    ("cpu_seconds", "number"),
    [(EXPENSIVE_CPU_SECONDS / 2, 6), (2 * EXPENSIVE_CPU_SECONDS, 3)],
    ids=["cheap", "expensive"],
)
def test_expensive_judging_skips_rounds_even_during_alarms(
    advisor: Any, make: type[Make], cpu_seconds: float, number: int
) -> None:
    readings = iter(np.arange(0.0, 1000.0, cpu_seconds))
    interference = service(advisor, lambda: float(next(readings)))
    lose(interference, make, HALF_WAY)
    assert evaluations(interference, advisor) == number


@pytest.mark.parametrize(
    ("losses", "relaxed"),
    [([0.1], True), ([0.2], False), ([0.9], False), ([0.9] * 5, True)],
    ids=["quiet", "half-way", "suspected", "alarm"],
)
def test_disks_are_read_in_every_round_only_while_their_figures_approach_an_alarm(
    advisor: Any, make: type[Make], losses: list[float], relaxed: bool
) -> None:
    interference = service(advisor)
    lose(interference, make, *losses, resource=WaitResource.IO)
    interference.step()
    assert (advisor.block_io.relaxed, advisor.net_stall.relaxed) == (relaxed, True)
