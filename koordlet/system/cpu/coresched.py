"""Core scheduling cookies through `prctl(PR_SCHED_CORE)` (spec 03 §1.8; prctl(2), core-scheduling.rst).

SHARE_TO and SHARE_FROM copy from and to the calling thread's cookie, so both composite operations run on a new thread
whose cookie ends with it: the caller's own cookie does not change. The thread lives for one call.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from koordlet.system.kernel import Feature

T = TypeVar("T")
PR_SCHED_CORE = 62
INIT = 1
"""A process that has the default cookie: koordlet sees the node's processes."""
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_libc = ctypes.CDLL(None, use_errno=True)


class CookieScope(enum.IntEnum):
    """Which tasks of a process an operation covers."""

    THREAD = 0
    THREAD_GROUP = 1
    PROCESS_GROUP = 2


class CoreSchedError(OSError):
    """prctl failed. ESRCH: the task has ended; ENODEV: no SMT; EINVAL: kernel without core scheduling."""


def get_cookie(pid: int = 0) -> int:
    """Cookie of a thread; pid 0 is the calling thread, result 0 means no cookie."""
    cookie = ctypes.c_ulong(0)
    _prctl(_GET, pid, CookieScope.THREAD, ctypes.addressof(cookie))
    return cookie.value


def create(pid: int, scope: CookieScope) -> None:
    """Give `pid` (in `scope`) a new, unique cookie."""
    _prctl(_CREATE, pid, scope)


def clear(scope: CookieScope, pids: Iterable[int]) -> list[int]:
    """Give every pid the default cookie; returns the pids for which it failed, usually because they ended. Raises
    CoreSchedError when this process and process 1 have a cookie."""
    target_pids = list(pids)

    def run() -> list[int]:
        if get_cookie():  # a thread inherits the cookie of its creator: koordlet's pod may be of a class with cookies
            _prctl(_SHARE_FROM, INIT, CookieScope.THREAD)
            if get_cookie():
                raise CoreSchedError(errno.EBUSY, f"process {INIT} has a core-scheduling cookie")
        return _share_to(scope, target_pids)

    return _on_new_thread(run)


def assign(source: int, scope: CookieScope, pids: Iterable[int]) -> list[int]:
    """Give every pid the cookie of `source`; returns the pids for which it failed. Raises CoreSchedError when `source`
    fails."""
    target_pids = list(pids)

    def run() -> list[int]:
        _prctl(_SHARE_FROM, source, CookieScope.THREAD)
        return _share_to(scope, target_pids)

    return _on_new_thread(run)


def probe() -> Feature:
    """Whether the kernel has core scheduling: then it returns the cookie of this thread."""
    try:
        get_cookie(0)
    except CoreSchedError as error:
        reasons = {
            errno.EINVAL: "kernel without CONFIG_SCHED_CORE",
            errno.ENODEV: "the CPUs have no SMT, or it is off",
        }
        return Feature(False, f"prctl(PR_SCHED_CORE): {reasons.get(error.errno or 0, error.strerror)}")
    return Feature(True)


def _share_to(scope: CookieScope, pids: list[int]) -> list[int]:
    failed = []
    for pid in pids:
        try:
            _prctl(_SHARE_TO, pid, scope)
        except CoreSchedError:
            failed.append(pid)
    return failed


def _prctl(operation: int, pid: int, scope: CookieScope, address: int = 0) -> None:
    arguments = (ctypes.c_ulong(value) for value in (operation, pid, int(scope), address))
    if _libc.prctl(ctypes.c_int(PR_SCHED_CORE), *arguments) != 0:
        code = ctypes.get_errno()
        raise CoreSchedError(code, f"PR_SCHED_CORE operation {operation} on {pid}: {os.strerror(code)}")


def _on_new_thread(call: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[CoreSchedError] = []

    def body() -> None:
        try:
            results.append(call())
        except CoreSchedError as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="core-sched")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
