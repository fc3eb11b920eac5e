"""Builds the node view of a round from the states informer and the metrics advisor. Reads memory only, except for the
few settings of best effort's directory that CPU suppress continues from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.usage.snapshot import UsageSnapshot
from koordlet.qosmanager.engine.view import (
    BEST_EFFORT,
    Averages,
    BestEffortCgroup,
    ContainerView,
    Current,
    HostAppView,
    InterferenceView,
    IoNow,
    MemoryNow,
    NodeView,
    PodView,
    SeriesAverage,
)
from koordlet.qosmanager.rules.cpu import NodeRules
from koordlet.statesinformer.pods.model import PodMeta, Subject, SubjectKind
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup.naming import KubeQOS, kubepods_dir, qos_dir
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.cputopology import CpuTopology
from koordlet.system.errors import KernelFileError

log = get_logger(__name__)

SAME_ROUND_S = 0.1
"""Averages are those of a round for this long."""
FRESH_INTERVALS = 2
"""A figure older than this many collection intervals counts as absent (spec 03 §3.1)."""
MEMORY_FILES = ("memory.wmark_ratio", "memory.reclaim", "memory.high")
"""Files whose presence decides how memory is reclaimed."""


@dataclass(frozen=True, slots=True)
class ViewSources:
    """Where figures come from; the same for every round."""

    average: Averages
    memory_now: MemoryNow
    io_now: IoNow
    supports: Callable[[str, str], bool]
    """(resource, directory) -> whether the kernel has it there."""
    collect_interval: float
    """Seconds between two readings of the metrics advisor."""


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """What changes from round to round."""

    now: float
    """On the picture's clock."""
    picture: UsageSnapshot | None
    topology: CpuTopology | None
    interference: InterferenceView | None = None
    announced: tuple[PodView, ...] = ()


class ViewBuilder:
    """`normalized`: whether gate CPUNormalization is on; `current` returns what the kernel has for a setting."""

    def __init__(
        self, states: KubeStates, rules: NodeRules, sources: ViewSources, current: Current, *, normalized: bool
    ) -> None:
        self._states = states
        self._rules = rules
        self._sources = sources
        self._current = current
        self._normalized = normalized
        self._figures = _PodViews()
        self._metas: Mapping[str, PodMeta] | None = None
        self._pods: tuple[PodView, ...] = ()

    def full(self, inputs: RoundInputs) -> NodeView | None:
        """The view of a round; None while the Node is unknown."""
        states, rules, sources = self._states, self._rules, self._sources
        node, picture = states.node.object, inputs.picture
        if node is None:
            return None
        if picture is not None and inputs.now - picture.at > FRESH_INTERVALS * sources.collect_interval:
            picture = None
        used = self._figures.use(states.workloads.pods, picture)
        dirs = class_dirs(states)
        return NodeView(
            now=inputs.now,
            slo=states.slo,
            node=node,
            pods=self._figures.pods(used),
            current=self._current,
            average=sources.average,
            qos_dirs=dirs,
            host_apps=tuple(
                HostAppView(
                    subject.name,
                    subject.qos,
                    subject.cgroup_dir.startswith(f"{dirs[BEST_EFFORT]}/"),
                    subject.cgroup_dir,
                    self._figures.of(used, SubjectKind.HOST_APP, subject.key)[0],
                )
                for subject in states.workloads.subjects
                if subject.kind is SubjectKind.HOST_APP
            ),
            cpu=None if picture is None or picture.node is None else int(picture.node.cores * 1000),
            memory=None if picture is None or picture.node is None else int(picture.node.memory),
            topology=inputs.topology,
            kubelet_static=rules.cpu is not None and rules.cpu.kubelet_static,
            cpu_rules=rules.cpu,
            normalization=rules.normalization,
            normalized=self._normalized,
            interference=inputs.interference,
            memory_now=sources.memory_now,
            io_now=sources.io_now,
            announced=inputs.announced,
            best_effort_cgroup=self._best_effort_cgroup(dirs[BEST_EFFORT]),
            memory_files=self._memory_files(dirs[KubeQOS.GUARANTEED.value]),
        )

    def outline(self, topology: CpuTopology | None, now: float) -> NodeView | None:
        """The view without figures and host applications, for announced pods: their settings need no more. Its pods are
        built once per list of the kubelet. None while the Node is unknown."""
        states, rules = self._states, self._rules
        if states.node.object is None:
            return None
        if self._metas is not states.workloads.pods:
            self._metas = states.workloads.pods
            self._pods = tuple(PodView.of(meta, None, None) for meta in self._metas.values())
        return NodeView(
            now=now,
            slo=states.slo,
            node=states.node.object,
            pods=self._pods,
            current=self._current,
            qos_dirs=class_dirs(states),
            topology=topology,
            kubelet_static=rules.cpu is not None and rules.cpu.kubelet_static,
            cpu_rules=rules.cpu,
            normalization=rules.normalization,
            normalized=self._normalized,
        )

    def _best_effort_cgroup(self, directory: str) -> BestEffortCgroup | None:
        """None while CPU suppress is off: then nothing needs it, and it is not read."""
        threshold = self._states.slo.resource_used_threshold_with_be
        if threshold is None or not threshold.enable:
            return None
        return BestEffortCgroup.read(directory, self._current)

    def _memory_files(self, directory: str) -> frozenset[str]:
        return frozenset(file for file in MEMORY_FILES if self._sources.supports(file, directory))


