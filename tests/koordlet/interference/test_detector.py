"""The decision: tables of cases, and properties."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from koordlet.api.sloconfig.interference import DEFAULT, InterferenceStrategy
from koordlet.interference.advice import ACTIONS
from koordlet.interference.detector import Detector
from koordlet.interference.model import AlarmState, Cause, WaitResource
from koordlet.statesinformer.pods.model import Subject
from tests.koordlet.interference.conftest import Make
from tests.present import present

DURATION = present(DEFAULT.min_duration_seconds)
assert DEFAULT.leave_percent is not None
LEAVE = DEFAULT.leave_percent / 100
assert DEFAULT.cpu is not None
assert DEFAULT.cpu.lost_percent is not None
assert DEFAULT.cpu is not None
LIMIT = DEFAULT.cpu.lost_percent / 100


def strategy(**changes: Any) -> InterferenceStrategy:
    return msgspec.structs.replace(DEFAULT, **changes)


def run(
    make: type[Make],
    losses: list[float],
    *,
    own: list[float] | None = None,
    strategy: InterferenceStrategy = DEFAULT,
    subject: Subject | None = None,
) -> list[tuple[AlarmState, AlarmState]]:
    """States (neighbour, self) of one container's CPU after each second."""
    node, detector = make.node(subject or make.container("web")), Detector()
    states = []
    for second, loss in enumerate(losses):
        evidence = node.evidence([loss], [own[second] if own else 0.0])
        detector.step(evidence, float(second), strategy)
        states.append(tuple(AlarmState(int(state)) for state in detector.states()[0, 0]))
    return states  # type: ignore[return-value]


def test_states_follow_the_documented_transitions(make: type[Make]) -> None:
    high, low = LIMIT * 2, 0.0
    states = [state for state, _ in run(make, [low, high, high, high, high, high, low, low, low, low, low, low])]
    q, s, i, r = AlarmState.QUIET, AlarmState.SUSPECTED, AlarmState.INTERFERED, AlarmState.RECOVERING
    assert states == [q, s, s, s, i, i, r, r, r, q, q, q]


def test_a_score_between_the_thresholds_changes_no_state(make: type[Make]) -> None:
    between = LIMIT * (1 + LEAVE) / 2
    assert {state for state, _ in run(make, [between] * 30)} == {AlarmState.QUIET}
    states = [state for state, _ in run(make, [LIMIT * 2] * 6 + [between] * 30)]
    assert states[-1] is AlarmState.INTERFERED


def test_a_short_burst_only_raises_a_suspicion(make: type[Make]) -> None:
    states = [state for state, _ in run(make, [0.0, *[0.9] * DURATION, 0.0, 0.0])]
    assert not any(state.alarm for state in states)


@pytest.mark.parametrize("round_seconds", [0.99, 1.0, 1.01])
def test_rounds_that_come_a_little_early_or_late_do_not_delay_an_alarm(make: type[Make], round_seconds: float) -> None:
    node, detector = make.node(make.container("web")), Detector()
    for number in range(DURATION + 1):
        assert not detector.states().any() or detector.states()[0, 0, 0] == AlarmState.SUSPECTED
        detector.step(node.evidence([0.9]), number * round_seconds, DEFAULT)
    assert detector.states()[0, 0, 0] == AlarmState.INTERFERED


def test_a_culprit_that_is_active_every_few_seconds_raises_an_alarm(make: type[Make]) -> None:
    """Two seconds of every five, over a window of three: the loss is above the threshold for some of the time only."""
    period = [0.0, 0.3, 0.4, 0.3, 0.05]
    states = [state for state, _ in run(make, period * 4)]
    assert AlarmState.INTERFERED in states[:10]
    once = [state for state, _ in run(make, period + [0.0] * 10 + period)]
    assert not any(state.alarm for state in once), "suspicions fade"


def test_rare_short_delays_never_raise_an_alarm(make: type[Make]) -> None:
    states = [state for state, _ in run(make, [0.5, 0.5, 0.0, 0.0, 0.0, 0.0] * 30)]
    assert not any(state.alarm for state in states)


def test_an_exhausted_own_quota_is_self_inflicted(make: type[Make]) -> None:
    states = run(make, [0.0] * 10, own=[0.7] * 10)
    assert states[-1] == (AlarmState.QUIET, AlarmState.INTERFERED)


@pytest.mark.parametrize(
    ("qos", "alarmed"), [("LSE", True), ("LSR", True), ("LS", True), ("BE", False), ("SYSTEM", False)]
)
def test_only_the_strategys_qos_classes_can_be_victims(make: type[Make], qos: str, alarmed: bool) -> None:
    states = run(make, [0.9] * 10, subject=make.container("web", qos=qos))
    assert states[-1][0].alarm is alarmed


def test_a_disabled_resource_is_not_judged(make: type[Make]) -> None:
    off = strategy(cpu=msgspec.structs.replace(DEFAULT.cpu, enable=False))  # type: ignore[type-var]
    assert run(make, [0.9] * 10, strategy=off)[-1] == (AlarmState.QUIET, AlarmState.QUIET)


