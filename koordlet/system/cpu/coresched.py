"""Core scheduling cookies through ``prctl(PR_SCHED_CORE)`` (spec 03 §1.8; prctl(2), core-scheduling.rst).

SHARE_TO and SHARE_FROM copy the *calling thread's* cookie, so both composite operations run on a fresh thread whose
cookie ends with it: the caller's own stays 0. That is the reason for the thread; it lives for one call.
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
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_libc = ctypes.CDLL(None, use_errno=True)


class Scope(enum.IntEnum):
    THREAD = 0
    THREAD_GROUP = 1
    PROCESS_GROUP = 2


class CoreSchedError(OSError):
    """prctl refused: ESRCH the task is gone, ENODEV no SMT, EINVAL kernel without core scheduling."""


def get_cookie(pid: int = 0) -> int:
    """Cookie of a thread; 0 is the calling one as pid and "no cookie" as answer."""
    cookie = ctypes.c_ulong(0)
    _prctl(_GET, pid, Scope.THREAD, ctypes.addressof(cookie))
    return cookie.value


def create(pid: int, scope: Scope) -> None:
    """Give *pid* (in *scope*) a new, unique cookie."""
    _prctl(_CREATE, pid, scope)


def clear(scope: Scope, pids: Iterable[int]) -> list[int]:
    """Give every pid the default cookie; returns those that refused, usually because they ended."""
    wanted = list(pids)
    return _on_fresh_thread(lambda: _share_to(scope, wanted))


def assign(source: int, scope: Scope, pids: Iterable[int]) -> list[int]:
    """Give every pid *source*'s cookie; returns those that refused, raises CoreSchedError when *source* does."""
    wanted = list(pids)

    def run() -> list[int]:
        _prctl(_SHARE_FROM, source, Scope.THREAD)
        return _share_to(scope, wanted)

    return _on_fresh_thread(run)


def probe() -> Feature:
    """A stock kernel with core scheduling shows our own cookie."""
    try:
        get_cookie(0)
    except CoreSchedError as error:
        why = {
            errno.EINVAL: "kernel without CONFIG_SCHED_CORE",
            errno.ENODEV: "the CPUs have no SMT, or it is off",
        }
        return Feature(False, f"prctl(PR_SCHED_CORE): {why.get(error.errno or 0, error.strerror)}")
    return Feature(True)


def _share_to(scope: Scope, pids: list[int]) -> list[int]:
    failed = []
    for pid in pids:
        try:
            _prctl(_SHARE_TO, pid, scope)
        except CoreSchedError:
            failed.append(pid)
    return failed


def _prctl(operation: int, pid: int, scope: Scope, address: int = 0) -> None:
    arguments = (ctypes.c_ulong(value) for value in (operation, pid, int(scope), address))
    if _libc.prctl(ctypes.c_int(PR_SCHED_CORE), *arguments) != 0:
        code = ctypes.get_errno()
        raise CoreSchedError(code, f"PR_SCHED_CORE operation {operation} on {pid}: {os.strerror(code)}")


def _on_fresh_thread(call: Callable[[], T]) -> T:
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
