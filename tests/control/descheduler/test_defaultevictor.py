"""DefaultEvictor: which pods may go (spec 07 §4.3), its eviction call, and selectors as text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control.component.labeltext import parse_label_selector
from control.component.reading import Reader
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.plugins.defaultevictor.args import DefaultEvictorArgs
from control.descheduler.plugins.defaultevictor.plugin import DefaultEvictor
from control.descheduler.state.pods import PodRecord
from koordlet.api.core import PodDisruptionBudget, PriorityClass
from koordlet.api.encoding import wire
from koordlet.api.meta import SelectorError
from koordlet.kube import ConnectionFailed
from tests.control.descheduler.world import RecordingEvents, World

EVICT = "descheduler.alpha.kubernetes.io/evict"
PREFER_NOT = "descheduler.alpha.kubernetes.io/prefer-no-eviction"


class FixedObjects:
    """Informers whose stores have these objects, by kind."""

    def __init__(self, **objects: Any) -> None:
        self._objects = objects
        self.requested: list[str] = []

    def informer(self, kind: type) -> FixedStore:
        self.requested.append(kind.__name__)
        return FixedStore(self._objects.get(kind.__name__, []))


class FixedStore:
    def __init__(self, objects: list[Any]) -> None:
        self.store = objects

    def get(self, key: str) -> Any:
        return next((stored for stored in self.store if stored.metadata.name == key), None)


def owner(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}]}


PODS: dict[str, dict[str, Any]] = {
    "plain": {"metadata": owner("ReplicaSet")},
    "bare": {},
    "bareFailed": {"status": {"phase": "Failed"}},
    "daemon": {"metadata": owner("DaemonSet")},
    "critical": {"metadata": owner("ReplicaSet"), "priority": 2000000000},
    "important": {"metadata": owner("ReplicaSet"), "priority": 1000},
    "scratch": {"metadata": owner("ReplicaSet"), "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
    "host": {"metadata": owner("ReplicaSet"), "spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
    "claim": {
        "metadata": owner("ReplicaSet"),
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    },
    "device": {"metadata": owner("ReplicaSet"), "spec": {"resourceClaims": [{"name": "gpu"}]}},
    "mirror": {"metadata": owner("Node"), "annotations": {"kubernetes.io/config.mirror": "x"}},
    "static": {"metadata": owner("Node"), "annotations": {"kubernetes.io/config.source": "file"}},
    "terminating": {"metadata": {**owner("ReplicaSet"), "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    "forced": {"annotations": {EVICT: ""}, "priority": 2000000000},
    "reluctant": {"metadata": owner("ReplicaSet"), "annotations": {PREFER_NOT: ""}},
}


def allowed(args: dict[str, Any], objects: FixedObjects | None = None) -> set[str]:
    world = World()
    world.objects = objects or FixedObjects()
    plugin = world.plugin(DefaultEvictor, args)
    return {name for name, pod in pods(world).items() if plugin.filter(pod) is None}


def pods(world: World) -> dict[str, PodRecord]:
    world.node("n1")
    pods = {}
    for name, more in PODS.items():
        annotations = more.get("annotations", {})
        metadata = {"name": name, "namespace": "default", "annotations": annotations, **more.get("metadata", {})}
        rest = {key: value for key, value in more.items() if key not in ("metadata", "annotations")}
        pods[name] = world.pod(name, on="n1", metadata=metadata, **rest)
    return pods


DEFAULT = {"plain", "important", "claim", "device", "forced", "reluctant"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, DEFAULT),
        ({"evictLocalStoragePods": True}, DEFAULT | {"scratch", "host"}),
        ({"evictDaemonSetPods": True}, DEFAULT | {"daemon"}),
        ({"evictSystemCriticalPods": True}, DEFAULT | {"critical"}),
        ({"evictFailedBarePods": True}, DEFAULT | {"bareFailed"}),
        ({"ignorePvcPods": True}, DEFAULT - {"claim"}),
        ({"priorityThreshold": {"value": 1000}}, DEFAULT - {"important"}),
        ({"priorityThreshold": {"value": 1001}}, DEFAULT),
        ({"priorityThreshold": {"value": 1000}, "evictSystemCriticalPods": True}, DEFAULT | {"critical"}),
        ({"noEvictionPolicy": "Mandatory"}, DEFAULT - {"reluctant"}),
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, {"forced"}),
        (
            {"podProtections": {"extraEnabled": ["PodsWithPVC", "PodsWithResourceClaims"]}},
            DEFAULT - {"claim", "device"},
        ),
        (
            {"podProtections": {"defaultDisabled": ["PodsWithLocalStorage"]}, "ignorePvcPods": True},
            DEFAULT | {"scratch", "host"},
        ),
        ({"minReplicas": 2}, DEFAULT),  # ReplicaSet o has many pods
        ({"minReplicas": 100}, {"forced"}),
    ],
)
def test_which_pods_may_go(args: dict[str, Any], expected: set[str]) -> None:
    assert allowed(args) == expected


def test_a_named_priority_threshold_is_looked_up_and_refuses_all_while_it_is_unknown() -> None:
    document = {"metadata": {"name": "high"}, "value": 1000}
    known = FixedObjects(PriorityClass=[wire.convert(document, PriorityClass)])
    args = {"priorityThreshold": {"name": "high"}}
    assert allowed(args, known) == DEFAULT - {"important"}
    assert known.requested == ["PriorityClass"]
    assert allowed(args) == {"forced"}


def test_pods_without_a_budget_can_be_kept() -> None:
    world = World()
    specs = [{"matchLabels": {"app": "web"}}, {"matchLabels": {"-": "invalid"}}]
    meta = {"name": "b", "namespace": "default"}
    budgets: list[Any] = [
        wire.convert({"metadata": meta, "spec": {"selector": selector}}, PodDisruptionBudget) for selector in specs
    ]
    world.objects = FixedObjects(PodDisruptionBudget=budgets)
    plugin = world.plugin(DefaultEvictor, {"ignorePodsWithoutPDB": True})
    verdicts = {}
    for name, namespace in (("web", "default"), ("other", "default"), ("web", "elsewhere")):
        pod = world.pod(
            name,
            namespace=namespace,
            labels={"app": name},
            metadata={**owner("ReplicaSet"), "name": name, "namespace": namespace, "labels": {"app": name}},
        )
        verdicts[pod.key] = plugin.filter(pod)
    assert verdicts == {
        "default/web": None,
        "default/other": "pod has no PodDisruptionBudget",
        "elsewhere/web": "pod has no PodDisruptionBudget",
    }


def test_the_size_of_several_owners_is_not_known() -> None:
    world = World()
    world.objects = FixedObjects()
    plugin = world.plugin(DefaultEvictor, {"minReplicas": 2})
    references = [*owner("ReplicaSet")["ownerReferences"], *owner("Node")["ownerReferences"]]
    for count, refusal in ((1, "owner has fewer than 2 pods"), (2, None)):
        metadata = {"name": f"p{count}", "namespace": "default", "ownerReferences": references[:count]}
        assert plugin.filter(world.pod(f"p{count}", metadata=metadata)) == refusal
        world.state.remove_pod(world.state.pods[f"default/p{count}"].pod)


def test_young_pods_stay_and_node_fit_is_checked_last() -> None:
    world = World()
    world.objects = FixedObjects()
    world.node("n1", labels={"pool": "a"})
    start = wire.Time.fromtimestamp(world.clock.now() - 60)
    pod = world.pod(
        "a", on="n1", metadata={**owner("ReplicaSet"), "name": "a", "namespace": "default"}, status={"startTime": start}
    )
    assert world.plugin(DefaultEvictor, {"minPodAge": "61s"}).filter(pod) == "pod is younger than 1m1s"
    assert world.plugin(DefaultEvictor, {"minPodAge": "60s"}).filter(pod) is None
    unstarted = world.pod("b", on="n1", metadata={**owner("ReplicaSet"), "name": "b", "namespace": "default"})
    assert world.plugin(DefaultEvictor, {"minPodAge": "1s"}).filter(unstarted) == "pod is younger than 1s"
    fitting = world.plugin(DefaultEvictor, {"nodeFit": True, "nodeSelector": "pool in (a, b),pool!=c"})
    assert fitting.pre_eviction_filter(pod) == "pod fits no other node"
    world.node("n2", labels={"pool": "d"})
    assert fitting.pre_eviction_filter(pod) == "pod fits no other node"
    world.node("n3", labels={"pool": "b"})
    assert fitting.pre_eviction_filter(pod) is None
    assert world.plugin(DefaultEvictor).pre_eviction_filter(pod) is None


class EvictingClient:
    """Accepts one eviction, then fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []

    async def evict(self, name: str, namespace: str, *, uid: str, grace_seconds: int | None) -> None:
        if self.calls:
            raise ConnectionFailed("gone")
        self.calls.append((name, namespace, uid))


