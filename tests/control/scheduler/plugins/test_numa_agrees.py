"""NodeNUMAResource over random histories, with kills and restarts, agrees with its plain form (spec 06 §2)."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.config.args import NodeNUMAResourceArgs, ScoringStrategy, WeightedResource
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from koordlet.api import names
from koordlet.api.annotations.scheduling import RESOURCE_STATUS
from koordlet.api.core import Node, Pod
from koordlet.api.cpus import parse_cpus
from koordlet.api.crs.topology import NodeResourceTopology
from tests.control.numa.plainsearch import PlainCPU
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plain import numa as plain
from tests.control.scheduler.plugins.numaworld import NumaWorld, detail, lsr, topology
from tests.control.scheduler.plugins.pluginworld import STEPS

SHAPES = st.sampled_from([(1, 1, 3, 2), (1, 2, 2, 2), (2, 1, 3, 1), (2, 2, 2, 2), (1, 3, 2, 2)])
KIB = 1024


@st.composite
def plain_nodes(draw: st.DrawFn) -> plain.PlainNode:
    shape = draw(SHAPES)
    cpus = [PlainCPU(**fields) for fields in detail(*shape)]
    reserved = draw(st.sets(st.sampled_from([cpu.id for cpu in cpus]), max_size=1))
    per_zone = shape[2] * shape[3]
    zones = {
        zone: {
            "cpu": 1000 * (per_zone - sum(cpu.node == zone for cpu in cpus if cpu.id in reserved)),
            "memory": 8 * KIB,
        }
        for zone in range(shape[0] * shape[1])
    }
    ratio = draw(st.sampled_from((Fraction(1), Fraction(1), Fraction(3, 2))))
    has_zones = draw(st.sampled_from((True, True, True, False)))
    node = plain.PlainNode(
        cpus,
        zones if has_zones else {},
        {"cpu": int(len(cpus) * 1000 * ratio), "memory": 8 * KIB * len(zones)},
        reserved,
        draw(st.sampled_from(("", "", "FullPCPUs", "SpreadByPCPUs"))),
        draw(st.sampled_from(("", "", "BestEffort", "Restricted", "SingleNUMANode"))),
        draw(st.booleans()),
        ratio,
    )
    node.shape = shape  # type: ignore[attr-defined]
    return node


@st.composite
def plain_pods(draw: st.DrawFn) -> plain.PlainPod:
    bound = draw(st.booleans())
    requests = {"cpu": draw(st.integers(1, 8)) * 1000, "memory": draw(st.integers(0, 12)) * KIB}
    if not bound and draw(st.booleans()):
        requests["cpu"] += 500
    numa = draw(st.sampled_from(("", "", "BestEffort", "Restricted", "SingleNUMANode")))
    return plain.PlainPod(
        {name: amount for name, amount in requests.items() if amount},
        bound,
        draw(st.sampled_from(("FullPCPUs", "SpreadByPCPUs"))) if bound else "",
        bound and draw(st.booleans()),
        draw(st.sampled_from(("", "PCPULevel", "NUMANodeLevel"))) if bound else "",
        numa,
        draw(st.sampled_from(("Required", "Preferred"))) if numa else "",
    )


def real_node(name: str, machine: plain.PlainNode) -> tuple[Node, NodeResourceTopology]:
    labels = {names.LABEL_NUMA_ALLOCATE_STRATEGY: "MostAllocated" if machine.most else "LeastAllocated"}
    if machine.bind:
        labels[names.LABEL_CPU_BIND_POLICY] = {"FullPCPUs": "FullPCPUsOnly"}.get(machine.bind, machine.bind)
    if machine.numa:
        labels[names.LABEL_NUMA_TOPOLOGY_POLICY] = machine.numa
    ratio = {"cpu": float(machine.ratio), "memory": float(machine.ratio)}
    annotations = {} if machine.ratio == 1 else {names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO: json.dumps(ratio)}
    return (
        node(
            name,
            cpu=f"{machine.allocatable['cpu']}m",
            memory=str(machine.allocatable["memory"]),
            labels=labels,
            annotations=annotations,
        ),
        topology(
            name,
            machine.shape,  # type: ignore[attr-defined]
            memory=f"{8}Ki",
            zones=bool(machine.zones),
            reserved=",".join(map(str, machine.reserved)),
        ),
    )


def real_pod(name: str, requirements: plain.PlainPod) -> Pod:
    numa: dict[str, str] = {}
    if requirements.numa:
        numa = {"numaTopologyPolicy": requirements.numa, "singleNUMANodeExclusive": requirements.single}
    more = {} if requirements.designated is None else designation(requirements.designated)
    cpu, memory = f"{requirements.requests['cpu']}m", str(requirements.requests.get("memory", 0))
    if not requirements.bound:
        annotations = {names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps(numa)} if numa else {}
        return pod(name, cpu=cpu, memory=memory, annotations={**annotations, **more}, priority=9000)
    spec = {("required" if requirements.required else "preferred") + "CPUBindPolicy": requirements.policy}
    if requirements.exclusive:
        spec["preferredCPUExclusivePolicy"] = requirements.exclusive
    return lsr(cpu, name=name, memory=memory, spec=spec, numa=numa, annotations=more)


def designating(requirements: plain.PlainPod, at: plain.PlainNode, short: bool) -> plain.PlainPod:
    """The pod designates what it would get on the empty node, without one CPU if `short`. Other pods may hold it."""
    try:
        holding, _ = plain.decide(requirements, replace(at, pods={}))
    except plain.Rejected:
        return requirements
    cpus = set(sorted(holding.cpus)[1:] if short else holding.cpus)
    if not cpus and not holding.zones:
        return requirements
    return replace(requirements, designated=plain.PlainHolding(cpus, holding.zones))


def designation(designated: plain.PlainHolding) -> dict[str, str]:
    zones = [
        {
            "node": zone,
            "resources": {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in amounts.items()},
        }
        for zone, amounts in designated.zones.items()
    ]
    status = {"cpuset": ",".join(map(str, sorted(designated.cpus))), "numaNodeResources": zones}
    return {
        names.ANNOTATION_SCHEDULING_HINT: json.dumps({"extensions": {"NodeNUMAResource": {}}}),
        names.ANNOTATION_RESOURCE_STATUS: json.dumps(status),
    }


def verdict(requirements: plain.PlainPod, at: plain.PlainNode) -> str | tuple[plain.PlainHolding, list[int] | None]:
    try:
        return plain.decide(requirements, at)
    except plain.Rejected as rejected:
        return str(rejected)


def args(most: bool) -> NodeNUMAResourceArgs:
    resources = [WeightedResource(name=name, weight=1) for name in ("cpu", "memory")]
    node_strategy = ScoringStrategy(type="MostAllocated" if most else "LeastAllocated", resources=resources)
    return NodeNUMAResourceArgs(scoring_strategy=node_strategy)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.lists(plain_nodes(), min_size=1, max_size=3), STEPS, st.booleans())
def test_node_numa_resource_agrees_with_its_plain_form(
    data: st.DataObject, nodes: list[plain.PlainNode], steps: list[tuple[str, int]], most: bool
) -> None:
    for machine in nodes:
        machine.pods = {}
    real = [real_node(f"n{at}", node) for at, node in enumerate(nodes)]
    world = NumaWorld(*real, args=args(most))
    kinds = data.draw(st.lists(plain_pods(), min_size=1, max_size=3))
    for number, (step, at) in enumerate(steps):
        if step == "delete":
            uid = world.remove_one(at)
            for machine in nodes:
                machine.pods.pop(uid, None)
        elif step == "restart":
            world.start()
        else:
            kind = kinds[at % len(kinds)]
            if step in ("designate", "short"):
                kind = designating(kind, nodes[at % len(nodes)], step == "short")
            place(world, nodes, kind, f"p{number}", step, most)
        compare_holdings(world, nodes)


def place(
    world: NumaWorld, nodes: list[plain.PlainNode], kind: plain.PlainPod, name: str, step: str, most: bool
) -> None:
    subject = real_pod(name, kind)
    verdicts = [verdict(kind, at) for at in nodes]
    compare_filters_and_scores(world, nodes, kind, subject, verdicts, most)
    try:
        placement = world.place(subject)
    except FitError:
        return
    chosen = verdicts[placement.row]
    assert not isinstance(chosen, str)
    holding, _ = chosen
    if step == "kill before bind":
        subject = world.prepared(placement)  # the patch was sent, the binding was not
        world.start()
        compare_holdings(world, nodes)
        placement = world.place(subject)
        chosen = verdicts[placement.row]
        assert not isinstance(chosen, str)
        holding, _ = chosen
    elif step == "kill":
        world.start()
        return
    bound = world.bind(placement)
    assert read(bound) == (holding.cpus, holding.zones)
    held = plain.PlainHolding(holding.cpus, holding.zones, holding.exclusive)
    nodes[placement.row].pods[bound.metadata.uid] = (kind.requests, held)


def compare_filters_and_scores(
    world: NumaWorld,
    nodes: list[plain.PlainNode],
    kind: plain.PlainPod,
    pod: Pod,
    verdicts: list[Any],
    most: bool,
) -> None:
    info, state, plugin = world.cluster.info(pod), CycleState(), world.plugin
    assert prepare(world.cycle.framework, state, info).status.ok
    rows = slice(0, len(nodes))
    numbers = plugin.filter(state, info, rows)
    scores = plugin.score(state, info, rows)
    columns = plugin._filter.check(plugin._need(info), np.arange(len(nodes)))
    assert numbers.tolist() == [int(plugin.filter(state, info, np.array([r]))[0]) for r in range(len(nodes))]
    if kind.designated is None:  # the columns have no exact CPUs
        assert columns.tolist() == numbers.tolist()
    for row, (expected, at) in enumerate(zip(verdicts, nodes, strict=True)):
        message = plugin.reasons.status(int(numbers[row])).message
        if isinstance(expected, str):
            assert message.startswith(expected)
        else:
            assert message == ""
            assert int(scores[row]) == plain.score(kind, at, expected[1], most=most)
            assert int(plugin.score(state, info, np.array([row]))[0]) == int(scores[row])


def compare_holdings(world: NumaWorld, nodes: list[plain.PlainNode]) -> None:
    taken = world.plugin.book.holdings
    for row, machine in enumerate(nodes):
        expected = {uid: (held.cpus, held.zones) for uid, (_, held) in machine.pods.items() if held.cpus or held.zones}
        held = taken[row].counted if row in taken else {}
        cpus = [cpu for pod in held.values() for cpu in range(pod.cpus.bit_length()) if pod.cpus >> cpu & 1]
        assert len(cpus) == len(set(cpus)), "a CPU is allocated twice"
        assert {uid: (set(_bits(pod.cpus)), dict(pod.zones)) for uid, pod in held.items()} == expected


def _bits(mask: int) -> list[int]:
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def read(bound: Pod) -> tuple[set[int], dict[int, dict[str, int]]]:
    status = RESOURCE_STATUS.get(bound.metadata.annotations)
    return set(parse_cpus(status.cpuset)), {
        resource.node: {
            name: quantity.milli_value() if name == "cpu" else quantity.value()
            for name, quantity in resource.resources.items()
        }
        for resource in status.numa_node_resources
    }
