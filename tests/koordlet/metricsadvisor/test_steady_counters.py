"""Counters stay counters, whatever becomes of the cgroups behind them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.counters import CulpritCounters, SteadySums, SteadyTable
from koordlet.metricsadvisor.latency import Pairs
from koordlet.statesinformer.cgroupindex import Owner


class Scrapes:
    """Of one victim, web; what others took is under no name."""

    def __init__(self, places: int) -> None:
        self._counters = CulpritCounters(places)

    def __call__(self, **seconds: float) -> dict[str, float]:
        return {name: value for (_, name), value in self.of({"web": seconds}).items()}

    def of(self, found: dict[str, dict[str, float]]) -> dict[tuple[str, str], float]:
        names = sorted({name for culprits in found.values() for name in culprits})
        rows = [(v, names.index(name), s) for v, one in enumerate(found.values()) for name, s in one.items()]
        victim, culprit = (np.array([row[at] for row in rows], dtype=np.int64) for at in (0, 1))
        ns = np.array([round(row[2] * 1e9) for row in rows], dtype=np.int64)
        pairs = Pairs(list(found), [Owner("system", name) for name in names], victim, culprit, ns, np.ones_like(ns))
        return {(victim, owner.name if owner else ""): value for victim, owner, value in self._counters.update(pairs)}


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


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(0, 2**60), min_size=3, max_size=3)), max_size=6
    )
)
def test_a_table_is_steady_as_its_rows_are(scrapes: list[dict[str, list[int]]]) -> None:
    """Whoever comes, goes or stands elsewhere in the table: the same counters, of histograms and of numbers."""
    sums, table, numbers = SteadySums(), SteadyTable(), SteadyTable()
    for scrape in scrapes:
        keys = list(scrape)
        now = np.array(list(scrape.values()), dtype=np.int64).reshape(len(keys), 3)
        one_by_one = sums.update(dict(zip(keys, now, strict=True)))
        assert table.update(keys, now).tolist() == [one_by_one[key].tolist() for key in keys]
        assert numbers.update(keys, now[:, 1]).tolist() == [int(one_by_one[key][1]) for key in keys]


def test_the_longest_have_places_and_keep_them():
    scrape = Scrapes(2)
    assert scrape(a=5, b=4, c=3) == {"a": 5, "b": 4, "": 3}
    assert scrape(a=5, b=4, c=30, d=1) == {"a": 5, "b": 4, "": 31}


def test_a_place_that_comes_free_takes_nothing_from_the_others():
    scrape = Scrapes(1)
    assert scrape(a=5, b=3) == {"a": 5, "": 3}
    assert scrape(b=4) == {"b": 4, "": 3}


def test_a_culprit_that_loses_a_group_does_not_run_back():
    scrape = Scrapes(1)
    assert scrape(a=5) == {"a": 5}
    assert scrape(a=2) == {"a": 5}
    assert scrape(a=3) == {"a": 6}


def test_victims_are_told_apart_whoever_comes_and_goes():
    scrape = Scrapes(1)
    scrape.of({"web": {"b": 2}, "job": {"b": 7, "c": 1}})
    assert scrape.of({"new": {"a": 1}, "job": {"b": 9, "c": 2}, "web": {"a": 1, "b": 3}}) == {
        ("new", "a"): 1, ("job", "b"): 9, ("job", ""): 2, ("web", "b"): 3, ("web", ""): 1,
    }  # fmt: skip
    assert scrape.of({}) == {}


culprits = st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 100))


@given(st.lists(st.dictionaries(st.sampled_from(["web", "job"]), culprits), max_size=12))
def test_no_series_ever_runs_back_while_it_lasts(scrapes: list[dict[str, dict[str, float]]]):
    scrape = Scrapes(2)
    last: dict[tuple[str, str], float] = {}
    before: set[str] = set()
    for found in scrapes:
        now = scrape.of(found)
        for victim, culprits in found.items():
            named = {name for whose, name in now if whose == victim and name}
            assert len(named) == min(2, len(culprits))
            assert named <= set(culprits)
        assert all(value >= last[series] for series, value in now.items() if series in last and series[0] in before)
        last, before = now, set(found)
