"""Counters stay counters, whatever becomes of the cgroups behind them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.counters import CulpritCounters, SteadySums
from koordlet.metricsadvisor.latency import Blame
from koordlet.statesinformer.cgroupindex import Owner


def blames(**seconds: float) -> list[Blame]:
    longest_first = sorted(seconds.items(), key=lambda item: -item[1])
    return [Blame(Owner("system", name), value, 1) for name, value in longest_first]


def own(counters: CulpritCounters) -> dict[str, float]:
    return {owner.name: value for owner, value in counters.own.values()}


def test_a_part_that_is_taken_away_stays_counted():
    sums = SteadySums()
    assert sums.update({"web": np.array([5.0, 1.0])})["web"].tolist() == [5, 1]
    assert sums.update({"web": np.array([2.0, 1.0])})["web"].tolist() == [5, 1], "a sub-group went"
    assert sums.update({"web": np.array([3.0, 2.0])})["web"].tolist() == [6, 2]


def test_a_subject_that_went_begins_anew():
    sums = SteadySums()
    sums.update({"web": np.array(5.0)})
    assert sums.update({}) == {}
    assert sums.update({"web": np.array(1.0)})["web"] == 1


def test_the_longest_have_places_and_keep_them():
    counters = CulpritCounters(2)
    counters.update(blames(a=5, b=4, c=3))
    assert (own(counters), counters.other) == ({"a": 5, "b": 4}, 3)
    counters.update(blames(a=5, b=4, c=30, d=1))
    assert (own(counters), counters.other) == ({"a": 5, "b": 4}, 31)


def test_a_place_that_comes_free_takes_nothing_from_the_others():
    counters = CulpritCounters(1)
    counters.update(blames(a=5, b=3))
    counters.update(blames(b=4))
    assert (own(counters), counters.other) == ({"b": 4}, 3)


def test_a_culprit_that_loses_a_group_does_not_run_back():
    counters = CulpritCounters(1)
    counters.update(blames(a=5))
    counters.update(blames(a=2))
    assert own(counters) == {"a": 5}
    counters.update(blames(a=3))
    assert own(counters) == {"a": 6}


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 100)), max_size=12))
def test_no_series_ever_runs_back_while_it_lasts(scrapes: list[dict[str, float]]):
    counters = CulpritCounters(2)
    last: dict[str, float] = {}
    other = 0.0
    for seconds in scrapes:
        counters.update(blames(**seconds))
        now = own(counters)
        assert len(now) <= 2
        assert all(value >= last[name] for name, value in now.items() if name in last)
        assert counters.other >= other
        last, other = now, counters.other
