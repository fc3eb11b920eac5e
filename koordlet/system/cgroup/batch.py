"""One pass over all cgroups of a tick, as columns: the input of the collectors of pods and containers.

`BatchReader.read` returns a `CgroupTable` of float64 arrays with one row per requested directory, in the same order.
NaN means absent: no such file on this kernel, malformed content (listed in `errors`), or a cgroup that was removed; a
row without any value is flagged `gone`. float64 holds nanoseconds exactly for 104 days of CPU time and to 2 ns after
that. A rate may only be computed between two rows of equal `cgroup_id`.

Key-value files are parsed by line position: their lines have the same order in every cgroup of one kernel, so positions
are learnt from the first file and only checked in the others.
"""

from __future__ import annotations

import enum
import errno
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.system.cgroup import files
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import CgroupGone, KernelFileError, MalformedFile, UnreadableFile
from koordlet.system.proc import psi

Floats = NDArray[np.float64]
Values = Sequence[float]


class Want(enum.Flag):
    CPU_USAGE = enum.auto()
    """`cpu_usage_ns`."""
    CPU_STAT = enum.auto()
    """`nr_periods`, `nr_throttled`, `throttled_ns`."""
    MEMORY_STAT = enum.auto()
    """`cache rss inactive_file active_file inactive_anon active_anon unevictable` with prefix `memory_`."""
    PRESSURE = enum.auto()
    """`{cpu,memory,io}_{some,full}_{avg10,avg60,avg300,total}`: percent, and µs for total."""


@dataclass(frozen=True)
class CgroupTable:
    """Row i belongs to `dirs[i]`; `columns` maps the names listed in `Want` to float64[rows]."""

    dirs: tuple[str, ...]
    cgroup_id: NDArray[np.uint64]
    """0 where the hierarchy that defines ids has no such group: removed, being removed, or created for other v1
    controllers only."""
    gone: NDArray[np.bool_]
    columns: Mapping[str, Floats]
    errors: tuple[KernelFileError, ...] = ()
    """At most `MAX_ERRORS`; unreadable values are NaN in the columns in any case."""


MAX_ERRORS = 16
_STAT_COLUMNS = tuple(f"memory_{figure}" for figure in files.MEMORY_STAT_FIGURES)


@dataclass(frozen=True, slots=True)
class _File:
    """One file of the pass: `base` is its hierarchy, `parse` returns one number for each of `columns`."""

    base: str
    name: str
    columns: tuple[str, ...]
    parse: Callable[[bytes], Values]


class BatchReader:
    """Keeps paths, ids and learnt line positions between passes; bounded by the directories of the last passes."""

    def __init__(self, fs: CgroupFS) -> None:
        self._fs = fs
        self._plans: dict[Want, list[_File]] = {}
        self._paths: dict[Want, dict[str, list[str]]] = {}
        self._ids: dict[str, int] = {}

    def read(self, dirs: Sequence[str], want: Want) -> CgroupTable:
        """One pass. Never raises because of a single cgroup or file."""
        plan = self._plans.get(want)
        if plan is None:
            plan = self._plans[want] = self._plan(want)
        blank = [[math.nan] * len(file.columns) for file in plan]
        cells: list[list[Values]] = [[] for _ in plan]
        ids: list[int] = []
        gone: list[bool] = []
        errors: list[KernelFileError] = []
        cache = self._fs.cache
        known_paths = self._paths.setdefault(want, {})
        for cgroup_dir in dirs:
            paths = known_paths.get(cgroup_dir)
            if paths is None:
                paths = known_paths[cgroup_dir] = _paths_of(cgroup_dir, plan)
            opens = cache.opens
            absent = present = False
            row: list[Values] = []
            for file, path, nothing in zip(plan, paths, blank, strict=True):
                values: Values | None = None
                try:
                    content = cache.read(path)
                    if content is None:
                        absent = True
                    else:
                        present = True
                        values = file.parse(content)
                except (ValueError, OSError) as error:
                    _note(errors, path, error)
                row.append(nothing if values is None else values)
            identity = self._identify(cgroup_dir, absent, cache.opens != opens)
            gone.append(identity == 0 and not present)
            for column, cell in zip(cells, row, strict=True):
                column.append(cell)
            ids.append(identity)
        self._shrink(dirs)
        return _table(dirs, plan, cells, ids, gone, errors)

    def _plan(self, want: Want) -> list[_File]:
        fs = self._fs
        cpu = fs.hierarchy("cpu")
        memory = fs.hierarchy("memory")
        usage = ("cpu_usage_ns",)
        stat = ("nr_periods", "nr_throttled", "throttled_ns")
        plan: list[_File] = []
        if fs.version == 2 and want & (Want.CPU_USAGE | Want.CPU_STAT):
            parse = _V2CpuStat(Want.CPU_USAGE in want, Want.CPU_STAT in want)
            columns = usage * parse.usage + stat * parse.stat
            plan.append(_File(cpu, "cpu.stat", columns, parse))
        elif fs.version == 1:
            if Want.CPU_USAGE in want:
                plan.append(_File(fs.hierarchy("cpuacct"), "cpuacct.usage", usage, _counter))
            if Want.CPU_STAT in want:
                keys = ("nr_periods", "nr_throttled", "throttled_time")
                plan.append(_File(cpu, "cpu.stat", stat, _Picker(keys)))
        if Want.MEMORY_STAT in want:
            stat_keys = files.V2_STAT_KEYS if fs.version == 2 else files.V1_STAT_KEYS
            plan.append(_File(memory, "memory.stat", _STAT_COLUMNS, _Picker(stat_keys)))
        if Want.PRESSURE in want:
            base = fs.path("cpu.pressure", "").rpartition("/")[0]
            for resource in psi.RESOURCES:
                columns = tuple(f"{resource}_{figure}" for figure in psi.FIGURES)
                plan.append(_File(base, f"{resource}.pressure", columns, psi.figures))
        return plan

    def _identify(self, cgroup_dir: str, absent: bool, opened: bool) -> int:
        """The id. Open descriptors prove identity, so the kernel is only asked in a pass that opened a file or found
        one missing."""
        known = self._ids.get(cgroup_dir)
        if known is not None and not opened and not absent:
            return known
        try:
            identity = self._fs.cgroup_id(cgroup_dir)
        except CgroupGone:
            self._ids.pop(cgroup_dir, None)
            return 0
        self._ids[cgroup_dir] = identity
        return identity

    def _shrink(self, dirs: Sequence[str]) -> None:
        """Forget directories that are no longer requested, once they outnumber the others."""
        if len(self._ids) > 2 * len(dirs) + 256:
            keep = set(dirs)
            self._ids = {key: value for key, value in self._ids.items() if key in keep}
            for paths in self._paths.values():
                for gone in paths.keys() - keep:
                    del paths[gone]


