"""Parsers of cgroup files. Pure; `path` is only for error messages.

A required key that is missing raises `MalformedFile`. In files of `key value` lines the first two fields of a line
count, shorter lines are skipped, and the last occurrence of a key wins (spec 02 §2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from koordlet.system.errors import MalformedFile


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """Bytes of one NUMA node. `usage` excludes the page cache, as the node's own usage per NUMA node does."""

    total: int
    usage: int


MEMORY_STAT_FIGURES = (
    "cache",
    "rss",
    "inactive_file",
    "active_file",
    "inactive_anon",
    "active_anon",
    "unevictable",
)
"""What koordlet reads of `memory.stat`: bytes, with all descendants; the keys of v1 and v2 are in the same order."""
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
    """The non-negative integer at `key`; raises MalformedFile naming file and key."""
    text = pairs.get(key)
    if text is None:
        raise MalformedFile(path, key, "key is missing")
    if not (text.isascii() and text.isdigit()):
        raise MalformedFile(path, f"{key} {text}", "not a counter")
    return int(text)


def parse_counter(text: str, path: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise MalformedFile(path, text, "expected one non-negative integer")
    return int(text)


def parse_cpu_usage(text: str, version: int, path: str = "cpuacct.usage") -> int:
    """Nanoseconds; v1 `cpuacct.usage`, v2 `cpu.stat`."""
    if version == 2:
        return required(parse_key_values(text), "usage_usec", path) * 1000
    return parse_counter(text, path)


def parse_numa_stat(
    text: str, version: int, page_size: int, path: str = "memory.numa_stat"
) -> Mapping[int, NumaMemory]:
    """NUMA node id -> bytes. Ids ascend and may have gaps (nodes without memory).

    v1 counts pages. Its first line must be `total`. The `hierarchical_` lines are used where the kernel has them,
    because the others exclude descendants. v2 counts bytes; its first two lines must be `anon` and `file`. Usage is
    anon + unevictable; v2's `anon` contains locked pages, so `inactive_anon + active_anon` replace it where shown.
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
    """`anon N0=1 N1=2` or `total=3 N0=1 N1=2` -> name, {0: 1, 1: 2}."""
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
    """`cgroup.procs`, `tasks`, `cgroup.threads`: one id per line; 0 is a task of another PID namespace."""
    try:
        return tuple(int(line) for line in text.split())
    except ValueError as error:
        raise MalformedFile(path, text, "expected one id per line") from error
