"""Translates owner tags (``bpf/owners.h``) into ids of the hierarchy that names containers.

For some work the running task is not the owner. Write-back belongs to a memory cgroup, work of a loop device to a blkio
cgroup, a socket to a group of the unified tree or to a network namespace; on cgroup v1 these are ids of other trees. A
container has the same path in all trees. So an id is looked up as a path in its own tree, and then as an inode under
the same path in the naming tree (the closest ancestor that exists there). A network namespace belongs to the closest
directory that holds all cgroups with a process in it: a pod, or a container that is alone in its pod; the namespace of
the host belongs to the root.

A tree is walked when an unknown id occurs, at most every `min_interval` seconds, and less and less often for ids that
were not found: their cgroups were removed, or are not visible. An id that stays unknown is returned as it is, a number
above all cgroup ids. Bounded by the tags of the probe's table. Used by `blockio` and `netstall`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from koordlet.probes.columns import Ints
from koordlet.probes.layouts import OWNER_SPACE, TAG_SPACE_SHIFT
from koordlet.probes.loading.frame import ProbeError
from koordlet.system.cgroup import members, tree
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host
from koordlet.system.proc.netns import network_namespace

TASK, BLKIO, MEMORY, SPECIAL, UNIFIED, NETNS = OWNER_SPACE.values()
"""``enum owner_space``"""
ID_MASK = (1 << TAG_SPACE_SHIFT) - 1
MAX_RETRY_S = 64.0
"""The longest pause between two searches for an id that was not found."""
MAX_NAMESPACE_RETRY_S = 4.0
"""The same for a network namespace: the kernel reuses its number at once, so an unknown one may be a new pod's."""
PAUSE_PER_CPU_SECOND = 500
"""A walk is followed by a pause of this many times its CPU time, so that it uses at most 0.2 % of a CPU: where foreign
processes come and go, unknown ids never end."""
MAX_PAUSE_INTERVALS = 5.0
"""That pause is at most this many times `min_interval`."""
PROCESSES_TRIED = 3
"""Processes of a cgroup whose network namespace is tried."""


def owner_tag(space: int, number: int) -> int:
    """A tag as the kernel side writes it, without a device."""
    return space << TAG_SPACE_SHIFT | number


