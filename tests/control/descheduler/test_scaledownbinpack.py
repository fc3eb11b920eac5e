"""ScaleDownBinPack: scores, ranks, deletion costs, direct evictions (spec 07 §9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control.component.reading import Reader
from control.descheduler.plugins.scaledownbinpack import DeletionCostFailed, ScaleDownBinPack, ScaleDownBinPackArgs
from koordlet.kube import KubeError
from tests.control.descheduler.world import World

COST = "controller.kubernetes.io/pod-deletion-cost"
WEB: dict[str, Any] = {"podSelectors": [{"name": "web", "selector": {"matchLabels": {"app": "web"}}}]}


class RecordingPods:
    """A client that records the deletion costs that are written, and refuses some."""

    def __init__(self) -> None:
        self.costs: dict[str, str] = {}
        self.refused: set[str] = set()

    async def patch(self, kind: type, name: str, namespace: str, *, body: Any, repeatable: bool) -> None:
        if name in self.refused:
            raise KubeError("refused")
        self.costs[name] = body["metadata"]["annotations"][COST]


def annotated(world: World, args: dict[str, Any]) -> dict[str, str]:
    world.client = RecordingPods()
    plugin = world.plugin(ScaleDownBinPack, args)
    asyncio.run(plugin.balance(world.state.ready_nodes()))
    costs: dict[str, str] = world.client.costs
    return costs


def web(world: World, name: str, node: str, cpu: str = "1", memory: str = "1Gi", **more: Any) -> None:
    world.pod(name, cpu, memory, on=node, labels={"app": "web"}, **more)


def test_scores_of_the_specification() -> None:
    world = World()
    world.node("n1", "4", "8Gi")
    web(world, "target", "n1")
    world.pod("other", "1", "1Gi", on="n1")
    plugin = world.plugin(ScaleDownBinPack, WEB)
    (best,) = plugin.ranked(world.state.ready_nodes())
    assert best.score == 1.0
    world.node("n2", "4", "8Gi")
    web(world, "big-cpu", "n2", "2", "100Mi")
    web(world, "big-memory", "n2", "100m", "3Gi")
    ranked = plugin.ranked(world.state.ready_nodes())
    assert [(rating.node.name, rating.score) for rating in ranked] == [("n2", 0.0), ("n1", 1.0)]
    assert [pod.name for pod in plugin.ordered(ranked[0])] == ["big-cpu", "big-memory"]
    world.node("n3", "4", "8Gi")
    web(world, "of-size-0.512", "n3", "2", "100Mi")
    world.pod("of-size-0.4", "100m", "3Gi", on="n3")
    (last,) = (each for each in plugin.ranked(world.state.ready_nodes()) if each.node.name == "n3")
    assert last.score == pytest.approx(0.4 / 0.512, abs=0.001)


def test_equal_nodes_are_emptied_by_number_of_pods_and_name() -> None:
    world = World()
    for name in ("c", "b", "a"):
        world.node(name)
        web(world, f"{name}1", name)
    web(world, "b2", "b")
    world.node("ignored")
    world.pod("other", on="ignored")
    assert annotated(world, WEB) == {"a1": "0", "c1": "1", "b1": "2", "b2": "3"}


def test_skipped_pods_get_the_highest_cost_and_others_none() -> None:
    world = World()
    world.node("n1")
    web(world, "ranked", "n1", annotations={COST: "0"})  # has its cost already
    web(world, "skipped", "n1")
    web(world, "foreign", "n1", namespace="kube-system")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1"}
    web(world, "daemon", "n1", metadata={"ownerReferences": [owner], "name": "daemon", "namespace": "default"})
    world.pod("other", on="n1")
    world.evictor.protected = {"skipped", "daemon"}
    args = {**WEB, "evictableNamespaces": {"exclude": ["kube-system"]}}
    assert annotated(world, args) == {"skipped": "2147483647"}


def test_pods_are_skipped_ones_if_an_entry_has_no_selector() -> None:
    world = World()
    world.node("n1")
    web(world, "ranked", "n1")
    world.pod("other", on="n1")
    assert annotated(world, WEB) == {"ranked": "0"}
    both = {"podSelectors": [*WEB["podSelectors"], {"name": "all"}]}
    assert annotated(world, both) == {"ranked": "0", "other": "2147483647"}


def test_direct_evictions_stop_at_the_maximum_of_successes() -> None:
    world = World()
    world.node("n1")
    for name in ("a", "b", "c", "d"):
        web(world, name, "n1")
    world.evictor.failing = {"a"}
    plugin = world.plugin(ScaleDownBinPack, {**WEB, "strategy": "EvictDirectly", "maxPodsToEvict": 2})
    assert world.balance(plugin) == ["b", "c"]
    assert set(world.reasons) == {"scale-down binpack"}


def test_nothing_happens_when_paused_or_in_a_global_dry_run() -> None:
    for world, args in ((World(), {"paused": True}), (World(dry_run=True), {})):
        world.node("n1")
        web(world, "a", "n1")
        assert annotated(world, {**WEB, **args}) == {}


def test_refused_writes_are_one_error_after_all_were_tried() -> None:
    world = World()
    world.node("n1")
    for name in ("a", "b", "c"):
        web(world, name, "n1")
    client = world.client = RecordingPods()
    client.refused = {"a", "b"}
    plugin = world.plugin(ScaleDownBinPack, WEB)
    with pytest.raises(DeletionCostFailed, match="of 2 of 3 pods"):
        asyncio.run(plugin.balance(world.state.ready_nodes()))
    assert client.costs == {"c": "2"}


def test_invalid_arguments() -> None:
    errors: list[str] = []
    args = {"strategy": "EvictDirectly", "resources": [], "resourceWeights": {"cpu": 0, "memory": float("inf")}}
    read: ScaleDownBinPackArgs = Reader(errors).struct(args, ScaleDownBinPackArgs, "args")
    assert errors + read.check("args") == [
        "args.resources: Required value",
        "args.maxPodsToEvict: Invalid value: 0: must be greater than 0",
        "args.resourceWeights[cpu]: Invalid value: 0: must be finite and greater than 0",
        "args.resourceWeights[memory]: Invalid value: Infinity: must be finite and greater than 0",
    ]
    assert ScaleDownBinPackArgs(strategy="Fast").check("args") == [
        'args.strategy: Unsupported value: "Fast": supported values: "CalculateOnly", "EvictDirectly"'
    ]
