"""Cookies against an emulation of the kernel's rules, and against the kernel itself."""

import errno
import threading

import pytest

from koordlet.system.cpu import coresched
from koordlet.system.cpu.coresched import CoreSchedError, Scope
from tests.koordlet.corekernel import CoreKernel


@pytest.fixture
def kernel(monkeypatch):
    kernel = CoreKernel({10: 7, 11: 0, 12: 9})
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
    assert coresched.get_cookie(11) == 101
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
