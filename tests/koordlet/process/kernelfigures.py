"""Figures of processes, containers and the node, read from kernel files without koordlet."""

from __future__ import annotations

import os
from pathlib import Path

from tests.koordlet.process.podtree import Container


def process_cpu_seconds(pid: int) -> float:
    """utime + stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_delay_seconds(*pids: int) -> float:
    """Waiting of every thread of these processes."""
    files = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[1]) for path in files) / 1e9


def is_stopped(pid: int) -> bool:
    """Whether the process has acted on SIGSTOP (state T); one that waits for a CPU acts on it later."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def keyed(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split()[:2] for line in path.read_text().splitlines() if line)}


def throttling(container: Container) -> tuple[int, int, float]:
    """Periods, throttled periods, throttled seconds by cpu.stat."""
    stat = keyed(container.path("cpu") / "cpu.stat")
    seconds = stat["throttled_usec"] / 1e6 if container.tree.v2 else stat["throttled_time"] / 1e9
    return stat["nr_periods"], stat["nr_throttled"], seconds


def anonymous_bytes(path: Path) -> int:
    """Memory without page cache, the kernel's own per-cgroup figure."""
    stat = keyed(path / "memory.stat")
    prefix = "total_" if "total_rss" in stat else ""
    return sum(stat[f"{prefix}{name}"] for name in ("inactive_anon", "active_anon", "unevictable"))


def node_busy_seconds() -> float:
    """user, nice, system, irq and softirq of /proc/stat."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / os.sysconf("SC_CLK_TCK")


def node_memory_used() -> float:
    """MemTotal - MemAvailable."""
    info = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()}
    return info["MemTotal"] - info["MemAvailable"]
