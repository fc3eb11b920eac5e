"""Whole cycles with volumes, Koordinator's profile and this project's plugins agree with the plain cycle.

Pods come and go, reports of nodes come in and grow old, claims are decided for pods that are not bound yet, and room is
left for pods that are nominated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.config.args import (
    InterferenceAwareArgs,
    LoadAwareSchedulingArgs,
    NodeResourcesFitPlusArgs,
    ResourcesType,
    ScarceResourceAvoidanceArgs,
    SchedulingHintArgs,
)
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.runtime import EmptyQueue
from control.scheduler.plugins.registry import PLUGINS
from koordlet.api.core import Pod
from koordlet.api.core.pod import ContainerPort, Volume
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import convert
from tests.control.scheduler.agreeing import agree, on
from tests.control.scheduler.build import Cluster, pod
from tests.control.scheduler.clusters import apps, nodes, pods
from tests.control.scheduler.loadreports import NOW, metric, pod_usage
from tests.control.scheduler.plain import volumes, whole
from tests.control.scheduler.plain.whole import Koordinator, PlainCycle
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.storages import StorageObjects, pod_volumes, storages
from tests.control.scheduler.toys import cycle_of
from tests.fakeclock import FakeClock

EXTRA = Koordinator(
    load=LoadAwareSchedulingArgs(usage_thresholds={"cpu": 60, "memory": 80}, prod_usage_thresholds={"cpu": 50}),
    interference=InterferenceAwareArgs(),
    fit_plus={"cpu": ("MostAllocated", 2), "memory": ("LeastAllocated", 1)},
    scarce=("nvidia.com/gpu",),
    most_hints=2,
)
ARGS: dict[str, Any] = {
    "LoadAwareScheduling": EXTRA.load,
    "InterferenceAware": EXTRA.interference,
    "NodeResourcesFitPlus": NodeResourcesFitPlusArgs(
        resources={name: ResourcesType(how, weight) for name, (how, weight) in EXTRA.fit_plus.items()}
    ),
    "ScarceResourceAvoidance": ScarceResourceAvoidanceArgs(resources=list(EXTRA.scarce)),
    "SchedulingHint": SchedulingHintArgs(max_hint_nodes=EXTRA.most_hints),
}
FILTERS = (*whole.FILTERS, "LoadAwareScheduling", "InterferenceAware")
WEIGHTS = whole.WEIGHTS | whole.KOORDINATOR_WEIGHTS
POINTS = {
    "preFilter": ("SchedulingHint", *FILTERS, "NodeResourcesBalancedAllocation"),
    "filter": FILTERS,
    "score": tuple(WEIGHTS),
    "reserve": ("VolumeBinding", "LoadAwareScheduling"),
}
NAMES = st.lists(st.sampled_from(("n0", "n1", "n2", "n9")), min_size=1, max_size=3)


@st.composite
def koordinator_pods(draw: st.DrawFn) -> Pod:
    """Pods with volumes, hints, a class of priority and of service."""
    drawn = draw(pods())
    labels, notes = dict(drawn.metadata.labels), dict(drawn.metadata.annotations)
    match draw(st.integers(0, 3)):
        case 0:
            labels["koordinator.sh/qosClass"] = "BE"
        case 1:
            labels["koordinator.sh/priority-class"] = draw(st.sampled_from(("koord-prod", "koord-batch")))
    match draw(st.integers(0, 9)):
        case 6:
            notes["internal.scheduling.koordinator.sh/scheduling-hint"] = json.dumps({"nodeNames": draw(NAMES)})
        case 7:
            notes["scheduling.koordinator.sh/scheduling-hint"] = json.dumps({"preferredNodeNames": draw(NAMES)})
    changes: dict[str, Any] = {"priority": draw(st.sampled_from((None, None, 5)))}
    if draw(st.integers(0, 5)) == 3:
        drawn.spec.containers[0].ports.append(ContainerPort(container_port=80, host_port=80))
    if draw(st.integers(0, 3)):
        changes["volumes"] = convert(draw(pod_volumes(generated=False)), list[Volume])
    if draw(st.integers(0, 3)):  # what concerns upstream's other plugins is seldom
        changes |= {"affinity": None, "node_selector": {}, "topology_spread_constraints": []}
    return msgspec.structs.replace(
        drawn,
        metadata=msgspec.structs.replace(drawn.metadata, labels=labels, annotations=notes),
        spec=msgspec.structs.replace(drawn.spec, **changes),
    )


@st.composite
def nominees(draw: st.DrawFn) -> Pod:
    """Pods that room is left for."""
    cpu, ports = draw(st.sampled_from(("500m", "2", "4"))), [{"containerPort": 80, "hostPort": 80}]
    container = {"name": "main", "image": "img", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container | ({"ports": ports} if draw(st.booleans()) else {})]}
    return pod(labels={"app": draw(apps)}, priority=draw(st.sampled_from((None, 5))), spec=spec)


def queue_beside(cluster: Cluster, nominated: Sequence[Pod]) -> EmptyQueue:
    """A queue that has only nominations."""
    queue = EmptyQueue()
    for nominee in nominated:
        queue.nominations.set(cluster.info(nominee), nominee.spec.node_name)
    return queue


@st.composite
def reports(draw: st.DrawFn, name: str, there: list[Pod], now: float) -> NodeMetric:
    usages = []
    for existing in there:
        if draw(st.booleans()):
            resource = draw(st.sampled_from(("cpu", "cache", "memory", "io")))
            verdict = {
                "container": draw(st.sampled_from(("main", "side"))),
                "resource": resource,
                "cause": draw(st.sampled_from(("neighbour", "neighbour", "self"))),
                "state": draw(st.sampled_from(("interfered", "recovering", "suspected"))),
                "confidence": draw(st.sampled_from((0.4, 0.9))),
            }
            kind = existing.metadata.labels.get("koordinator.sh/priority-class", "")
            used = pod_usage(
                existing.metadata.key, f"{draw(st.integers(0, 2000))}m", "1Gi", kind, interference=[verdict] * 2
            )
            usages.append(used | {"qos": draw(st.sampled_from(("LS", "LS", "BE")))})
    hurt = pod_usage("default/service", "1", "1Gi", interference=[
        {"container": c, "resource": "cpu", "cause": "neighbour", "state": "interfered", "confidence": 1.0}
        for c in "abc"[: draw(st.integers(0, 3))]
    ])  # fmt: skip
    usages.append(hurt | {"qos": "LS"})
    at = now - draw(st.sampled_from((0, 30, 170, 200)))
    return metric(name, f"{draw(st.integers(0, 4000))}m", f"{draw(st.integers(0, 9))}Gi", at=at, pods=usages)


@settings(max_examples=70, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_cycles_with_everything_agree_with_the_plain_ones(data: st.DataObject) -> None:
    listed = [data.draw(nodes(i)) for i in range(data.draw(st.integers(1, 3)))]
    for member in listed:
        if data.draw(st.integers(0, 3)):
            member.spec.taints, member.spec.unschedulable = [], False
        if data.draw(st.booleans()):
            member.status.allocatable["nvidia.com/gpu"] = member.status.allocatable["pods"]
    cluster = Cluster(*listed)
    clock = FakeClock(NOW)
    cluster.use(clock=clock)
    world = World(listed, [], storage=data.draw(storages(len(listed))), metrics={}, since={})
    cluster.use(objects=StorageObjects(world.storage))
    names = st.sampled_from([node.metadata.name for node in listed])
    world.nominated = [on(nominee, data.draw(names)) for nominee in data.draw(st.lists(nominees(), max_size=2))]
    cluster.use(queue=queue_beside(cluster, world.nominated))
    cycle = cycle_of(cluster, POINTS, PLUGINS, args=ARGS, weights=WEIGHTS)
    placed: list[tuple[Placement, Pod, dict[str, str], list[str]]] = []
    for _ in range(data.draw(st.integers(4, 9))):
        match data.draw(st.integers(0, 7)):
            case 0 if placed:
                cycle.release(placed.pop(data.draw(st.integers(0, len(placed) - 1)))[0])
            case 1:
                clock.jump(data.draw(st.sampled_from((10.0, 100.0, 180.0))))
            case 2 | 3:
                name = data.draw(names)
                there = [pod for _, pod, *_ in placed if pod.spec.node_name == name]
                report = data.draw(reports(name, there, clock.now()))
                world.metrics = {**world.metrics, name: report}
                for plugin in ("LoadAwareScheduling", "InterferenceAware"):
                    cycle.framework.plugins[plugin].set_metric(report)  # type: ignore[attr-defined]
        world.now = clock.now()
        world.pods = [pod for _, pod, *_ in placed]
        world.storage.promised = {volume: claim for *_, matched, _ in placed for claim, volume in matched.items()}
        world.storage.being_made = {
            claim: placement.node for placement, _, _, to_make in placed for claim in to_make
        }  # fmt: skip
        member = data.draw(koordinator_pods())  # type: ignore[assignment]
        chosen = agree(cycle, cluster, member, world, PlainCycle(EXTRA))  # type: ignore[arg-type]
        if chosen is not None:
            node = next(n for n in listed if n.metadata.name == chosen.node)
            _, matched, to_make = volumes.placed(member, node, world)  # type: ignore[arg-type]
            placed.append((chosen, on(member, chosen.node), matched, to_make))  # type: ignore[arg-type]
            world.since = {**world.since, member.metadata.uid: clock.now()}