def test_a_multiple_of_the_usual_value_alarms_below_the_absolute_threshold(make: type[Make]) -> None:
    assert DEFAULT.cpu is not None
    assert DEFAULT.cpu.min_lost_percent is not None
    assert DEFAULT.cpu is not None
    least = DEFAULT.cpu.min_lost_percent / 100
    learning = [0.01] * 120
    above = least * 1.5
    assert above < LIMIT
    assert run(make, learning + [above] * 10)[-1][0] is AlarmState.INTERFERED
    assert run(make, [above] * 10)[-1][0] is AlarmState.QUIET  # nothing learned yet
    usual_is_high = [above / 2] * 120
    assert run(make, usual_is_high + [above] * 10)[-1][0] is AlarmState.QUIET  # 2 x usual < 3 x usual


@pytest.mark.parametrize("learned", [0, 120], ids=["nothing-learned", "learned"])
def test_the_alarm_threshold_gives_a_score_of_one(make: type[Make], learned: int) -> None:
    node, detector = make.node(make.container("web")), Detector()
    for second in range(learned + 1):
        detector.step(node.evidence([0.04]), float(second), DEFAULT)
    (level,) = detector.alarm_threshold(node.subjects, WaitResource.CPU, DEFAULT)
    assert DEFAULT.cpu is not None
    assert level == LIMIT if not learned else DEFAULT.cpu.min_lost_percent / 100 <= level < LIMIT  # type: ignore[operator]
    detector.step(node.evidence([level]), learned + 1.0, DEFAULT)
    assert detector.scores[0, 0, 0] == pytest.approx(1.0, abs=0.01)


def test_usual_values_are_not_learned_during_an_alarm(make: type[Make]) -> None:
    node, detector = make.node(make.container("web")), Detector()
    for second in range(120):
        detector.step(node.evidence([0.01]), float(second), DEFAULT)
    before = detector.usual()[0, 0]
    for second in range(120, 1000):
        detector.step(node.evidence([0.5]), float(second), DEFAULT)
    assert detector.usual()[0, 0] == pytest.approx(before, rel=0.02)
    assert 0.01 / 1.26 <= before <= 0.01 * 1.26


def test_a_verdict_names_culprits_and_shares(make: type[Make]) -> None:
    web, batch, other = make.container("web"), make.container("batch", qos="BE"), make.container("other")
    node, detector = make.node(web, batch, other), Detector()
    blames = {0: [make.because_of(batch, 0.4), make.because_of(other, 0.2), make.because_of(web, 0.2)]}
    for second in range(10):
        outcome = detector.step(node.evidence([0.5, 0.0, 0.0], [0.1, 0.0, 0.0], blames=blames), float(second), DEFAULT)
    (verdict,) = outcome.verdicts
    assert (verdict.victim, verdict.resource, verdict.cause) == (web, WaitResource.CPU, Cause.NEIGHBOUR)
    assert [(culprit.owner.name, culprit.share) for culprit in verdict.culprits] == [("batch", 0.5), ("other", 0.25)]
    assert verdict.culprits[0].seconds == 0.4, "per second, for any window"
    assert verdict.action == "suppress-best-effort"
    assert verdict.severity == "high"
    assert verdict.score == pytest.approx(0.5 / LIMIT)
    assert verdict.signals[0].now == 0.5


@pytest.mark.parametrize(
    ("culprit", "action"),
    [
        pytest.param("be", "suppress-best-effort", id="best-effort"),
        pytest.param("ls", "limit-culprit", id="another-service"),
        pytest.param("sibling", "split-own-pod", id="same-pod"),
        pytest.param("kernel", "look-at-kernel-work", id="kernel"),
        pytest.param("none", "move-victim", id="no-culprit"),
    ],
)
def test_the_recommended_action_fits_the_culprit(make: type[Make], culprit: str, action: str) -> None:
    web = make.container("web", pod="shop")
    blames = {
        "be": [make.because_of(make.container("batch", qos="BE"), 1.0)],
        "ls": [make.because_of(make.container("api"), 1.0)],
        "sibling": [make.because_of(make.container("proxy", pod="shop"), 1.0)],
        "kernel": [make.because_of_kernel("ksoftirqd", 1.0)],
        "none": [],
    }[culprit]
    node, detector = make.node(web), Detector()
    for second in range(8):
        outcome = detector.step(node.evidence([0.5], blames={0: blames}), float(second), DEFAULT)
    assert outcome.verdicts[0].action == action
    assert action in ACTIONS


def test_culprits_are_kept_until_the_alarm_ends(make: type[Make]) -> None:
    web, batch = make.container("web"), make.container("batch", qos="BE")
    node, detector = make.node(web, batch), Detector()
    for second in range(8):
        detector.step(node.evidence([0.5, 0.0], blames={0: [make.because_of(batch, 1.0)]}), float(second), DEFAULT)
    outcome = detector.step(node.evidence([0.0, 0.0], blames={}), 8.0, DEFAULT)
    (verdict,) = outcome.verdicts
    assert verdict.state is AlarmState.RECOVERING
    assert verdict.culprits[0].owner.name == "batch"


