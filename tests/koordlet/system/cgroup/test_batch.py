"""A pass over many groups agrees with a second reading, whatever is missing or malformed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from koordlet.system.cgroup.batch import MAX_ERRORS, BatchReader, Want, _Picker
from koordlet.system.errors import MalformedFile
from tests.koordlet.cgroupfigures import cpu_stat, memory_stat
from tests.koordlet.system.conftest import Tree

PODS = [f"kubepods/pod{number}" for number in range(4)]
ALL = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT | Want.PRESSURE


@pytest.fixture
def pods(tree: Tree) -> Tree:
    for number, pod in enumerate(PODS):
        tree.fill(pod, cpu_ns=1000 * (number + 1))
    return tree


def test_columns_equal_a_second_reading(pods: Tree) -> None:
    fs = pods.fs()
    table = BatchReader(fs).read(PODS, ALL)
    assert table.dirs == tuple(PODS)
    assert table.errors == ()
    assert not table.gone.any()
    for row, pod in enumerate(PODS):
        io, cpu = fs.pressure("io", pod), fs.pressure("cpu", pod)
        assert table.cgroup_id[row] == fs.cgroup_id(pod)
        assert table.columns["cpu_usage_ns"][row] == fs.cpu_usage(pod)
        for figure, value in cpu_stat(fs, pod).items():
            assert table.columns[figure][row] == value
        for figure, value in memory_stat(fs, pod).items():
            assert table.columns[f"memory_{figure}"][row] == value
        assert io is not None
        assert io.full is not None
        assert io is not None
        assert table.columns["io_full_avg60"][row] == io.full.avg60
        assert cpu is not None
        assert table.columns["cpu_some_total"][row] == cpu.some.total


def test_a_pass_over_no_directories_has_empty_columns(tree: Tree) -> None:
    table = BatchReader(tree.fs()).read([], ALL)
    assert {column.shape for column in table.columns.values()} == {(0,)}


def test_rows_of_removed_groups_are_nan_and_flagged(pods: Tree) -> None:
    reader = BatchReader(pods.fs())
    reader.read(PODS, ALL)
    for subsystem in ("cpu", "cpuacct", "memory"):
        shutil.rmtree(pods.dir(subsystem, PODS[1]), ignore_errors=True)
    table = reader.read(PODS, ALL)
    assert list(table.gone) == [False, True, False, False]
    assert table.cgroup_id[1] == 0
    assert all(np.isnan(column[1]) for column in table.columns.values())
    assert not np.isnan(table.columns["cpu_usage_ns"][[0, 2, 3]]).any()


def test_a_recreated_group_has_another_id(pods: Tree, tmp_path: Path) -> None:
    reader = BatchReader(pods.fs())
    before = reader.read(PODS, Want.CPU_USAGE | Want.MEMORY_STAT)
    for subsystem in {"cpu", "cpuacct", "memory"} if pods.version == 1 else {""}:
        pods.dir(subsystem, PODS[2]).rename(tmp_path / f"away-{subsystem}")
    pods.fill(PODS[2], cpu_ns=5000)
    table = reader.read(PODS, Want.CPU_USAGE | Want.MEMORY_STAT)
    assert (table.cgroup_id != before.cgroup_id).tolist() == [False, False, True, False]
    assert table.columns["cpu_usage_ns"][2] == 5000


def test_malformed_content_is_nan_in_its_columns_only(pods: Tree) -> None:
    name = "cpuacct.usage" if pods.version == 1 else "cpu.stat"
    path = pods.put("cpuacct", name, "usage_usec x\n", PODS[3])
    table = BatchReader(pods.fs()).read(PODS, Want.CPU_USAGE | Want.MEMORY_STAT)
    assert np.isnan(table.columns["cpu_usage_ns"][3])
    assert table.columns["memory_cache"][3] == 100
    assert not table.gone[3]
    (error,) = table.errors
    assert (type(error), error.path) == (MalformedFile, str(path))


def test_the_number_of_errors_is_bounded(tree: Tree) -> None:
    dirs = [f"a{number}" for number in range(MAX_ERRORS + 5)]
    for cgroup_dir in dirs:
        tree.fill(cgroup_dir)
        tree.put("memory", "memory.stat", "", cgroup_dir)
    assert len(BatchReader(tree.fs()).read(dirs, Want.MEMORY_STAT).errors) == MAX_ERRORS


def test_v2_without_the_cpu_controller_has_usage_but_no_periods(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(2)
    tree.put("", "cpu.stat", "usage_usec 7\nuser_usec 3\nsystem_usec 4\n", "a")
    table = BatchReader(tree.fs()).read(["a"], Want.CPU_USAGE | Want.CPU_STAT)
    assert table.columns["cpu_usage_ns"][0] == 7000
    assert np.isnan(table.columns["nr_periods"][0])
    assert table.errors == ()


def test_a_missing_full_line_is_nan(tree: Tree) -> None:
    tree.fill("a")
    tree.put("cpuacct", "cpu.pressure", "some avg10=1.00 avg60=0.00 avg300=0.00 total=3\n", "a")
    table = BatchReader(tree.fs()).read(["a"], Want.PRESSURE)
    assert table.columns["cpu_some_avg10"][0] == 1.0
    assert np.isnan(table.columns["cpu_full_avg10"][0])


def test_directories_that_are_no_longer_requested_are_forgotten(tree: Tree) -> None:
    reader = BatchReader(tree.fs())
    for number in range(400):
        tree.put(
            "cpu",
            "cpu.stat",
            "usage_usec 1\nnr_periods 1\nnr_throttled 0\nthrottled_time 0\nthrottled_usec 0\n",
            f"a{number}",
        )
    reader.read([f"a{number}" for number in range(400)], Want.CPU_STAT)
    reader.read(["a0"], Want.CPU_STAT)
    assert set(reader._ids) == {"a0"}
    assert len(reader._paths) == 1


KEY = st.text("abcdefgh_", min_size=1, max_size=8)
PAIRS = st.dictionaries(KEY, st.integers(0, 2**63), min_size=2)


def render(pairs: dict[str, int]) -> bytes:
    return "".join(f"{key} {value}\n" for key, value in pairs.items()).encode()


@given(PAIRS, st.data())
def test_values_by_position_equal_values_by_key(pairs: dict[str, int], data: DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(pairs)), min_size=1, unique=True))
    picker = _Picker(keys)
    shuffled = dict(data.draw(st.permutations(sorted(pairs.items()))))
    for content in (pairs, pairs, shuffled, pairs):
        assert list(picker(render(content))) == [content[key] for key in keys]


@given(PAIRS)
def test_a_missing_key_is_an_error(pairs: dict[str, int]) -> None:
    first, second = list(pairs)[:2]
    picker = _Picker([first, second])
    picker(render(pairs))
    with pytest.raises(ValueError, match="missing"):
        picker(render({key: value for key, value in pairs.items() if key != second}))
