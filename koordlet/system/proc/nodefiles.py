"""The node's own files of a tick, read through descriptors that stay open (`procfs` parses them).

The list of NUMA nodes is read again when one of their files is gone, and every `NODE_LIST_READINGS` readings. One loop
owns it, as the cache.
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

NODE_LIST_READINGS = 60
T = TypeVar("T")


class NodeFiles:
    """A file that does not exist is None or left out. Raises `KernelFileError` for unreadable and malformed files."""

    def __init__(self, roots: Roots, cache: ReadCache) -> None:
        self._roots = roots
        self._cache = cache
        self._stat = str(roots.proc / "stat")
        self._meminfo = str(roots.proc / "meminfo")
        self._nodes: dict[int, Path] = {}
        self._readings = 0
        """Since the list of nodes was read; 0: read it now."""

    def cpu_ticks(self) -> CpuTicks | None:
        """`/proc/stat`."""
        return self._parsed(self._stat, parse_cpu_ticks)

    def memory(self) -> MemInfo | None:
        """As `procfs.read_meminfo`."""
        return self._parsed(self._meminfo, parse_meminfo)

    def numa_memory(self) -> dict[int, NumaMemInfo]:
        """As `procfs.read_numa_meminfo`."""
        if self._readings == 0:
            self._nodes = node_dirs(self._roots)
        self._readings = (self._readings + 1) % NODE_LIST_READINGS
        memory: dict[int, NumaMemInfo] = {}
        for node, directory in self._nodes.items():
            info = self._node(node, f"{directory}")
            if info is None:
                self._readings = 0
            else:
                memory[node] = info
        return memory

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
