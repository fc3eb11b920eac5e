"""The executor on a model kernel: writes, their order, restoring, refusals."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.ledger import Ledger, LedgerError
from koordlet.resourceexecutor.merge import OwnerRule
from koordlet.resourceexecutor.order import SettingChange, ordered
from koordlet.resourceexecutor.settings import DesiredSetting, Setting, Value
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.write import TargetBusy, TargetGone, WriteDenied, WriteError, WriteRefused, WriteUnsupported
from tests.fakeclock import SetTime
from tests.koordlet.resourceexecutor.conftest import (
    CPUS,
    IDLE,
    QUOTA,
    SHARES,
    ModelKernel,
    Recorder,
    desired,
    ledger_at,
)

POD, CONTAINER = "kubepods/besteffort/pod1", "kubepods/besteffort/pod1/c1"


def test_values_grow_from_parents_and_shrink_from_children(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor = make()
    executor.declare("burst", desired({Setting(QUOTA, CONTAINER): 200_000, Setting(QUOTA, POD): 400_000}))
    assert executor.apply().problems == {}
    kernel.log.clear()
    executor.declare("burst", desired({Setting(QUOTA, CONTAINER): 150_000, Setting(QUOTA, POD): 300_000}))
    executor.apply()
    assert kernel.log == [(Setting(QUOTA, CONTAINER), 150_000), (Setting(QUOTA, POD), 300_000)]
    kernel.log.clear()
    executor.declare("burst", desired({Setting(QUOTA, CONTAINER): 300_000, Setting(QUOTA, POD): 600_000}))
    executor.apply()
    assert kernel.log == [(Setting(QUOTA, POD), 600_000), (Setting(QUOTA, CONTAINER), 300_000)]


def test_a_cpu_set_moves_over_the_union(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor = make()
    tree = ("kubepods/besteffort", POD, CONTAINER)
    executor.declare("suppress", desired({Setting(CPUS, path): "0-1" for path in tree}))
    executor.apply()
    kernel.log.clear()
    executor.declare("suppress", desired({Setting(CPUS, path): "2,3" for path in tree}))
    assert executor.apply().problems == {}
    assert [value for _, value in kernel.log] == ["0-3"] * 3 + ["2-3"] * 3
    assert [setting.cgroup_dir for setting, _ in kernel.log] == [*tree, *reversed(tree)]


def test_groups_without_a_setting_follow_a_cpu_set(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    """A pod's sandbox is in no manifest, and on v1 its parents must have at least its CPUs."""
    kernel.mkdir(f"{POD}/sandbox", f"{POD}/sandbox/below")
    before = dict(kernel.values)
    executor = make(ledger_at(tmp_path / "ledger.json"))
    executor.declare("suppress", desired({Setting(CPUS, path): "1" for path in (POD, CONTAINER)}))
    assert executor.apply().problems == {}
    assert [kernel.values[Setting(CPUS, f"{POD}/{name}")] for name in ("c1", "sandbox", "sandbox/below")] == ["1"] * 3
    killed = make(ledger_at(tmp_path / "ledger.json"))
    killed.declare("suppress", desired({Setting(CPUS, POD): "2,3"}))
    assert killed.apply().problems == {}
    assert kernel.values[Setting(CPUS, f"{POD}/sandbox/below")] == "2-3"
    killed.declare("suppress", ())
    assert killed.apply().problems == {}
    assert kernel.values == before


def test_cpu_sets_are_reset_after_those_of_their_parents() -> None:
    """If the kernel accepts no empty set, the current CPUs of the parent are written."""
    changes = [SettingChange(Setting(CPUS, path), "1", "") for path in (CONTAINER, POD)]
    assert [change.setting.cgroup_dir for change in ordered(changes)] == [POD, CONTAINER]


