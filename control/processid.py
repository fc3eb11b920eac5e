"""Identifies this boot, and processes by pid and start time, so that a reused pid is never taken for the same process.

Field 22 of /proc/<pid>/stat is the start time in clock ticks since boot.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

PROC = Path("/proc")


class ProcessId(msgspec.Struct, frozen=True):
    """One process of this boot."""

    pid: int
    starttime: int
    """In clock ticks since boot."""


def boot_id() -> str:
    """The id of the current boot. Raises OSError."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int, proc: Path = PROC) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third (state) on; None when the process has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def start_of(fields: list[str]) -> int:
    """The start time, from the result of `stat_fields`."""
    return int(fields[19])


def identify(pid: int, proc: Path = PROC) -> ProcessId | None:
    """The process that has this pid now; None for none and for a zombie."""
    fields = stat_fields(pid, proc)
    if fields is None or fields[0] in "ZX":
        return None
    return ProcessId(pid, start_of(fields))


def alive(process: ProcessId) -> bool:
    """Whether this process still runs."""
    return identify(process.pid) == process
