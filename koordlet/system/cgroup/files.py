"""The text of cgroup files -> frozen dataclasses. Pure; *path* is only for error messages.

Fields bear plain names with their unit; a value the file does not show is None, a required key that is missing is a
:class:`~koordlet.system.errors.MalformedFile`. Key/value files: first two fields of a line count, shorter lines are
skipped, the last occurrence of a key wins (spec 02 §2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from koordlet.system.errors import MalformedFile


@dataclass(frozen=True, slots=True)
class CpuStat:
    """CFS bandwidth counters since the cgroup was made."""

    nr_periods: int
    nr_throttled: int
    throttled_ns: int
    nr_bursts: int | None = None
    burst_ns: int | None = None


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Cumulative CPU time in nanoseconds; v1 has no total in ``cpuacct.stat``, so there it is user + system."""

    usage_ns: int
    user_ns: int
    system_ns: int


@dataclass(frozen=True, slots=True)
class MemoryStat:
    """Bytes, with all descendants. ``cache``/``rss`` are v2's ``file``/``anon``."""

    cache: int
    rss: int
    inactive_file: int
    active_file: int
    inactive_anon: int
    active_anon: int
    unevictable: int

    @property
    def usage(self) -> int:
        """Without page cache."""
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def usage_with_page_cache(self) -> int:
        return self.usage + self.active_file + self.inactive_file


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """Bytes of one NUMA node. ``usage`` leaves the page cache out, like the node's own usage per NUMA node."""

    total: int
    usage: int


V1_STAT_KEYS = (
    "total_cache", "total_rss", "total_inactive_file", "total_active_file",
    "total_inactive_anon", "total_active_anon", "total_unevictable",
)  # fmt: skip
V2_STAT_KEYS = (
    "file", "anon", "inactive_file", "active_file", "inactive_anon", "active_anon", "unevictable",
)  # fmt: skip


def parse_key_values(text: str) -> dict[str, str]:
    pairs = {}
    for line in text.splitlines():
        fields = line.split(None, 2)
        if len(fields) >= 2:
            pairs[fields[0]] = fields[1]
    return pairs


def required(pairs: Mapping[str, str], key: str, path: str) -> int:
    """The non-negative integer at *key*; raises MalformedFile naming file and key."""
    text = pairs.get(key)
    if text is None:
        raise MalformedFile(path, key, "key is missing")
    if not (text.isascii() and text.isdigit()):
        raise MalformedFile(path, f"{key} {text}", "not a counter")
    return int(text)


def _optional(pairs: Mapping[str, str], key: str, path: str, scale: int = 1) -> int | None:
    return required(pairs, key, path) * scale if key in pairs else None