def _paths_of(cgroup_dir: str, plan: Sequence[_File]) -> list[str]:
    middle = f"/{cgroup_dir}/" if cgroup_dir else "/"
    return [f"{file.base}{middle}{file.name}" for file in plan]


class _V2CpuStat:
    """`cpu.stat` of v2; a cgroup without the cpu controller has usage but no periods."""

    def __init__(self, usage: bool, stat: bool) -> None:
        self.usage, self.stat = usage, stat
        self._usage = _Picker(("usage_usec",))
        self._stat = _Picker(("nr_periods", "nr_throttled", "throttled_usec"))

    def __call__(self, content: bytes) -> Values:
        values: list[float] = []
        if self.usage:
            values.append(self._usage(content)[0] * 1000)
        if self.stat and b"nr_periods" in content:
            periods, throttled, throttled_us = self._stat(content)
            values += (periods, throttled, throttled_us * 1000)
        elif self.stat:
            values += (math.nan,) * 3
        return values


class _Picker:
    """The values of some keys of a file with `key value` lines, by learnt line positions."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]
        self._last = -1  # highest position, -1 before the first file
        self._take: Callable[[list[bytes]], Sequence[bytes]] = lambda lines: ()

    def __call__(self, content: bytes) -> Values:
        """Raises ValueError when a key is missing or its value no integer."""
        lines = content.split(b"\n")
        words = self._words(lines)
        if words[::2] != self._keys:
            self._learn(lines)
            words = self._words(lines)
        return [int(word) for word in words[1::2]]

    def _words(self, lines: list[bytes]) -> list[bytes]:
        return b" ".join(self._take(lines)).split() if len(lines) > self._last else []

    def _learn(self, lines: list[bytes]) -> None:
        positions = {line.split(b" ")[0]: at for at, line in enumerate(lines) if line.count(b" ") == 1}
        missing = [key.decode() for key in self._keys if key not in positions]
        if missing:
            raise ValueError(f"key {missing[0]} is missing")
        key_positions = [positions[key] for key in self._keys]
        self._last = max(key_positions)
        get = operator.itemgetter(*key_positions)
        self._take = get if len(key_positions) > 1 else lambda lines: (get(lines),)


def _counter(content: bytes) -> Values:
    return (int(content),)


def _note(errors: list[KernelFileError], path: str, error: Exception) -> None:
    """PSI that is switched off (EOPNOTSUPP) counts as absent, not as an error."""
    if len(errors) >= MAX_ERRORS:
        return
    if isinstance(error, KernelFileError):
        errors.append(error)
    elif not isinstance(error, OSError):
        errors.append(MalformedFile(path, "", str(error)))
    elif error.errno != errno.EOPNOTSUPP:
        errors.append(UnreadableFile(path, error))


def _table(
    dirs: Sequence[str],
    plan: Sequence[_File],
    cells: Sequence[list[Values]],
    ids: Sequence[int],
    gone: Sequence[bool],
    errors: Sequence[KernelFileError],
) -> CgroupTable:
    columns: dict[str, Floats] = {}
    for file, rows in zip(plan, cells, strict=True):
        block = np.array(rows, dtype=np.float64).reshape(len(dirs), len(file.columns)).T.copy()
        columns.update(zip(file.columns, block, strict=True))
    return CgroupTable(
        dirs=tuple(dirs),
        cgroup_id=np.array(ids, dtype=np.uint64),
        gone=np.array(gone, dtype=np.bool_),
        columns=columns,
        errors=tuple(errors),
    )
