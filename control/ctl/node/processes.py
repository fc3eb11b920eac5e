"""Finds, signals and measures the processes that `koordctl up` starts.

Every part starts with `MARK` in its environment. By it, a process is identified that `up` started but was killed before
recording, and `down` verifies that nothing is left. Children inherit the mark: the kubelet's container shims have it, a
container's own command does not (it has the pod's environment).
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from control.processid import PROC, ProcessId, alive, identify, start_of, stat_fields

MARK = "KOORDCTL_STATE_DIR"
"""Environment variable with the state directory of a process."""
PART = "KOORDCTL_PART"
"""Environment variable with the part's name."""

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A process's usage so far: resident bytes, CPU seconds, seconds since its start."""

    rss: int
    cpu_seconds: float
    uptime: float


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A live process with the mark."""

    id: ProcessId
    part: str
    argv: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"pid {self.id.pid} ({' '.join(self.argv)[:100]})"


def usage(process: ProcessId) -> ProcessUsage | None:
    """Resources used so far; None when the process has ended."""
    fields = stat_fields(process.pid)
    if fields is None or start_of(fields) != process.starttime:
        return None
    uptime = float((PROC / "uptime").read_text().split()[0])
    return ProcessUsage(
        rss=int(fields[21]) * _PAGE,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICK,
        uptime=max(uptime - process.starttime / _TICK, 0.0),
    )


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process, through a pidfd; False when it has ended."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):  # checked after the pidfd was opened: it cannot refer to another process from here on
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def wait_gone(process: ProcessId, seconds: float) -> bool:
    """Wait for the process's end; False when it still runs after `seconds`."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not alive(process):
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(fd)


def stop(process: ProcessId, seconds: float) -> bool:
    """SIGTERM, wait, SIGKILL if needed. True when it ended after SIGTERM (or had ended before)."""
    if not send(process, signal.SIGTERM) or wait_gone(process, seconds):
        return True
    send(process, signal.SIGKILL)
    wait_gone(process, 5.0)
    return False


def marked(state_dir: Path) -> list[MarkedProcess]:
    """All live processes that belong to `state_dir`, by pid."""
    mark = f"{MARK}={state_dir}"
    processes: list[MarkedProcess] = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or not readable
        if mark not in environ:
            continue
        process = identify(int(entry.name))
        if process is not None:
            part = next((e.partition("=")[2] for e in environ if e.startswith(f"{PART}=")), "")
            processes.append(MarkedProcess(process, part, tuple(argv)))
    return sorted(processes, key=lambda process: process.id.pid)


def cpu_share(process: ProcessId, seconds: float) -> float | None:
    """Cores used over the next `seconds`; None when the process ended."""
    before = usage(process)
    began = time.monotonic()
    time.sleep(seconds)
    after = usage(process)
    if before is None or after is None:
        return None
    return (after.cpu_seconds - before.cpu_seconds) / (time.monotonic() - began)
