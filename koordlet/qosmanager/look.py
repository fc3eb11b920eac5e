"""The round's picture from the states informer and the metrics advisor. Reads memory only."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from koordlet.metricsadvisor.picture import Picture
from koordlet.qosmanager.view import Current, HostAppView, NodeView, PodView
from koordlet.statesinformer.model import SubjectKind
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cputopology import CpuTopology
from koordlet.system.naming import KubeQOS, qos_dir

FRESH_INTERVALS = 2
"""A figure older than this many collection intervals is no figure (spec 03 §3.1)."""


def look(
    states: KubeStates,
    picture: Picture | None,
    topology: CpuTopology | None,
    current: Current,
    *,
    now: float,
    collect_interval: float,
    kubelet_static: bool = False,
) -> NodeView | None:
    """None while the Node is unknown. `now` is on the picture's clock."""
    node = states.node.object
    if node is None:
        return None
    if picture is not None and now - picture.at > FRESH_INTERVALS * collect_interval:
        picture = None
    used = _used(picture)
    best_effort = qos_dir(states.driver, KubeQOS.BESTEFFORT)
    return NodeView(
        now=now,
        slo=states.slo,
        node=node,
        pods=tuple(PodView.of(meta, *used(SubjectKind.POD, uid)) for uid, meta in states.workloads.pods.items()),
        current=current,
        best_effort_dir=best_effort,
        host_apps=tuple(
            HostAppView(
                subject.name,
                subject.qos,
                subject.cgroup_dir.startswith(f"{best_effort}/"),
                *used(SubjectKind.HOST_APP, subject.key),
            )
            for subject in states.workloads.subjects
            if subject.kind is SubjectKind.HOST_APP
        ),
        cpu=None if picture is None or picture.node is None else int(picture.node.cores * 1000),
        memory=None if picture is None or picture.node is None else int(picture.node.memory),
        topology=topology,
        kubelet_static=kubelet_static,
    )


def _used(picture: Picture | None) -> Callable[[SubjectKind, str], tuple[int | None, int | None]]:
    """(milli-cores, bytes) by kind and key."""
    found: dict[tuple[SubjectKind, str], tuple[int | None, int | None]] = {}
    if picture is not None:
        columns = zip(picture.workloads.subjects, picture.use.cores.tolist(), picture.use.memory.tolist(), strict=True)
        for subject, cores, memory in columns:
            found[subject.kind, subject.key] = (_whole(cores * 1000), _whole(memory))
    return lambda kind, key: found.get((kind, key), (None, None))


def _whole(value: float) -> int | None:
    return None if isnan(value) else int(value)
