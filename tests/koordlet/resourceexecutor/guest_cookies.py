"""Core scheduling cookies on the real kernel: real processes in real cgroups, set by the executor, and what the kernel
then keeps apart. Only in the guest of `make test-sched`: it needs CONFIG_SCHED_CORE and CPUs that are siblings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.cookies import COOKIE, Cookies, group_value
from koordlet.resourceexecutor.executor import Executor, PassResult
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import DesiredSetting, Setting
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu import coresched
from koordlet.system.cpu.coresched import CookieScope
from koordlet.system.host import Host
from tests.conftest import ChildCgroup
from tests.koordlet.resourceexecutor.conftest import Recorder

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

SECONDS = 2.0
BURN = "while True: pass"
SLEEP = "time.sleep(600)"


class Koordlet:
    """The part of koordlet that sets cookies; `now` is its clock."""

    def __init__(self, host: Host, fs: CgroupFS) -> None:
        self.now = 0.0
        self.after_listing: Callable[[], object] = lambda: None
        """Called when the processes of a group were listed, before anything is done with them."""
        self._procs = fs.procs
        self.cookies = Cookies(self._processes, host.facts.features["core_sched"], lambda: self.now)
        files = KernelFiles(fs, host.roots, [self.cookies])
        self.executor = Executor(
            files, Ledger(None, "boot"), Recorder(), Registries(), expected=["test"], clock=lambda: self.now
        )

    def _processes(self, directory: str) -> tuple[int, ...] | None:
        pids = self._procs(directory)
        self.after_listing()
        return pids

    def desire(self, groups: dict[ChildCgroup, str]) -> PassResult:
        """A round, ten seconds later."""
        self.now += 10.0
        desired = [DesiredSetting(Setting(COOKIE, cgroup.dir), group_value(group)) for cgroup, group in groups.items()]
        self.executor.declare("test", desired)
        return self.executor.apply()


@pytest.fixture
def koordlet(kernel_host: Host, kernel_fs: CgroupFS) -> Iterator[Koordlet]:
    assert Path("/sys/devices/system/cpu/smt/active").read_text() == "1\n", "the CPUs have no siblings"
    assert kernel_host.facts.core_sched, kernel_host.facts.reasons()
    koordlet = Koordlet(kernel_host, kernel_fs)
    yield koordlet
    koordlet.after_listing = lambda: None
    koordlet.executor.restore_everything()
    assert coresched.get_cookie() == 0


@pytest.fixture
def python(spawn: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """``python(group, code, cpu)``: a process that is about to run the code."""

    def start(group: ChildCgroup | None, code: str, cpu: int | None = None) -> subprocess.Popen[str]:
        pin = "" if cpu is None else f"os.sched_setaffinity(0, {{{cpu}}})\n"
        begin = f"import os, sys, threading, time\n{pin}print(flush=True)\n"
        process = spawn([sys.executable, "-S", "-E", "-c", begin + code], group)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        return process

    return start


def siblings() -> tuple[int, int]:
    """Two hardware threads of one core."""
    threads = Path("/sys/devices/system/cpu/cpu0/topology/core_cpus_list").read_text()
    first, second = threads.strip().replace("-", ",").split(",")
    return int(first), int(second)


def ran_ns(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0])


def cookie(process: subprocess.Popen[str]) -> int:
    return coresched.get_cookie(process.pid)


def test_a_group_shares_a_cookie_and_groups_differ_until_they_are_restored(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    first, second, other = (cgroup_child(name) for name in ("first", "second", "other"))
    processes = {group: [python(group, SLEEP), python(group, SLEEP)] for group in (first, second, other)}
    result = koordlet.desire({first: "g", second: "g", other: "h"})
    assert result.problems == {}
    cookies = {group: {cookie(process) for process in members} for group, members in processes.items()}
    assert len(cookies[first]) == len(cookies[other]) == 1
    assert cookies[first] == cookies[second] != cookies[other]
    assert 0 not in cookies[first] | cookies[other]
    assert {(directory, group) for directory, group, _ in koordlet.cookies.groups()} == {
        (first.dir, "g"), (second.dir, "g"), (other.dir, "h"),
    }  # fmt: skip
    assert koordlet.desire({first: "g"}).problems == {}
    assert {cookie(process) for process in processes[first]} == cookies[first]
    assert {cookie(process) for group in (second, other) for process in processes[group]} == {0}
    koordlet.executor.restore_everything()
    assert {cookie(process) for process in processes[first]} == {0}


def test_all_threads_have_the_cookie_also_those_of_a_process_whose_first_thread_ended(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    group = cgroup_child("threads")
    threads = "for _ in range(3): threading.Thread(target=time.sleep, args=(600,)).start()\nprint(flush=True)\n"
    process = python(group, f"{threads}import ctypes\nctypes.CDLL(None).pthread_exit(None)")
    assert process.stdout.readline() == "\n"
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert koordlet.desire({group: "g"}).problems == {}
    tids = [int(tid) for tid in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208
    assert len(tids) == 4
    assert len({coresched.get_cookie(tid) for tid in tids} - {0}) == 1


def test_children_inherit_and_a_process_that_joins_later_gets_it(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    group = cgroup_child("forks")
    forker = python(group, "sys.stdin.readline()\npid = os.fork()\nif pid: print(pid, flush=True)\ntime.sleep(600)")
    before = python(None, "pid = os.fork()\nif pid: print(pid, flush=True)\ntime.sleep(600)")
    koordlet.desire({group: "g"})
    shared = cookie(forker)
    forker.stdin.write("fork\n")
    forker.stdin.flush()
    assert coresched.get_cookie(int(forker.stdout.readline())) == shared != 0
    child = int(before.stdout.readline())  # forked outside, and only now moved in
    group.add(child)
    assert coresched.get_cookie(child) == 0
    koordlet.desire({group: "g"})
    assert coresched.get_cookie(child) == shared
    assert cookie(before) == 0, "not in the group"


def test_a_process_that_ends_meanwhile_is_no_problem(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    group, gone = cgroup_child("ends"), cgroup_child("gone")
    first, second, last = python(group, SLEEP), python(group, SLEEP), python(gone, SLEEP)

    def end() -> None:
        for process in (first, last):
            process.kill()
            process.wait()

    koordlet.after_listing = end
    result = koordlet.desire({group: "g", gone: "g"})
    assert result.problems == {}
    assert cookie(second) != 0
    assert [setting.cgroup_dir for setting in result.waiting] == [gone.dir]


def test_a_new_koordlet_finds_the_groups_in_the_processes(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any, kernel_host: Host, kernel_fs: CgroupFS
) -> None:
    first, second = cgroup_child("first"), cgroup_child("second")
    members = {first: python(first, SLEEP), second: python(second, SLEEP)}
    koordlet.desire({first: "g", second: "h"})
    before = {group: cookie(process) for group, process in members.items()}
    late = cgroup_child("late")
    members[late] = python(late, SLEEP)
    again = Koordlet(kernel_host, kernel_fs)
    assert again.desire({first: "g", second: "h", late: "h"}).problems == {}
    assert {group: cookie(members[group]) for group in before} == before
    assert cookie(members[late]) == before[second]


def test_a_koordlet_that_has_a_cookie_itself_restores_to_none(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    """koordlet's own pod may be of a class that has cookies, and a new thread inherits its creator's."""
    group = cgroup_child("mine")
    process = python(group, SLEEP)
    results: list[Any] = []

    def as_a_member() -> None:
        coresched.create(threading.get_native_id(), CookieScope.THREAD)
        results.append((coresched.get_cookie(), koordlet.desire({group: "g"}).problems, cookie(process)))
        results.append((coresched.get_cookie(), koordlet.desire({}).problems, cookie(process)))

    thread = threading.Thread(target=as_a_member)
    thread.start()
    thread.join()
    (own, problems, assigned), (kept, problems_after, restored) = results
    assert own == kept != 0, "koordlet's own cookie stays"
    assert assigned not in (0, own)
    assert restored == 0
    assert problems == problems_after == {}


def test_threads_of_different_groups_never_run_on_one_core_at_once(
    koordlet: Koordlet, cgroup_child: Callable[..., ChildCgroup], python: Any
) -> None:
    """Two burners on the siblings of a core. Together they run twice the time, unless the kernel keeps them apart."""
    first, second = cgroup_child("first"), cgroup_child("second")
    pair = [python(group, BURN, cpu) for group, cpu in zip((first, second), siblings(), strict=True)]

    def used() -> tuple[float, float]:
        """CPU seconds per second of both, and of the one that ran less."""
        time.sleep(0.5)  # what was decided before the change is over
        began, before = time.monotonic_ns(), [ran_ns(process) for process in pair]
        time.sleep(SECONDS)
        ran = [ran_ns(process) - old for process, old in zip(pair, before, strict=True)]
        elapsed = time.monotonic_ns() - began
        return sum(ran) / elapsed, min(ran) / elapsed

    together, _ = used()
    assert together > 1.5, "without cookies both run"
    koordlet.desire({first: "g", second: "h"})
    apart, less = used()
    assert apart < 1.1, "the core has one group at a time"
    assert less > 0.1, "both have their turn"
    koordlet.desire({first: "g", second: "g"})
    together, _ = used()
    assert together > 1.5, "one group may use the whole core"
    koordlet.desire({})
    together, _ = used()
    assert together > 1.5