def test_a_new_container_in_a_reused_row_starts_without_history(make: type[Make]) -> None:
    old, new = make.container("old"), make.container("new")
    detector = Detector()
    for second in range(10):
        detector.step(make.node(old).evidence([0.5]), float(second), DEFAULT)
    outcome = detector.step(make.node(new).evidence([0.0]), 10.0, DEFAULT)
    assert not outcome.verdicts
    assert np.isnan(detector.usual()).all()


def test_without_evidence_an_alarm_ends(make: type[Make]) -> None:
    node, detector = make.node(make.container("web")), Detector()
    for second in range(10):
        detector.step(node.evidence([0.5]), float(second), DEFAULT)
    for second in range(10, 20):
        outcome = detector.step(node.evidence([float("nan")], [float("nan")]), float(second), DEFAULT)
    assert not outcome.verdicts


def test_with_many_alarms_every_verdict_keeps_its_culprit(make: type[Make]) -> None:
    batch = make.container("batch", qos="BE")
    node, detector = make.node(*(make.container(f"web{i}") for i in range(200))), Detector()
    blames = {row: [make.because_of(batch, 1.0)] for row in range(200)}
    for second in range(12):
        outcome = detector.step(node.evidence([0.5] * 200, blames=blames), float(second), DEFAULT)
    assert len(outcome.verdicts) == 200
    assert {verdict.culprits[0].owner.name for verdict in outcome.verdicts} == {"batch"}
    assert {verdict.state for verdict in outcome.verdicts} == {AlarmState.INTERFERED}


losses = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=80)


@settings(deadline=None, max_examples=40)
@given(losses)
def test_alarms_and_the_time_between_them_last_at_least_the_minimum_duration(
    make: type[Make], values: list[float]
) -> None:
    states = [state.alarm for state, _ in run(make, values)]
    flips = [second for second in range(1, len(states)) if states[second] != states[second - 1]]
    starts = [0, *flips]
    assert all(later - earlier >= DURATION for earlier, later in zip(starts, flips, strict=False))


@settings(deadline=None, max_examples=40)
@given(losses)
def test_the_same_evidence_gives_the_same_states(make: type[Make], values: list[float]) -> None:
    assert run(make, values) == run(make, values)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.0, present(DEFAULT.cpu).min_lost_percent / 100 * 0.99), min_size=1, max_size=200))  # type: ignore[operator]
def test_quiet_evidence_never_alarms(make: type[Make], values: list[float]) -> None:
    assert {state for state, _ in run(make, values, own=values)} == {AlarmState.QUIET}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.001, 1.0), min_size=70, max_size=120), st.integers(-3, 3))
def test_without_absolute_thresholds_only_the_ratio_to_the_usual_value_counts(
    make: type[Make], values: list[float], power: int
) -> None:
    """The relative rule only: symptoms scaled by a power of the bucket ratio give the same states."""
    relative = strategy(cpu=msgspec.structs.replace(DEFAULT.cpu, lost_percent=0, min_lost_percent=0))  # type: ignore[type-var]
    scale = 1.25**power
    assert run(make, values, strategy=relative) == run(make, [v * scale for v in values], strategy=relative)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.0, 1e6), min_size=0, max_size=12), st.floats(0.0, 10.0))
def test_shares_sum_to_at_most_one(make: type[Make], seconds: list[float], own: float) -> None:
    web = make.container("web")
    blames = [make.because_of(make.container(f"n{i}", qos="BE"), value) for i, value in enumerate(seconds)]
    blames.append(make.because_of(web, own))
    node, detector = make.node(web), Detector()
    outcome = detector.step(node.evidence([0.9], blames={0: blames}), 0.0, DEFAULT)
    (verdict,) = outcome.verdicts
    assert sum(culprit.share for culprit in verdict.culprits) <= 1.0 + 1e-9
    assert all(culprit.share >= 0 for culprit in verdict.culprits)
    assert web.key not in {present(culprit.owner.subject).key for culprit in verdict.culprits}
    assert 0.0 <= verdict.confidence <= 1.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.permutations(list(range(6))), min_size=1, max_size=8), st.data())
def test_a_containers_verdict_does_not_depend_on_its_row(
    make: type[Make], orders: list[list[int]], data: DataObject
) -> None:
    """Containers appear, disappear and change rows; each has the states that it has alone."""
    names = [f"c{i}" for i in range(6)]
    loss = {name: data.draw(st.lists(st.floats(0, 1), min_size=len(orders), max_size=len(orders))) for name in names}
    subjects = {name: make.container(name) for name in names}
    together, alone = Detector(), {name: Detector() for name in names}
    for second, order in enumerate(orders):
        present = tuple(subjects[names[i]] for i in order)
        node = make.node(*present)
        together.step(node.evidence([loss[container.name][second] for container in present]), float(second), DEFAULT)
        for row, container in enumerate(present):
            own = alone[container.name]
            own.step(make.node(container).evidence([loss[container.name][second]]), float(second), DEFAULT)
            assert together.states()[row].tolist() == own.states()[0].tolist()
