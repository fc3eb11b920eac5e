"""How hard a culprit is held back: a table of histories, and laws that hold for any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.qosmanager.throttling.level import FREE, MOST_PATIENCE, Blame, Pace, Squeeze, advance, evict_now

PACE = Pace(step=20, floor=10, interval=3.0, release=30.0)
HURTS, EASING, NONE = Blame.HURTS, Blame.EASING, Blame.NONE


def history(blames, pace=PACE, held=None, start=0.0, base=1000):
    """The state after each second."""
    found = []
    for second, blame in enumerate(blames):
        held = advance(held, blame, pace, start + second, base)
        found.append(held)
    return found


def levels(states):
    return [FREE if held is None else held.level for held in states]


def test_steps_down_at_its_interval_to_the_floor() -> None:
    found = levels(history([HURTS] * 14))
    assert found == [80] * 3 + [60] * 3 + [40] * 3 + [20] * 3 + [10] * 2


@pytest.mark.parametrize("blames", [[NONE] * 5, [EASING] * 5], ids=["nobody", "an-alarm-that-ends"])
def test_nothing_begins_without_somebody_hurt(blames) -> None:
    assert history(blames) == [None] * 5


def test_an_alarm_that_is_ending_changes_nothing() -> None:
    assert levels(history([HURTS] * 4 + [EASING] * 100))[-1] == 60


def test_it_is_given_back_in_steps_and_then_forgotten() -> None:
    found = levels(history([HURTS] * 4 + [NONE] * 100))
    assert found[:3] == [80] * 3
    assert found[3:33] == [60] * 30
    assert found[33:63] == [80] * 30
    assert found[63:] == [FREE] * 41


def test_one_that_hurts_again_is_given_back_more_slowly() -> None:
    held = history([HURTS] * 4 + [NONE] * 30)[-1]
    assert held is not None and held.level == 80 and held.rising
    again = advance(held, HURTS, PACE, 40.0, 1000)
    assert again is not None and (again.level, again.patience) == (60, 2)
    waited = levels(history([NONE] * 62, held=again, start=41.0))
    assert waited.index(80) == 59, "twice the release period since somebody was hurt"


def test_a_raised_floor_counts_at_once() -> None:
    held = history([HURTS] * 12)[-1]
    assert held is not None and held.level == 20
    assert levels([advance(held, HURTS, replace(PACE, floor=70), 12.0, 0)]) == [70]
    assert advance(held, HURTS, replace(PACE, floor=100), 12.0, 0) is None


def test_eviction_needs_the_floor_and_its_time_and_somebody_hurt() -> None:
    pace = replace(PACE, evict_after=20.0)
    states = history([HURTS] * 40, pace)
    due = [second for second, held in enumerate(states) if held is not None and evict_now(held, HURTS, pace, second)]
    assert due[0] == 12 + 20
    assert states[-1] is not None and not evict_now(states[-1], EASING, pace, 1e9)
    assert not evict_now(states[-1], HURTS, PACE, 1e9), "0 is never"


def test_a_clock_that_runs_back_neither_frees_nor_freezes() -> None:
    held = history([HURTS] * 14, start=1000.0)[-1]
    back = advance(held, NONE, PACE, 10.0, 0)
    assert back is not None and back.level == 10 and back.stepped == 10.0
    assert levels(history([NONE] * 40, held=back, start=11.0))[-1] == 30


# --- laws

paces = st.builds(
    Pace,
    step=st.integers(1, 50),
    floor=st.integers(1, 100),
    interval=st.floats(1, 60),
    release=st.floats(1, 60),
    evict_after=st.sampled_from([0.0, 5.0]),
)
rounds = st.lists(st.tuples(st.sampled_from(list(Blame)), st.floats(0.1, 20.0)), max_size=60)


def walk(pace, steps, base=1000) -> list[tuple[float, Blame, Squeeze | None]]:
    now, held, found = 100.0, None, []
    for blame, dt in steps:
        now += dt
        held = advance(held, blame, pace, now, base)
        found.append((now, blame, held))
    return found


@given(paces, rounds, st.integers(0, 10**12))
def test_never_below_the_floor_nor_above_what_it_had(pace, steps, base) -> None:
    for _, _, held in walk(pace, steps, base):
        if held is not None:
            assert pace.floor <= held.level < FREE
            assert base * pace.floor // FREE <= held.value <= base


@given(paces, rounds)
def test_steps_are_bounded_and_go_the_way_the_blame_says(pace, steps) -> None:
    before, at = FREE, None
    for now, blame, held in walk(pace, steps):
        level = FREE if held is None else held.level
        if level != before:
            assert level < before if blame is HURTS else blame is NONE and level > before
            assert abs(level - before) <= pace.step or level in (FREE, pace.floor)
            assert at is None or before == FREE or now - at >= (pace.interval if level < before else pace.release)
            before, at = level, now


@given(paces, rounds)
def test_calm_gives_everything_back_in_bounded_time_and_never_takes(pace, steps) -> None:
    held = next((one for *_, one in reversed(walk(pace, steps))), None)
    now, before = 1e6, FREE if held is None else held.level
    for _ in range(-(-100 // pace.step) + 1):
        now += pace.release * MOST_PATIENCE
        held = advance(held, NONE, pace, now, 1)
        level = FREE if held is None else held.level
        assert level >= before
        before = level
    assert held is None
