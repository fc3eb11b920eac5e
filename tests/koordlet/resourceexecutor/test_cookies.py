"""Core scheduling cookies through the executor, on a strict model of prctl(PR_SCHED_CORE)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.cookies import CHECK_PERIOD_S, COOKIE, OUTCOME_TTL_S, Cookies, group_value
from koordlet.resourceexecutor.executor import Executor, PassResult
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.order import SettingChange, ordered
from koordlet.resourceexecutor.settings import DesiredSetting, Setting
from koordlet.system.cpu import coresched
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.kernel import Feature
from tests.koordlet.corekernel import CoreKernel
from tests.koordlet.resourceexecutor.conftest import Recorder


@dataclass
class Machine:
    """Directories of processes on a kernel with core scheduling, and a koordlet that can be restarted."""

    kernel: CoreKernel
    directories: dict[str, list[int]] = field(default_factory=dict)
    now: float = 0.0
    ledger: Ledger = field(default_factory=lambda: Ledger(None, "boot"))
    available: Feature = field(default_factory=lambda: Feature(True))

    def __post_init__(self) -> None:
        self.koordlet()

    def koordlet(self) -> None:
        """A new koordlet with the files that the previous one left."""
        self.cookies = Cookies(self._processes, self.available, lambda: self.now)
        files = KernelFiles(None, None, [self.cookies])  # type: ignore[arg-type]
        self.ledger = Ledger(None, "boot", dict(self.ledger.originals))
        self.executor = Executor(
            files,
            self.ledger,
            Recorder(),
            Registries(),
            expected=["coresched"],
            clock=lambda: self.now,
        )

    def run(self, directory: str, *pids: int) -> None:
        """New processes of other programs, without a cookie."""
        self.directories.setdefault(directory, []).extend(pids)
        self.kernel.tasks.update(dict.fromkeys(pids, 0))

    def end(self, *pids: int) -> None:
        for pid in pids:
            self.kernel.tasks.pop(pid, None)
        for members in self.directories.values():
            members[:] = [pid for pid in members if pid not in pids]

    def desire(self, **groups: str) -> PassResult:
        """A round with desired groups by directory."""
        updates = [DesiredSetting(Setting(COOKIE, name), group_value(group), "", "") for name, group in groups.items()]
        self.executor.declare("coresched", updates)
        return self.executor.apply()

    def later(self, seconds: float = CHECK_PERIOD_S) -> PassResult:
        self.now += seconds
        return self.executor.apply()

    def of(self, directory: str) -> set[int]:
        """Cookies in a directory."""
        return {self.kernel.tasks[pid] for pid in self.directories[directory]}

    def _processes(self, directory: str) -> tuple[int, ...] | None:
        pids = self.directories.get(directory)
        return None if pids is None else tuple(pids)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    kernel = CoreKernel()
    monkeypatch.setattr(coresched, "_libc", kernel)
    machine = Machine(kernel)
    machine.run("a", 11, 12)
    machine.run("b", 21)
    machine.run("c", 31)
    return machine


def test_members_share_a_cookie_and_groups_do_not(machine: Machine) -> None:
    assert machine.desire(a="-expeller", b="-expeller", c="").problems == {}
    assert machine.of("a") == machine.of("b")
    assert len(machine.of("a") | machine.of("c")) == 2
    assert 0 not in machine.of("a") | machine.of("c")
    assert {(directory, group) for directory, group, _ in machine.cookies.groups()} == {
        ("a", "-expeller"), ("b", "-expeller"), ("c", ""),
    }  # fmt: skip
    assert dict(machine.cookies.outcomes()) == {("-expeller", "succeeded"): 2, ("", "succeeded"): 1}


def test_a_correct_cookie_is_not_changed(machine: Machine) -> None:
    machine.desire(a="g", b="g")
    before = [call for call in machine.kernel.calls if call[1] != 0]
    machine.later()
    assert [call for call in machine.kernel.calls if call[1] != 0] == before


def test_koordlets_own_cookie_stays_0(machine: Machine) -> None:
    machine.desire(a="g", b="g", c="h")
    changing = {call[0] for call in machine.kernel.calls if call[1] in (2, 3)}
    assert threading.get_ident() not in changing
    assert coresched.get_cookie(0) == 0


def test_later_processes_get_the_cookie_and_children_inherit_it(machine: Machine) -> None:
    machine.desire(a="g")
    machine.kernel.fork(11, 13)
    machine.directories["a"].append(13)
    machine.run("a", 14)  # kubectl exec
    assert len(machine.of("a")) == 2
    machine.later()
    assert len(machine.of("a")) == 1


def test_a_cookie_lives_as_long_as_its_members(machine: Machine) -> None:
    machine.desire(a="g", b="g")
    cookie = machine.of("b")
    machine.end(11, 12)
    machine.run("a", 15)
    machine.later()
    assert machine.of("a") == machine.of("b") == cookie
    machine.end(15, 21)
    machine.run("a", 16)
    machine.run("b", 22)
    machine.later()
    assert machine.of("a") == machine.of("b") != cookie, "no process carried it any more"


def test_a_pod_that_changes_its_group(machine: Machine) -> None:
    machine.desire(a="g", b="g")
    shared = machine.of("a")
    machine.desire(a="own", b="g")
    assert machine.of("b") == shared != machine.of("a")


def test_cookies_are_restored_when_no_longer_desired(machine: Machine) -> None:
    machine.desire(a="g", b="g", c="h")
    machine.desire(b="g")
    assert machine.of("a") == machine.of("c") == {0} != machine.of("b")
    machine.executor.restore_everything()
    assert machine.of("b") == {0}
    assert machine.ledger.originals == {}
    assert list(machine.cookies.groups()) == []


def test_a_new_koordlet_reads_the_groups_from_the_processes(machine: Machine) -> None:
    machine.desire(a="g", b="g", c="h")
    before = (machine.of("a"), machine.of("b"), machine.of("c"))
    machine.koordlet()
    machine.run("d", 41)
    assert machine.desire(a="g", b="g", c="h", d="g").problems == {}
    assert (machine.of("a"), machine.of("b"), machine.of("c")) == before
    assert machine.of("d") == machine.of("a")


def test_a_new_koordlet_without_the_settings_restores_them(machine: Machine) -> None:
    machine.desire(a="g", c="h")
    machine.koordlet()
    machine.desire()
    assert machine.of("a") == machine.of("c") == {0}


def test_labels_that_changed_while_koordlet_was_stopped_split_a_shared_cookie(machine: Machine) -> None:
    machine.desire(a="g", b="g", c="h")
    machine.koordlet()
    machine.desire(a="new", b="g", c="h")
    machine.later()
    assert len({*machine.of("a"), *machine.of("b"), *machine.of("c")}) == 3


def test_conflicting_cookies_of_a_group_become_one(machine: Machine) -> None:
    machine.kernel.tasks.update({11: 71, 21: 72})
    machine.desire(a="g", b="g")
    assert machine.of("a") == machine.of("b") == {71}


def test_an_empty_directory_waits_and_a_removed_one_is_ignored(machine: Machine) -> None:
    machine.directories["empty"] = []
    result = machine.desire(empty="g", gone="g", a="g")
    assert {setting.cgroup_dir for setting in result.waiting} == {"empty", "gone"}
    assert result.problems == {}
    machine.run("empty", 51)
    machine.later(1)
    assert machine.of("empty") == machine.of("a")


def test_a_process_that_refuses_is_a_problem_and_does_not_affect_the_others(machine: Machine) -> None:
    machine.kernel.protected = {12}
    result = machine.desire(a="g", b="g")
    assert "12" in result.problems[Setting(COOKIE, "a")]
    assert machine.kernel.tasks[11] == machine.kernel.tasks[21] != 0
    assert dict(machine.cookies.outcomes())["g", "failed"] == 1
    machine.kernel.protected = set()
    machine.later()
    assert len(machine.of("a") | machine.of("b")) == 1
    machine.now += OUTCOME_TTL_S
    assert dict(machine.cookies.outcomes()) == {}


def test_processes_of_another_pid_namespace_are_not_koordlet_itself(machine: Machine) -> None:
    machine.directories["elsewhere"] = [0]
    assert machine.desire(elsewhere="g").waiting == [Setting(COOKIE, "elsewhere")]
    assert all(pid != 0 for _, _, pid, _ in machine.kernel.calls)


def test_without_the_feature_the_kernel_is_not_called(machine: Machine) -> None:
    machine.available = Feature(False, "kernel without CONFIG_SCHED_CORE")
    machine.koordlet()
    assert machine.desire(a="g").written == []
    assert machine.kernel.calls == []
    with pytest.raises(ResourceUnsupported, match="CONFIG_SCHED_CORE"):
        machine.cookies.check(Setting(COOKIE, "a"), group_value("g"))


def test_removed_smt_siblings_are_a_problem_not_a_crash(machine: Machine) -> None:
    machine.desire(a="g")
    machine.kernel.smt = False
    assert machine.later().waiting == [Setting(COOKIE, "a")]


@pytest.mark.parametrize("value", [1, "", "g"])
def test_invalid_groups_are_refused(machine: Machine, value: int | str) -> None:
    with pytest.raises(InvalidValue):
        machine.cookies.check(Setting(COOKIE, "a"), value)


events = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "g", "h"]))),
        st.tuples(st.just("start"), st.sampled_from("abc")),
        st.tuples(st.just("fork"), st.sampled_from("abc")),
        st.tuples(st.just("end"), st.sampled_from("abc")),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(events)
def test_groups_stay_separate_members_share_cookies_and_all_are_restored(history: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kernel = CoreKernel()
        patch.setattr(coresched, "_libc", kernel)
        machine, pids, desired = Machine(kernel), iter(range(1000, 9000)), {}
        for name in "abc":
            machine.run(name, next(pids))
        for operation, argument in history:
            threads = machine.directories.get(argument, []) if isinstance(argument, str) else []
            if operation == "want":
                desired = argument
            elif operation == "start":
                machine.run(argument, next(pids))
            elif operation == "fork" and threads:
                child = next(pids)
                kernel.fork(threads[0], child)
                threads.append(child)
            elif operation == "end" and threads:
                machine.end(threads[0])
            elif operation == "restart":
                machine.koordlet()
            machine.desire(**desired)
        for _ in range(2):  # one check finds a conflict and the next one resolves it
            machine.later()
        by_group: dict[str, set[int]] = {}
        for name, group in desired.items():
            by_group.setdefault(group, set()).update(machine.of(name))
        cookies = [cookie for group_cookies in by_group.values() for cookie in group_cookies]
        assert all(len(group_cookies) <= 1 for group_cookies in by_group.values())
        assert len(cookies) == len(set(cookies))
        assert 0 not in cookies
        assert all(machine.of(name) <= {0} for name in "abc" if name not in desired)
        machine.executor.restore_everything()
        assert set(kernel.tasks.values()) <= {0}


@pytest.mark.parametrize(("core", "identity"), [(0, 1), (1, 0)])
def test_of_two_exclusive_sysctls_the_one_to_disable_is_written_first(core: int, identity: int) -> None:
    changes = [
        SettingChange(Setting("sched_group_identity_enabled"), 1 - identity, identity),
        SettingChange(Setting("sched_core"), 1 - core, core),
    ]
    assert [change.value for change in ordered(changes)] == [0, 1]
