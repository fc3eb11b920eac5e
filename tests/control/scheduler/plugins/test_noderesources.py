"""NodeResourcesFit and NodeResourcesBalancedAllocation: reasons, strategies, and the plain rules on random clusters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import (
    NodeResourcesBalancedAllocationArgs,
    NodeResourcesFitArgs,
    RequestedToCapacityRatioParam,
    ScoringStrategy,
    UtilizationShapePoint,
    WeightedResource,
)
from control.scheduler.plugins.balancedallocation import NodeResourcesBalancedAllocation
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain import resources as plain
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import filtered, scored

U, S = "UnschedulableAndUnresolvable", "Unschedulable"
GPU = "nvidia.com/gpu"


def fit(cluster: Cluster, **args: Any) -> NodeResourcesFit:
    return NodeResourcesFit(NodeResourcesFitArgs(**args), cluster.handle)


def strategy(kind: str, *, curve: list[tuple[int, int]] | None = None, **weights: int) -> ScoringStrategy:
    shape = RequestedToCapacityRatioParam([UtilizationShapePoint(*point) for point in curve]) if curve else None
    return ScoringStrategy(kind, [WeightedResource(name, weight) for name, weight in weights.items()], shape)


@pytest.mark.parametrize(
    ("incoming", "expected"),
    [
        pytest.param(pod(cpu="2", memory="1Gi"), None, id="fits exactly"),
        pytest.param(pod(cpu="2001m", memory="1Gi"), (S, ("Insufficient cpu",)), id="one short"),
        pytest.param(
            pod(cpu="3", memory="7Gi"), (S, ("Insufficient cpu", "Insufficient memory")), id="all shortages are named"
        ),
        pytest.param(
            pod(cpu="5", memory="7Gi"),
            (U, ("Insufficient cpu", "Insufficient memory")),
            id="more than the node has: preemption can't help",
        ),
        pytest.param(
            pod(cpu="1", memory="1Gi", nvidia__x="1"), (U, ("Insufficient nvidia/x",)), id="nothing of the resource"
        ),
        pytest.param(pod(cpu=None, memory=None), None, id="nothing requested"),
        pytest.param(pod(cpu="0", memory="0", nvidia__x="0"), None, id="zeros are no requests"),
    ],
)
def test_reasons(incoming: Pod, expected: object) -> None:
    cluster = Cluster(node("a", cpu="4", memory="8Gi", pods=2))
    cluster.put(pod(cpu="2", memory="2Gi", on="a"))
    assert filtered(fit(cluster), cluster, incoming) == {"a": expected}


def test_too_many_pods_comes_first_and_counts_without_requests() -> None:
    cluster = Cluster(node("a", cpu="1", pods=1))
    cluster.put(pod(cpu="1", on="a"))
    assert filtered(fit(cluster), cluster, pod(cpu="1")) == {"a": (S, ("Too many pods", "Insufficient cpu"))}
    assert filtered(fit(cluster), cluster, pod(cpu=None, memory=None)) == {"a": (S, ("Too many pods",))}


@pytest.mark.parametrize(
    ("args", "passes"),
    [
        pytest.param({}, False, id="checked"),
        pytest.param({"ignored_resources": [GPU]}, True, id="resource ignored"),
        pytest.param({"ignored_resource_groups": ["nvidia.com"]}, True, id="group ignored"),
        pytest.param({"ignored_resource_groups": ["nvidia"]}, False, id="another group ignored"),
    ],
)
def test_ignored_resources(args: dict[str, Any], passes: bool) -> None:
    cluster = Cluster(node("a"))
    verdict = filtered(fit(cluster, **args), cluster, pod(**{GPU.replace("/", "__"): "1"}))["a"]  # type: ignore[arg-type]
    assert (verdict is None) == passes


def test_kubernetes_own_resources_are_never_ignored() -> None:
    cluster = Cluster(node("a"))
    plugin = fit(cluster, ignored_resources=["kubernetes.io/batch-cpu"], ignored_resource_groups=["kubernetes.io"])
    incoming = pod(**{"kubernetes.io__batch_cpu": "1"})  # type: ignore[arg-type]
    assert filtered(plugin, cluster, incoming) == {"a": (U, ("Insufficient kubernetes.io/batch-cpu",))}


CURVE = [(0, 0), (50, 10), (100, 2)]


@pytest.mark.parametrize(
    ("given_strategy", "used", "expected"),
    [
        pytest.param(None, ("0", "0"), 98, id="least: an empty node of 32 cores, 256 GiB"),
        pytest.param(strategy("LeastAllocated", cpu=3, memory=1), ("16", "0"), 60, id="least: weights"),
        pytest.param(strategy("LeastAllocated", cpu=1), ("32", "0"), 0, id="least: too full is 0"),
        pytest.param(strategy("MostAllocated", cpu=1, memory=1), ("0", "0"), 0, id="most: (1 + 0) / 2"),
        pytest.param(strategy("MostAllocated", cpu=1), ("32", "0"), 100, id="most: cut at all of it"),
        pytest.param(
            strategy("RequestedToCapacityRatio", cpu=1, curve=CURVE), ("15500m", "0"), 100, id="curve: the middle"
        ),
        pytest.param(
            strategy("RequestedToCapacityRatio", cpu=1, curve=CURVE), ("23500m", "0"), 60, id="curve: falling"
        ),
        pytest.param(
            strategy("RequestedToCapacityRatio", cpu=1, memory=1, curve=CURVE),
            ("15500m", "0"),
            100,
            id="curve: a resource that scores 0 is left out",
        ),
        pytest.param(
            ScoringStrategy("LeastAllocated", [WeightedResource("cpu", 1), WeightedResource(GPU, 5)]),
            ("0", "0"),
            98,
            id="an extended resource that is not requested is left out",
        ),
    ],
)
def test_score(given_strategy: ScoringStrategy | None, used: tuple[str, str], expected: int) -> None:
    cluster = Cluster(node("a", cpu="32", memory="256Gi", **{"nvidia.com__gpu": "8"}))  # type: ignore[arg-type]
    cluster.put(pod(cpu=used[0], memory=used[1], on="a"))
    args = {} if given_strategy is None else {"scoring_strategy": given_strategy}
    assert scored(fit(cluster, **args), cluster, pod(cpu="500m", memory="512Mi")) == {"a": expected}


def test_pods_without_requests_count_with_defaults_in_scores() -> None:
    cluster = Cluster(node("a", cpu="1", memory="1000Mi"))
    cluster.put(pod(cpu=None, memory=None, on="a"))
    assert scored(fit(cluster), cluster, pod(cpu=None, memory=None)) == {"a": (80 + 60) // 2}


def test_balanced_example() -> None:
    cluster = Cluster(node("a", cpu="10", memory="10Gi"))
    plugin = NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs(), cluster.handle)
    assert scored(plugin, cluster, pod(cpu="5", memory="3Gi")) == {"a": 90}
    assert scored(plugin, cluster, pod(cpu="20", memory="10Gi")) == {"a": 100}  # shares are cut at all of it
    assert scored(plugin, cluster, pod(cpu=None, memory=None)) is None


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        pytest.param(None, node("a", cpu="4"), True, id="new and big enough"),
        pytest.param(None, node("a", cpu="1"), False, id="new and too small"),
        pytest.param(node("a", cpu="2"), node("a", cpu="4"), True, id="grown"),
        pytest.param(node("a", cpu="4"), node("a", cpu="4"), False, id="as before"),
        pytest.param(node("a", cpu="4", pods=1), node("a", cpu="4", pods=2), True, id="more pods"),
        pytest.param(node("a", cpu="4", memory="2Gi"), node("a", cpu="3", memory="2Gi"), False, id="shrunk"),
    ],
)
def test_node_hint(old: Node | None, new: Node, wakes: bool) -> None:
    cluster = Cluster()
    hint = next(i.hint for i in fit(cluster).interests() if i.resource == "Node")
    assert hint is not None
    assert hint(cluster.info(pod(cpu="2")), old, new) is wakes


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        pytest.param(pod("x", on="a"), None, True, id="a pod left a node"),
        pytest.param(pod("x"), None, True, id="a pod that was placed here, and not bound yet"),
        pytest.param(pod("x", cpu="2", on="a"), pod("x", cpu="1", on="a"), True, id="shrank"),
        pytest.param(pod("x", cpu="1", on="a"), pod("x", cpu="1", on="a"), False, id="as before"),
        pytest.param(pod("x", example__y="2", on="a"), pod("x", on="a"), False, id="shrank in what is not wanted"),
    ],
)
def test_pod_hint(old: Pod | None, new: Pod | None, wakes: bool) -> None:
    cluster = Cluster()
    hint = next(i.hint for i in fit(cluster).interests() if i.resource == "AssignedPod")
    assert hint is not None
    assert hint(cluster.info(pod(cpu="2")), old, new) is wakes


# Against the plain rules

amount = st.sampled_from([None, "0", "100m", "700m", "1", "3", "9"])
size = st.sampled_from([None, "0", "128Mi", "1Gi", "5Gi"])
count = st.sampled_from([None, "0", "1", "3"])


@st.composite
def pods(draw: st.DrawFn, on: str = "") -> Pod:
    extra = {"nvidia.com__gpu": draw(count), "kubernetes.io__batch_cpu": draw(count)}
    return pod(cpu=draw(amount), memory=draw(size), on=on, **{k: v for k, v in extra.items() if v is not None})  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes = []
    for number in range(draw(st.integers(1, 6))):
        extra = {"nvidia.com__gpu": draw(count), "kubernetes.io__batch_cpu": draw(count)}
        nodes.append(
            node(
                f"n{number}",
                cpu=draw(st.sampled_from(["0", "1", "4", "16"])),
                memory=draw(st.sampled_from(["0", "1Gi", "8Gi"])),
                pods=draw(st.integers(0, 4)),
                **{k: v for k, v in extra.items() if v is not None},  # type: ignore[arg-type]
            )
        )
    placed = [draw(pods(on=f"n{draw(st.integers(0, len(nodes) - 1))}")) for _ in range(draw(st.integers(0, 8)))]
    return World(nodes, placed)


WEIGHTS = {"cpu": 2, "memory": 1, GPU: 3, "kubernetes.io/batch-cpu": 1}
STRATEGIES = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]


@given(worlds(), pods(), st.sampled_from(STRATEGIES), st.booleans())
def test_fit_follows_the_plain_rules(world: World, incoming: Pod, kind: str, ignore: bool) -> None:
    cluster = Cluster(*world.nodes)
    cluster.put(*world.pods)
    curve = RequestedToCapacityRatioParam([UtilizationShapePoint(x, y) for x, y in CURVE])
    given_strategy = ScoringStrategy(kind, [WeightedResource(*weight) for weight in WEIGHTS.items()], curve)
    ignored = [GPU] if ignore else []
    plugin = fit(cluster, scoring_strategy=given_strategy, ignored_resources=ignored)
    verdicts = filtered(plugin, cluster, incoming)
    for member in world.nodes:
        expected = plain.fit(incoming, member, world, ignored)
        verdict = verdicts[member.metadata.name]
        assert (verdict is None) == (expected is None)
        if verdict and expected:
            assert (verdict[0], sorted(verdict[1])) == (expected[0], sorted(expected[1]))
    assert scored(plugin, cluster, incoming) == {
        node.metadata.name: plain.fit_score(incoming, node, world, kind, WEIGHTS, CURVE) for node in world.nodes
    }


@given(worlds(), pods(), st.sampled_from([("cpu", "memory"), ("cpu", "memory", GPU), ("cpu",), tuple(WEIGHTS)]))
def test_balance_follows_the_plain_rules(world: World, incoming: Pod, names: tuple[str, ...]) -> None:
    cluster = Cluster(*world.nodes)
    cluster.put(*world.pods)
    args = NodeResourcesBalancedAllocationArgs([WeightedResource(name, 1) for name in names])
    scores = scored(NodeResourcesBalancedAllocation(args, cluster.handle), cluster, incoming)
    expected = {node.metadata.name: plain.balanced_score(incoming, node, world, names) for node in world.nodes}
    assert scores == (None if None in expected.values() else expected)
