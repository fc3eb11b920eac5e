"""Whose ids a tag holds, and what they are in the hierarchy that names containers: reads what ``bpf/owners.h`` says.

A probe can't always ask the running task whose work something is. Write-back belongs to a memory cgroup, a loop
device's work to a blkio cgroup, a socket to a group of the unified tree or to a network namespace; on cgroup v1 these
are ids of other trees. All trees of a container have the same path, so an id is looked up as a path in its own tree and
as an inode under the same path in the naming one (its closest ancestor that exists there). A network namespace is the
closest directory that holds all cgroups with a process in it: a pod, or a container that is alone in its pod; the
namespace of the host is the root.

Trees are walked when an unknown id turns up, at most every `min_interval` seconds, and more and more seldom for those
that were looked for in vain: they are of cgroups that are gone, or out of sight. An id that nobody knows stays as it
is, a number beyond all cgroup ids. Bounded by the tags of the probe's table. Used by `blockio` and `netstall`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from koordlet.probes.loading.mapped import Ints
from koordlet.system.cgroup import tree
from koordlet.system.host import Host

SPACE_SHIFT = 60
TASK, BLKIO, MEMORY, SPECIAL, UNIFIED, NETNS = range(6)
"""``enum owner_space``"""
ID_MASK = (1 << SPACE_SHIFT) - 1
SELDOM = 64.0
"""Seconds between two looks for an id that nobody knew, at the longest."""
SPARE, LONGEST = 250, 5.0
"""A walk is followed by so many times its own CPU time without one, and by so many times `min_interval` at the longest:
where strangers come and go, unknown ids never end."""
ASKED = 3
"""Processes of a cgroup that are asked for its network namespace."""


def tag(space: int, number: int) -> int:
    """What the kernel side writes, without a device."""
    return space << SPACE_SHIFT | number


class OwnerIds:
    """`translate(tags)`. *named* is the tree that names containers, *trees* the others by space."""

    def __init__(
        self,
        named: Path,
        trees: Mapping[int, Path],
        proc: Path,
        *,
        min_interval: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._named, self._trees, self._proc = named, dict(trees), proc
        self._min_interval, self._clock = min_interval, clock
        self._known: dict[int, int] = {}
        self._next: dict[int, float] = {}
        """When each tree may be walked again."""
        self._holders: dict[int, Path] = {}
        self._vain: dict[int, tuple[float, float]] = {}
        """Tag that nobody knew -> when to look again, and how long to wait if that is in vain, too."""

    @classmethod
    def of(cls, host: Host, min_interval: float = 2.0) -> OwnerIds | None:
        """None where no cgroup hierarchy is mounted."""
        mounts = host.facts.cgroup_mounts
        named = mounts.hierarchy("cpu") or mounts.unified
        if named is None:
            return None
        trees = {}
        if mounts.version != 2:
            found = {BLKIO: mounts.v1.get("blkio"), MEMORY: mounts.v1.get("memory"), UNIFIED: mounts.unified}
            trees = {space: root for space, root in found.items() if root is not None}
        return cls(named, trees, host.roots.proc, min_interval=min_interval)

    def translate(self, tags: Ints, *, walk: bool = False) -> Ints:
        """Keys as `layout` has them: cgroup ids, or negative numbers. *walk*: look again at ids that nobody knew."""
        spaces, numbers = tags >> SPACE_SHIFT, tags & ID_MASK
        keys = np.where(tags < 0, tags, np.where(spaces == SPECIAL, -1 - numbers, np.where(spaces == TASK, numbers, 0)))
        foreign = np.flatnonzero((keys == 0) & (tags != 0))
        wanted = dict(zip(foreign.tolist(), tags[foreign].tolist(), strict=True))
        unknown = {one for one in wanted.values() if one not in self._known}
        if unknown:
            self._look(unknown, walk)
        for i, one in wanted.items():
            keys[i] = self._known.get(one, one)
        if len(self._known) > 2 * len(wanted) + 1024:
            kept = set(wanted.values())
            self._known = {one: key for one, key in self._known.items() if one in kept}
        return keys

    def _look(self, unknown: set[int], walk: bool) -> None:
        now = self._clock()
        due = {one for one in unknown if walk or self._vain.get(one, (now, 0.0))[0] <= now}
        for space in {one >> SPACE_SHIFT for one in due}:
            if walk or now >= self._next.get(space, now):
                used = time.thread_time()
                numbers = {one & ID_MASK for one in unknown if one >> SPACE_SHIFT == space}
                found = self._namespaces(numbers) if space == NETNS else self._paths(space, numbers)
                rest = max(SPARE * (time.thread_time() - used), self._min_interval)
                self._next[space] = now + min(rest, LONGEST * self._min_interval)
                self._known.update((tag(space, number), key) for number, key in found.items())
                for number in numbers - found.keys():
                    wait = self._vain.get(tag(space, number), (0.0, self._min_interval))[1]
                    self._vain[tag(space, number)] = (now + wait, min(2 * wait, SELDOM))
        self._vain = {one: when for one, when in self._vain.items() if one in unknown and one not in self._known}

    def alive(self, tags: Ints, live: frozenset[int]) -> frozenset[int]:
        """Those of *tags* whose cgroup is one of *live*, or that are no cgroup."""
        keys = self.translate(tags, walk=True)
        return frozenset(int(one) for one, key in zip(tags, keys, strict=True) if key < 0 or int(key) in live)

    def moved_out(self) -> list[int]:
        """Tags of network namespaces whose cgroup is gone since the last call; forgotten, because the kernel gives the
        numbers of namespaces out again at once (ids of cgroups come back after 2^31 others)."""
        gone = []
        for number, directory in list(self._holders.items()):
            try:
                same = directory.stat().st_ino == self._known.get(tag(NETNS, number))
            except FileNotFoundError:
                same = False
            if not same:
                del self._holders[number]
                self._known.pop(tag(NETNS, number), None)
                gone.append(tag(NETNS, number))
        return gone

    def forget(self, tags: Ints) -> None:
        """Ids may be given out again."""
        for one in tags.tolist():
            self._known.pop(one, None)
            self._vain.pop(one, None)

    def _paths(self, space: int, unknown: set[int]) -> dict[int, int]:
        root = self._trees.get(space)
        if root is None:
            return {}
        return {number: self._closest(Path(path)) for path, number in tree.walk_ids(root) if number in unknown}

    def _closest(self, path: Path) -> int:
        for one in (path, *path.parents):
            try:
                return (self._named / one).stat().st_ino
            except FileNotFoundError:
                continue
        return self._named.stat().st_ino

    def _namespaces(self, unknown: set[int]) -> dict[int, int]:
        found: dict[int, Path] = {}
        for name in tree.walk(self._named):
            path = Path(name)
            namespace = self._namespace_of(self._named / path)
            if namespace in unknown:
                before = found.get(namespace)
                found[namespace] = path if before is None else Path(os.path.commonpath([before, path]))
        for process in ("1", "self"):  # koordlet runs in the host's namespace
            host = self._inode(process)
            if host:
                found[host] = Path()
                break
        wanted = {number: path for number, path in found.items() if number in unknown}
        self._holders.update((number, self._named / path) for number, path in wanted.items())
        return {number: self._closest(path) for number, path in wanted.items()}

    def _namespace_of(self, directory: Path) -> int:
        """Of the first process of a cgroup that may be asked; 0 when there is none."""
        try:
            with (directory / "cgroup.procs").open(encoding="ascii") as file:
                pids = [file.readline().strip() for _ in range(ASKED)]
        except OSError:  # the cgroup left
            return 0
        return next(filter(None, (self._inode(pid) for pid in pids if pid)), 0)

    def _inode(self, pid: str) -> int:
        try:
            return (self._proc / pid / "ns/net").stat().st_ino
        except OSError:  # it left, or is not for us to see
            return 0
