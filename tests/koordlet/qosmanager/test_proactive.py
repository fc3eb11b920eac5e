"""Background reclaim as a controller: a table of moments, laws, and a model of a group with cold pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.qosmanager.strategies.proactive import (
    BOUND,
    LEAST,
    LONGEST_PAUSE,
    MOST,
    PAGE,
    STALE_SECONDS,
    Marks,
    Watched,
    backed_off,
    marks,
    step,
    went_well,
)

MIB = 1 << 20
LIMIT = 1000 * MIB
MARKS = Marks(LIMIT, 950 * MIB, 930 * MIB, BOUND)
HOT = Watched(stalled=10.0, at=100.0, active=True, share=0.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((LIMIT, 95, 20, 0), (950 * MIB, 930 * MIB, BOUND)),
        ((LIMIT, 95, 20, -25), (950 * MIB, 930 * MIB, BOUND * 0.75)),
        ((LIMIT, 80, 50, 50), (800 * MIB, 750 * MIB, BOUND * 1.5)),
        ((LIMIT, 1, 1000, 0), (10 * MIB, 0, BOUND)),
        ((-1, 95, 20, 0), None),
        ((LIMIT, 0, 50, 0), None),
    ],
    ids=["defaults", "services", "best-effort", "never-negative", "no-limit", "off"],
)
def test_marks(given, expected) -> None:
    found = marks(*given)
    assert (None if found is None else (found.high, found.low, pytest.approx(found.bound))) == expected


@pytest.mark.parametrize(
    ("known", "used", "stalled", "now", "wanted", "why"),
    [
        (None, 990, 10.0, 101.0, 0, "looked at"),
        (HOT, 990, 10.0, 101.0, 8, "reclaimed"),
        (HOT, 990, 10.004, 101.0, 0, "its stalls rise"),
        (HOT, 990, 10.1, 101.0, 0, "it feels it"),
        (HOT, 990, None, 101.0, 0, "looked at"),
        (HOT, 990, 9.0, 101.0, 0, "looked at"),
        (HOT, 990, 10.0, 100.0 + STALE_SECONDS + 1, 0, "looked at"),
        (HOT, 990, 10.0, 99.0, 0, "looked at"),
        (HOT, 935, 10.0, 101.0, 5, "reclaimed"),
        (HOT, 929, 10.0, 101.0, 0, "below its marks"),
        (Watched(10.0, 100.0, False, 0.0), 940, 10.0, 101.0, 0, "below its marks"),
        (Watched(10.0, 100.0, True, None), 990, 10.0, 101.0, 0, "looked at"),
        (Watched(10.0, 100.0, True, 0.0, 4.0, 110.0), 990, 10.0, 101.0, 0, "paused"),
        (Watched(10.0, 100.0, True, 0.004), 990, 10.004, 101.0, 2, "reclaimed"),
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
        "second-look",
        "pause",
        "near-the-bound",
    ],
)
def test_one_round(known, used, stalled, now, wanted, why) -> None:
    after, found = step(known, used * MIB, stalled, now, MARKS)
    assert (round(found / MIB), after.why) == (wanted, why)


def test_trouble_doubles_the_pause_and_a_step_that_went_well_forgets_it() -> None:
    known, pauses = HOT, []
    for second in range(8):
        known = backed_off(known, 100.0 + second, "no pages")
        pauses.append(known.pause)
    assert pauses == [2, 4, 8, 16, 32, 64, 64, 64] and known.until == 107.0 + LONGEST_PAUSE
    assert went_well(known).pause == 0


histories = st.lists(st.tuples(st.integers(0, 1100), st.floats(0, 0.05), st.floats(0.1, 15.0)), min_size=2, max_size=60)


@given(histories, st.integers(1, 100), st.integers(1, 1000), st.integers(-25, 50))
def test_small_steps_never_below_the_low_mark_and_never_while_it_is_felt(story, ratio, scale, adjust) -> None:
    given_marks = marks(LIMIT, ratio, scale, adjust)
    assert given_marks is not None
    known: Watched | None = None
    stalled, now, before = 0.0, 1000.0, None
    for used, share, dt in story:
        now, stalled = now + dt, stalled + share * dt
        known, wanted = step(known, used * MIB, stalled, now, given_marks)
        assert wanted == 0 or (LEAST <= wanted <= MOST and wanted % PAGE == 0)
        assert used * MIB - wanted >= given_marks.low or wanted == 0
        if wanted:
            assert share <= given_marks.bound * 1.000001
            assert before is not None and share <= before + 0.000501, "it rises"
        before = share


def test_a_group_with_cold_pages_comes_down_to_its_low_mark_and_one_that_needs_them_keeps_them() -> None:
    """A model: pages below `hot` are missed, each MiB that is lacking costs 1 % of the time."""
    for hot, end in ((700, 930), (960, 960)):
        known: Watched | None = None
        used, stalled, now = 990 * MIB, 0.0, 0.0
        for _ in range(300):
            now += 1.0
            lacking = max(hot * MIB - used, 0) / MIB
            stalled += min(lacking * 0.01, 1.0)
            used = max(used, min(used + int(lacking * MIB), hot * MIB))  # what is missed comes back
            known, wanted = step(known, used, stalled, now, MARKS)
            used -= wanted
        assert abs(used / MIB - end) <= 9
