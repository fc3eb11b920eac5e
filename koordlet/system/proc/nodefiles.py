"""The node's own files of a tick, read through descriptors that stay open (procfs.py parses them).

Which NUMA nodes there are is looked up again when one of their files is gone, and every `LOOK_AGAIN` readings. One
loop owns it, like the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from koordlet.system.cgroup.cache import ReadCache
from koordlet.system.cpu.cputopology import node_dirs
from koordlet.system.errors import UnreadableFile
from koordlet.system.proc.procfs import (
    HUGE_PAGE_KB,
    CpuTicks,
    MemInfo,
    NumaMemInfo,
    parse_cpu_ticks,
    parse_meminfo,
    parse_numa_meminfo,
)
from koordlet.system.roots import Roots

LOOK_AGAIN = 60
T = TypeVar("T")


class NodeFiles:
    """None or left out: no such file. Raises `KernelFileError` for what is unreadable or malformed."""

    def __init__(self, roots: Roots, cache: ReadCache) -> None:
        self._roots, self._cache = roots, cache
        self._stat, self._meminfo = str(roots.proc / "stat"), str(roots.proc / "meminfo")
        self._nodes: dict[int, Path] = {}
        self._looked = 0

    def cpu_ticks(self) -> CpuTicks | None:
        """As `procfs.read_cpu_ticks`."""
        return self._parsed(self._stat, parse_cpu_ticks)

    def memory(self) -> MemInfo | None:
        """As `procfs.read_meminfo`."""
        return self._parsed(self._meminfo, parse_meminfo)

    def numa_memory(self) -> dict[int, NumaMemInfo]:
        """As `procfs.read_numa_meminfo`."""
        if self._looked == 0:
            self._nodes = node_dirs(self._roots)
        self._looked = (self._looked + 1) % LOOK_AGAIN
        found: dict[int, NumaMemInfo] = {}
        for node, directory in self._nodes.items():
            info = self._node(node, f"{directory}")
            if info is None:
                self._looked = 0
            else:
                found[node] = info
        return found

    def _node(self, node: int, directory: str) -> NumaMemInfo | None:
        huge: dict[int, int] = {}
        for size in HUGE_PAGE_KB:
            pages = self._text(f"{directory}/hugepages/hugepages-{size}kB/nr_hugepages")
            if pages is not None and pages.strip().isdecimal():
                huge[size] = int(pages)
        return self._parsed(f"{directory}/meminfo", lambda text, path: parse_numa_meminfo(text, node, huge, path))

    def _parsed(self, path: str, parse: Callable[[str, str], T]) -> T | None:
        text = self._text(path)
        return None if text is None else parse(text, path)

    def _text(self, path: str) -> str | None:
        try:
            content = self._cache.read(path)
        except OSError as error:
            raise UnreadableFile(path, error) from error
        return None if content is None else content.decode("utf-8", "surrogateescape")