class OwnerIds:
    """`named` is the tree that names containers, `trees` the others by id space."""

    def __init__(
        self,
        named: Path,
        trees: Mapping[int, Path],
        proc: Path,
        *,
        min_interval: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        walk: Callable[[Path], tree.RepeatedWalk] = tree.RepeatedWalk,
    ) -> None:
        self._named = named
        self._walk = walk(named)
        self._trees = {space: walk(root) for space, root in trees.items()}
        self._proc = proc
        self._min_interval = min_interval
        self._clock = clock
        self._known: dict[int, int] = {}
        """Tag -> key."""
        self._next_walk: dict[int, float] = {}
        """Id space -> when its tree may be walked again."""
        self._asked: dict[str, _Asked] = {}
        """Cgroup -> its network namespace when it was last asked."""
        self._holders: dict[int, Path] = {}
        """Network namespace -> the directory that it belongs to."""
        self._unknown: dict[int, tuple[float, float]] = {}
        """Tag that was not found -> (when to search again, pause after that search)."""

    @classmethod
    def of(cls, host: Host, min_interval: float = 2.0) -> OwnerIds:
        """Raises `ProbeError` where no cgroup hierarchy is mounted."""
        mounts = host.facts.cgroup_mounts
        named = mounts.naming
        if named is None:
            raise ProbeError("no cgroup hierarchy is mounted")
        trees = {}
        if mounts.version != 2:
            mounted = {BLKIO: mounts.v1.get("blkio"), MEMORY: mounts.v1.get("memory"), UNIFIED: mounts.unified}
            trees = {space: root for space, root in mounted.items() if root is not None}
        return cls(named, trees, host.roots.proc, min_interval=min_interval, walk=host.repeated_walk)

    def translate(self, tags: Ints, *, walk: bool = False) -> Ints:
        """The key of each tag: a cgroup id, or a negative number (`slots.SPECIAL_KEYS`). `walk`: search again for ids
        that were not found before."""
        spaces, numbers = tags >> TAG_SPACE_SHIFT, tags & ID_MASK
        keys = np.where(tags < 0, tags, np.where(spaces == SPECIAL, -1 - numbers, np.where(spaces == TASK, numbers, 0)))
        foreign = np.flatnonzero((keys == 0) & (tags != 0))
        foreign_tags = dict(zip(foreign.tolist(), tags[foreign].tolist(), strict=True))
        unknown = {tag for tag in foreign_tags.values() if tag not in self._known}
        if unknown:
            self._search(unknown, walk)
        for index, tag in foreign_tags.items():
            keys[index] = self._known.get(tag, tag)
        if len(self._known) > 2 * len(foreign_tags) + 1024:
            kept = set(foreign_tags.values())
            self._known = {tag: key for tag, key in self._known.items() if tag in kept}
        return keys

    def _search(self, unknown: set[int], walk: bool) -> None:
        now = self._clock()
        due = {tag for tag in unknown if walk or self._unknown.get(tag, (now, 0.0))[0] <= now}
        for space in {tag >> TAG_SPACE_SHIFT for tag in due}:
            if walk or now >= self._next_walk.get(space, now):
                tags = {tag for tag in unknown if tag >> TAG_SPACE_SHIFT == space}
                again = walk or not tags <= self._unknown.keys()
                self._search_space(space, {tag & ID_MASK for tag in tags}, now, again=again)
        self._unknown = {
            tag: retry for tag, retry in self._unknown.items() if tag in unknown and tag not in self._known
        }

    def _search_space(self, space: int, numbers: set[int], now: float, *, again: bool) -> None:
        used = time.thread_time()
        if space == NETNS:
            keys = self._namespaces(numbers, now, again=again)
        else:
            keys = self._paths(space, numbers)
        pause = max(PAUSE_PER_CPU_SECOND * (time.thread_time() - used), self._min_interval)
        self._next_walk[space] = now + min(pause, MAX_PAUSE_INTERVALS * self._min_interval)
        self._known.update((owner_tag(space, number), key) for number, key in keys.items())
        longest = MAX_NAMESPACE_RETRY_S if space == NETNS else MAX_RETRY_S
        for number in numbers - keys.keys():
            wait = self._unknown.get(owner_tag(space, number), (0.0, self._min_interval))[1]
            self._unknown[owner_tag(space, number)] = (now + wait, min(2 * wait, longest))

    def alive(self, tags: Ints, live: frozenset[int]) -> frozenset[int]:
        """The tags whose cgroup is in `live`, or that stand for no cgroup."""
        keys = self.translate(tags, walk=True)
        return frozenset(int(tag) for tag, key in zip(tags, keys, strict=True) if key < 0 or int(key) in live)

    def take_vacated(self) -> list[int]:
        """Tags of network namespaces whose cgroup was removed since the last call. They are forgotten, because the
        kernel reuses the numbers of namespaces at once (ids of cgroups return after 2^31 others)."""
        gone = []
        for number, directory in list(self._holders.items()):
            try:
                same = tree.inode(directory) == self._known.get(owner_tag(NETNS, number))
            except CgroupGone:
                same = False
            if not same:
                del self._holders[number]
                self._known.pop(owner_tag(NETNS, number), None)
                gone.append(owner_tag(NETNS, number))
        return gone

    def forget(self, tags: Ints) -> None:
        """The ids of these tags may be reused."""
        for tag in tags.tolist():
            self._known.pop(tag, None)
            self._unknown.pop(tag, None)

    def _paths(self, space: int, unknown: set[int]) -> dict[int, int]:
        foreign = self._trees.get(space)
        if foreign is None:
            return {}
        return {number: self._closest(Path(path)) for path, number in foreign.walk_ids() if number in unknown}

    def _closest(self, path: Path) -> int:
        """The inode of the path, or of its closest ancestor, in the naming tree."""
        for candidate in (path, *path.parents):
            try:
                return tree.inode(self._named / candidate)
            except CgroupGone:
                continue
        return tree.inode(self._named)

    def _namespaces(self, unknown: set[int], now: float, *, again: bool) -> dict[int, int]:
        """`again`: search every cgroup, also those that were searched before. A namespace that was never searched for
        has a process by now, perhaps in a cgroup that was searched before the process entered it."""
        paths: dict[int, Path] = {}
        asked: dict[str, _Asked] = {}
        for name, number in self._walk.walk_ids():
            known = self._asked.get(name)
            if known is None or known.number != number or again or now >= known.next_at:
                wait = self._min_interval if known is None or known.number != number else 2 * known.wait
                namespace = self._namespace_of(f"{self._named}/{name}")
                known = _Asked(number, namespace, now + wait, min(wait, MAX_RETRY_S))
            asked[name] = known
            if known.namespace in unknown:
                path, before = Path(name), paths.get(known.namespace)
                paths[known.namespace] = path if before is None else Path(os.path.commonpath([before, path]))
        self._asked = asked
        for process in ("1", "self"):  # koordlet runs in the host's namespace
            host = network_namespace(self._proc, process)
            if host:
                paths[host] = Path()
                break
        new_paths = {number: path for number, path in paths.items() if number in unknown}
        self._holders.update((number, self._named / path) for number, path in new_paths.items())
        return {number: self._closest(path) for number, path in new_paths.items()}

    def _namespace_of(self, directory: str) -> int:
        """The namespace of the cgroup's first process that may be read; 0 when there is none."""
        pids = members.first_processes(directory, PROCESSES_TRIED)
        return next(filter(None, (network_namespace(self._proc, pid) for pid in pids)), 0)


class _Asked(NamedTuple):
    """The network namespace of a cgroup. A container's processes may enter theirs only after they joined the cgroup,
    so each cgroup is searched again at growing intervals."""

    number: int
    """The cgroup's id."""
    namespace: int
    next_at: float
    wait: float
    """Seconds before `next_at`."""
