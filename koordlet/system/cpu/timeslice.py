"""The scheduler's time slice of koordlet: how long it may run before a waking service gets the CPU.

Since EEVDF a task that wakes up, whatever the weight of its group, waits until the running task has used up its slice,
in practice until the next tick (4 ms at 250 Hz). With a shorter slice of its own koordlet does not delay services for
that long; its share of the CPU stays the same. Linux 6.12 and later accept a slice for ordinary tasks
(sched_setattr(2), `sched_runtime`); earlier kernels ignore it. Called once at start, before there are threads, which
inherit the slice.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from koordlet.system.kernel import Feature

SHORTEST_NS = 100_000
"""The kernel's minimum."""
_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""System call numbers of sched_setattr and sched_getattr."""
_ATTR = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime, deadline, period."""
_libc = ctypes.CDLL(None, use_errno=True)


def shorten() -> Feature:
    """Set the calling thread's slice to SHORTEST_NS; policy and niceness stay. Whether the kernel accepted it."""
    if (machine := platform.machine()) not in _NUMBERS:
        return Feature(False, f"no system call number for {machine}")
    try:
        _, policy, flags, nice, *_ = _read()
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            return Feature(False, f"scheduling policy {policy} has no slice")
        attributes = _ATTR.pack(_ATTR.size, policy, flags, nice, 0, SHORTEST_NS, 0, 0)
        _call(_NUMBERS[machine][0], 0, attributes, 0)
        accepted = current() == SHORTEST_NS
    except OSError as error:
        return Feature(False, f"sched_setattr: {error.strerror}")
    return Feature.when(accepted, "this kernel has slices of one length only")


def current() -> int:
    """The slice of the calling thread in nanoseconds; 0 where ordinary tasks have no slice of their own (before Linux
    6.12). Raises OSError."""
    return int(_read()[5])


def _read() -> tuple[int, ...]:
    buffer = ctypes.create_string_buffer(_ATTR.size)
    _call(_NUMBERS[platform.machine()][1], 0, buffer, _ATTR.size, 0)
    return _ATTR.unpack(buffer.raw)


def _call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> None:
    if _libc.syscall(number, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
