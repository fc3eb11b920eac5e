"""Cookies against an emulation of the kernel's rules, and against the kernel itself."""

import ctypes
import errno
import threading

import pytest

from koordlet.system import coresched
from koordlet.system.coresched import CoreSchedError, Scope


class Kernel:
    """Cookies of tasks and of the calling threads, as prctl(PR_SCHED_CORE) keeps them."""

    def __init__(self):
        self.tasks = {10: 7, 11: 0, 12: 9}
        self.threads = {}
        self.calls = []

    def prctl(self, option, operation, pid, scope, address):
        operation, pid, scope, address = (value.value for value in (operation, pid, scope, address))
        assert option.value == 62
        me = threading.get_ident()
        self.calls.append((me, operation, pid, scope))
        if pid and pid not in self.tasks:
            ctypes.set_errno(errno.ESRCH)
            return -1
        if operation in (0, 3) and scope != 0:
            ctypes.set_errno(errno.EINVAL)
            return -1
        mine = self.threads.setdefault(me, 0)
        if operation == 0:
            ctypes.c_ulong.from_address(address).value = self.tasks[pid] if pid else mine
        elif operation == 1:
            self.tasks[pid] = max(self.tasks.values()) + 1
        elif operation == 2:
            self.tasks[pid] = mine
        else:
            self.threads[me] = self.tasks[pid]
        return 0


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(coresched, "_libc", kernel)
    return kernel


def test_assign_copies_the_cookie_and_reports_who_refused(kernel):
    assert coresched.assign(10, Scope.THREAD_GROUP, [11, 99, 12]) == [99]
    assert kernel.tasks == {10: 7, 11: 7, 12: 7}


def test_clear_gives_the_default_cookie(kernel):
    assert coresched.clear(Scope.THREAD, [10, 98]) == [98]
    assert kernel.tasks == {10: 0, 11: 0, 12: 9}


def test_a_failing_source_fails_everything(kernel):
    with pytest.raises(CoreSchedError, match="99") as caught:
        coresched.assign(99, Scope.THREAD, [10])
    assert caught.value.errno == errno.ESRCH
    assert kernel.tasks[10] == 7


def test_the_caller_never_changes_its_own_cookie(kernel):
    threads = threading.active_count()
    coresched.assign(10, Scope.THREAD, [11])
    coresched.clear(Scope.THREAD, [11])
    assert threading.get_ident() not in {call[0] for call in kernel.calls}
    assert coresched.get_cookie() == 0
    assert threading.active_count() == threads


def test_create_and_get(kernel):
    coresched.create(11, Scope.PROCESS_GROUP)
    assert coresched.get_cookie(11) == 10
    assert coresched.probe()


@pytest.mark.kernel
def test_on_this_kernel(kernel_host, spawn):
    if not kernel_host.facts.core_sched:
        with pytest.raises(CoreSchedError) as caught:
            coresched.get_cookie()
        assert caught.value.errno in (errno.EINVAL, errno.ENODEV)
        assert kernel_host.facts.reasons()["core_sched"]
        return
    first, second = (spawn(["sleep", "600"]) for _ in range(2))
    coresched.create(first.pid, Scope.THREAD_GROUP)
    assert coresched.assign(first.pid, Scope.THREAD_GROUP, [second.pid]) == []
    assert coresched.get_cookie(second.pid) == coresched.get_cookie(first.pid) != 0
    assert coresched.clear(Scope.THREAD_GROUP, [first.pid, second.pid]) == []
    assert coresched.get_cookie(first.pid) == coresched.get_cookie() == 0
