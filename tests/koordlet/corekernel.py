"""A model of prctl(PR_SCHED_CORE): cookies of processes and of calling threads, and every refusal of the kernel."""

from __future__ import annotations

import ctypes
import errno
import threading

GET, CREATE, SHARE_TO, SHARE_FROM = range(4)
THREAD, THREAD_GROUP, PROCESS_GROUP = range(3)


class CoreKernel:
    """Replaces libc in `koordlet.system.cpu.coresched`.

    `tasks`: cookie by pid; a forked process inherits it, a process that is started from outside has none. `protected`
    processes refuse changes; `smt` False is a machine without SMT siblings.
    """

    def __init__(self, tasks: dict[int, int] | None = None) -> None:
        self.tasks = {} if tasks is None else tasks
        self.protected: set[int] = set()
        self.smt = True
        self.threads: dict[threading.Thread, int] = {}
        """Cookies of calling threads. A new one has its creator's, which is always the main thread."""
        self.calls: list[tuple[int, int, int, int]] = []
        """(thread, operation, pid, scope)."""
        self._last = 100
        self._main = threading.current_thread()

    def prctl(self, option, operation, pid, scope, address) -> int:  # type: ignore[no-untyped-def]
        operation, pid, scope, address = (value.value for value in (operation, pid, scope, address))
        assert option.value == 62
        me = threading.current_thread()
        self.calls.append((threading.get_ident(), operation, pid, scope))
        code = self._refusal(operation, pid, scope, address)
        if code:
            ctypes.set_errno(code)
            return -1
        mine = self.threads.setdefault(me, self.threads.get(self._main, 0))
        if operation == GET:
            ctypes.c_ulong.from_address(address).value = self.tasks[pid] if pid else mine
        elif operation == CREATE:
            self._last += 1
            self.tasks[pid] = self._last
        elif operation == SHARE_TO:
            self.tasks[pid] = mine
        else:
            self.threads[me] = self.tasks[pid]
        return 0

    def _refusal(self, operation: int, pid: int, scope: int, address: int) -> int:
        if not self.smt:
            return errno.ENODEV
        if operation not in (GET, CREATE, SHARE_TO, SHARE_FROM) or scope > PROCESS_GROUP or pid < 0:
            return errno.EINVAL
        if (address != 0) != (operation == GET) or address % 8:
            return errno.EINVAL
        if pid and pid not in self.tasks:
            return errno.ESRCH
        if operation in (GET, SHARE_FROM) and scope != THREAD:
            return errno.EINVAL
        return errno.EPERM if pid in self.protected and operation != GET else 0

    def fork(self, parent: int, pid: int) -> None:
        """A child with its parent's cookie."""
        self.tasks[pid] = self.tasks[parent]