def test_an_eviction_is_of_exactly_this_pod_counted_and_reported() -> None:
    world = World()
    world.objects, world.events = FixedObjects(), RecordingEvents()
    client = world.client = EvictingClient()
    pod = world.pod("a", on="n1")
    plugin = world.plugin(DefaultEvictor)
    options = EvictOptions("LowNodeLoad", "because")
    assert [asyncio.run(plugin.evict(pod, options)) for _ in range(2)] == [True, False]
    assert client.calls == [("a", "default", pod.uid)]
    assert world.events.messages == [("Descheduled", "pod evicted by because")]
    counted = DeschedulerMetrics.of(world.registry).evicted
    for result in ("success", "error"):
        assert counted.labels(result, "LowNodeLoad", "default", "n1")._value.get() == 1


def test_invalid_arguments() -> None:
    errors: list[str] = []
    args = {
        "nodeSelector": "a=b c",
        "priorityThreshold": {"value": 1, "name": "a"},
        "minReplicas": -1,
        "noEvictionPolicy": "Never",
        "podProtections": {"defaultDisabled": ["PodsWithPVC"], "extraEnabled": ["x"], "config": {"a": 1}},
    }
    read: DefaultEvictorArgs = Reader(errors).struct(args, DefaultEvictorArgs, "args")
    assert [text.partition(":")[0] for text in errors + read.check("args")] == [
        "args.nodeSelector",
        "args.priorityThreshold",
        "args.minReplicas",
        "args.noEvictionPolicy",
        "args.podProtections.defaultDisabled[0]",
        "args.podProtections.extraEnabled[0]",
        "args.podProtections.config",
    ]


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a in (b, c),d", {"a": "c", "d": ""}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("!a", {"a": ""}, False),
        ("a", {"a": ""}, True),
    ],
)
def test_selectors_as_text(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_label_selector(text).matches(labels) == matches


@pytest.mark.parametrize("text", ["a b", "=b", "a in ()x", "-=b", ",", "a in (-)"])
def test_invalid_selectors_as_text(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_label_selector(text)
