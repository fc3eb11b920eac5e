"""Node fit: one rule after the other, and many nodes at once with the same result (spec 07 §3.5)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.descheduler.framework.fit import FitTable, fits_any, misfit
from tests.control.descheduler.world import World

GPU = "nvidia.com__gpu"
NO_SCHEDULE = {"key": "a", "value": "b", "effect": "NoSchedule"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
        }
    }


def expressions(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def containers(*cpus: str, **more: Any) -> dict[str, Any]:
    return {
        "containers": [{"name": f"c{at}", "resources": {"requests": {"cpu": cpu}}} for at, cpu in enumerate(cpus)],
        **more,
    }


def init(cpu: str, **more: str) -> list[dict[str, Any]]:
    return [{"name": "i", "resources": {"requests": {"cpu": cpu}}, **more}]


NODE_AWAY = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    # name: (node, pod, refusal); the node has 2 cores and 2Gi, of which another pod requests 1 core and 1Gi
    "exactly what is free": ({}, {"cpu": "1"}, None),
    "too many cores": ({}, {"cpu": "1001m"}, "insufficient cpu"),
    "too much memory": ({}, {"memory": "1025Mi"}, "insufficient memory"),
    "a resource that the node lacks": ({}, {GPU: "1"}, "insufficient nvidia.com/gpu"),
    "a resource that the node has": ({GPU: "1"}, {GPU: "1"}, None),
    "the number of pods is not checked": ({"pods": 1}, {"cpu": "1"}, None),
    "sum of containers": ({}, {"spec": containers("600m", "401m")}, "insufficient cpu"),
    "largest init container": ({}, {"spec": containers("100m", initContainers=init("1001m"))}, "insufficient cpu"),
    "init containers do not add up": ({}, {"spec": containers("600m", initContainers=init("900m"))}, None),
    "sidecars add up": (
        {},
        {"spec": containers("600m", initContainers=init("401m", restartPolicy="Always"))},
        "insufficient cpu",
    ),
    "overhead": ({}, {"spec": containers("1", overhead={"cpu": "1m"})}, "insufficient cpu"),
    "cordoned": ({"unschedulable": True}, {}, "node is unschedulable"),
    "node selector": ({"labels": {"x": "y"}}, {"spec": {"nodeSelector": {"x": "y"}}}, None),
    "another node selector": ({}, {"spec": {"nodeSelector": {"x": "y"}}}, "node selector or affinity does not match"),
    "one of two terms": (
        {"labels": {"x": "y"}},
        {"spec": required(expressions("x", "In", "z"), expressions("x", "Exists"))},
        None,
    ),
    "no term matches": ({}, {"spec": required(expressions("x", "Exists"))}, "node selector or affinity does not match"),
    "an empty list of terms matches nothing": ({}, {"spec": required()}, "node selector or affinity does not match"),
    "an empty term matches nothing": ({}, {"spec": required({})}, "node selector or affinity does not match"),
    "a term by name": ({}, {"spec": required(NODE_AWAY)}, "node selector or affinity does not match"),
    "taint": ({"taints": [NO_SCHEDULE]}, {}, "taint is not tolerated"),
    "taint NoExecute": ({"taints": [{"key": "a", "effect": "NoExecute"}]}, {}, "taint is not tolerated"),
    "taint PreferNoSchedule": ({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, {}, None),
    "tolerated": ({"taints": [NO_SCHEDULE]}, {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}, None),
    "another value is tolerated": (
        {"taints": [NO_SCHEDULE]},
        {"spec": {"tolerations": [{"key": "a", "operator": "Equal", "value": "c"}]}},
        "taint is not tolerated",
    ),
}


@pytest.mark.parametrize(("node", "pod", "refusal"), CASES.values(), ids=CASES.keys())
def test_rules(node: dict[str, Any], pod: dict[str, Any], refusal: str | None) -> None:
    world = World()
    world.node("n", **{"cpu": "2", "memory": "2Gi", **node})
    world.pod("other", "1", "1Gi", on="n")
    world.pod("ended", "1", "1Gi", on="n", status={"phase": "Succeeded"})  # requests nothing any more
    record = world.pod("p", **{"cpu": "100m", "memory": None, **pod})
    (target,) = world.state.ready_nodes()
    assert misfit(record.placement, target) == refusal
    assert fits_any(record, [target]) == (refusal is None)


def test_the_own_node_counts_only_if_it_is_asked_for() -> None:
    world = World()
    world.node("n1")
    pod = world.pod("a", on="n1")
    nodes = world.state.ready_nodes()
    assert (fits_any(pod, nodes), fits_any(pod, nodes, other=False)) == (False, True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_many_nodes_at_once_have_the_same_result(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    devices: list[dict[str, Any]] = [{}, {GPU: "1"}]
    for number in range(8):
        world.node(
            f"n{number}",
            rng.choice(("1", "4")),
            rng.choice(("1Gi", "8Gi")),
            labels={"zone": rng.choice("ab")},
            taints=rng.choice(([], [], [NO_SCHEDULE])),
            unschedulable=rng.random() < 0.2,
            **rng.choice(devices),
        )
    specs: list[dict[str, Any]] = [
        {},
        {"nodeSelector": {"zone": "a"}},
        required(expressions("zone", "NotIn", "a")),
        required(),
        {"tolerations": [{"operator": "Exists"}]},
    ]
    for _ in range(20):
        world.pod(cpu=rng.choice(("100m", "2")), memory="512Mi", on=f"n{rng.randrange(8)}")
    nodes = world.state.ready_nodes()
    table = FitTable(nodes)
    for _ in range(10):
        pod = world.pod(cpu=rng.choice((None, "500m", "3")), memory=None, spec=rng.choice(specs), **rng.choice(devices))
        assert table.mask(pod.placement).tolist() == [misfit(pod.placement, node) is None for node in nodes]
