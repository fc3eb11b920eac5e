"""How long koordlet may run before a service that wakes up takes the CPU from it.

Since EEVDF a woken task, however heavy its group, waits until the running one has used up its slice, in practice until
the next tick (4 ms at 250 Hz). A shorter slice of koordlet's own ends that; its share of the CPU stays the same. Linux
6.12 and later take a slice from ordinary tasks (sched_setattr(2), `sched_runtime`); earlier ones ignore it.
Called once at start, before there are threads, which inherit it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from koordlet.system.kernel import Feature

SHORTEST_NS = 100_000
"""The least that the kernel takes."""
_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""System call numbers of sched_setattr and sched_getattr."""
_ATTR = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime, deadline, period."""
_libc = ctypes.CDLL(None, use_errno=True)


def shorten(nanoseconds: int = SHORTEST_NS) -> Feature:
    """The calling thread's slice; policy and niceness stay. Says whether the kernel has taken it."""
    if (machine := platform.machine()) not in _NUMBERS:
        return Feature(False, f"no system call number for {machine}")
    try:
        _, policy, flags, nice, *_ = _read()
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            return Feature(False, f"scheduling policy {policy} has no slice")
        wanted = _ATTR.pack(_ATTR.size, policy, flags, nice, 0, nanoseconds, 0, 0)
        _call(_NUMBERS[machine][0], 0, wanted, 0)
        taken = current()
    except OSError as error:
        return Feature(False, f"sched_setattr: {error.strerror}")
    return Feature(taken == nanoseconds, "" if taken == nanoseconds else "this kernel has slices of one length only")


def current() -> int:
    """The calling thread's slice in nanoseconds; 0 where ordinary tasks have none of their own (before Linux 6.12).
    Raises OSError."""
    return int(_read()[5])


def _read() -> tuple[int, ...]:
    buffer = ctypes.create_string_buffer(_ATTR.size)
    _call(_NUMBERS[platform.machine()][1], 0, buffer, _ATTR.size, 0)
    return _ATTR.unpack(buffer.raw)


def _call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> None:
    if _libc.syscall(number, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
