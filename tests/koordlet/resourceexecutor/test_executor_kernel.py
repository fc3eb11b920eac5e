"""The executor on this machine's cgroups: what it says is in the files, and what was there comes back."""

from __future__ import annotations

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles, exactly
from koordlet.resourceexecutor.settings import Setting
from koordlet.system.cgroup.codecs import UNLIMITED, WEIGHT
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.host import Host
from tests.koordlet.resourceexecutor.conftest import Recorder, desired, ledger_at

pytestmark = pytest.mark.kernel


@pytest.fixture
def files(kernel_fs: CgroupFS, kernel_host: Host) -> KernelFiles:
    return KernelFiles(kernel_fs, kernel_host.roots)


@pytest.fixture
def pod(cgroup_child):
    """A group with one below it."""
    group = cgroup_child()
    return group, group.child("container")


def executor_over(files: KernelFiles, path) -> Executor:
    return Executor(files, ledger_at(path), Recorder(), Registries())  # type: ignore[arg-type]


def test_shares_quota_and_limits_are_set_and_given_back(files, pod, tmp_path) -> None:
    dirs = [one.dir for one in pod]
    wanted = {
        **{Setting("cpu.shares", path): 512 for path in dirs},
        Setting("cpu.cfs_quota_us", dirs[0]): 50_000,
        Setting("cpu.cfs_quota_us", dirs[1]): 25_000,
        Setting("memory.limit_in_bytes", dirs[1]): (64 << 20) + 1,  # the kernel rounds to pages
    }
    before = {setting: files.read(setting) for setting in wanted}
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("test", desired(wanted))
    assert executor.apply().problems == {}
    assert {s: files.read(s) for s in wanted if s.resource.startswith("cpu.cfs")} == {
        s: v for s, v in wanted.items() if s.resource.startswith("cpu.cfs")
    }
    assert files.read(Setting("memory.limit_in_bytes", dirs[1])) == 64 << 20
    fresh = executor_over(files, tmp_path / "ledger.json")  # as after kill -9
    fresh.declare("test", desired({s: v for s, v in wanted.items() if s.cgroup_dir == dirs[0]}))
    assert fresh.apply().problems == {}
    assert files.read(Setting("cpu.cfs_quota_us", dirs[1])) == UNLIMITED == before[Setting("cpu.cfs_quota_us", dirs[1])]
    fresh.restore_everything()
    assert {setting: files.read(setting) for setting in wanted} == before


def test_a_cpu_set_moves_through_the_tree(files, pod, kernel_host, tmp_path) -> None:
    first, *_, last = sorted(kernel_host.facts.online_cpus)
    settings = [Setting("cpuset.cpus", one.dir) for one in pod]
    before = [files.read(setting) for setting in settings]
    executor = executor_over(files, tmp_path / "ledger.json")
    for cpu in (first, last):
        executor.declare("test", desired({setting: str(cpu) for setting in settings}))
        assert executor.apply().problems == {}
        assert [files.read(setting) for setting in settings] == [str(cpu)] * 2
    executor.restore_everything()
    assert [files.read(setting) for setting in settings] == before


def test_a_group_that_was_idle_weighs_again_what_it_did(files, pod, tmp_path) -> None:
    weight, idle = Setting("cpu.shares", pod[1].dir), Setting("cpu.idle", pod[1].dir)
    files.write(weight, 128)
    before = files.read(weight)
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("identity", desired({idle: 1}))
    assert executor.apply().problems == {}
    assert files.read(idle) == 1 and files.read(weight) != before
    executor.restore_everything()
    assert (files.read(idle), files.read(weight)) == (0, before)


def test_cpus_that_do_not_exist_are_refused_and_everything_else_is_set(files, pod, kernel_host, tmp_path) -> None:
    """An annotation may ask for any CPU; the kernel says no, and the group keeps what it has."""
    nowhere, shares = Setting("cpuset.cpus", pod[1].dir), Setting("cpu.shares", pod[1].dir)
    before = files.read(nowhere)
    executor = executor_over(files, tmp_path / "ledger.json")
    executor.declare("test", desired({nowhere: str(max(kernel_host.facts.online_cpus) + 4000), shares: 512}))
    result = executor.apply()
    assert list(result.problems) == [nowhere] and "writing" in result.problems[nowhere]
    assert files.read(nowhere) == before
    found = files.read(shares)
    assert found is not None and abs(int(found) - 512) <= 26
    executor.restore_everything()
    assert files.read(nowhere) == before and executor.originals == {}


def test_a_cgroup_that_ends_and_comes_again(files, pod, tmp_path) -> None:
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
    found = files.read(setting)
    assert found is not None and abs(int(found) - 512) <= 26  # a v2 weight is coarser


@pytest.mark.parametrize("weight", [*range(1, 200), 1000, 9999, 10_000])
def test_a_weight_that_is_put_back_is_the_one_that_was_there(weight: int) -> None:
    """Weights are coarser than shares: truncating both ways would lose one each time."""
    assert WEIGHT.encode(exactly(WEIGHT, str(weight)), "") == str(weight)


def test_a_cpu_set_that_was_empty_is_empty_again(files, pod) -> None:
    """A write of no bytes does nothing."""
    setting = Setting("cpuset.cpus", pod[1].dir)
    held = files.read(setting)
    files.write(setting, "")
    assert files.read(setting) == ""
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
def test_what_cannot_be_set_is_said_before_anything_is_written(files, setting, value, error) -> None:
    with pytest.raises(error):
        files.check(setting, value)


def test_a_scheduler_feature_is_one_word_of_many(files, tmp_path, monkeypatch) -> None:
    """On a copy: the words of the real file are the whole machine's."""
    path = tmp_path / "sched_features"
    path.write_text("GENTLE NO_HRTICK CORE\n")
    monkeypatch.setattr(files, "path", lambda setting: str(path))
    found = {name: files.read(Setting("sched_features", device=name)) for name in ("GENTLE", "HRTICK", "TICK", "CORE")}
    assert found == {"GENTLE": 1, "HRTICK": 0, "TICK": None, "CORE": 1}
    files.write(Setting("sched_features", device="GENTLE"), 0)
    assert path.read_text() == "NO_GENTLE"