def test_an_unchanged_pass_reads_nothing_until_it_is_forced(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    clock = SetTime()
    executor = make(clock=clock)
    executor.declare("hook", desired({Setting(SHARES, POD): 2}))
    executor.apply()
    reads = kernel.reads
    executor.declare("hook", desired({Setting(SHARES, POD): 2}))
    assert executor.apply().written == []
    assert kernel.reads == reads
    kernel.values[Setting(SHARES, POD)] = 512  # another process writes
    clock.now += 61
    (change,) = executor.apply().written
    assert (change.current, change.value) == (512, 2)


def test_settings_that_are_no_longer_desired_are_restored(
    make: Callable[..., Executor], kernel: ModelKernel, auditor: Recorder
) -> None:
    executor = make()
    before = dict(kernel.values)
    executor.declare("suppress", desired({Setting(CPUS, path): "0" for path in (POD, CONTAINER)}))
    executor.declare("hook", desired({Setting(SHARES, POD): 2}))
    executor.apply()
    executor.declare("suppress", ())
    assert executor.apply().problems == {}
    assert kernel.values == {**before, Setting(SHARES, POD): 2}
    assert auditor.events[-1][2] == "GiveBack"
    executor.restore_everything()
    assert kernel.values == before
    assert executor.originals == {}


def test_a_newer_value_of_the_kubelet_is_restored(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    clock = SetTime()
    executor = make(clock=clock)
    executor.declare("hook", desired({Setting(SHARES, POD): 2}))
    executor.apply()
    kernel.values[Setting(SHARES, POD)] = 2048
    clock.now += 61
    executor.apply()
    assert kernel.values[Setting(SHARES, POD)] == 2
    executor.declare("hook", ())
    executor.apply()
    assert kernel.values[Setting(SHARES, POD)] == 2048


def test_a_neutral_value_is_restored_even_if_a_hook_had_set_the_file(
    make: Callable[..., Executor], kernel: ModelKernel
) -> None:
    kernel.values[Setting(SHARES, CONTAINER)] = 2
    executor = make()
    executor.declare("hook", [DesiredSetting(Setting(SHARES, CONTAINER), 2, neutral=1024)])
    assert executor.apply().written == []
    executor.declare("hook", ())
    executor.apply()
    assert kernel.values[Setting(SHARES, CONTAINER)] == 1024


def test_a_cpu_set_that_followed_its_parents_follows_it_again(
    make: Callable[..., Executor], kernel: ModelKernel
) -> None:
    setting = Setting(CPUS, "v2")
    kernel.values[setting] = ""
    kernel._nested = lambda *_: True  # type: ignore[method-assign]  # v2 accepts any set, the empty one too
    executor = make()
    executor.declare("suppress", [DesiredSetting(setting, "0", neutral="0-7")])
    executor.apply()
    executor.declare("suppress", ())
    executor.apply()
    assert kernel.values[setting] == ""


def test_a_group_that_was_idle_gets_its_weight_back(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    """The kernel drops the weight of a group that becomes idle."""
    weight, idle = Setting(SHARES, POD), Setting(IDLE, POD)
    kernel.values[weight] = 2
    executor = make(ledger_at(tmp_path / "ledger.json"))
    executor.declare("identity", desired({idle: 1}))
    assert executor.apply().problems == {}
    executor.declare("hook", desired({weight: 512}))
    assert executor.apply().problems == {}, "an idle group takes no weight"
    assert kernel.values[weight] == 3
    killed = make(ledger_at(tmp_path / "ledger.json"))
    killed.declare("hook", desired({weight: 512}))
    assert killed.apply().problems == {}
    assert (kernel.values[idle], kernel.values[weight]) == (0, 512)
    killed.declare("identity", desired({idle: 1}))
    killed.apply()
    assert killed.restore_everything().problems == {}
    assert (kernel.values[idle], kernel.values[weight]) == (0, 2)
    assert killed.originals == {}


def test_a_late_cgroup_gets_its_setting_when_it_appears(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor = make()
    late = Setting(SHARES, f"{POD}/c2")
    executor.declare("hook", desired({late: 2}))
    assert executor.apply().waiting == [late]
    kernel.mkdir(f"{POD}/c2")
    assert [change.setting for change in executor.apply().written] == [late]


def test_nothing_is_restored_for_a_removed_cgroup(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor = make()
    executor.declare("hook", desired({Setting(SHARES, CONTAINER): 2}))
    executor.apply()
    kernel.rmdir(CONTAINER)
    executor.declare("hook", ())
    assert executor.apply().problems == {}
    assert executor.originals == {}


def test_a_refusal_affects_only_its_own_setting_and_is_retried(
    make: Callable[..., Executor], kernel: ModelKernel
) -> None:
    clock = SetTime()
    executor = make(clock=clock)
    bad = Setting(SHARES, POD)
    kernel.broken[bad] = TargetBusy(bad.label, "2", errno.EBUSY, "in use")
    executor.declare("hook", desired({bad: 2, Setting(SHARES, CONTAINER): 2}))
    result = executor.apply()
    assert [change.setting for change in result.written] == [Setting(SHARES, CONTAINER)]
    assert "in use" in result.problems[bad] == executor.problems[bad]
    del kernel.broken[bad]
    assert executor.apply().problems == result.problems  # not retried in every pass
    clock.now += 6
    assert executor.apply().problems == {} == executor.problems
    assert kernel.values[bad] == 2


@pytest.mark.parametrize(
    ("kind", "code"),
    [(TargetBusy, errno.EBUSY), (WriteRefused, errno.EINVAL), (WriteDenied, errno.EROFS), (WriteDenied, errno.EACCES),
     (WriteUnsupported, errno.EOPNOTSUPP), (TargetGone, errno.ENOENT), (WriteError, errno.EIO)],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)  # fmt: skip
def test_every_write_error_is_shown_counted_and_retried_later(
    make: Callable[..., Executor], kernel: ModelKernel, kind: type[WriteError], code: int
) -> None:
    """ENOENT for a file whose group exists is a refusal as well."""
    clock = SetTime()
    executor = make(clock=clock)
    bad, good = Setting(SHARES, POD), Setting(SHARES, CONTAINER)
    kernel.broken[bad] = kind(bad.label, "2", code, "no")
    executor.declare("hook", desired({bad: 2, good: 2}))
    for _ in range(3):
        result = executor.apply()
        assert list(result.problems) == [bad] and kernel.values[good] == 2
    row = ("hook", SHARES, "failed")
    assert executor._registries._counts["resource_update_problems_total"] == {row: 1.0}
    clock.now += 6
    executor.apply()
    assert executor._registries._counts["resource_update_problems_total"] == {row: 2.0}
    del kernel.broken[bad]
    clock.now += 3600  # a clock that jumps ahead (suspended machine) only causes an earlier check
    assert executor.apply().problems == {} and kernel.values[bad] == 2
    executor.restore_everything()
    assert kernel.values[bad] == kernel.values[good] == 1024


def test_a_failed_restore_is_shown_until_it_succeeds(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor = make()
    setting = Setting(SHARES, POD)
    executor.declare("hook", desired({setting: 2}))
    executor.apply()
    kernel.broken[setting] = WriteDenied(setting.label, "1024", errno.EROFS, "read only")
    executor.declare("hook", ())
    assert "read only" in executor.apply().problems[setting]
    assert executor.originals == {setting: 1024}
    del kernel.broken[setting]
    executor.apply()
    assert kernel.values[setting] == 1024 and executor.originals == {}


def test_the_owner_of_higher_rank_wins_and_the_other_is_reported(
    make: Callable[..., Executor], kernel: ModelKernel
) -> None:
    executor = make(rules=(OwnerRule((QUOTA,), ("suppress", "burst"), "what protects others goes first"),))
    setting = Setting(QUOTA, POD)
    executor.declare("burst", desired({setting: 300_000}))
    executor.declare("suppress", desired({setting: 100_000}))
    executor.apply()
    assert kernel.values[setting] == 100_000
    assert (executor.desired[setting].owner, executor.desired[setting].overruled) == ("suppress", ("burst",))
    executor.declare("suppress", ())
    executor.apply()
    assert kernel.values[setting] == 300_000


def test_after_a_kill_the_next_executor_restores_from_the_ledger(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    before = dict(kernel.values)
    first = make(ledger_at(tmp_path / "ledger.json"))
    first.declare("suppress", desired({Setting(CPUS, POD): "0", Setting(CPUS, CONTAINER): "0"}))
    first.declare("hook", desired({Setting(SHARES, POD): 2}))
    first.apply()
    second = make(ledger_at(tmp_path / "ledger.json"), expected=("suppress", "hook"))
    second.declare("hook", desired({Setting(SHARES, POD): 2}))
    second.apply()
    assert kernel.values[Setting(CPUS, POD)] == "0", "suppress has not spoken yet"
    second.declare("suppress", ())
    second.apply()
    assert kernel.values == {**before, Setting(SHARES, POD): 2}
    third = make(ledger_at(tmp_path / "ledger.json"))
    third.restore_everything()
    assert kernel.values == before


def test_settings_that_leftovers_blocked_are_set_in_the_same_pass(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    """Not only at the next retry: the pass after the last owner's declaration writes all settings."""
    first = make(ledger_at(tmp_path / "ledger.json"))
    first.declare("suppress", desired({Setting(QUOTA, POD): 50_000}))
    first.apply()
    second = make(ledger_at(tmp_path / "ledger.json"), expected=("suppress", "hook"))
    second.declare("hook", desired({Setting(QUOTA, CONTAINER): 80_000}))
    assert list(second.apply().problems) == [Setting(QUOTA, CONTAINER)]
    second.declare("suppress", ())
    assert second.apply().problems == {} == second.problems
    assert (kernel.values[Setting(QUOTA, POD)], kernel.values[Setting(QUOTA, CONTAINER)]) == (-1, 80_000)


def test_the_ledger_of_another_boot_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    Ledger(path, "old", {Setting(SHARES, POD): 1024}).save()
    assert Ledger.load(path, "new")[0].originals == {}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("touch"), st.sets(st.integers(0, 30), min_size=1, max_size=3), st.integers(-1, 5)),
        st.tuples(st.just("let go"), st.sets(st.integers(0, 30), min_size=1, max_size=3), st.just(0)),
        st.tuples(st.just("start again"), st.just(frozenset[int]()), st.just(0)),
    ),
    max_size=25,
)


@given(OPERATIONS, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_ledger_is_loaded_as_it_was_saved(operations: list[Any], lines: int) -> None:
    """Complete or appended to; an unfinished save is ignored."""
    with tempfile.TemporaryDirectory() as name, patch("koordlet.resourceexecutor.ledger.MAX_LINES", lines):
        path = Path(name) / "ledger.json"
        ledger = Ledger(path, "boot")
        for kind, numbers, value in operations:
            before, size = dict(ledger.originals), path.stat().st_size if path.exists() else 0
            for number in numbers:
                setting = Setting(SHARES, f"pod{number}")
                if kind == "touch":
                    ledger.originals[setting] = value
                else:
                    ledger.originals.pop(setting, None)
            ledger.save()
            assert not path.exists() or Ledger.load(path, "boot") == (ledger, "")
            content = path.read_bytes() if path.exists() else b""
            if 0 < size < len(content) and b"\n" in content[size:]:  # cut off in the middle of an append
                path.write_bytes(content[:-2])
                assert Ledger.load(path, "boot")[0].originals == before
                path.write_bytes(content)
            if kind == "start again":
                ledger = Ledger.load(path, "boot")[0]


def test_a_removed_ledger_file_is_complete_again_after_a_pass(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    ledger = ledger_at(tmp_path / "ledger.json")
    ledger.originals[Setting(SHARES, "a")] = 1
    ledger.save()
    (tmp_path / "ledger.json").unlink()
    ledger.originals[Setting(SHARES, "b")] = 2
    with pytest.raises(LedgerError):
        ledger.save()
    ledger.save()
    assert Ledger.load(tmp_path / "ledger.json", "boot")[0].originals == ledger.originals


@pytest.mark.parametrize("content", [b"", bytes(512)], ids=["empty", "zeros"])
def test_a_file_that_lost_its_content_in_a_power_failure_is_an_empty_ledger(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_bytes(content)
    assert Ledger.load(tmp_path / "ledger.json", "boot") == (Ledger(tmp_path / "ledger.json", "boot"), "")


def test_an_unreadable_ledger_is_renamed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"format": 1, "rows": [')
    ledger, problem = Ledger.load(path, "boot")
    assert ledger.originals == {} and "ledger.json" in problem
    assert (tmp_path / "ledger.unreadable").exists()


def test_settings_that_cannot_be_recorded_are_not_written(
    make: Callable[..., Executor], kernel: ModelKernel, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "ledger.json", "boot")  # its directory cannot be created
    with pytest.raises(LedgerError):
        Ledger(ledger.path, "boot", {Setting(SHARES, POD): 1}).save()
    executor = make(ledger)
    executor.declare("hook", desired({Setting(SHARES, POD): 2}))
    result = executor.apply()
    assert "ledger.json" in result.problems[Setting(SHARES, POD)]
    assert kernel.values[Setting(SHARES, POD)] == 1024
    ledger.path = tmp_path / "ledger.json"
    executor.apply()
    assert kernel.values[Setting(SHARES, POD)] == 2


def test_an_invalid_value_is_refused_at_once_and_the_others_stay(
    make: Callable[..., Executor], kernel: ModelKernel
) -> None:
    executor = make()
    kernel.check = lambda setting, value: _only_shares(setting, value)  # type: ignore[method-assign]
    executor.declare("hook", desired({Setting(CPUS, POD): "x", Setting(SHARES, POD): 2}))
    executor.apply()
    assert list(executor.desired) == [Setting(SHARES, POD)]


def test_only_changed_declarations_are_checked(make: Callable[..., Executor], kernel: ModelKernel) -> None:
    executor, check = make(), kernel.check
    checked: list[Setting] = []
    kernel.check = lambda setting, value: checked.append(setting) or check(setting, value)  # type: ignore[func-returns-value, method-assign]
    cpus, shares, quota = Setting(CPUS, POD), Setting(SHARES, POD), Setting(QUOTA, POD)
    executor.declare("hook", desired({cpus: "0,1", shares: 2}))
    checked.clear()
    executor.declare("hook", desired({cpus: "0,1", shares: 3, quota: 1000}))
    assert checked == [shares, quota]
    assert [executor.desired[setting].desired.value for setting in (cpus, shares, quota)] == ["0-1", 3, 1000]


def _only_shares(setting: Setting, value: Value) -> Value:
    from koordlet.system.errors import InvalidValue

    if setting.resource != SHARES:
        raise InvalidValue(setting.resource, value, "no")
    return value


TREE = ("q", "q/a", "q/b", "q/a/x", "q/a/y", "q/b/z")
cpu_sets = st.sets(st.integers(0, 7), min_size=1).map(lambda cpus: str(CPUSet(cpus)))
quotas = st.one_of(st.just(-1), st.integers(1_000, 800_000))


@st.composite
def nested(draw: st.DrawFn) -> dict[Setting, Value]:
    """A state that the kernel accepts."""
    state: dict[Setting, Value] = {}
    cpus: dict[str, CPUSet] = {}
    quota: dict[str, float] = {}
    for path in TREE:
        parent = path.rpartition("/")[0]
        outer = cpus.get(parent, CPUSet(range(8)))
        inner = draw(st.sets(st.sampled_from(sorted(outer)), min_size=1))
        cpus[path] = CPUSet(inner)
        state[Setting(CPUS, path)] = str(cpus[path])
        bound = quota.get(parent, float("inf"))
        value = draw(quotas)
        value = -1 if value == -1 else int(min(value, bound))
        quota[path] = bound if value == -1 else float(value)
        state[Setting(QUOTA, path)] = value
    return state


@given(st.lists(nested(), min_size=1, max_size=4))
def test_the_kernel_accepts_every_step_and_the_end_is_the_desired_state(states: list[dict[Setting, Value]]) -> None:
    kernel, executor = _fresh()
    before = dict(kernel.values)
    for state in states:
        executor.declare("all", desired(state))
        assert executor.apply().problems == {}
        assert {setting: kernel.values[setting] for setting in state} == state
    assert executor.restore_everything().problems == {}
    assert kernel.values == before


@given(nested(), nested(), st.sets(st.sampled_from(TREE)))
def test_any_part_can_be_restored(first: dict[Setting, Any], second: dict[Setting, Any], kept: set[str]) -> None:
    """Independent of earlier declarations, settings that are no longer declared have their original value if their
    parents allow it."""
    kernel, executor = _fresh()
    before = dict(kernel.values)
    executor.declare("one", desired(first))
    executor.apply()
    executor.declare("one", desired({s: v for s, v in second.items() if s.cgroup_dir in kept and s.resource == SHARES}))
    executor.declare("one", desired({}))
    executor.apply()
    assert kernel.values == before


def _fresh() -> tuple[ModelKernel, Executor]:
    kernel = ModelKernel()
    kernel.mkdir(*TREE)
    return kernel, Executor(kernel, Ledger(None, "boot"), Recorder(), Registries())  # type: ignore[arg-type]
