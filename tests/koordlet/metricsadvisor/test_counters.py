"""Counters never fall, whatever happens to the cgroups behind them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.stalls.counters import MIN_NS, CulpritCounters, MonotonicSums, MonotonicTable
from koordlet.probes.culprits.matrix import SubjectTable
from koordlet.statesinformer.pods.cgroupindex import Owner


class Scrapes:
    """Scrapes of one victim, web; the culprits without a series have an empty name."""

    def __init__(self, places: int) -> None:
        self._counters = CulpritCounters(places)

    def __call__(self, **seconds: float) -> dict[str, float]:
        return {name: value for (_, name), value in self.of({"web": seconds}).items()}

    def of(self, series_by_family: dict[str, dict[str, float]]) -> dict[tuple[str, str], float]:
        names = sorted({name for culprits in series_by_family.values() for name in culprits})
        ns = [[round(series.get(name, 0) * 1e9) for name in names] for series in series_by_family.values()]
        table = np.array(ns, dtype=np.int64).reshape(len(series_by_family), len(names))
        waiting = SubjectTable(list(series_by_family), [Owner("system", name) for name in names], table)
        return {(victim, owner.name if owner else ""): value for victim, owner, value in self._counters.update(waiting)}


def test_a_removed_part_stays_counted() -> None:
    sums = MonotonicSums()
    assert sums.update({"web": np.array([5.0, 1.0])})["web"].tolist() == [5, 1]
    assert sums.update({"web": np.array([2.0, 1.0])})["web"].tolist() == [5, 1], "a sub-group was removed"
    assert sums.update({"web": np.array([3.0, 2.0])})["web"].tolist() == [6, 2]


def test_a_removed_subject_restarts_its_counter() -> None:
    sums = MonotonicSums()
    sums.update({"web": np.array(5.0)})
    assert sums.update({}) == {}
    assert sums.update({"web": np.array(1.0)})["web"] == 1


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(0, 2**60), min_size=3, max_size=3)), max_size=6
    )
)
def test_a_table_has_the_same_counters_as_its_rows(scrapes: list[dict[str, list[int]]]) -> None:
    """Also when rows appear, disappear or move: the same counters, of histograms and of numbers."""
    sums, table, numbers = MonotonicSums(), MonotonicTable(), MonotonicTable()
    for scrape in scrapes:
        keys = list(scrape)
        now = np.array(list(scrape.values()), dtype=np.int64).reshape(len(keys), 3)
        one_by_one = sums.update(dict(zip(keys, now, strict=True)))
        assert table.update(keys, now).tolist() == [one_by_one[key].tolist() for key in keys]
        assert numbers.update(keys, now[:, 1]).tolist() == [int(one_by_one[key][1]) for key in keys]


def test_the_longest_get_series_and_keep_them() -> None:
    scrape = Scrapes(2)
    assert scrape(a=5, b=4, c=3) == {"a": 5, "b": 4, "": 3}
    assert scrape(a=5, b=4, c=30, d=1) == {"a": 5, "b": 4, "": 31}


def test_a_freed_series_takes_nothing_from_the_others() -> None:
    scrape = Scrapes(1)
    assert scrape(a=5, b=3) == {"a": 5, "": 3}
    assert scrape(b=4) == {"b": 1, "": 3}, "what it added without a series is counted once"


def test_a_culprit_that_loses_a_group_does_not_run_back() -> None:
    scrape = Scrapes(1)
    assert scrape(a=5) == {"a": 5}
    assert scrape(a=2) == {"a": 5}
    assert scrape(a=3) == {"a": 6}


def test_victims_are_separate_while_others_appear_and_disappear() -> None:
    scrape = Scrapes(1)
    scrape.of({"web": {"b": 2}, "job": {"b": 7, "c": 1}})
    assert scrape.of({"new": {"a": 1}, "job": {"b": 9, "c": 2}, "web": {"a": 1, "b": 3}}) == {
        ("new", "a"): 1, ("job", "b"): 9, ("job", ""): 2, ("web", "b"): 3, ("web", ""): 1,
    }  # fmt: skip
    assert scrape.of({}) == {}


def test_small_culprits_get_no_series() -> None:
    scrape = Scrapes(3)
    assert scrape(a=1000, b=9.9, c=0.5) == {"a": 1000, "": 10.4}, "less than a hundredth"
    assert scrape(a=1000, b=12, c=0.5) == {"a": 1000, "b": 2.1, "": 10.4}, "now it matters"
    assert scrape(a=9000, b=12, c=0.5) == {"a": 9000, "b": 2.1, "": 10.4}, "and keeps its series"


def test_a_victim_that_hardly_waited_has_no_named_culprits() -> None:
    scrape, moment = Scrapes(3), MIN_NS / 1e9
    assert scrape(a=moment / 2, b=moment / 4) == {"": moment * 0.75}
    assert scrape(a=moment, b=moment / 4) == {"a": moment / 2, "": moment * 0.75}


culprits = st.dictionaries(st.sampled_from("abcd"), st.floats(2.0, 100))


@given(st.lists(st.dictionaries(st.sampled_from(["web", "job"]), culprits), max_size=12))
def test_all_series_of_a_victim_sum_up_to_what_it_waited(scrapes: list[dict[str, dict[str, float]]]) -> None:
    """While nothing is removed, whichever culprits get a series."""
    scrape = Scrapes(2)
    total: dict[str, dict[str, float]] = {}
    for scraped in scrapes:
        for victim, culprits in scraped.items():
            mine = total.setdefault(victim, {})
            for name, seconds in culprits.items():
                mine[name] = mine.get(name, 0.0) + seconds
        now = scrape.of(total)
        for victim, culprits in total.items():
            waited = sum(value for (whose, _), value in now.items() if whose == victim)
            assert abs(waited - sum(culprits.values())) < 1e-6


@given(st.lists(st.dictionaries(st.sampled_from(["web", "job"]), culprits), max_size=12))
def test_no_series_ever_runs_back_while_it_lasts(scrapes: list[dict[str, dict[str, float]]]) -> None:
    scrape = Scrapes(2)
    last: dict[tuple[str, str], float] = {}
    before: set[str] = set()
    for scraped in scrapes:
        now = scrape.of(scraped)
        for victim, culprits in scraped.items():
            named = {name for whose, name in now if whose == victim and name}
            assert len(named) == min(2, len(culprits))
            assert named <= set(culprits)
        assert all(value >= last[series] for series, value in now.items() if series in last and series[0] in before)
        last, before = now, set(scraped)
