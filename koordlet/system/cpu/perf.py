"""Hardware counters of a cgroup through `perf_event_open(2)`: cycles and instructions, hence CPI (spec 03 §1.11).

One event group per CPU (leader cycles, member instructions, so that both cover the same time), opened on the cgroup's
directory with PERF_FLAG_PID_CGROUP. Counts are scaled by enabled/running because the kernel multiplexes counters.
Missing hardware (as on most virtual machines) raises `PerfUnavailable`; descriptors opened before a failure are closed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from koordlet.system.kernel import Feature

PERF_TYPE_HARDWARE = 0
CPU_CYCLES = 0
INSTRUCTIONS = 1
_FORMAT_TOTAL_TIMES_GROUP = 1 | 2 | 8
_FLAG_PID_CGROUP = 4
_FLAG_FD_CLOEXEC = 8
_BIT_DISABLED = 1
_IOC_ENABLE = 0x2400
_IOC_RESET = 0x2403
_IOC_FLAG_GROUP = 1
_ATTR_SIZE = 112
_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_MISSING = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSYS)
_libc = ctypes.CDLL(None, use_errno=True)


class PerfError(OSError):
    """perf_event_open, or a read of its descriptor, failed with `errno`."""


class PerfUnavailable(PerfError):
    """This machine has no such counter."""


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """An event of perf_event_open(2)."""

    name: str
    type: int
    config: int


CYCLES_EVENT = PerfEvent("cycles", PERF_TYPE_HARDWARE, CPU_CYCLES)
INSTRUCTIONS_EVENT = PerfEvent("instructions", PERF_TYPE_HARDWARE, INSTRUCTIONS)
CPI_EVENTS = (CYCLES_EVENT, INSTRUCTIONS_EVENT)


class CgroupCounters:
    """Running counters of `events` for the cgroup directory on the online `cpus`; close it, or use `with`."""

    def __init__(self, directory: str, cpus: Iterable[int], events: tuple[PerfEvent, ...] = CPI_EVENTS) -> None:
        self._events = events
        self._leaders: list[int] = []
        self._members: list[int] = []
        try:
            cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise PerfError(error.errno, f"{directory}: {error.strerror}") from error
        try:
            for cpu in cpus:
                self._open_group(cgroup, cpu)
            for leader in self._leaders:
                fcntl.ioctl(leader, _IOC_RESET, _IOC_FLAG_GROUP)
                fcntl.ioctl(leader, _IOC_ENABLE, _IOC_FLAG_GROUP)
        except OSError:
            self.close()
            raise
        finally:
            os.close(cgroup)

    def read(self) -> dict[str, float]:
        """PerfEvent name -> scaled count since opening, summed over the CPUs."""
        totals = dict.fromkeys((event.name for event in self._events), 0.0)
        for leader in self._leaders:
            for event, value in zip(self._events, parse_group(os.read(leader, 4096)), strict=True):
                totals[event.name] += value
        return totals

    def close(self) -> None:
        for fd in (*self._members, *self._leaders):
            os.close(fd)
        self._members = []
        self._leaders = []

    def __enter__(self) -> CgroupCounters:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open_group(self, cgroup: int, cpu: int) -> None:
        leader = -1
        for event in self._events:
            flags = _FLAG_PID_CGROUP | _FLAG_FD_CLOEXEC
            fd = _perf_event_open(event, cgroup, cpu, leader, flags)
            if leader < 0:
                leader = fd
                self._leaders.append(fd)
            else:
                self._members.append(fd)


def parse_group(data: bytes) -> list[float]:
    """A group read (nr, enabled, running, values…) -> scaled values; a factor of 1 when either time is 0."""
    if len(data) < 24 or len(data) != 24 + 8 * struct.unpack_from("=Q", data)[0]:
        raise PerfError(errno.EIO, f"group read of {len(data)} bytes has an unexpected size")
    count, enabled, running = struct.unpack_from("=QQQ", data)
    factor = enabled / running if enabled and running else 1.0
    return [value * factor for value in struct.unpack_from(f"={count}Q", data, 24)]


def probe() -> Feature:
    """Whether this process may count cycles; opens and closes one counter on itself."""
    try:
        fd = _perf_event_open(CYCLES_EVENT, 0, -1, -1, _FLAG_FD_CLOEXEC)
    except PerfError as error:
        return Feature(False, str(error))
    os.close(fd)
    return Feature(True)


def _perf_event_open(event: PerfEvent, pid: int, cpu: int, group: int, flags: int) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise PerfUnavailable(errno.ENOSYS, f"perf_event_open: architecture {platform.machine()} unknown")
    bits = _BIT_DISABLED if group < 0 else 0  # members follow their leader
    attr = struct.pack("=IIQQQQQ", event.type, _ATTR_SIZE, event.config, 0, 0, _FORMAT_TOTAL_TIMES_GROUP, bits).ljust(
        _ATTR_SIZE, b"\0"
    )
    longs = (ctypes.c_long(value) for value in (pid, cpu, group, flags))
    fd = int(_libc.syscall(ctypes.c_long(number), attr, *longs))
    if fd < 0:
        code = ctypes.get_errno()
        kind = PerfUnavailable if code in _MISSING else PerfError
        raise kind(code, f"perf_event_open({event.name}): {os.strerror(code)}")
    return fd
