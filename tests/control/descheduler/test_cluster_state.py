"""The descheduler's view of the cluster, and the order in which pods are evicted (spec 07 §3.4, §5.1, §6.3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.descheduler.state.cluster import ClusterState
from control.descheduler.state.objects import trim_node, trim_pod
from control.descheduler.state.pods import deletion_cost
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector
from tests.control.descheduler.world import World
from tests.control.scheduler import build


def test_nodes_of_a_pass() -> None:
    world = World()
    for name, conditions in (
        ("ready", [{"type": "Ready", "status": "True"}]),
        ("silent", []),
        ("lost", [{"type": "Ready", "status": "Unknown"}]),
    ):
        node = build.node(name, labels={"pool": name})
        document = wire.to_builtins(node)
        document["status"]["conditions"] = conditions
        world.state.set_node(wire.convert(document, Node))
    world.node("cordoned", unschedulable=True)
    world.pod("orphan", on="unknown")  # its node does not exist
    assert [node.name for node in world.state.ready_nodes()] == ["cordoned", "ready", "silent"]
    selector = LabelSelector(match_labels={"pool": "ready"})
    assert [node.name for node in world.state.ready_nodes(selector)] == ["ready"]


def test_raw_allocatable_is_the_annotation_if_it_is_valid() -> None:
    world = World()
    key = "node.koordinator.sh/raw-allocatable"
    world.node("amplified", cpu="8", annotations={key: '{"cpu": "4"}'})
    world.node("malformed", cpu="8", annotations={key: '{"cpu": '})
    raw = {name: node.raw_allocatable["cpu"] for name, node in world.state.nodes.items()}
    assert raw == {"amplified": 4000, "malformed": 8000}
    assert world.state.nodes["amplified"].allocatable["cpu"] == 8000
    assert world.state.nodes["amplified"].raw_allocatable["memory"] == 32 << 30


def test_loads_are_sums_of_the_system_and_all_listed_pods() -> None:
    world = World()
    world.node("n1")
    world.load(
        "n1", {"a": {"cpu": "500m"}, "x/b": {"cpu": "1", "memory": "5"}}, {"cpu": "100m", "memory": "7"}, age_s=9
    )
    load = world.state.nodes["n1"].load
    assert load is not None
    assert load.usage == {"cpu": 1600, "memory": 12}
    assert load.pods == {"default/a": {"cpu": 500}, "x/b": {"cpu": 1000, "memory": 5}}
    assert load.fresh(world.clock.now(), 10)
    assert not load.fresh(world.clock.now(), 9)
    world.load("n1", age_s=-59)
    assert load_of_node(world).fresh(world.clock.now(), 10)
    world.load("n1", age_s=-61)  # the clock of the node is wrong
    assert not load_of_node(world).fresh(world.clock.now(), 10)
    world.load("n1", age_s=None)
    assert not load_of_node(world).fresh(world.clock.now(), 1000)
    world.load("n1", info=False)
    assert not load_of_node(world).fresh(world.clock.now(), 1000)


def load_of_node(world: World) -> Any:
    return world.state.nodes["n1"].load


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["", "n1", "n2"]), st.booleans(), st.integers(0, 3)), max_size=40
    )
)
def test_requested_amounts_agree_with_the_pods_whatever_happened(events: list[tuple[int, str, bool, int]]) -> None:
    """Pods appear, are bound, end and are deleted in any order; nodes and their sums follow."""
    state = ClusterState()
    living: dict[str, Any] = {}
    state.set_node(build.node("n1"))
    for number, node, deleted, cpu in events:
        name = f"p{number}"
        if deleted:
            if name in living:
                state.remove_pod(living.pop(name))
            continue
        phase = "Succeeded" if cpu == 3 else "Running"
        living[name] = build.pod(name, str(cpu), None, on=node, metadata={"uid": name}, status={"phase": phase})
        state.set_pod(living[name])
    expected: dict[str, Counter[str]] = {"n1": Counter(), "n2": Counter()}
    for pod in living.values():
        if pod.spec.node_name and pod.status.phase == "Running":
            expected[pod.spec.node_name]["cpu"] += int(pod.spec.containers[0].resources.requests["cpu"].milli_value())
    for name, sums in expected.items():
        record = state.nodes.get(name)
        assert (record.requested if record else {}) == {key: value for key, value in sums.items() if value}
        on_node = {pod.metadata.name for pod in living.values() if pod.spec.node_name == name}
        assert {pod.name for pod in (record.pods.values() if record else ())} == on_node
    assert set(state.pods) == {pod.metadata.key for pod in living.values()}
    assert ("n2" in state.nodes) == any(pod.spec.node_name == "n2" for pod in living.values())


def test_a_pod_of_the_same_name_replaces_the_old_one() -> None:
    world = World()
    old = world.pod("a", on="n1", metadata={"uid": "1"})
    new = world.pod("a", on="n2", metadata={"uid": "2"})
    world.state.remove_pod(old.pod)
    assert world.state.pods["default/a"] is new
    assert world.state.current(old) is None
    assert world.state.current(new) is new
    assert "n1" not in world.state.nodes


def order_of(**more: Any) -> tuple[int, ...]:
    return tuple(World().pod("a", **more).order)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": 3500}, {"priority": 5500}),
        ({"priority": 5500}, {"priority": 7500}),
        ({"priority": 7500}, {"priority": 9500}),
        ({"priority": 5100}, {"priority": 5900}),
        ({"cpu": None, "memory": None, "priority": 9500}, {"priority": 9500}),
        (
            {"priority": 5500, "labels": {"koordinator.sh/qosClass": "BE"}},
            {"priority": 5500, "labels": {"koordinator.sh/qosClass": "LS"}},
        ),
        (
            {"priority": 9500, "labels": {"koordinator.sh/qosClass": "LSR"}},
            {"priority": 9500, "labels": {"koordinator.sh/qosClass": "LSE"}},
        ),
        (
            {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1"}},
            {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "nonsense"}},
        ),
        (
            {"annotations": {"scheduling.koordinator.sh/eviction-cost": "+5"}},
            {"annotations": {"scheduling.koordinator.sh/eviction-cost": "1"}},
        ),
    ],
    ids=[
        "free-batch",
        "batch-mid",
        "mid-prod",
        "value",
        "kube-qos",
        "be-ls",
        "lsr-lse",
        "deletion-cost",
        "eviction-cost",
    ],
)
def test_eviction_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert order_of(**first) < order_of(**second)


def test_classes_of_the_order() -> None:
    label = "koordinator.sh/priority-class"
    assert [order_of(priority=value)[0] for value in (3500, 5500, 7500, 9500)] == [1, 2, 3, 4]
    assert order_of(labels={label: "unknown", "koordinator.sh/qosClass": "BE"})[0] == 2
    assert order_of(labels={label: "koord-prod"}, priority=5500)[0] == 4


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("7", 7),
        ("-7", -7),
        ("--7", 0),
        ("2147483648", 0),
        ("1e3", 0),
        ("007", 0),
        ("0", 0),
        ("+7", 0),
        ("", 0),
        ("9" * 50, 0),
        ("٣", 0),
    ],
)
def test_deletion_costs(text: str, cost: int) -> None:
    assert deletion_cost(build.pod(annotations={"controller.kubernetes.io/pod-deletion-cost": text})) == cost


def test_trimming_keeps_what_plugins_read() -> None:
    pod: Pod = wire.convert(
        {
            "metadata": {"name": "a", "namespace": "x", "uid": "1", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "2", "controller": True}]},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "image": "i", "command": ["x"], "resources": {
                    "requests": {"cpu": "1", "koordinator.sh/batch-cpu": "500"}}}],
                "overhead": {"koordinator.sh/batch-memory": "1"},
                "resources": {"limits": {"koordinator.sh/batch-cpu": "500"}},
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "message": "long"}],
                "containerStatuses": [
                    {"name": "c", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
            },
        },
        Pod,
    )  # fmt: skip
    kept = trim_pod(pod)
    assert kept.spec.containers[0].command == []
    assert {*kept.spec.containers[0].resources.requests} == {"cpu", "kubernetes.io/batch-cpu"}
    assert {*kept.spec.overhead} == {"kubernetes.io/batch-memory"}
    assert kept.spec.resources is not None
    assert {*kept.spec.resources.limits} == {"kubernetes.io/batch-cpu"}
    assert kept.spec.volumes[0].empty_dir is not None
    assert kept.metadata.owner_references[0].uid == "2"
    (status,) = kept.status.container_statuses
    assert (status.restart_count, status.state.waiting.reason if status.state.waiting else "") == (
        4,
        "CrashLoopBackOff",
    )
    node = trim_node(build.node("n1", koordinator__sh="1"))
    assert node.metadata.labels == {"kubernetes.io/hostname": "n1"}
