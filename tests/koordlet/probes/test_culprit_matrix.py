"""The culprit matrix: sums by pair, and differences position by position, against a plain computation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from koordlet.probes import layouts
from koordlet.probes.columns import sum_by
from koordlet.probes.culprits.lookup import HASH_BUCKETS, SORT_BELOW, KeyLookup, unique_inverse
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.reader import MatrixReader, MatrixReading

SIZE = 16
KEYS = np.array([700, 500, 600, 0, -1])
"""Slot -> key: one slot is free, the last is special."""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, (1 << 57) - 1)), max_size=40))
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.uint64)
    expected = [sum(v for g, v in rows if g == number) for number in range(6)]
    assert sum_by(group, values, 6).tolist() == expected
    both = sum_by(group, np.stack([values, values], axis=1), 6)
    assert both.tolist() == [[value, value] for value in expected]


entry = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 100), st.integers(1, 9))
tables = st.dictionaries(st.integers(0, SIZE - 1), entry, max_size=SIZE)


def sparse(
    table: dict[int, tuple[int, int, int, int]], keys: NDArray[Any] = KEYS, seconds: float = 1.0
) -> MatrixReading:
    """`table`: position -> (victim's slot, culprit's slot, ns, count). A reading of the used entries only."""
    positions = sorted(table)
    columns = [np.array([table[position][i] for position in positions], dtype=np.int64) for i in range(4)]
    key = ((columns[0] + 1) << 16 | (columns[1] + 1)).astype(np.uint32)
    position = np.array(positions, dtype=np.int32)
    return MatrixReading("bpf", int(seconds * 1e9), position, key, columns[2], columns[3], keys)


def dense(table: dict[int, tuple[int, int, int, int]], keys: NDArray[Any] = KEYS) -> MatrixReading:
    """As `sparse`, with the free entries."""
    used = sparse(table, keys)
    columns = [np.zeros(SIZE, dtype=kind) for kind in (np.uint32, np.int64, np.int64)]
    for column, values in zip(columns, (used.key, used.ns, used.count), strict=True):
        column[used.position] = values  # type: ignore[assignment]
    return replace(used, position=np.arange(SIZE, dtype=np.int32), key=columns[0], ns=columns[1], count=columns[2])  # type: ignore[arg-type]


def plain_difference(
    old: dict[int, tuple[int, int, int, int]],
    new: dict[int, tuple[int, int, int, int]],
    old_keys: NDArray[Any],
    new_keys: NDArray[Any],
) -> dict[tuple[int, int], tuple[int, int]]:
    sums: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for position, (victim, culprit, ns, count) in new.items():
        before = old.get(position)
        if before is not None and before[:2] == (victim, culprit):
            same = all(old_keys[slot] == new_keys[slot] for slot in (victim, culprit))
            if same and before[2] == ns:  # no time was added
                continue
            if same and before[2] <= ns and before[3] <= count:
                ns, count = ns - before[2], count - before[3]
        if ns and new_keys[victim] and new_keys[culprit]:
            pair = sums[int(new_keys[victim]), int(new_keys[culprit])]
            pair[0] += ns
            pair[1] += count
    return {pair: (ns, count) for pair, (ns, count) in sums.items()}


def as_dict(matrix: CulpritMatrix) -> dict[tuple[int, int], tuple[int, int]]:
    """(victim, culprit) -> (ns, count); checks that the pairs are sorted and distinct."""
    columns = (matrix.victim, matrix.culprit, matrix.ns, matrix.count)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [row[:2] for row in rows] == sorted({row[:2] for row in rows})
    return {row[:2]: row[2:] for row in rows}


@pytest.mark.parametrize("then", [sparse, dense])
@pytest.mark.parametrize("now", [sparse, dense])
@given(
    old=tables,
    new=tables,
    names=st.lists(st.sampled_from([500, 600, 700, 800, 0]), min_size=4, max_size=4),
    piece=st.sampled_from([1, 3, 5, 64]),
)
def test_differences_are_taken_position_by_position(
    then: Callable[..., Any],
    now: Callable[..., Any],
    old: dict[int, tuple[int, int, int, int]],
    new: dict[int, tuple[int, int, int, int]],
    names: list[int],
    piece: int,
) -> None:
    keys = np.array([*names, -1])
    assert as_dict(now(new, keys).minus(then(old), piece=piece)) == plain_difference(old, new, KEYS, keys)


def test_the_entries_of_two_cpus_for_a_pair_are_summed() -> None:
    old = {0: (0, 1, 10, 1), 9: (0, 1, 5, 1)}
    new = {0: (0, 1, 30, 2), 3: (2, 4, 7, 1), 9: (0, 1, 6, 2)}
    assert as_dict(sparse(new).minus(sparse(old))) == {(700, 500): (21, 2), (600, -1): (7, 1)}


@pytest.mark.parametrize("reading", [sparse, dense])
@pytest.mark.parametrize("extra_keys", [0, 400], ids=["dense sums", "sorted sums"])
@given(table=tables)
def test_all_entries_are_merged_by_pair(
    reading: Callable[..., Any], table: dict[int, tuple[int, int, int, int]], extra_keys: int
) -> None:
    """`extra_keys`: slots of cgroups without any entry; with many of them the possible pairs are many."""
    keys = np.append(KEYS, np.arange(1000, 1000 + extra_keys))
    expected: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for victim, culprit, ns, count in table.values():
        if KEYS[victim] and KEYS[culprit]:
            pair = expected[int(KEYS[victim]), int(KEYS[culprit])]
            pair[0] += ns
            pair[1] += count
    assert as_dict(reading(table).matrix(keys)) == {pair: (ns, count) for pair, (ns, count) in expected.items()}


pairs = st.dictionaries(
    st.tuples(st.integers(1, 5), st.integers(-3, 5)), st.tuples(st.integers(1, 10**9), st.integers(1, 9)), max_size=8
)


def matrix_of(entries: dict[tuple[int, int], tuple[int, int]]) -> CulpritMatrix:
    ordered = sorted(entries)
    columns = np.array([[*pair, *entries[pair]] for pair in ordered], dtype=np.int64).reshape(-1, 4).T
    return CulpritMatrix(*columns)


@given(pairs, pairs)
def test_minus_is_what_was_added(
    old: dict[tuple[int, int], tuple[int, int]], more: dict[tuple[int, int], tuple[int, int]]
) -> None:
    zero = (0, 0)
    both = {
        pair: tuple(a + b for a, b in zip(old.get(pair, zero), more.get(pair, zero), strict=True))
        for pair in old | more
    }
    expected = {pair: more.get(pair, zero) for pair in both}
    assert as_dict(matrix_of(both).minus(matrix_of(old))) == expected  # type: ignore[arg-type]


def test_figures_that_ran_back_count_from_zero() -> None:
    old, new = matrix_of({(1, 2): (50, 5), (1, 3): (7, 1)}), matrix_of({(1, 2): (40, 6), (1, 3): (9, 2)})
    assert as_dict(new.minus(old)) == {(1, 2): (40, 6), (1, 3): (2, 1)}


def test_the_top_culprits_are_by_victim_and_longest_first() -> None:
    matrix = matrix_of({(1, 2): (5, 1), (1, 3): (50, 1), (1, -1): (7, 1), (2, 1): (99, 1), (-4, 1): (1, 1)})

    def rows(top: CulpritMatrix) -> list[tuple[int, int, int]]:
        return list(zip(top.victim.tolist(), top.culprit.tolist(), top.ns.tolist(), strict=True))

    assert rows(matrix.top()) == [(-4, 1, 1), (1, 3, 50), (1, -1, 7), (1, 2, 5), (2, 1, 99)]
    assert rows(matrix.top(1)) == [(-4, 1, 1), (1, 3, 50), (2, 1, 99)]
    assert rows(CulpritMatrix.empty().top(3)) == []


class Table:
    """A mapped table of `SIZE` entries on two CPUs; the last `shared` are those of all CPUs."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, table: dict[int, tuple[int, int, int, int]], shared: int = 0
    ) -> None:
        self.entries = np.zeros(SIZE, dtype=layouts.CULPRIT_ENTRY)
        for position, (victim, culprit, ns, count) in table.items():
            self.entries[position] = (victim + 1) << 16 | culprit + 1, count, ns
        monkeypatch.setattr("koordlet.probes.culprits.reader.map_array", lambda *_: self.entries)
        self.reader = MatrixReader({"matrix": -1}, 2, (SIZE - shared) // 2, shared)


@pytest.mark.parametrize("used", [0, 3, 9, SIZE])
def test_a_reading_has_the_entries_of_the_table(monkeypatch: pytest.MonkeyPatch, used: int) -> None:
    table = {position: (position % 3, position % 5, 10 + position, 1) for position in range(used)}
    reading = Table(monkeypatch, table).reader.read("bpf", lambda: KEYS)
    assert as_dict(reading.matrix()) == as_dict(sparse(table).matrix())
    assert len(reading.position) == (SIZE if 2 * used > SIZE else used)


def test_the_slot_keys_are_read_after_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So every slot in an entry has a key."""
    table = Table(monkeypatch, {})

    def claim() -> NDArray[Any]:
        table.entries[0] = 1 << 16 | 2, 1, 5
        return KEYS

    assert not len(table.reader.read("bpf", claim).matrix().ns)


def test_entries_of_freed_slots_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch, {0: (0, 1, 5, 1), 3: (2, 1, 7, 2), 9: (0, 2, 1, 1)})
    table.reader.forget(np.array([0]))
    assert as_dict(table.reader.read("bpf", lambda: KEYS).matrix()) == {(600, 500): (7, 2)}
    assert table.entries["key"].tolist().count(0) == SIZE - 1


def test_idle_pairs_are_freed_once_half_of_the_shared_part_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    own, shared = {0: (0, 1, 5, 1)}, {position: (0, position, 5, 1) for position in range(SIZE - 4, SIZE)}
    table = Table(monkeypatch, own | shared, shared=8)
    assert [table.reader.drain() for _ in range(3)] == [0, 0, 0], "half of it is free"
    table.entries[SIZE - 5] = 1 << 16 | 1, 1, 5
    assert table.reader.drain() == 0, "all may be in use"
    table.entries["ns"][[0, SIZE - 1]] += 1
    assert table.reader.drain() == 4
    assert np.flatnonzero(table.entries["key"]).tolist() == [0, SIZE - 1]
    assert table.entries["ns"].sum() == 12 and table.entries["count"].sum() == 2


many_keys = st.lists(st.integers(-6, 40) | st.integers(-3, 3).map(lambda n: n * HASH_BUCKETS), max_size=30)


@pytest.mark.parametrize("times", [1, SORT_BELOW], ids=["few", "many"])
@given(many_keys)
def test_unique_inverse_equals_sorting(times: int, keys: list[int]) -> None:
    repeated = np.tile(np.array(keys, dtype=np.int64), times)
    distinct, index = unique_inverse(repeated)
    assert distinct.tolist() == sorted(set(keys))
    assert np.array_equal(distinct[index], repeated)


@given(many_keys, many_keys)
def test_keys_are_found_in_the_lookup(keys: list[int], queried: list[int]) -> None:
    known = [key for key in dict.fromkeys(keys) if key]
    lookup = KeyLookup(np.array(known, dtype=np.int64), np.arange(len(known)))
    expected = [known.index(key) if key in known else -1 for key in queried]
    assert lookup.numbers_of(np.array(queried, dtype=np.int64)).tolist() == expected
