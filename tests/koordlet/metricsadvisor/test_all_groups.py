"""The walk's rows as a tick's table, without a kernel; and how it is found out when the rows are wrong."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from koordlet.metricsadvisor.usage.allgroups import (
    MAX_MISMATCHES,
    TRUSTED_AFTER,
    TRUSTED_INTERVAL,
    AllGroups,
    SpotCheck,
)
from koordlet.probes.cgroup_stats import FIGURES, HAS_CPU, HAS_MEMORY, HAS_USAGE, Hierarchy
from koordlet.probes.layouts import CGROUP_STATS_ROW
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.cgroup.tree import cgroup_id

U64 = st.integers(0, 2**63 - 1)


class Rows:
    """Stands in for the loaded iterator: a row for each directory below its roots, at every reading."""

    unified, page_size = False, 4096

    def __init__(self, *roots: Path) -> None:
        self.roots = dict(zip(("cpu", "cpuacct", "memory"), map(str, roots), strict=True))
        self.usage = 0

    def read(self) -> Mapping[str, Hierarchy]:
        self.usage += 1000
        return {root: self._walk(Path(root)) for root in self.roots.values()}

    def _walk(self, root: Path) -> Hierarchy:
        rows = np.zeros(len(list(root.iterdir())), dtype=CGROUP_STATS_ROW)
        for row, path in zip(rows, root.iterdir(), strict=True):
            row["id"], row["has"] = cgroup_id(path), HAS_CPU | HAS_USAGE | HAS_MEMORY
            row["cpu_usage_ns"], row["nr_periods"], row["rss"] = self.usage, 5, 2
        rows.sort(order="id")
        return Hierarchy(rows["id"].copy(), rows, self.page_size, 1)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    for controller in ("cpu", "cpuacct", "memory"):
        for name in ("a", "b", "other"):
            (tmp_path / controller / name).mkdir(parents=True)
    return Rows(*(tmp_path / controller for controller in ("cpu", "cpuacct", "memory")))


def test_rows_are_in_the_requested_order_each_from_its_own_hierarchy(rows: Rows) -> None:
    table = AllGroups(rows).read(["b", "nowhere", "a"])
    root = rows.roots["cpu"]
    assert table.cgroup_id.tolist() == [cgroup_id(f"{root}/b"), 0, cgroup_id(f"{root}/a")]
    assert table.gone.tolist() == [False, True, False]
    assert table.columns["cpu_usage_ns"][[0, 2]].tolist() == [1000.0, 1000.0]
    assert table.columns["memory_rss"][[0, 2]].tolist() == [8192.0, 8192.0]
    assert np.isnan([column[1] for column in table.columns.values()]).all()


def test_a_group_that_only_memory_knows(rows: Rows) -> None:
    for controller in ("cpu", "cpuacct"):
        Path(rows.roots[controller], "a").rmdir()
    table = AllGroups(rows).read(["a"])
    assert (table.cgroup_id[0], table.gone[0], table.columns["memory_rss"][0]) == (0, False, 8192.0)
    assert np.isnan(table.columns["cpu_usage_ns"][0])


def test_another_list_of_directories_keeps_known_ids(rows: Rows) -> None:
    groups = AllGroups(rows)
    groups.read(["a", "b"])
    before = cgroup_id(f"{rows.roots['cpu']}/a")
    for controller in rows.roots.values():
        Path(controller, "a").rename(Path(controller, "moved"))
        Path(controller, "a").mkdir()
    for controller in rows.roots.values():
        Path(controller, "moved").rmdir()
    table = groups.read(["other", "a"])
    assert table.cgroup_id[1] == cgroup_id(f"{rows.roots['cpu']}/a") != before


class SameArrays(Rows):
    """As the loaded iterator: as long as the same cgroups are there, their ids are the same array."""

    def __init__(self, *roots: Path) -> None:
        super().__init__(*roots)
        self._last: dict[Path, NDArray[np.uint64]] = {}

    def _walk(self, root: Path) -> Hierarchy:
        arrays = super()._walk(root)
        last = self._last.setdefault(root, arrays.ids)
        if not np.array_equal(last, arrays.ids):
            last = self._last[root] = arrays.ids
        return replace(arrays, ids=last)


def test_a_walk_with_the_same_groups_needs_no_look_up(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = AllGroups(SameArrays(*map(Path, rows.roots.values())))
    before = groups.read(["b", "a"])
    with monkeypatch.context() as patched:
        patched.setattr(Hierarchy, "find", lambda *_: pytest.fail("looked up again"))
        again = groups.read(["b", "a"])
    assert again.cgroup_id.tolist() == before.cgroup_id.tolist()
    assert again.columns["cpu_usage_ns"].tolist() == [2000.0, 2000.0]


def test_directories_that_are_always_missing_are_looked_up_once(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(rows.roots["memory"], "a").rmdir()
    groups = AllGroups(SameArrays(*map(Path, rows.roots.values())))
    before = groups.read(["a", "nowhere"])
    with monkeypatch.context() as patched:
        patched.setattr(tree, "cgroup_id", lambda path: pytest.fail(f"looked up again: {path}"))
        again = groups.read(["a", "nowhere"])
    for table in (before, again):
        assert table.cgroup_id.tolist() == [cgroup_id(f"{rows.roots['cpu']}/a"), 0]
        assert table.gone.tolist() == [False, True]
        assert np.isnan(table.columns["memory_rss"]).all()


def test_other_directories_and_other_groups_are_looked_up(rows: Rows) -> None:
    groups, cpu = AllGroups(SameArrays(*map(Path, rows.roots.values()))), rows.roots["cpu"]
    groups.read(["b", "a"])
    assert groups.read(["a", "other"]).cgroup_id.tolist() == [cgroup_id(f"{cpu}/a"), cgroup_id(f"{cpu}/other")]
    assert groups.read(["a", "late"]).gone.tolist() == [False, True]
    assert groups.read(["a", "late"]).gone.tolist() == [False, True]
    for controller in rows.roots.values():
        Path(controller, "late").mkdir()
        Path(controller, "b").rmdir()
    table = groups.read(["a", "late"])
    assert table.cgroup_id.tolist() == [cgroup_id(f"{cpu}/a"), cgroup_id(f"{cpu}/late")]
    assert table.columns["memory_rss"].tolist() == [8192.0, 8192.0]


def test_columns_are_the_rows_in_the_units_of_the_files() -> None:
    rows = np.zeros(2, dtype=CGROUP_STATS_ROW)
    rows["id"], rows["has"] = (7, 9), (HAS_USAGE | HAS_CPU, HAS_MEMORY)
    rows["cpu_usage_ns"], rows["throttled_ns"], rows["inactive_anon"] = 123_456, 999, -3
    rows["cache"] = 5
    hierarchy = Hierarchy(rows["id"].copy(), rows, 4096, 1000)
    assert hierarchy.find(np.array([9, 8, 7, 0], dtype=np.uint64)).tolist() == [1, -1, 0, -1]
    columns = hierarchy.columns(np.array([0, 1, -1]), FIGURES)
    expected = {
        "cpu_usage_ns": [123_000.0, np.nan, np.nan],  # whole microseconds, as in v2's cpu.stat
        "throttled_ns": [0.0, np.nan, np.nan],
        "memory_cache": [np.nan, 20480.0, np.nan],
        "memory_inactive_anon": [np.nan, 0.0, np.nan],  # the kernel shows no negative sums either
        "io_some_total": [np.nan] * 3,
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(columns[name], values, err_msg=name)


@given(st.lists(U64, unique=True, max_size=20), st.lists(U64, max_size=20))
def test_find_is_a_look_up(there: list[int], cgroups: list[int]) -> None:
    rows = np.zeros(len(there), dtype=CGROUP_STATS_ROW)
    rows["id"] = sorted(there)
    hierarchy = Hierarchy(rows["id"].copy(), rows, 4096, 1)
    places = {cgroup: at for at, cgroup in enumerate(sorted(there))}
    found_rows = hierarchy.find(np.array(cgroups, dtype=np.uint64))
    assert found_rows.tolist() == [places.get(cgroup, -1) for cgroup in cgroups]


def one_row(**columns: float) -> CgroupTable:
    return CgroupTable(
        ("a",), np.array([4], dtype=np.uint64), np.array([False]),
        {name: np.array([value], dtype=float) for name, value in columns.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "before", "read", "after", "right"),
    [
        pytest.param("memory_rss", 8, 8, 8, True, id="same"),
        pytest.param("memory_rss", 8, 4, 8, False, id="another value in the file"),
        pytest.param("memory_rss", 8, 4, 9, True, id="changing: not comparable"),
        pytest.param("cpu_usage_ns", 8, 9, 12, True, id="counter between the walks"),
        pytest.param("cpu_usage_ns", 8, 7, 12, False, id="counter before both"),
        pytest.param("cpu_usage_ns", 8, 13, 12, False, id="counter after both"),
        pytest.param("nr_periods", float("nan"), 4, 9, True, id="no controller then"),
    ],
)
def test_spot_check(name: str, before: float, read: float, after: float, right: bool) -> None:
    check, verdicts = SpotCheck(), []
    for _ in range(MAX_MISMATCHES):
        table = one_row(**{name: before})
        assert check.next_dir(table) == "a"
        check.note(table, one_row(**{name: read}))
        verdicts.append(check.wrong(one_row(**{name: after})))
    assert verdicts == [False] * (MAX_MISMATCHES - 1) + [not right]
    assert bool(check.cause) is not right


def test_single_mismatches_of_the_spot_check_are_ignored() -> None:
    check = SpotCheck()
    for turn in range(4 * MAX_MISMATCHES):
        check.next_dir(one_row(memory_rss=8))
        check.note(one_row(memory_rss=8), one_row(memory_rss=4 if turn % 2 else 8))
        assert not check.wrong(one_row(memory_rss=8))


def test_spot_checks_become_seldom_with_trust_and_frequent_with_a_finding() -> None:
    check, table = SpotCheck(), one_row(memory_rss=8)

    def checked(ticks: int, read: float = 8) -> int:
        done = 0
        for _ in range(ticks):
            check.wrong(table)
            if check.next_dir(table) is not None:
                check.note(table, one_row(memory_rss=read))
                done += 1
        check.wrong(table)
        return done

    assert checked(TRUSTED_AFTER) == TRUSTED_AFTER
    assert checked(10 * TRUSTED_INTERVAL) == 10
    assert checked(TRUSTED_INTERVAL, read=4) == 1
    assert checked(TRUSTED_AFTER) == TRUSTED_AFTER


def test_spot_check_of_nothing() -> None:
    nothing = CgroupTable((), np.zeros(0, np.uint64), np.zeros(0, bool), {})
    check = SpotCheck()
    assert check.next_dir(nothing) is None
    assert not check.wrong(nothing)
