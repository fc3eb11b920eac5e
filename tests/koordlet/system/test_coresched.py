"""Cookies with an emulation of the kernel's rules, and with the kernel itself."""

import errno
import threading
from collections.abc import Callable
from subprocess import Popen

import pytest

from koordlet.system.cpu import coresched
from koordlet.system.cpu.coresched import CookieScope, CoreSchedError
from koordlet.system.host import Host
from tests.koordlet.corekernel import CoreKernel


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> CoreKernel:
    kernel = CoreKernel({10: 7, 11: 0, 12: 9})
    monkeypatch.setattr(coresched, "_libc", kernel)
    return kernel


def test_assign_copies_the_cookie_and_returns_the_pids_that_failed(kernel: CoreKernel) -> None:
    assert coresched.assign(10, CookieScope.THREAD_GROUP, [11, 99, 12]) == [99]
    assert kernel.tasks == {10: 7, 11: 7, 12: 7}


def test_clear_sets_the_default_cookie(kernel: CoreKernel) -> None:
    assert coresched.clear(CookieScope.THREAD, [10, 98]) == [98]
    assert kernel.tasks == {10: 0, 11: 0, 12: 9}


def test_a_caller_with_a_cookie_takes_the_default_one_from_process_1(kernel: CoreKernel) -> None:
    """koordlet's own pod may be of a class that has cookies; its threads inherit them."""
    kernel.tasks[1] = 0
    kernel.threads[threading.current_thread()] = 7
    assert coresched.clear(CookieScope.THREAD, [10]) == []
    assert kernel.tasks[10] == 0
    assert coresched.get_cookie() == 7
    kernel.tasks[1] = 5
    with pytest.raises(CoreSchedError, match="process 1"):
        coresched.clear(CookieScope.THREAD, [12])
    assert kernel.tasks[12] == 9


def test_a_failing_source_is_an_error(kernel: CoreKernel) -> None:
    with pytest.raises(CoreSchedError, match="99") as caught:
        coresched.assign(99, CookieScope.THREAD, [10])
    assert caught.value.errno == errno.ESRCH
    assert kernel.tasks[10] == 7


def test_the_cookie_of_the_caller_does_not_change(kernel: CoreKernel) -> None:
    threads = threading.active_count()
    coresched.assign(10, CookieScope.THREAD, [11])
    coresched.clear(CookieScope.THREAD, [11])
    assert threading.get_ident() not in {call[0] for call in kernel.calls}
    assert coresched.get_cookie() == 0
    assert threading.active_count() == threads


def test_a_new_cookie_can_be_read(kernel: CoreKernel) -> None:
    coresched.create(11, CookieScope.PROCESS_GROUP)
    assert coresched.get_cookie(11) == 101
    assert coresched.probe()


@pytest.mark.kernel
def test_cookies_of_this_kernel(kernel_host: Host, spawn: Callable[..., Popen[str]]) -> None:
    if not kernel_host.facts.core_sched:
        with pytest.raises(CoreSchedError) as caught:
            coresched.get_cookie()
        assert caught.value.errno in (errno.EINVAL, errno.ENODEV)
        assert kernel_host.facts.reasons()["core_sched"]
        return
    first, second = (spawn(["sleep", "600"]) for _ in range(2))
    coresched.create(first.pid, CookieScope.THREAD_GROUP)
    assert coresched.assign(first.pid, CookieScope.THREAD_GROUP, [second.pid]) == []
    assert coresched.get_cookie(second.pid) == coresched.get_cookie(first.pid) != 0
    assert coresched.clear(CookieScope.THREAD_GROUP, [first.pid, second.pid]) == []
    assert coresched.get_cookie(first.pid) == coresched.get_cookie() == 0
