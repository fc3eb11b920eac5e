"""The plugins of Kubernetes' descheduler: what each evicts, and what it leaves alone (spec 07 §10)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.component.reading import Reader
from control.descheduler.plugins.registry import PLUGINS
from control.descheduler.plugins.upstream.antiaffinity import RemovePodsViolatingInterPodAntiAffinity
from control.descheduler.plugins.upstream.duplicates import RemoveDuplicates
from control.descheduler.plugins.upstream.lifecycle import (
    PodLifeTime,
    RemoveFailedPods,
    RemovePodsHavingTooManyRestarts,
)
from control.descheduler.plugins.upstream.placement import (
    PREFERRED,
    REQUIRED,
    RemovePodsViolatingNodeAffinity,
    RemovePodsViolatingNodeTaints,
)
from control.descheduler.plugins.upstream.utilization import HighNodeUtilization, LowNodeUtilization
from tests.control.descheduler.world import World


def owned(name: str = "rs", kind: str = "ReplicaSet") -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": True}]}


def container(name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def failed(reason: str, code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed", "containerStatuses": [container(state=state)]}


# Life cycle


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({"maxPodLifeTimeSeconds": 100}, ["oldest", "waiting"]),
        ({"maxPodLifeTimeSeconds": 200}, ["oldest"]),
        ({"maxPodLifeTimeSeconds": 300}, []),
        ({"maxPodLifeTimeSeconds": 0, "states": ["Running"]}, ["oldest"]),
        ({"maxPodLifeTimeSeconds": 100, "states": ["CrashLoopBackOff"]}, ["waiting"]),
        ({"maxPodLifeTimeSeconds": 0, "states": ["PodInitializing"]}, []),
        ({"maxPodLifeTimeSeconds": 0, "states": ["PodInitializing"], "includingInitContainers": True}, ["young"]),
        ({"maxPodLifeTimeSeconds": 0, "states": ["Shutdown"]}, ["young"]),
        ({"maxPodLifeTimeSeconds": 100, "namespaces": {"exclude": ["default"]}}, []),
        ({"maxPodLifeTimeSeconds": 100, "labelSelector": {"matchLabels": {"a": "b"}}}, []),
    ],
)
def test_pods_that_are_too_old(args: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    world.node("n1")
    now = int(world.clock.now())

    def aged(seconds: int) -> dict[str, Any]:
        return {"creationTimestamp": stamp(now - seconds)}

    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    world.pod(
        "waiting",
        on="n1",
        metadata=aged(200),
        status={"phase": "Pending", "containerStatuses": [container(state=waiting)]},
    )
    world.pod("oldest", on="n1", metadata=aged(300), status={"phase": "Running"})
    initializing = [container(state={"waiting": {"reason": "PodInitializing"}})]
    status = {"phase": "Pending", "reason": "Shutdown", "initContainerStatuses": initializing}
    world.pod("young", on="n1", metadata=aged(100), status=status)
    assert world.deschedule(world.plugin(PodLifeTime, args)) == evicted


def stamp(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({"podRestartThreshold": 5}, ["a"]),
        ({"podRestartThreshold": 6}, []),
        ({"podRestartThreshold": 6, "includingInitContainers": True}, ["a"]),
        ({"podRestartThreshold": 5, "states": ["CrashLoopBackOff"]}, ["a"]),
        ({"podRestartThreshold": 5, "states": ["Running"]}, []),
    ],
)
def test_pods_that_restart_too_often(args: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    world.node("n1")
    statuses = [
        container("a", restartCount=3, state={"waiting": {"reason": "CrashLoopBackOff"}}),
        container("b", restartCount=2),
    ]
    status = {"phase": "Pending", "containerStatuses": statuses, "initContainerStatuses": [container(restartCount=1)]}
    world.pod("a", on="n1", status=status)
    world.pod("calm", on="n1", status={"phase": "Pending"})
    assert world.deschedule(world.plugin(RemovePodsHavingTooManyRestarts, args)) == evicted


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, ["error", "oom"]),
        ({"reasons": ["OOMKilled"]}, ["oom"]),
        ({"exitCodes": [1]}, ["error"]),
        ({"reasons": ["OOMKilled"], "exitCodes": [1]}, []),
        ({"excludeOwnerKinds": ["Job"]}, ["oom"]),
        ({"minPodLifetimeSeconds": 3600}, ["error", "oom"]),  # without a creation time they are old
    ],
)
def test_failed_pods(args: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    world.node("n1")
    world.pod(
        "error",
        on="n1",
        status=failed("Error", 1),
        metadata={**owned(kind="Job"), "name": "error", "namespace": "default"},
    )
    world.pod("oom", on="n1", status=failed("OOMKilled", 137))
    world.pod("fine", on="n1", status={"phase": "Running"})
    assert world.deschedule(world.plugin(RemoveFailedPods, args)) == evicted


# Taints and affinity


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, ["plain"]),
        ({"includePreferNoSchedule": True}, ["plain", "tolerant"]),
        ({"excludedTaints": ["hard"]}, []),
        ({"excludedTaints": ["hard=x"]}, []),
        ({"excludedTaints": ["hard=y"]}, ["plain"]),
        ({"includedTaints": ["soft"]}, []),
        ({"includedTaints": ["hard"]}, ["plain"]),
    ],
)
def test_taints(args: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    taints = [
        {"key": "hard", "value": "x", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    world.node("n1", taints=taints)
    world.node("n2")
    world.pod("plain", on="n1")
    world.pod("tolerant", on="n1", spec={"tolerations": [{"key": "hard", "operator": "Exists"}]})
    world.pod("elsewhere", on="n2")
    assert world.deschedule(world.plugin(RemovePodsViolatingNodeTaints, args)) == evicted


def affinity(**kinds: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": kinds}}


def test_node_affinity() -> None:
    world = World()
    world.node("n1", labels={"disk": "slow"})
    world.node("n2", labels={"disk": "fast"})
    fast = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    none = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["tape"]}]}
    for name, term in (("wrong", fast), ("hopeless", none)):
        world.pod(name, on="n1", spec=affinity(**{REQUIRED: {"nodeSelectorTerms": [term]}}))
    world.pod("right", on="n2", spec=affinity(**{REQUIRED: {"nodeSelectorTerms": [fast]}}))
    world.pod("better", on="n1", spec=affinity(**{PREFERRED: [{"weight": 5, "preference": fast}]}))
    world.pod("content", on="n2", spec=affinity(**{PREFERRED: [{"weight": 5, "preference": fast}]}))

    def evicted(*kinds: str) -> list[str]:
        return world.deschedule(world.plugin(RemovePodsViolatingNodeAffinity, {"nodeAffinityType": [*kinds]}))

    assert evicted(REQUIRED) == ["wrong"]
    assert evicted(PREFERRED) == ["better"]
    assert evicted(REQUIRED, PREFERRED) == ["wrong", "better"]
    world.pod("full", "8", on="n2")
    assert evicted(REQUIRED, PREFERRED) == []  # the other node has no room


def away(app: str, key: str = "kubernetes.io/hostname", **more: Any) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def test_anti_affinity_by_priority_and_domain() -> None:
    world = World()
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        world.node(name, labels={"zone": zone})
    world.pod("high", on="n1", priority=10, labels={"app": "db"}, spec=away("db"))
    world.pod("low", on="n1", priority=5, labels={"app": "db"}, spec=away("db"))
    world.pod("far", on="n3", labels={"app": "db"}, spec=away("db"))
    plugin = world.plugin(RemovePodsViolatingInterPodAntiAffinity)
    assert world.deschedule(plugin) == ["low"]  # high is alone then

    zones = World()
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "")):
        zones.node(name, labels={"zone": zone} if zone else {})
    zones.pod("guard", on="n1", labels={"app": "guard"}, spec=away("web", "zone"))
    zones.pod("same-zone", on="n2", labels={"app": "web"})
    zones.pod("other-zone", on="n3", labels={"app": "web"})
    zones.pod("no-zone", on="n4", labels={"app": "web"})
    zones.pod("other-namespace", on="n2", labels={"app": "web"}, namespace="x")
    assert zones.deschedule(zones.plugin(RemovePodsViolatingInterPodAntiAffinity)) == ["same-zone"]


# Duplicates


@pytest.mark.parametrize(
    ("nodes", "placed", "evicted"),
    [
        (2, "aaa", 1),
        (3, "aaa", 2),
        (3, "aaabc", 1),
        (2, "ab", 0),
        (1, "aaa", 0),
    ],
)
def test_duplicates_are_spread_evenly(nodes: int, placed: str, evicted: int) -> None:
    world = World()
    for name in "abc"[:nodes]:
        world.node(name)
    for number, node in enumerate(placed):
        world.pod(f"p{number}", on=node, metadata={**owned(), "name": f"p{number}", "namespace": "default"})
    names = world.balance(world.plugin(RemoveDuplicates))
    assert len(names) == evicted
    assert "p0" not in names


def test_what_is_no_duplicate() -> None:
    world = World()
    for name in ("a", "b"):
        world.node(name)
    for number in range(2):
        for owner, images in (("x", ["1"]), ("y", [str(number)])):
            name = f"{owner}{number}"
            spec = {"containers": [{"name": "c", "image": image} for image in images]}
            world.pod(name, on="a", metadata={**owned(owner), "name": name, "namespace": "default"}, spec=spec)
        world.pod(f"bare{number}", on="a")
    assert world.balance(world.plugin(RemoveDuplicates)) == ["x1"]
    assert world.balance(world.plugin(RemoveDuplicates, {"excludeOwnerKinds": ["ReplicaSet"]})) == []
    world.node("b", taints=[{"key": "t", "effect": "NoSchedule"}])  # the only other node is not possible
    assert world.balance(world.plugin(RemoveDuplicates)) == []


# Utilization


def utilization(world: World, **cores: int) -> None:
    """Nodes of 10 cores with this number of pods of one core."""
    for name, number in cores.items():
        world.node(name, "10", "100Gi", 100)
        for at in range(number):
            world.pod(f"{name}-{at}", "1", "1Gi", on=name, priority=at)


LOW = {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 50}}


@pytest.mark.parametrize(
    ("args", "cores", "evicted"),
    [
        ({}, {"a": 8, "b": 2}, ["a-0", "a-1", "a-2"]),
        ({}, {"a": 8, "b": 3, "c": 7}, ["a-0", "a-1"]),  # room for two below the target of b
        ({}, {"a": 5, "b": 2}, []),
        ({}, {"a": 8, "b": 4}, []),
        ({"numberOfNodes": 1}, {"a": 8, "b": 2}, []),
        ({"evictionLimits": {"node": 1}}, {"a": 8, "b": 2}, ["a-0"]),
        ({"evictableNamespaces": {"exclude": ["default"]}}, {"a": 8, "b": 2}, []),
        (
            {"thresholds": {"cpu": 10}, "targetThresholds": {"cpu": 10}, "useDeviationThresholds": True},
            {"a": 8, "b": 2, "c": 5},
            ["a-0", "a-1"],
        ),
    ],
)
def test_low_node_utilization(args: dict[str, Any], cores: dict[str, int], evicted: list[str]) -> None:
    world = World()
    utilization(world, **cores)
    assert world.balance(world.plugin(LowNodeUtilization, {**LOW, **args})) == evicted


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_utilization_targets_never_get_more_than_they_can_take(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    utilization(world, **{f"n{number}": rng.randint(0, 10) for number in range(rng.randint(2, 6))})
    counts = {name: len(node.pods) for name, node in world.state.nodes.items()}
    evicted = world.balance(world.plugin(LowNodeUtilization, LOW))
    room = sum(5 - count for count in counts.values() if count <= 3)
    assert len(evicted) <= max(room, 0)
    for name in evicted:
        node = name.partition("-")[0]
        assert counts[node] > 5
    for node, count in counts.items():
        left = count - sum(name.startswith(f"{node}-") for name in evicted)
        assert left >= min(count, 5)


@pytest.mark.parametrize(
    ("args", "cores", "evicted"),
    [
        ({}, {"a": 1, "b": 6}, ["a-0"]),
        ({}, {"a": 2, "b": 1, "c": 8}, ["b-0", "a-0"]),  # c has room for two
        ({}, {"a": 1, "b": 2}, []),  # all are under-used
        ({"numberOfNodes": 1}, {"a": 1, "b": 6}, []),
        ({"evictionModes": ["OnlyThresholdingResources"]}, {"a": 1, "b": 6}, ["a-0"]),
    ],
)
def test_high_node_utilization(args: dict[str, Any], cores: dict[str, int], evicted: list[str]) -> None:
    world = World()
    utilization(world, **cores)
    world.pod("idle", None, None, on="a", priority=99) if "evictionModes" in args else None
    assert world.balance(world.plugin(HighNodeUtilization, {"thresholds": {"cpu": 20}, **args})) == evicted


# Arguments


@pytest.mark.parametrize(
    ("plugin", "args", "errors"),
    [
        ("PodLifeTime", {}, ["args.maxPodLifeTimeSeconds: Required value"]),
        ("RemovePodsViolatingNodeAffinity", {}, ["args.nodeAffinityType: Required value"]),
        (
            "RemovePodsHavingTooManyRestarts",
            {"namespaces": {"include": ["a"], "exclude": ["b"]}},
            [
                'args.namespaces: Invalid value: {"include": ["a"], "exclude": ["b"]}: only one of both can be set',
                "args.podRestartThreshold: Invalid value: 0: must be at least 1",
            ],
        ),
        (
            "RemovePodsViolatingNodeTaints",
            {"includedTaints": ["a"], "excludedTaints": ["b"]},
            ['args.includedTaints: Invalid value: ["a"]: excludedTaints is set, too'],
        ),
        (
            "LowNodeUtilization",
            {"thresholds": {"cpu": 101}, "targetThresholds": {"cpu": 50, "pods": 5}, "metricsUtilization": {"a": 1}},
            [
                "args.thresholds[cpu]: Invalid value: 101: must be between 0 and 100",
                'args.targetThresholds: Invalid value: ["cpu", "pods"]: must name the same resources',
                "args.thresholds[cpu]: Invalid value: 101: must not be greater than targetThresholds[cpu]",
                'args.metricsUtilization: Invalid value: {"a": 1}: '
                "is not available: use LowNodeLoad for measured usage",
            ],
        ),
        (
            "LowNodeUtilization",
            {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 10}, "useDeviationThresholds": True},
            [],
        ),
        ("HighNodeUtilization", {}, ["args.thresholds: Required value"]),
    ],
)
def test_invalid_arguments(plugin: str, args: dict[str, Any], errors: list[str]) -> None:
    errors_read: list[str] = []
    read = Reader(errors_read).struct(args, PLUGINS[plugin].args_type, "args")
    assert errors_read + read.check("args") == errors


def test_a_pod_that_fails_the_last_filter_stays() -> None:
    world = World()
    world.node("n1")
    world.pod("a", on="n1", status=failed("Error", 1))
    plugin = world.plugin(RemoveFailedPods)
    world.evictor.not_now = {"a"}
    assert world.deschedule(plugin) == []
    world.evictor.not_now = set()
    world.evictor.protected = {"a"}
    assert world.deschedule(plugin) == []
    world.evictor.protected = set()
    assert world.deschedule(plugin) == ["a"]
    asyncio.run(plugin.start())
    asyncio.run(plugin.stop())