def parse_counter(text: str, path: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise MalformedFile(path, text, "expected one non-negative integer")
    return int(text)


def parse_cpu_stat(text: str, version: int, path: str = "cpu.stat") -> CpuStat:
    pairs = parse_key_values(text)
    throttled, burst, scale = (
        ("throttled_usec", "burst_usec", 1000) if version == 2 else ("throttled_time", "burst_time", 1)
    )
    return CpuStat(
        nr_periods=required(pairs, "nr_periods", path),
        nr_throttled=required(pairs, "nr_throttled", path),
        throttled_ns=required(pairs, throttled, path) * scale,
        nr_bursts=_optional(pairs, "nr_bursts", path),
        burst_ns=_optional(pairs, burst, path, scale),
    )


def parse_cpu_times(text: str, version: int, jiffy_ns: int, path: str = "cpu.stat") -> CpuTimes:
    """v2 ``cpu.stat`` in microseconds; v1 ``cpuacct.stat`` in clock ticks of *jiffy_ns*."""
    pairs = parse_key_values(text)
    if version == 2:
        usage, user, system = (required(pairs, key, path) * 1000 for key in ("usage_usec", "user_usec", "system_usec"))
        return CpuTimes(usage, user, system)
    user, system = (required(pairs, key, path) * jiffy_ns for key in ("user", "system"))
    return CpuTimes(user + system, user, system)


def parse_cpu_usage(text: str, version: int, path: str = "cpuacct.usage") -> int:
    """Nanoseconds; v1 ``cpuacct.usage``, v2 ``cpu.stat``."""
    if version == 2:
        return required(parse_key_values(text), "usage_usec", path) * 1000
    return parse_counter(text, path)


def parse_memory_stat(text: str, version: int, path: str = "memory.stat") -> MemoryStat:
    pairs = parse_key_values(text)
    return MemoryStat(*(required(pairs, key, path) for key in (V2_STAT_KEYS if version == 2 else V1_STAT_KEYS)))


def parse_numa_stat(
    text: str, version: int, page_size: int, path: str = "memory.numa_stat"
) -> Mapping[int, NumaMemory]:
    """NUMA node id -> bytes. Ids ascend and may have gaps (nodes without memory).

    v1 counts pages; its first line must be ``total``, and the ``hierarchical_`` lines, where the kernel has them,
    are taken because the plain ones leave descendants out. v2 counts bytes; its first two lines must be ``anon``
    and ``file``. Usage is anon + unevictable; v2's ``anon`` already contains locked pages, so there the LRU lines
    ``inactive_anon + active_anon`` stand for it when they are shown.
    """
    lines = text.splitlines()
    first: tuple[str, ...] = ("anon", "file") if version == 2 else ("total",)
    rows: dict[str, dict[int, int]] = {}
    usage: tuple[str, ...]
    for number, line in enumerate(lines):
        name, values = _numa_line(line, path)
        if number < len(first) and name != first[number]:
            raise MalformedFile(path, line, f"expected line {number + 1} to be {first[number]!r}")
        if rows and values.keys() != next(iter(rows.values())).keys():
            raise MalformedFile(path, line, "node ids differ from the lines before")
        rows[name] = values
    if len(lines) < len(first):
        raise MalformedFile(path, text, f"expected lines {first}")

    def summed(names: tuple[str, ...], node: int) -> int:
        return sum(rows[name][node] for name in names if name in rows)

    if version == 2:
        scale, total = 1, first
        listed = "inactive_anon" in rows and "active_anon" in rows
        usage = ("inactive_anon", "active_anon", "unevictable") if listed else ("anon",)
    else:
        scale = page_size
        prefix = "hierarchical_" if "hierarchical_total" in rows else ""
        total = (f"{prefix}total",)
        usage = (f"{prefix}anon", f"{prefix}unevictable") if f"{prefix}anon" in rows else total
    return MappingProxyType(
        {node: NumaMemory(summed(total, node) * scale, summed(usage, node) * scale) for node in rows[first[0]]}
    )


def _numa_line(line: str, path: str) -> tuple[str, dict[int, int]]:
    """``anon N0=1 N1=2`` or ``total=3 N0=1 N1=2`` -> name, {0: 1, 1: 2}."""
    head, *cells = line.split() if line.split() else ("",)
    values: dict[int, int] = {}
    for cell in cells:
        node, equals, amount = cell.partition("=")
        if not (equals and node[:1] == "N" and node[1:].isdecimal() and amount.isdecimal()):
            raise MalformedFile(path, line, f"expected N<id>=<amount>, got {cell!r}")
        if values and int(node[1:]) <= max(values):
            raise MalformedFile(path, line, "node ids do not ascend")
        values[int(node[1:])] = int(amount)
    if not values:
        raise MalformedFile(path, line, "no NUMA node in the line")
    return head.partition("=")[0], values


def parse_ids(text: str, path: str) -> tuple[int, ...]:
    """``cgroup.procs``, ``tasks``, ``cgroup.threads``: one id a line; 0 is a task of another PID namespace."""
    try:
        return tuple(int(line) for line in text.split())
    except ValueError as error:
        raise MalformedFile(path, text, "expected one id a line") from error
