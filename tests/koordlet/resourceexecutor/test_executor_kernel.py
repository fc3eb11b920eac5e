"""The executor on real cgroups: the files have the desired values, and the original values are restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles, exactly
from koordlet.resourceexecutor.settings import Setting
from koordlet.system.cgroup.codecs import UNLIMITED, WEIGHT
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.host import Host
from tests.conftest import ChildCgroup
from tests.koordlet.resourceexecutor.conftest import Recorder, desired, ledger_at

pytestmark = pytest.mark.kernel


@pytest.fixture
def files(kernel_fs: CgroupFS, kernel_host: Host) -> KernelFiles:
    return KernelFiles(kernel_fs, kernel_host.roots)


@pytest.fixture
def pod(cgroup_child: Callable[..., ChildCgroup]) -> Any:
    """A group with a child."""
    group = cgroup_child()
    return group, group.child("container")


def executor_over(files: KernelFiles, path: Any) -> Executor:
    return Executor(files, ledger_at(path), Recorder(), Registries())


def test_shares_quota_and_limits_are_set_and_restored(files: KernelFiles, pod: Any, tmp_path: Path) -> None:
    dirs = [group.dir for group in pod]
    values = {
        **{Setting("cpu.shares", path): 512 for path in dirs},
        Setting("cpu.cfs_quota_us", dirs[0]): 50_000,
        Setting("cpu.cfs_quota_us", dirs[1]): 25_000,
        Setting("memory.limit_in_bytes", dirs[1]): (64 << 20) + 1,  # the kernel rounds to pages
    }
    before = {setting: files.read(setting) for setting in values}
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("test", desired(values))  # type: ignore[arg-type]
    assert executor.apply().problems == {}
    assert {s: files.read(s) for s in values if s.resource.startswith("cpu.cfs")} == {
        s: v for s, v in values.items() if s.resource.startswith("cpu.cfs")
    }
    assert files.read(Setting("memory.limit_in_bytes", dirs[1])) == 64 << 20
    fresh = executor_over(files, tmp_path / "ledger.json")  # as after kill -9
    fresh.declare("test", desired({s: v for s, v in values.items() if s.cgroup_dir == dirs[0]}))
    assert fresh.apply().problems == {}
    assert files.read(Setting("cpu.cfs_quota_us", dirs[1])) == UNLIMITED == before[Setting("cpu.cfs_quota_us", dirs[1])]
    fresh.restore_everything()
    assert {setting: files.read(setting) for setting in values} == before


def test_a_cpu_set_moves_through_the_tree(files: KernelFiles, pod: Any, kernel_host: Host, tmp_path: Path) -> None:
    first, *_, last = sorted(kernel_host.facts.online_cpus)
    settings = [Setting("cpuset.cpus", group.dir) for group in pod]
    before = [files.read(setting) for setting in settings]
    executor = executor_over(files, tmp_path / "ledger.json")
    for cpu in (first, last):
        executor.declare("test", desired({setting: str(cpu) for setting in settings}))
        assert executor.apply().problems == {}
        assert [files.read(setting) for setting in settings] == [str(cpu)] * 2
    executor.restore_everything()
    assert [files.read(setting) for setting in settings] == before


def test_a_group_that_was_idle_gets_its_weight_back(files: KernelFiles, pod: Any, tmp_path: Path) -> None:
    weight, idle = Setting("cpu.shares", pod[1].dir), Setting("cpu.idle", pod[1].dir)
    files.write(weight, 128)
    before = files.read(weight)
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("identity", desired({idle: 1}))
    assert executor.apply().problems == {}
    assert files.read(idle) == 1 and files.read(weight) != before
    executor.restore_everything()
    assert (files.read(idle), files.read(weight)) == (0, before)


def test_cpus_that_do_not_exist_are_refused_and_all_others_are_written(
    files: KernelFiles, pod: Any, kernel_host: Host, tmp_path: Path
) -> None:
    """An annotation may contain any CPU; the kernel refuses, and the group keeps its CPUs."""
    nowhere, shares = Setting("cpuset.cpus", pod[1].dir), Setting("cpu.shares", pod[1].dir)
    before = files.read(nowhere)
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("test", desired({nowhere: str(max(kernel_host.facts.online_cpus) + 4000), shares: 512}))
    result = executor.apply()
    assert list(result.problems) == [nowhere] and "writing" in result.problems[nowhere]
    assert files.read(nowhere) == before
    value = files.read(shares)
    assert value is not None and abs(int(value) - 512) <= 26
    executor.restore_everything()
    assert files.read(nowhere) == before and executor.originals == {}


def test_a_cgroup_that_is_removed_and_created_again(files: KernelFiles, pod: Any, tmp_path: Path) -> None:
    container = pod[1]
    setting = Setting("cpu.shares", container.dir)
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("test", desired({setting: 2}))
    executor.apply()
    container.remove()
    assert files.read(setting) is None and files.gone(setting)
    executor.declare("test", desired({setting: 512}))
    assert executor.apply().waiting == [setting]
    container.make()
    executor.apply()
    value = files.read(setting)
    assert value is not None and abs(int(value) - 512) <= 26  # a v2 weight is coarser


@pytest.mark.parametrize("weight", [*range(1, 200), 1000, 9999, 10_000])
def test_a_restored_weight_is_the_original_one(weight: int) -> None:
    """Weights are coarser than shares: truncating in both directions would lose one each time."""
    assert WEIGHT.encode(exactly(WEIGHT, str(weight)), "") == str(weight)


def test_a_cpu_set_that_was_empty_is_empty_again(files: KernelFiles, pod: Any) -> None:
    """Writing no bytes has no effect."""
    setting = Setting("cpuset.cpus", pod[1].dir)
    held = files.read(setting)
    files.write(setting, "")
    assert files.read(setting) == ""
    assert held is not None
    files.write(setting, held)
    assert files.read(setting) == held


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        (Setting("cpu.shares", "x"), 1, InvalidValue),
        (Setting("cpuset.cpus", "x"), "0-", InvalidValue),
        (Setting("cpu.stat", "x"), 1, InvalidValue),
        (Setting("no.such.file", "x"), 1, ResourceUnsupported),
        (Setting("min_free_kbytes"), 1, InvalidValue),
        (Setting("no_such_sysctl"), 1, ResourceUnsupported),
    ],
    ids=lambda value: getattr(value, "label", str(value)),
)
def test_invalid_settings_are_reported_before_any_write(
    files: KernelFiles, setting: Any, value: Any, error: Any
) -> None:
    with pytest.raises(error):
        files.check(setting, value)


def test_a_scheduler_feature_is_a_word_in_a_list(
    files: KernelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a copy, because the real file affects the whole machine."""
    path = tmp_path / "sched_features"
    path.write_text("GENTLE NO_HRTICK CORE\n")
    monkeypatch.setattr(files, "path", lambda setting: str(path))
    features = {
        name: files.read(Setting("sched_features", device=name)) for name in ("GENTLE", "HRTICK", "TICK", "CORE")
    }
    assert features == {"GENTLE": 1, "HRTICK": 0, "TICK": None, "CORE": 1}
    files.write(Setting("sched_features", device="GENTLE"), 0)
    assert path.read_text() == "NO_GENTLE"
