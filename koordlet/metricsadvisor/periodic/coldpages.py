"""Cold page cache of node, pods, containers and host applications, and their use without it (spec 02 §5.11).

There are two sources; `koordlet_collector_up{collector="cold_memory"}` names the one in use:

kidled       Anolis and Alibaba kernels, cgroup v1: page cache on the inactive list that has been idle for at least
             60 scan periods of 5 s. The kernel's own ages.
memory.stat  every other kernel, v1 and v2: pages that must have been on the inactive list for as long (`window`, 300
s).
             It is the smallest amount on that list in any reading of the window, minus what programs have mapped (the
             kernel does not see accesses to it) and minus what returned after eviction in that time. It is too high by
             pages that were used while as many new pages came in, and by pages read exactly once in the window; it is
             too low by mapped pages that are not used. There is no figure before a cgroup has been watched for a whole
             window.

Figures are clamped to 0 (spec 02 §5.11 FIX); a cgroup that cannot be read costs its own figure. The fact
`cold_memory_started` has the source's name and the time of the last complete round; NodeMetric's policy
usageWithHotPageCache depends on it. DAMON is not a source: it tracks the age of physical regions, not of the pages of a
cgroup, and its per-cgroup filters walk all of memory once for each cgroup. Bounded by subjects x PARTS small tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from koordlet.app.clock import boot_clock
from koordlet.metriccache import Batch, MetricCache
from koordlet.metriccache.facts import FACT_COLD_MEMORY
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.labels import subject_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.errors import CgroupGone, KernelFileError
from koordlet.system.host import Host
from koordlet.system.proc.procfs import read_meminfo, read_vmstat
from koordlet.system.proc.workingset import WorkingSet, node_working_set, parse_working_set

NAME = "cold_memory"
KIDLED, MEMORY_STAT = "kidled", "memory.stat"
PARTS = 6
"""A window is kept as the minima of this many parts, so its length varies by one part."""
READINGS_PER_WINDOW = 20
"""Readings of memory.stat; minima need no more."""
LEVELS = {SubjectKind.POD: "pod", SubjectKind.CONTAINER: "container", SubjectKind.HOST_APP: "host_application"}
Identity = tuple[str, int]
"""Subject key and cgroup id."""
NODE: Identity = ("", 0)


@dataclass(slots=True)
class _Part:
    start: float
    lowest: dict[Identity, int] = field(default_factory=dict)
    refaulted: dict[Identity, int] = field(default_factory=dict)
    """At the beginning of the part."""


class RestingPages:
    """Pages that must have been inactive for `window` seconds, from readings at any times."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._parts: deque[_Part] = deque()

    def push(self, at: float, sets: Mapping[Identity, WorkingSet]) -> dict[Identity, int]:
        """Cold bytes by identity; a cgroup that was not watched for the whole window is left out."""
        if not self._parts or at - self._parts[-1].start >= self._window / (PARTS - 1):
            self._parts.append(_Part(at))
        while len(self._parts) > 1 and at - self._parts[1].start >= self._window:
            self._parts.popleft()
        part = self._parts[-1]
        cold = {}
        for identity, now in sets.items():
            part.lowest[identity] = min(part.lowest.get(identity, now.inactive_file), now.inactive_file)
            part.refaulted.setdefault(identity, now.refaulted)
            amount = self._cold(identity, now, at)
            if amount is not None:
                cold[identity] = amount
        return cold

    def _cold(self, identity: Identity, now: WorkingSet, at: float) -> int | None:
        if at - self._parts[0].start < self._window:
            return None
        lowest = [part.lowest.get(identity) for part in self._parts]
        returned = now.refaulted - self._parts[0].refaulted.get(identity, now.refaulted)
        if None in lowest or returned < 0:
            return None
        return max(min(amount for amount in lowest if amount is not None) - now.mapped - returned, 0)


@dataclass(frozen=True, slots=True)
class ColdUse:
    """Bytes of one subject."""

    cold: int
    used_with_page_cache: int

    @property
    def hot(self) -> int:
        """Use with page cache, without cold pages; never negative."""
        return max(self.used_with_page_cache - self.cold, 0)