def class_dirs(states: KubeStates) -> dict[str, str]:
    """Kubernetes QoS class -> cgroup directory, as in `NodeView`."""
    return {qos.value: qos_dir(states.driver, qos) or kubepods_dir(states.driver) for qos in KubeQOS}


def averages(cache: MetricCache, clock: Callable[[], float]) -> Averages:
    """Series of the metric cache over windows that end now. All series of a kind are read together, because a strategy
    reads those of many pods."""
    read: dict[tuple[str, float], _KindAverages] = {}

    def average(kind: str, labels: tuple[str, ...], seconds: float) -> SeriesAverage | None:
        end = clock()
        known = read.get((kind, seconds))
        if known is None or known.newest != cache.ring(kind).newest or end - known.end > SAME_ROUND_S:
            known = read[kind, seconds] = _KindAverages.read(cache, kind, end, seconds)
        return known.of(labels)

    return average


@dataclass(frozen=True, slots=True)
class _KindAverages:
    """The averages of all series of one kind over a window."""

    end: float
    newest: float
    """Time of the newest sample."""
    rows: Mapping[tuple[str, ...], int]
    """Labels -> row."""
    values: NDArray[np.float32]
    """[series, samples], NaN where a series has none."""

    @classmethod
    def read(cls, cache: MetricCache, kind: str, end: float, seconds: float) -> _KindAverages:
        window = cache.window(kind, end - seconds, end)
        rows = {key: row for row, key in enumerate(window.keys)}
        return cls(end, cache.ring(kind).newest, rows, window.values)

    def of(self, labels: tuple[str, ...]) -> SeriesAverage | None:
        row = self.rows.get(labels)
        values = [] if row is None else [value for value in self.values[row].tolist() if value == value]
        return SeriesAverage(sum(values) / len(values), values[-1], len(values)) if values else None


def memory_reader(files: CgroupFS) -> MemoryNow:
    """Reads `memory.current` and `memory.pressure`; a cgroup that cannot be read counts as gone."""

    def now(directory: str) -> tuple[int, float | None] | None:
        try:
            used = files.memory_usage(directory)
            pressure = files.pressure("memory", directory)
            stalled = None if pressure is None else pressure.some.total / 1e6
        except KernelFileError as error:
            log.once(f"memory:{type(error).__name__}", "Cannot read the memory of a cgroup", cause=str(error))
            return None
        return None if used is None else (used, stalled)

    return now


Used = tuple[int | None, int | None, float | None, int | None]
"""Milli-cores, bytes, fraction of throttled periods, bytes with page cache."""
UNUSED: Used = (None, None, None, None)


class _PodViews:
    """The pods of a round. What does not change between two lists of pods is found once, and a pod whose figures are
    those of the last round keeps its view."""

    def __init__(self) -> None:
        self._metas: Mapping[str, PodMeta] | None = None
        self._subjects: tuple[Subject, ...] | None = None
        self._rows: dict[tuple[str, str], int] = {}
        """(kind, key) -> row of the usage snapshot."""
        self._pods: list[tuple[PodMeta, tuple[int, ...]]] = []
        """A pod and the rows of itself and its containers; the row behind the last one has no figures."""
        self._views: dict[str, tuple[list[Used], PodView]] = {}

    def use(self, metas: Mapping[str, PodMeta], picture: UsageSnapshot | None) -> list[Used]:
        """The figures of all subjects; call `pods` and `of` with it."""
        subjects = () if picture is None else picture.workloads.subjects
        if subjects is not self._subjects:
            self._subjects = subjects
            self._rows = {(subject.kind.value, subject.key): row for row, subject in enumerate(subjects)}
            self._metas = None
        if metas is not self._metas:
            self._metas = metas
            self._pods = [(meta, self._rows_of(meta)) for meta in metas.values()]
            self._views.clear()
        if picture is None:
            return [UNUSED]
        use = picture.use
        throttled = [None if ratio != ratio else ratio for ratio in use.throttled.tolist()]
        columns = (_whole(use.cores * 1000), _whole(use.memory), throttled, _whole(use.memory_with_page_cache))
        return [*zip(*columns, strict=True), UNUSED]

    def pods(self, use: Sequence[Used]) -> tuple[PodView, ...]:
        return tuple([self._pod(meta, [use[row] for row in rows]) for meta, rows in self._pods])

    def of(self, use: Sequence[Used], kind: SubjectKind, key: str) -> Used:
        """The figures of one subject."""
        return use[self._rows.get((kind.value, key), -1)]

    def _rows_of(self, meta: PodMeta) -> tuple[int, ...]:
        containers = (self._rows.get((SubjectKind.CONTAINER.value, container.id), -1) for container in meta.containers)
        return (self._rows.get((SubjectKind.POD.value, meta.uid), -1), *containers)

    def _pod(self, meta: PodMeta, used: list[Used]) -> PodView:
        known = self._views.get(meta.uid)
        if known is not None and known[0] == used:
            return known[1]
        (cpu, memory, _, charged), *own = used
        containers = [
            ContainerView(container, of[0], of[2], of[3]) for container, of in zip(meta.containers, own, strict=True)
        ]
        view = PodView.of(meta, cpu, memory, tuple(containers), charged)
        self._views[meta.uid] = used, view
        return view


def _whole(column: NDArray[np.float64]) -> list[int | None]:
    """Truncated; None for NaN."""
    absent = np.isnan(column)
    whole: list[int | None] = np.where(absent, 0.0, column).astype(np.int64).tolist()
    for row in np.flatnonzero(absent).tolist():
        whole[row] = None
    return whole
