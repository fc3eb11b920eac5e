"""Cold page cache from counters of any kernel: `memory.stat` of a cgroup, meminfo and vmstat of the node. Pure.

The kernel keeps page cache on two lists; a page that is used a second time moves to the active list. An unmapped page
on the inactive list was not used twice since it was read. Pages that are read again soon after eviction are counted in
`workingset_refault`. Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.system.cgroup.files import parse_key_values, required
from koordlet.system.proc.procfs import MemInfo

_LEVELS = ("inactive_anon", "active_anon", "unevictable", "active_file", "inactive_file")


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Bytes; `refaulted` is a cumulative counter."""

    used_with_page_cache: int
    inactive_file: int
    mapped: int
    """Mapped page cache without shared memory: programs may access it without the kernel noticing."""
    refaulted: int
    """Read again soon after eviction; 0 where the kernel has no such counter."""


def parse_working_set(text: str, version: int, page_size: int, path: str = "memory.stat") -> WorkingSet:
    """Raises `MalformedFile` without the LRU lines. Counters that the kernel lacks are 0."""
    words = text.split()
    regular = len(words) == 2 * (text.count("\n") + 1)  # two words per line, as on every kernel
    pairs = dict(zip(words[::2], words[1::2], strict=True)) if regular else parse_key_values(text)
    prefix, mapped = ("", "file_mapped") if version == 2 else ("total_", "mapped_file")

    def counter(*names: str) -> int:
        """The first of these counters that the kernel has."""
        name = next((f"{prefix}{name}" for name in names if f"{prefix}{name}" in pairs), None)
        return 0 if name is None else required(pairs, name, path)

    levels = [required(pairs, f"{prefix}{name}", path) for name in _LEVELS]
    return WorkingSet(
        used_with_page_cache=sum(levels),
        inactive_file=levels[-1],
        mapped=max(counter(mapped) - counter("shmem"), 0),
        refaulted=counter("workingset_refault_file", "workingset_refault") * page_size,
    )


def node_working_set(memory: MemInfo, vmstat: Mapping[str, int], page_size: int) -> WorkingSet:
    """The node as a whole; `used_with_page_cache` is MemTotal - MemFree."""
    values = memory.values
    refaults = vmstat.get("workingset_refault_file", vmstat.get("workingset_refault", 0))
    return WorkingSet(
        used_with_page_cache=memory.used_with_page_cache,
        inactive_file=values.get("Inactive(file)", 0),
        mapped=max(values.get("Mapped", 0) - values.get("Shmem", 0), 0),
        refaulted=refaults * page_size,
    )
