"""The round's picture from the states informer and the metrics advisor. Reads memory only."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.metriccache.kinds import BY_NAME
from koordlet.metricsadvisor.usage.picture import Picture
from koordlet.qosmanager.engine.view import (
    BEST_EFFORT,
    Average,
    Averages,
    ContainerView,
    Current,
    HostAppView,
    Judged,
    MemoryNow,
    NodeView,
    PodView,
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
"""A figure older than this many collection intervals is no figure (spec 03 §3.1)."""


def look(
    states: KubeStates,
    picture: Picture | None,
    topology: CpuTopology | None,
    current: Current,
    *,
    average: Averages,
    now: float,
    collect_interval: float,
    rules: NodeRules | None = None,
    normalized: bool = False,
    judged: Judged | None = None,
    memory_now: MemoryNow = lambda directory: None,
    io_now: Callable[[str], float | None] = lambda container: None,
    newborns: tuple[PodView, ...] = (),
) -> NodeView | None:
    """None while the Node is unknown. `now` is on the picture's clock; `normalized` is gate CPUNormalization."""
    node = states.node.object
    if node is None:
        return None
    if picture is not None and now - picture.at > FRESH_INTERVALS * collect_interval:
        picture = None
    used = _used(picture)
    dirs = class_dirs(states)
    return NodeView(
        now=now,
        slo=states.slo,
        node=node,
        pods=tuple(_pod(meta, used) for meta in states.workloads.pods.values()),
        current=current,
        average=average,
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
        topology=topology,
        kubelet_static=rules is not None and rules.cpu is not None and rules.cpu.kubelet_static,
        cpu_rules=None if rules is None else rules.cpu,
        normalization=1.0 if rules is None else rules.normalization,
        normalized=normalized,
        judged=judged,
        memory_now=memory_now,
        io_now=io_now,
        newborns=newborns,
    )


class Outline:
    """The node without figures and host applications, for newborns: what they get follows from no more. Its pods are
    made once for each answer of the kubelet's."""

    def __init__(self, states: KubeStates, rules: NodeRules, *, normalized: bool) -> None:
        self._states, self._rules, self._normalized = states, rules, normalized
        self._metas: object = None
        self._pods: tuple[PodView, ...] = ()

    def __call__(self, topology: CpuTopology | None, current: Current, now: float) -> NodeView | None:
        """See `look`."""
        states, rules = self._states, self._rules
        if states.node.object is None:
            return None
        if self._metas is not states.workloads.pods:
            self._metas = states.workloads.pods
            self._pods = tuple(PodView.of(meta, None, None) for meta in states.workloads.pods.values())
        return NodeView(
            now=now,
            slo=states.slo,
            node=states.node.object,
            pods=self._pods,
            current=current,
            qos_dirs=class_dirs(states),
            topology=topology,
            kubelet_static=rules.cpu is not None and rules.cpu.kubelet_static,
            cpu_rules=rules.cpu,
            normalization=rules.normalization,
            normalized=self._normalized,
        )


def class_dirs(states: KubeStates) -> dict[str, str]:
    """Kubernetes QoS class -> cgroup directory, as in `NodeView`."""
    return {qos.value: qos_dir(states.driver, qos) or kubepods_dir(states.driver) for qos in KubeQOS}


def averages(cache: MetricCache, clock: Callable[[], float]) -> Averages:
    """Series of the metric cache over windows that end now."""

    def average(kind: str, labels: tuple[str, ...], seconds: float) -> Average | None:
        end = clock()
        points = cache.query(kind, end - seconds, end, **dict(zip(BY_NAME[kind].labels, labels, strict=True)))
        if not len(points.values):
            return None
        return Average(float(points.values.mean()), float(points.values[-1]), len(points.values))

    return average


def memory_reader(files: CgroupFS) -> MemoryNow:
    """Reads `memory.current` and `memory.pressure`; what can't be read counts as gone."""

    def now(directory: str) -> tuple[int, float | None] | None:
        try:
            used = files.memory_usage(directory)
            pressure = files.pressure("memory", directory)
            stalled = None if pressure is None else pressure.some.total / 1e6
        except KernelFileError as error:
            log.once(f"memory:{type(error).__name__}", "memory of a group not read", cause=str(error))
            return None
        return None if used is None else (used, stalled)

    return now


Used = tuple[int | None, int | None, float | None, int | None]
"""Milli-cores, bytes, share of throttled periods, bytes with page cache."""
UsedBy = Callable[[SubjectKind, str], Used]


def _pod(meta: PodMeta, used: UsedBy) -> PodView:
    cpu, memory, _, charged = used(SubjectKind.POD, meta.uid)
    containers = []
    for container in meta.containers:
        own, _, throttled, cached = used(SubjectKind.CONTAINER, container.id)
        containers.append(ContainerView(container, own, throttled, cached))
    return PodView.of(meta, cpu, memory, tuple(containers), charged)


def _used(picture: Picture | None) -> UsedBy:
    found: dict[tuple[SubjectKind, str], Used] = {}
    if picture is not None:
        use = picture.use
        columns = (use.cores, use.memory, use.throttled, use.memory_with_page_cache)
        rows = zip(picture.workloads.subjects, *(column.tolist() for column in columns), strict=True)
        for subject, cores, memory, throttled, charged in rows:
            ratio = None if isnan(throttled) else throttled
            found[subject.kind, subject.key] = (_whole(cores * 1000), _whole(memory), ratio, _whole(charged))
    return lambda kind, key: found.get((kind, key), (None, None, None, None))


def _whole(value: float) -> int | None:
    return None if isnan(value) else int(value)