class ColdPageCollector:
    """`read` is one round. `enable_kidled` switches on the kernel's scanner, where there is one."""

    def __init__(
        self,
        host: Host,
        fs: CgroupFS,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        enable_kidled: Callable[[], None],
        window: float = 300.0,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._host = host
        self._fs = fs
        self._workloads = workloads
        self._cache = cache
        self._conditions = conditions
        self._clock = clock
        self._output = CollectorOutput(NAME, cache, registries, "No cold pages from a source")
        self._resting = RestingPages(window)
        self._window = window
        self._enable_kidled = enable_kidled
        self._source = ""
        self._read_at = float("-inf")
        self.node: ColdUse | None = None
        self.uses: Mapping[str, tuple[Subject, ColdUse]] = {}
        """Subject key -> figures of the last round; replaced as a whole."""
        registries.view("node_memory_cold_bytes", lambda: [] if self.node is None else [((), self.node.cold)])
        registries.view("pod_memory_cold_bytes", lambda: self._rows(SubjectKind.POD))
        registries.view("container_memory_cold_bytes", lambda: self._rows(SubjectKind.CONTAINER))

    @property
    def source(self) -> str:
        """`kidled` or `memory.stat`; chosen at first use, which also switches kidled on."""
        if not self._source:
            self._source = MEMORY_STAT
            if self._fs.version == 1 and self._host.facts.has("kidled"):
                try:
                    self._enable_kidled()
                    self._source = KIDLED
                except OSError as error:
                    self._output.fail("kidled", str(error))
        return self._source

    def read(self) -> None:
        """Read everything, derive, commit."""
        at = self._clock()
        if self.source == MEMORY_STAT and at - self._read_at < self._window / READINGS_PER_WINDOW:
            return
        self._read_at = at
        sets, subjects = self._working_sets()
        cold = self._idle(sets, subjects) if self.source == KIDLED else self._resting.push(at, sets)
        if NODE not in cold:
            self.node = None
            self.uses = {}
            if NODE in sets and self.source == MEMORY_STAT:
                self._conditions.waiting(NAME, f"watching for the first {self._window:g} s", self.source)
            else:
                self._conditions.down(NAME, "the node's memory cannot be read", self.source)
            return
        uses = {identity: ColdUse(amount, sets[identity].used_with_page_cache) for identity, amount in cold.items()}
        self.node = uses[NODE]
        self.uses = {identity[0]: (subjects[identity], use) for identity, use in uses.items() if identity != NODE}
        if not self._output.commit(self._batch(at)):
            return
        self._cache.facts.set(FACT_COLD_MEMORY, self.source, at)
        self._conditions.up(NAME, self.source)

    def _working_sets(self) -> tuple[dict[Identity, WorkingSet], dict[Identity, Subject]]:
        sets: dict[Identity, WorkingSet] = {}
        subjects: dict[Identity, Subject] = {}
        page_size = self._fs.page_size
        try:
            memory, vmstat = read_meminfo(self._host.roots), read_vmstat(self._host.roots)
            if memory is not None:
                sets[NODE] = node_working_set(memory, vmstat or {}, page_size)
        except KernelFileError as error:
            self._output.fail("meminfo", str(error))
        for subject in self._workloads().subjects:
            if subject.kind not in LEVELS:
                continue
            try:
                text = self._fs.text("memory.stat", subject.cgroup_dir)
                if text is not None:
                    identity = (subject.key, self._fs.cgroup_id(subject.cgroup_dir))
                    path = self._fs.path("memory.stat", subject.cgroup_dir)
                    sets[identity] = parse_working_set(text, self._fs.version, page_size, path)
                    subjects[identity] = subject
            except CgroupGone:
                continue
            except KernelFileError as error:
                self._output.fail("memory.stat", str(error))
        return sets, subjects

    def _idle(self, sets: Mapping[Identity, WorkingSet], subjects: Mapping[Identity, Subject]) -> dict[Identity, int]:
        cold = {}
        for identity in sets:
            directory = "" if identity == NODE else subjects[identity].cgroup_dir
            try:
                pages = self._fs.idle_pages(directory)
            except CgroupGone:
                continue
            except KernelFileError as error:
                self._output.fail("idle_page_stats", str(error))
                continue
            if pages is not None:
                cold[identity] = pages.cold_bytes()
        return cold

    def _batch(self, at: float) -> Batch:
        batch = Batch(at)
        if self.node is not None:
            batch.add("node_memory_cold_page_size", self.node.cold)
            batch.add("node_memory_with_hot_page_usage", self.node.hot)
        for subject, use in self.uses.values():
            level = LEVELS[subject.kind]
            batch.add(f"{level}_memory_cold_page_size", use.cold, subject.key)
            batch.add(f"{level}_memory_with_hot_page_usage", use.hot, subject.key)
        return batch

    def _rows(self, kind: SubjectKind) -> Iterator[tuple[tuple[str, ...], float]]:
        for subject, use in self.uses.values():
            if subject.kind is kind:
                yield subject_labels(kind, subject), use.cold
