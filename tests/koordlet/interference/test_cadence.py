"""The pace of judging: every other round while everything is quiet or judging is expensive, otherwise every round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.audit import NullAuditor
from koordlet.interference.cadence import EXPENSIVE_CPU_SECONDS, IDLE_MATRIX_SECONDS, NOTICEABLE_RATIO, Cadence
from koordlet.interference.service import Interference, StallCollectors
from koordlet.prometheus import Registries


class SchedLatency:
    """Records the pace; its snapshot is set by the test."""

    latest: object = None
    relaxed = False

    def relax(self, relaxed: bool) -> None:
        self.relaxed = relaxed


class Advisor:
    """Counts evaluations by the reads of the usage snapshot; there is none."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.sched_latency = SchedLatency()
        self.use = self
        self.pressure = None

    @property
    def snapshot(self) -> None:
        self.evaluations += 1


def service(advisor: Any, cpu_clock: Any = lambda: 0.0) -> Interference:
    collectors: Any = StallCollectors(*(SimpleNamespace() for _ in range(3)), cpi=None)  # type: ignore[arg-type, misc]
    return Interference(
        advisor,
        Registries(),
        collectors,
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


def test_a_score_halfway_to_an_alarm_keeps_every_round(advisor: Any) -> None:
    interference = service(advisor)
    interference.evaluator.detector.scores = np.full((1, 5, 2), NOTICEABLE_RATIO)
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
    cadence.suspect(True)
    with cadence.judging(lambda: True):
        pass
    assert cadence.matrix_interval(3.0) == interval


@pytest.mark.parametrize(
    ("cpu_seconds", "number"),
    [(EXPENSIVE_CPU_SECONDS / 2, 6), (2 * EXPENSIVE_CPU_SECONDS, 3)],
    ids=["cheap", "expensive"],
)
def test_expensive_judging_skips_rounds_even_during_alarms(advisor: Any, cpu_seconds: float, number: int) -> None:
    readings = iter(np.arange(0.0, 1000.0, cpu_seconds))
    interference = service(advisor, lambda: float(next(readings)))
    interference.evaluator.detector.scores = np.full((1, 5, 2), NOTICEABLE_RATIO)
    assert evaluations(interference, advisor) == number
