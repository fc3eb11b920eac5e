"""Builds the node view of a round from the states informer and the metrics advisor. Reads memory only, except for the
few settings of best effort's directory that CPU suppress continues from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan

from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.metriccache.kinds import BY_NAME
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
from koordlet.statesinformer.pods.model import PodMeta, SubjectKind
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup.naming import KubeQOS, kubepods_dir, qos_dir
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu.cputopology import CpuTopology
from koordlet.system.errors import KernelFileError

log = get_logger(__name__)

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
        used = _used(picture)
        dirs = class_dirs(states)
        return NodeView(
            now=inputs.now,
            slo=states.slo,
            node=node,
            pods=tuple(_pod(meta, used) for meta in states.workloads.pods.values()),
            current=self._current,
            average=sources.average,
            qos_dirs=dirs,
            host_apps=tuple(
                HostAppView(
                    subject.name,
                    subject.qos,
                    subject.cgroup_dir.startswith(f"{dirs[BEST_EFFORT]}/"),
                    subject.cgroup_dir,
                    *used(SubjectKind.HOST_APP, subject.key)[:2],
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
    """Series of the metric cache over windows that end now."""

    def average(kind: str, labels: tuple[str, ...], seconds: float) -> SeriesAverage | None:
        end = clock()
        points = cache.query(kind, end - seconds, end, **dict(zip(BY_NAME[kind].labels, labels, strict=True)))
        if not len(points.values):
            return None
        return SeriesAverage(float(points.values.mean()), float(points.values[-1]), len(points.values))

    return average


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
UsedBy = Callable[[SubjectKind, str], Used]


def _pod(meta: PodMeta, used: UsedBy) -> PodView:
    cpu, memory, _, charged = used(SubjectKind.POD, meta.uid)
    containers = []
    for container in meta.containers:
        own, _, throttled, cached = used(SubjectKind.CONTAINER, container.id)
        containers.append(ContainerView(container, own, throttled, cached))
    return PodView.of(meta, cpu, memory, tuple(containers), charged)


def _used(picture: UsageSnapshot | None) -> UsedBy:
    used: dict[tuple[SubjectKind, str], Used] = {}
    if picture is not None:
        use = picture.use
        columns = (use.cores, use.memory, use.throttled, use.memory_with_page_cache)
        rows = zip(picture.workloads.subjects, *(column.tolist() for column in columns), strict=True)
        for subject, cores, memory, throttled, charged in rows:
            ratio = None if isnan(throttled) else throttled
            used[subject.kind, subject.key] = (_whole(cores * 1000), _whole(memory), ratio, _whole(charged))
    return lambda kind, key: used.get((kind, key), (None, None, None, None))


def _whole(value: float) -> int | None:
    return None if isnan(value) else int(value)
