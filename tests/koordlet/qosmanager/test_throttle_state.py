"""The throttle state machine: a table of histories, and properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.qosmanager.throttling.state import (
    FULL,
    MAX_RELEASE_FACTOR,
    MEMORY_SECONDS,
    QUICK_RELEASE_SECONDS,
    CulpritStatus,
    Phase,
    ThrottlePace,
    ThrottleState,
    advance,
    eviction_due,
)

PACE = ThrottlePace(step=20, floor=10, interval=3.0, release=30.0)
INTERFERES, RECOVERING, QUIET = CulpritStatus.INTERFERES, CulpritStatus.RECOVERING, CulpritStatus.QUIET
SUSPECTED = CulpritStatus.SUSPECTED
CHANGES_PER_MINUTE = 12
"""Of one level, with the default pace, whatever the evidence does."""


def history(
    statuses: list[CulpritStatus],
    pace: ThrottlePace = PACE,
    state: ThrottleState | None = None,
    start: float = 0.0,
    base: int = 1000,
) -> list[ThrottleState | None]:
    """The state after each second."""
    states = []
    for second, status in enumerate(statuses):
        state = advance(state, status, pace, start + second, base)
        states.append(state)
    return states


def levels(states: Sequence[ThrottleState | None]) -> list[int]:
    return [FULL if state is None else state.level for state in states]


def test_the_level_falls_each_interval_to_the_floor() -> None:
    assert levels(history([INTERFERES] * 14)) == [80] * 3 + [60] * 3 + [40] * 3 + [20] * 3 + [10] * 2


@pytest.mark.parametrize("statuses", [[QUIET] * 5, [RECOVERING] * 5], ids=["quiet", "recovering"])
def test_throttling_begins_only_with_interference(statuses: list[CulpritStatus]) -> None:
    assert history(statuses) == [None] * 5


def test_a_recovering_alarm_keeps_the_level() -> None:
    assert levels(history([INTERFERES] * 4 + [RECOVERING] * 100))[-1] == 60


def test_a_quiet_culprit_is_released_in_steps() -> None:
    released = levels(history([INTERFERES] * 4 + [QUIET] * 100))
    assert released[:3] == [80] * 3
    assert released[3:33] == [60] * 30
    assert released[33:63] == [80] * 30
    assert released[63:] == [FULL] * 41


def test_a_culprit_that_interferes_again_is_released_more_slowly() -> None:
    held = history([INTERFERES] * 4 + [QUIET] * 30)[-1]
    assert held is not None and held.level == 80 and held.phase is Phase.RELEASING
    again = advance(held, INTERFERES, PACE, 40.0, 1000)
    assert again is not None and (again.level, again.release_factor) == (60, 2)
    waited = levels(history([QUIET] * 62, state=again, start=41.0))
    assert waited.index(80) == 59, "twice the release time since the last interference"


def test_a_raised_floor_applies_at_once() -> None:
    held = history([INTERFERES] * 12)[-1]
    assert held is not None and held.level == 20
    assert levels([advance(held, INTERFERES, replace(PACE, floor=70), 12.0, 0)]) == [70]
    assert advance(held, INTERFERES, replace(PACE, floor=100), 12.0, 0) is None


def test_eviction_needs_its_time_at_the_floor_and_interference() -> None:
    pace = replace(PACE, evict_after=20.0)
    states = history([INTERFERES] * 40, pace)
    due = [
        second
        for second, held in enumerate(states)
        if held is not None and eviction_due(held, INTERFERES, pace, second)
    ]
    assert due[0] == 12 + 20
    assert states[-1] is not None and not eviction_due(states[-1], RECOVERING, pace, 1e9)
    assert not eviction_due(states[-1], INTERFERES, PACE, 1e9), "0 means never"


def test_a_clock_that_runs_back_neither_frees_nor_blocks_release() -> None:
    held = history([INTERFERES] * 14, start=1000.0)[-1]
    back = advance(held, QUIET, PACE, 10.0, 0)
    assert back is not None and back.level == 10 and back.stepped == 10.0
    assert levels(history([QUIET] * 40, state=back, start=11.0))[-1] == 30


paces = st.builds(
    ThrottlePace,
    step=st.integers(1, 50),
    floor=st.integers(1, 100),
    interval=st.floats(1, 60),
    release=st.floats(1, 60),
    evict_after=st.sampled_from([0.0, 5.0]),
)
rounds = st.lists(st.tuples(st.sampled_from(list(CulpritStatus)), st.floats(0.1, 20.0)), max_size=60)


def walk(
    pace: ThrottlePace, steps: list[tuple[CulpritStatus, float]], base: int = 1000
) -> list[tuple[float, CulpritStatus, ThrottleState | None]]:
    now, state, walked = 100.0, None, []
    for status, dt in steps:
        now += dt
        state = advance(state, status, pace, now, base)
        walked.append((now, status, state))
    return walked


@given(paces, rounds, st.integers(0, 10**12))
def test_the_level_stays_between_the_floor_and_100_percent(
    pace: ThrottlePace, steps: list[tuple[CulpritStatus, float]], base: int
) -> None:
    for _, _, held in walk(pace, steps, base):
        if held is not None:
            assert pace.floor <= held.level <= FULL
            assert base * pace.floor // FULL <= held.value <= base


@given(paces, rounds)
def test_steps_are_bounded_and_follow_the_status(pace: ThrottlePace, steps: list[tuple[CulpritStatus, float]]) -> None:
    before, at = FULL, None
    for now, status, held in walk(pace, steps):
        level = FULL if held is None else held.level
        if level != before:
            assert level < before if status in (INTERFERES, SUSPECTED) else status is QUIET and level > before
            assert abs(level - before) <= pace.step or level in (FULL, pace.floor)
            confirmed = held is not None and held.confirmed
            if at is not None and confirmed and before != FULL and status is not SUSPECTED:
                assert now - at >= (pace.interval if level < before else pace.release)
            before, at = level, now


@given(paces, rounds)
def test_a_quiet_culprit_is_fully_released_in_bounded_time(
    pace: ThrottlePace, steps: list[tuple[CulpritStatus, float]]
) -> None:
    held = next((state for *_, state in reversed(walk(pace, steps))), None)
    now, before = 1e6, FULL if held is None else held.level
    for _ in range(-(-100 // pace.step) + 1):
        now += pace.release * MAX_RELEASE_FACTOR
        held = advance(held, QUIET, pace, now, 1)
        level = FULL if held is None else held.level
        assert level >= before
        before = level
    assert held is None or held.level == FULL
    assert held is None or advance(held, QUIET, pace, now + MEMORY_SECONDS, 1) is None


# --- short evidence


def test_short_evidence_gives_one_step_which_is_released_soon() -> None:
    states = history([SUSPECTED] * 30 + [QUIET] * 4)
    assert levels(states) == [80] * 31 + [FULL] * 3
    assert states[29] is not None and states[29].phase is Phase.PROVISIONAL


def test_an_alarm_continues_from_the_provisional_step() -> None:
    states = history([SUSPECTED] * 4 + [INTERFERES] * 4 + [QUIET] * 20)
    assert levels(states)[:8] == [80] * 4 + [60] * 3 + [40]
    assert states[4] is not None and states[4].phase is Phase.TIGHTENING
    assert levels(states)[-1] == 40, "from now on the longer release time counts"


def test_a_culprit_that_comes_and_goes_stays_limited_longer_each_time() -> None:
    """1 s of every 5 s: after the second time the limit outlasts the pause."""
    bursts = levels(history(([SUSPECTED] + [QUIET] * 4) * 24))
    changes = [at for at in range(1, len(bursts)) if bursts[at] != bursts[at - 1]]
    assert changes == [2, 5], "released once, then kept"
    rare = levels(history(([SUSPECTED] + [QUIET] * 70) * 4))
    assert rare.count(80) == 4 * QUICK_RELEASE_SECONDS, "remembered for a minute only"


def test_short_evidence_undoes_a_step_up_at_once() -> None:
    released = history([INTERFERES] * 4 + [QUIET] * 31)[-1]
    assert released is not None and released.level == 80
    again = advance(released, SUSPECTED, PACE, 35.5, 1000)
    assert again is not None and (again.level, again.release_factor, again.confirmed) == (60, 2, True)
    assert advance(again, SUSPECTED, PACE, 60.0, 1000) == replace(again, interfered=60.0), "and no more than that"


def test_a_released_culprit_is_remembered() -> None:
    """With an alarm twice within a minute, the second release is slower."""
    pace = replace(PACE, step=50, release=10.0)
    states = history([INTERFERES] * 2 + [QUIET] * 11 + [INTERFERES] * 1, pace)
    assert levels(states)[12:] == [FULL, 50]
    assert states[-1] is not None and states[-1].release_factor == 2


looks = st.lists(st.sampled_from(list(CulpritStatus)), min_size=1, max_size=400)


@given(looks, st.sampled_from([0.5, 1.0]))
def test_changes_per_minute_are_bounded(statuses: list[CulpritStatus], dt: float) -> None:
    pace = ThrottlePace(step=20, floor=10, interval=3.0, release=10.0)
    now, state, level, changes = 0.0, None, FULL, []
    for status in statuses:
        now += dt
        state = advance(state, status, pace, now, 1000)
        after = FULL if state is None else state.level
        if after != level:
            changes.append(now)
            level = after
    for first in changes:
        assert sum(first <= at < first + 60.0 for at in changes) <= CHANGES_PER_MINUTE


@given(paces, rounds)
def test_nothing_is_throttled_further_without_evidence(
    pace: ThrottlePace, steps: list[tuple[CulpritStatus, float]]
) -> None:
    before = FULL
    for _, status, held in walk(pace, steps):
        level = FULL if held is None else held.level
        assert level >= before or status in (INTERFERES, SUSPECTED) or level == pace.floor
        before = level


@given(paces, st.lists(st.sampled_from([SUSPECTED, QUIET]), max_size=200))
def test_short_evidence_alone_never_takes_more_than_a_step(pace: ThrottlePace, statuses: list[CulpritStatus]) -> None:
    for held in history(statuses, pace):
        assert held is None or held.level in (FULL, max(FULL - pace.step, pace.floor))
