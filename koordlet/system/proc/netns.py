"""Network namespaces of processes, and their TCP counters (proc(5), ``/proc/<pid>/ns/net`` and ``net/snmp``)."""

from __future__ import annotations

import os
from pathlib import Path


def network_namespace(proc: Path, pid: int | str) -> int:
    """The inode number of a process's network namespace; 0 when the process ended or may not be read."""
    try:
        return os.stat(f"{proc}/{pid}/ns/net").st_ino  # noqa: PTH116 - strings, because this is hot
    except OSError:
        return 0


def parse_retransmits(text: str) -> int | None:
    """``RetransSegs`` of the table ``Tcp`` of ``net/snmp``; None when there is none."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0] or len(lines[0]) != len(lines[1]):
        return None
    return int(lines[1][lines[0].index("RetransSegs")])


def retransmits(proc: Path, pid: int | str) -> int | None:
    """TCP segments that the namespace of this process sent again; None when the process ended."""
    try:
        return parse_retransmits((proc / str(pid) / "net/snmp").read_text())
    except OSError:
        return None


def has_tcp_counters(proc: Path) -> bool:
    """Whether the kernel shows TCP counters of namespaces."""
    return (proc / "self/net/snmp").exists()
