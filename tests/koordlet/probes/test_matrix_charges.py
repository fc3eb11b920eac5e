"""Sums by group, and the matrix' differences place by place, against the plain way to work them out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes.culprits.charges import Charges, between
from koordlet.probes.loading.mapped import FEW, PLACES, numbered, sum_by
from koordlet.probes.schedlatency.tables import _merge

SIZE = 16
KEYS = np.array([700, 500, 600, 0, -1])
"""Slot -> cgroup: one slot is free, the last is special."""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, (1 << 57) - 1)), max_size=40))
def test_sums_are_exact(rows):
    group = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.uint64)
    wanted = [sum(v for g, v in rows if g == one) for one in range(6)]
    assert sum_by(group, values, 6).tolist() == wanted
    both = sum_by(group, np.stack([values, values], axis=1), 6)
    assert both.tolist() == [[one, one] for one in wanted]


entry = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 100), st.integers(1, 9))
tables = st.dictionaries(st.integers(0, SIZE - 1), entry, max_size=SIZE)


def charges(table, keys=KEYS, seconds=1.0):
    """*table*: place -> victim's slot, culprit's slot, ns, count."""
    places = sorted(table)
    columns = [np.array([table[place][i] for place in places], dtype=np.int64) for i in range(4)]
    key = ((columns[0] + 1) << 16 | (columns[1] + 1)).astype(np.uint32)
    at = np.array(places, dtype=np.int32)
    return Charges("bpf", int(seconds * 1e9), SIZE, at, key, columns[2], columns[3], keys)


def everywhere(table, keys=KEYS):
    """As `charges`, free places included."""
    found = charges(table, keys)
    columns = [np.zeros(SIZE, dtype=kind) for kind in (np.uint32, np.int64, np.int64)]
    for column, values in zip(columns, (found.key, found.wait_ns, found.count), strict=True):
        column[found.at] = values
    return replace(found, at=np.arange(SIZE, dtype=np.int32), key=columns[0], wait_ns=columns[1], count=columns[2])


def plain(old, new, old_keys, new_keys):
    sums = defaultdict(lambda: [0, 0])
    for place, (victim, culprit, ns, count) in new.items():
        before = old.get(place)
        same = before is not None and before[:2] == (victim, culprit)
        same = same and all(old_keys[slot] == new_keys[slot] for slot in (victim, culprit))
        if same and before[2] == ns:  # no time, nothing happened
            continue
        if same and before[2] <= ns and before[3] <= count:
            ns, count = ns - before[2], count - before[3]
        if ns and new_keys[victim] and new_keys[culprit]:
            pair = sums[int(new_keys[victim]), int(new_keys[culprit])]
            pair[0] += ns
            pair[1] += count
    return {pair: tuple(found) for pair, found in sums.items()}


def told(blames):
    columns = (blames.victim, blames.culprit, blames.wait_ns, blames.wait_count)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == sorted(rows)
    return {row[:2]: row[2:] for row in rows}


@pytest.mark.parametrize("then", [charges, everywhere])
@pytest.mark.parametrize("now", [charges, everywhere])
@given(
    old=tables,
    new=tables,
    names=st.lists(st.sampled_from([500, 600, 700, 800, 0]), min_size=4, max_size=4),
    piece=st.sampled_from([1, 3, 5, 64]),
)
def test_differences_are_told_place_by_place(then, now, old, new, names, piece):
    keys = np.array([*names, -1])
    assert told(between(then(old), now(new, keys), piece=piece)) == plain(old, new, KEYS, keys)


def test_two_cpus_entries_of_a_pair_are_one():
    old = {0: (0, 1, 10, 1), 9: (0, 1, 5, 1)}
    new = {0: (0, 1, 30, 2), 3: (2, 4, 7, 1), 9: (0, 1, 6, 2)}
    assert told(between(charges(old), charges(new))) == {(700, 500): (21, 2), (600, -1): (7, 1)}


@pytest.mark.parametrize("others", [0, 400], ids=["table", "sort"])
@given(table=tables)
def test_the_whole_matrix_is_merged_by_pair(table, others):
    """*others*: cgroups that wait for nobody; with many of them pairs are sorted instead of put into a table."""
    found = charges(table)
    keys = np.sort(np.append(KEYS[KEYS != 0], np.arange(1000, 1000 + others)))
    rows = np.where(KEYS == 0, -1, np.searchsorted(keys, KEYS))
    merged = _merge((found.at, found.key, found.wait_ns, found.count), keys, rows)
    wanted = defaultdict(lambda: [0, 0])
    for victim, culprit, ns, count in table.values():
        if KEYS[victim] and KEYS[culprit]:
            pair = wanted[int(KEYS[victim]), int(KEYS[culprit])]
            pair[0] += ns
            pair[1] += count
    columns = (merged["victim"], merged["culprit"], merged["wait_ns"], merged["wait_count"])
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == sorted((*pair, *both) for pair, both in wanted.items())


@pytest.mark.parametrize("times", [1, FEW], ids=["few", "many"])
@given(st.lists(st.integers(-6, 40) | st.integers(-3, 3).map(lambda n: n * PLACES), max_size=30))
def test_numbers_are_found_in_a_table_as_by_sorting(times, keys):
    many = np.tile(np.array(keys, dtype=np.int64), times)
    found, places = numbered(many)
    assert found.tolist() == sorted(set(keys))
    assert np.array_equal(found[places], many)
