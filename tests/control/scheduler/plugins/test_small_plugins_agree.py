"""Plugins that decide little, each against a plain one (spec 05 §3.3, §4, §13)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import (
    InterferenceAwareArgs,
    NodeResourcesFitPlusArgs,
    ResourcesType,
    ScarceResourceAvoidanceArgs,
    SchedulingHintArgs,
)
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.interferenceaware import KINDS, InterferenceAware
from control.scheduler.plugins.noderesourcesfitplus import NodeResourcesFitPlus
from control.scheduler.plugins.prioritysort import PrioritySort
from control.scheduler.plugins.scarceresourceavoidance import ScarceResourceAvoidance
from control.scheduler.plugins.schedulinggates import SchedulingGates
from control.scheduler.plugins.schedulinghint import SchedulingHintPlugin
from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.loadreports import NOW, metric, pod_usage
from tests.control.scheduler.plain import hints, queueing
from tests.control.scheduler.plain.fitplus import fit_plus_score
from tests.control.scheduler.plain.interference import interference, interference_score
from tests.control.scheduler.plain.scarce import scarce_score
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import filtered, scored, text_of
from tests.fakeclock import FakeClock

AMOUNTS = st.sampled_from((None, "0", "1", "3", "9"))
GPU, BATCH = "nvidia.com/gpu", "kubernetes.io/batch-cpu"
RESOURCES = ("cpu", "memory", "ephemeral-storage", GPU, BATCH)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    extra = {key.replace("/", "__").replace("-", "_"): draw(AMOUNTS) for key in RESOURCES[2:]}
    more = {key: amount for key, amount in extra.items() if amount is not None}
    return node(name, draw(st.sampled_from(("0", "4", "16"))), draw(st.sampled_from(("0", "8Gi"))), **more)  # type: ignore[arg-type]


@st.composite
def pods(draw: st.DrawFn, on: str = "") -> Pod:
    extra = {key.replace("/", "__").replace("-", "_"): draw(AMOUNTS) for key in RESOURCES[2:]}
    more = {key: amount for key, amount in extra.items() if amount is not None}
    overhead = {"cpu": draw(st.sampled_from(("250m", "1")))} if draw(st.integers(0, 4)) == 4 else {}
    memory = draw(AMOUNTS)
    return pod(cpu=draw(AMOUNTS), memory=memory and f"{memory}Gi", on=on, spec={"overhead": overhead}, **more)  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    listed = [draw(nodes(f"n{number}")) for number in range(draw(st.integers(1, 4)))]
    at = st.sampled_from([node.metadata.name for node in listed])
    return World(listed, [draw(pods(on=draw(at))) for _ in range(draw(st.integers(0, 6)))])


def built(world: World) -> Cluster:
    cluster = Cluster(*world.nodes)
    cluster.put(*world.pods)
    return cluster


@given(
    worlds(),
    pods(),
    st.dictionaries(
        st.sampled_from(RESOURCES), st.tuples(st.sampled_from(("MostAllocated", "LeastAllocated")), st.integers(0, 5))
    ),
)
def test_fit_plus(world: World, incoming: Pod, resources: dict[str, tuple[str, int]]) -> None:
    args = NodeResourcesFitPlusArgs(resources={name: ResourcesType(*how) for name, how in resources.items()})
    cluster = built(world)
    expected = {node.metadata.name: fit_plus_score(incoming, node, world, resources) for node in world.nodes}
    assert scored(NodeResourcesFitPlus(args, cluster.handle), cluster, incoming) == expected


@given(worlds(), pods(), st.lists(st.sampled_from(RESOURCES), unique=True))
def test_scarce_resources(world: World, incoming: Pod, scarce: list[str]) -> None:
    cluster = built(world)
    plugin = ScarceResourceAvoidance(ScarceResourceAvoidanceArgs(resources=scarce), cluster.handle)
    expected = {node.metadata.name: scarce_score(incoming, node, world, scarce) for node in world.nodes}
    assert scored(plugin, cluster, incoming) == expected


NAMES = st.lists(st.sampled_from(("n0", "n1", "n2", "n9")), max_size=4)


@given(NAMES, NAMES, st.sampled_from(hints.KEYS), st.integers(1, 3), st.sets(st.sampled_from(("n0", "n1", "n2"))))
def test_hints(only: list[str], first: list[str], key: str, most: int, fitting: set[str]) -> None:
    cluster = Cluster(*(node(f"n{number}") for number in range(3)))
    names = cluster.table.names
    plugin = SchedulingHintPlugin(SchedulingHintArgs(max_hint_nodes=most), cluster.handle)
    incoming = pod(annotations={key: json.dumps({"nodeNames": only, "preferredNodeNames": first})})
    state, info = CycleState(), cluster.info(incoming)
    assert plugin.before_pre_filter(state, info).ok
    result = plugin.pre_filter(state, info)
    rows = None if result.status.skipped else result.rows
    allowed = hints.only(incoming, names)
    assert (None if rows is None else {names[row] for row in rows}) == allowed
    tried = [names[row] for row in plugin.prefer_nodes(state, info, rows)]
    left = fitting if allowed is None else fitting & allowed
    assert next((name for name in tried if name in left), None) == hints.preferred(incoming, left, most)


CLASSES = st.sampled_from(("BE", "LS", "LSR", "SYSTEM", ""))
VERDICTS = st.fixed_dictionaries(
    {
        "container": st.sampled_from(("main", "side")),
        "resource": st.sampled_from(("cpu", "cache", "memory", "io", "network", "other")),
        "cause": st.sampled_from(("neighbour", "neighbour", "self")),
        "state": st.sampled_from(("interfered", "recovering", "suspected")),
        "confidence": st.sampled_from((0.4, 0.5, 0.9)),
    }
)
REPORTED = st.lists(st.tuples(st.sampled_from("xyz"), CLASSES, st.lists(VERDICTS, max_size=4)), max_size=4)


@given(
    st.lists(st.none() | st.tuples(st.sampled_from((None, 0, 100, 180)), REPORTED), min_size=3, max_size=3),
    st.dictionaries(st.sampled_from(KINDS), st.integers(0, 3)),
    st.dictionaries(st.sampled_from(KINDS), st.integers(0, 100)),
    pods(),
    CLASSES,
)
def test_interference(
    reports: list[Any], thresholds: dict[str, int], weights: dict[str, int], incoming: Pod, qos: str
) -> None:
    if qos:
        incoming.metadata.labels["koordinator.sh/qosClass"] = qos
    listed = [node(f"n{number}") for number in range(3)]
    cluster, args = Cluster(*listed), InterferenceAwareArgs(thresholds=thresholds, weights=weights)
    clock = FakeClock(NOW)
    cluster.use(clock=clock)
    plugin = InterferenceAware(args, cluster.handle)
    metrics = {}
    for member, report in zip(listed, reports, strict=True):
        if report is not None:
            age, briefs = report
            usages = [
                pod_usage(f"default/{n}", "1", "1Gi", interference=interference_of) | {"qos": q}
                for n, q, interference_of in briefs
            ]
            at = None if age is None else NOW - age
            metrics[member.metadata.name] = metric(member.metadata.name, at=at, pods=usages)
            plugin.set_metric(metrics[member.metadata.name])
    for later in (0, 80):
        clock.jump(later)
        world = World(listed, metrics=metrics, now=clock.now())
        assert filtered(plugin, cluster, incoming) == {
            node.metadata.name: interference(incoming, node, world, args) for node in listed
        }
        assert scored(plugin, cluster, incoming) == {
            node.metadata.name: interference_score(incoming, node, world, args) for node in listed
        }


@given(st.lists(st.sampled_from(("a", "b")), max_size=3))
def test_gates(gates: list[str]) -> None:
    cluster, gated = Cluster(), pod(spec={"schedulingGates": [{"name": name} for name in gates]})
    assert text_of(SchedulingGates(None, cluster.handle).pre_enqueue(cluster.info(gated))) == queueing.gated(gated)


@given(st.lists(st.tuples(st.sampled_from((None, -1, 0, 1, 7)), st.floats(0, 9)), max_size=8))
def test_order_in_the_queue(waiting: list[tuple[int | None, float]]) -> None:
    cluster = Cluster()
    plugin = PrioritySort(None, cluster.handle)
    waiting_pods = [(pod(f"p{number}", priority=priority), since) for number, (priority, since) in enumerate(waiting)]
    ordered = sorted(waiting_pods, key=lambda entry: plugin.sort_key(cluster.info(entry[0]), entry[1]))
    assert [subject for subject, _ in ordered] == queueing.in_order(waiting_pods)
