"""LowNodeLoad decides like a plain implementation, over random clusters and several passes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from tests.control.descheduler.plain.lownodeload import PlainLowNodeLoad, PlainPool
from tests.control.descheduler.world import World


def thresholds(
    rng: random.Random, percents: tuple[int, ...], below: dict[str, float] | None = None
) -> dict[str, float]:
    """Of some resources, mostly cpu; not above those of `below`."""
    chances = {"cpu": 0.9, "memory": 0.4, "pods": 0.4, "example.com/gpu": 0.1}
    chosen = {name: float(rng.choice(percents)) for name, chance in chances.items() if rng.random() < chance}
    limits = below if below is not None else {}
    return {name: min(value, limits.get(name, value)) for name, value in chosen.items()}


def build(rng: random.Random) -> tuple[World, PlainPool, dict[str, Any]]:
    """A cluster, and the same pool for both implementations."""
    world = World()
    for number in range(rng.randint(1, 7)):
        name = f"n{number}"
        taints = [{"key": "t", "effect": rng.choice(("NoSchedule", "PreferNoSchedule"))}] if rng.random() < 0.15 else []
        extra = {"example.com__gpu": "8"} if rng.random() < 0.5 else {}
        world.node(
            name,
            str(rng.choice((2, 4, 8))),
            f"{rng.choice((0, *[16] * 20))}Gi",
            rng.choice((4, 10, 20)),
            unschedulable=rng.random() < 0.1,
            taints=taints,
            labels={"zone": rng.choice("ab")},
            annotations={"node.koordinator.sh/raw-allocatable": '{"cpu": "2"}'} if rng.random() < 0.1 else {},
            **extra,
        )
        report(world, rng, name, rng.choice((0, 0, 1, 3, 9)))
    high = thresholds(rng, (20, 40, 60, 80))
    prod_high = thresholds(rng, (5, 10, 20, 40, 80), high) if rng.random() < 0.6 else {}
    deviation = rng.random() < 0.4
    pool = PlainPool(
        thresholds(rng, (0, 10, 30, 45, 60), high),
        high,
        thresholds(rng, (0, 5, 10, 30), prod_high) if prod_high else {},
        prod_high,
        {"cpu": rng.choice((0, 1, 3))} if rng.random() < 0.5 else {},
        deviation,
        rng.choice((1, 1, 2)),
        rng.choice((1, 2)),
        float(rng.choice((0, 15, 60))),
    )
    args = {
        "lowThresholds": pool.low,
        "highThresholds": pool.high,
        "prodLowThresholds": pool.prod_low,
        "prodHighThresholds": pool.prod_high,
        "resourceWeights": pool.weights,
        "useDeviationThresholds": deviation,
        "anomalyCondition": {
            "consecutiveAbnormalities": pool.abnormalities,
            "consecutiveNormalities": pool.normalities,
            **({"timeout": f"{pool.timeout:g}s"} if pool.timeout else {}),
        },
    }
    return world, pool, args


def report(world: World, rng: random.Random, node: str, pods: int) -> None:
    """Pods on a node, and a report of their usage that may lack some of them, be stale or absent."""
    usages = {}
    for _ in range(pods):
        spec: dict[str, Any] = {}
        if rng.random() < 0.2:
            spec["nodeSelector"] = {"zone": rng.choice("ab")}
        if rng.random() < 0.2:
            spec["tolerations"] = [{"operator": "Exists"}]
        pod = world.pod(
            "",
            rng.choice((None, "100m", "1")),
            rng.choice((None, "1Gi")),
            on=node,
            priority=rng.choice((None, 9500, 9500, 5500, 7500)),
            spec=spec,
            status={"phase": rng.choice(("Running",) * 9 + ("Succeeded",))},
            metadata={"creationTimestamp": f"2026-01-0{rng.randint(1, 3)}T00:00:00Z"},
        )
        if rng.random() < 0.9:
            usages[pod.key] = {"cpu": f"{rng.randint(0, 900)}m", "memory": f"{rng.randint(0, 2)}Gi"}
            if rng.random() < 0.2:
                usages[pod.key]["example.com/gpu"] = "1"
    if rng.random() < 0.9:
        system = {"cpu": f"{rng.randint(0, 900)}m", "memory": "200Mi"}
        world.load(node, usages, system, age_s=rng.choice((0.0, 0.0, 0.0, 500.0)))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.integers(0, 2))
def test_the_same_pods_are_evicted_for_the_same_reasons(seed: int, node_fit: bool, number_of_nodes: int) -> None:
    rng = random.Random(seed)
    world, pool, args = build(rng)
    world.evictor.protected = {pod.name for pod in world.state.pods.values() if rng.random() < 0.2}
    plugin = world.plugin(LowNodeLoad, {**args, "nodeFit": node_fit, "numberOfNodes": number_of_nodes})
    plain = PlainLowNodeLoad(
        pool,
        number_of_nodes=number_of_nodes,
        node_fit=node_fit,
        evictable=lambda pod: pod.name not in world.evictor.protected,
    )
    if pool.timeout == 0:
        pool.timeout = 60.0
    for _ in range(4):
        before = len(world.evictor.evicted)
        world.balance(plugin)
        ours = [(pod.name, options.reason) for pod, options in world.evictor.evicted[before:]]
        assert ours == plain.balance(world.state.ready_nodes(), world.clock.now(), world.clock.monotonic())
        for node in list(world.state.nodes):
            if rng.random() < 0.2:
                report(world, rng, node, 2)
        asyncio.run(world.clock.advance(rng.choice((10, 20, 400))))
