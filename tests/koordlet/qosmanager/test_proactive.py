"""Background reclaim as a controller: a table of steps, properties, and a model of a cgroup with cold pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.qosmanager.strategies.proactive import (
    MAX_PAUSE_SECONDS,
    MAX_STEP_BYTES,
    MIN_STEP_BYTES,
    PAGE,
    STALE_SECONDS,
    STALL_BOUND,
    GroupState,
    Watermarks,
    backed_off,
    reclaimed,
    step,
    watermarks,
)

MIB = 1 << 20
LIMIT = 1000 * MIB
MARKS = Watermarks(LIMIT, 950 * MIB, 930 * MIB, STALL_BOUND)
HOT = GroupState(stalled=10.0, at=100.0, active=True, share=0.0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((LIMIT, 95, 20, 0), (950 * MIB, 930 * MIB, STALL_BOUND)),
        ((LIMIT, 95, 20, -25), (950 * MIB, 930 * MIB, STALL_BOUND * 0.75)),
        ((LIMIT, 80, 50, 50), (800 * MIB, 750 * MIB, STALL_BOUND * 1.5)),
        ((LIMIT, 1, 1000, 0), (10 * MIB, 0, STALL_BOUND)),
        ((-1, 95, 20, 0), None),
        ((LIMIT, 0, 50, 0), None),
    ],
    ids=["defaults", "services", "best-effort", "never-negative", "no-limit", "off"],
)
def test_watermarks_of_a_limit(arguments: tuple[int, int, int, int], expected: tuple[int, int, float] | None) -> None:
    marks = watermarks(*arguments)
    assert (None if marks is None else (marks.high, marks.low, marks.bound)) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("state", "used", "stalled", "now", "amount", "reason"),
    [
        (None, 990, 10.0, 101.0, 0, "measured"),
        (HOT, 990, 10.0, 101.0, 8, "reclaimed"),
        (HOT, 990, 10.004, 101.0, 0, "stalls rise"),
        (HOT, 990, 10.1, 101.0, 0, "stalls above the bound"),
        (HOT, 990, None, 101.0, 0, "measured"),
        (HOT, 990, 9.0, 101.0, 0, "measured"),
        (HOT, 990, 10.0, 100.0 + STALE_SECONDS + 1, 0, "measured"),
        (HOT, 990, 10.0, 99.0, 0, "measured"),
        (HOT, 935, 10.0, 101.0, 5, "reclaimed"),
        (HOT, 929, 10.0, 101.0, 0, "below its marks"),
        (GroupState(10.0, 100.0, False, 0.0), 940, 10.0, 101.0, 0, "below its marks"),
        (GroupState(10.0, 100.0, True, None), 990, 10.0, 101.0, 0, "measured"),
        (GroupState(10.0, 100.0, True, 0.0, 4.0, 110.0), 990, 10.0, 101.0, 0, "paused"),
        (GroupState(10.0, 100.0, True, 0.004), 990, 10.004, 101.0, 2, "reclaimed"),
    ],
    ids=[
        "first-sight",
        "quiet",
        "rising",
        "above-the-bound",
        "no-psi",
        "another-group",
        "stale",
        "clock-back",
        "only-to-the-low-mark",
        "below-low",
        "between-the-marks",
        "second-reading",
        "pause",
        "near-the-bound",
    ],
)
def test_one_step(
    state: GroupState | None, used: int, stalled: float | None, now: float, amount: int, reason: str
) -> None:
    after, reclaim = step(state, used * MIB, stalled, now, MARKS)
    assert (round(reclaim / MIB), after.reason) == (amount, reason)


def test_each_stop_doubles_the_pause_and_a_completed_step_resets_it() -> None:
    known, pauses = HOT, []
    for second in range(8):
        known = backed_off(known, 100.0 + second, "no pages")
        pauses.append(known.pause)
    assert pauses == [2, 4, 8, 16, 32, 64, 64, 64] and known.paused_until == 107.0 + MAX_PAUSE_SECONDS
    assert reclaimed(known).pause == 0


histories = st.lists(st.tuples(st.integers(0, 1100), st.floats(0, 0.05), st.floats(0.1, 15.0)), min_size=2, max_size=60)


@given(histories, st.integers(1, 100), st.integers(1, 1000), st.integers(-25, 50))
def test_steps_stay_above_the_low_mark_and_within_the_stall_bound(
    story: list[tuple[int, float, float]], ratio: int, scale: int, adjust: int
) -> None:
    given_marks = watermarks(LIMIT, ratio, scale, adjust)
    assert given_marks is not None
    known: GroupState | None = None
    stalled, now, before = 0.0, 1000.0, None
    for used, share, dt in story:
        now, stalled = now + dt, stalled + share * dt
        known, amount = step(known, used * MIB, stalled, now, given_marks)
        assert amount == 0 or (MIN_STEP_BYTES <= amount <= MAX_STEP_BYTES and amount % PAGE == 0)
        assert used * MIB - amount >= given_marks.low or amount == 0
        if amount:
            assert share <= given_marks.bound * 1.000001
            assert before is not None and share <= before + 0.000501, "stalls rise"
        before = share


def test_cold_pages_are_reclaimed_to_the_low_mark_and_hot_pages_are_kept() -> None:
    """A model: below `hot`, each missing MiB costs 1 % of the time."""
    for hot, end in ((700, 930), (960, 960)):
        known: GroupState | None = None
        used, stalled, now = 990 * MIB, 0.0, 0.0
        for _ in range(300):
            now += 1.0
            lacking = max(hot * MIB - used, 0) / MIB
            stalled += min(lacking * 0.01, 1.0)
            used = max(used, min(used + int(lacking * MIB), hot * MIB))  # missing pages are read again
            known, amount = step(known, used, stalled, now, MARKS)
            used -= amount
        assert abs(used / MIB - end) <= 9
