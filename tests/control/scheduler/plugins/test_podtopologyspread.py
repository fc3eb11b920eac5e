"""PodTopologySpread: upstream's cases, default constraints, and the plain rules while pods and nodes come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.config.args import PodTopologySpreadArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.podtopologyspread import PodTopologySpread
from control.scheduler.plugins.podtopologyspread.constraints import SYSTEM_DEFAULTS
from koordlet.api.core import Node, Pod, ReplicaSet, Service
from koordlet.api.core.selectors import Toleration, TopologySpreadConstraint
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain.spread import spread, spread_scores
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import filtered, scored
from tests.control.scheduler.plugins.informers import FakeObjects

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SKEWED = ("Unschedulable", ("node(s) didn't match pod topology spread constraints",))
UNLABELLED = (
    "UnschedulableAndUnresolvable",
    ("node(s) didn't match pod topology spread constraints (missing required label)",),
)
FOO = {"matchLabels": {"foo": ""}}


def constraint(key: str = ZONE, skew: int = 1, soft: bool = False, selector: Any = FOO, **more: Any) -> dict[str, Any]:
    action = "ScheduleAnyway" if soft else "DoNotSchedule"
    body = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": action, **more}
    return body if selector is None else body | {"labelSelector": selector}


def spreading(*constraints: Mapping[str, Any], labels: Mapping[str, str] | None = None, **spec: Any) -> Pod:
    return pod(
        "p",
        labels={"foo": ""} if labels is None else labels,
        spec={"topologySpreadConstraints": list(constraints), **spec},
    )


def foo(on: str, **more: Any) -> Pod:
    return pod(labels={"foo": ""}, on=on, **more)


def four() -> list[Node]:
    """Two zones of two nodes."""
    return [node(name, labels={ZONE: "z1" if name in "ab" else "z2"}) for name in "abxy"]


def verdicts(nodes: list[Node], pods: list[Pod], incoming: Pod) -> dict[str, Any]:
    cluster = Cluster(*nodes)
    cluster.put(*pods)
    return filtered(PodTopologySpread(None, cluster.handle), cluster, incoming)


def fitting(nodes: list[Node], pods: list[Pod], incoming: Pod) -> str:
    return "".join(name for name, verdict in verdicts(nodes, pods, incoming).items() if verdict is None)


TAINTED = {"key": "t", "value": "", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pods", "incoming", "fits"),
    [
        pytest.param([], spreading(constraint()), "abxy", id="no pods"),
        pytest.param([foo("a")], spreading(constraint()), "xy", id="zones 1/0"),
        pytest.param([foo("a")], spreading(constraint(skew=2)), "abxy", id="zones 1/0, skew 2"),
        pytest.param([foo("a"), foo("x")], spreading(constraint()), "abxy", id="zones 1/1"),
        pytest.param([foo("a"), foo("b"), foo("x")], spreading(constraint()), "xy", id="zones 2/1"),
        pytest.param([foo("a")], spreading(constraint(), labels={}), "abxy", id="the pod doesn't count itself"),
        pytest.param([foo("a"), foo("b")], spreading(constraint(HOST)), "xy", id="hosts 1/1/0/0"),
        pytest.param(
            [foo("a"), foo("x"), foo("y")], spreading(constraint(), constraint(HOST)), "b", id="zones and hosts"
        ),
        pytest.param([pod(on="a", labels={"foo": ""}, namespace="other")], spreading(constraint()), "abxy", id="ns"),
        pytest.param([foo("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})], spreading(constraint()),
                     "abxy", id="terminating pods don't count"),
        pytest.param([foo("a")], spreading(constraint(minDomains=3)), "xy", id="minDomains 3 of 2: least is 0"),
        pytest.param([foo("a"), foo("x")], spreading(constraint(minDomains=3)), "", id="minDomains 3, zones 1/1"),
        pytest.param([foo("a"), foo("x")], spreading(constraint(minDomains=2)), "abxy", id="minDomains 2 of 2"),
        pytest.param(
            [foo("a")], spreading(constraint(), nodeSelector={ZONE: "z1"}), "abxy", id="only nodes it selects count"
        ),
        pytest.param(
            [foo("a")],
            spreading(constraint(nodeAffinityPolicy="Ignore"), nodeSelector={ZONE: "z1"}),
            "xy",
            id="all nodes count if told so",
        ),
        pytest.param([foo("a")], spreading(constraint(selector=None)), "abxy", id="no selector counts no pod"),
        pytest.param([foo("a")], spreading(constraint(selector={})), "abxy", id="an empty one counts none"),
        pytest.param(
            [foo("a"), pod(labels={"foo": "", "v": "2"}, on="x")],
            spreading(constraint(matchLabelKeys=["v", "w"]), labels={"foo": "", "v": "2"}),
            "ab",
            id="only pods with the same value of v",
        ),
        pytest.param([foo("a")], spreading(constraint(soft=True)), "abxy", id="soft constraints refuse no node"),
    ],
)  # fmt: skip
def test_hard_constraints(pods: list[Pod], incoming: Pod, fits: str) -> None:
    assert fitting(four(), pods, incoming) == fits


def test_reasons() -> None:
    nodes = [*four(), node("q")]
    expected = {"a": SKEWED, "b": SKEWED, "x": None, "y": None, "q": UNLABELLED}
    assert verdicts(nodes, [foo("a"), foo("q")], spreading(constraint())) == expected


def test_nodes_that_lack_one_label_count_for_no_constraint() -> None:
    nodes = [*four(), node("z", labels={"rack": "r", ZONE: "z3"})]
    incoming = spreading(constraint(), constraint("rack", skew=9))
    assert verdicts(nodes, [foo("a")], incoming)["z"] is None  # z3 is the only domain


@pytest.mark.parametrize(("policy", "fits"), [("Ignore", "xy"), ("Honor", "abxy")])
def test_taints_count_with_the_policy_honor(policy: str, fits: str) -> None:
    nodes = [node(n, labels={ZONE: "z1" if n in "ab" else "z2"}, taints=[TAINTED] * (n in "xy")) for n in "abxy"]
    assert fitting(nodes, [foo("a")], spreading(constraint(nodeTaintsPolicy=policy))) == fits


def test_a_broken_selector_fails_the_cycle() -> None:
    cluster = Cluster(*four())
    broken = {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}
    incoming = cluster.info(spreading(constraint(selector=broken)))
    status = PodTopologySpread(None, cluster.handle).pre_filter(CycleState(), incoming).status
    assert status.code_name == "Error"
    assert "Like" in status.message


def test_skips_pods_without_constraints() -> None:
    cluster = Cluster(*four())
    plugin = PodTopologySpread(None, cluster.handle)
    assert plugin.pre_filter(CycleState(), cluster.info(pod())).status.skipped
    assert scored(plugin, cluster, pod()) is None


def test_fuller_domains_score_lower() -> None:
    cluster = Cluster(*four(), node("q"))
    cluster.put(foo("a"), foo("a"), foo("x"))
    incoming = spreading(constraint(soft=True))
    # two domains: ln 4 = 1.39 a pod: z1 3, z2 1
    expected = {"a": 100 * (3 + 1 - 3) // 3, "b": 33, "x": 100, "y": 100, "q": 0}
    assert scored(PodTopologySpread(None, cluster.handle), cluster, incoming) == expected


def test_only_feasible_nodes_make_domains() -> None:
    cluster = Cluster(*four())
    cluster.put(*(foo("a") for _ in range(10)))
    plugin = PodTopologySpread(None, cluster.handle)
    assert scored(plugin, cluster, spreading(constraint(HOST, soft=True)), "a", "x") == {"a": 0, "x": 100}
    assert scored(plugin, cluster, spreading(constraint(HOST, soft=True)), "x", "y") == {"x": 100, "y": 100}


def service(selector: Mapping[str, str]) -> Service:
    return wire.convert({"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": selector}}, Service)


def test_pods_of_services_are_spread_by_default() -> None:
    cluster = Cluster(*four())
    objects = FakeObjects()
    cluster.use(objects=objects)
    cluster.put(foo("a"), foo("a"))
    plugin = PodTopologySpread(None, cluster.handle)
    incoming = cluster.info(pod(labels={"foo": "", "bar": ""}))
    assert scored(plugin, cluster, incoming) is None
    objects.emit("add", service({"foo": ""}))
    spread_out = scored(plugin, cluster, incoming)
    assert spread_out is not None
    assert spread_out["a"] < spread_out["b"] < spread_out["x"] == 100
    objects.emit("update", service({"foo": ""}), service({"foo": "other"}))
    assert scored(plugin, cluster, incoming) is None
    objects.emit("update", service({"foo": "other"}), service({"foo": ""}))
    assert scored(plugin, cluster, incoming) == spread_out
    objects.emit("delete", service({"foo": ""}))
    assert scored(plugin, cluster, incoming) is None


def test_pods_of_replica_sets_are_spread_by_its_selector() -> None:
    cluster = Cluster(*four())
    objects = FakeObjects()
    cluster.use(objects=objects)
    cluster.put(pod(labels={"app": "web"}, on="a"))
    hard = TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule")
    plugin = PodTopologySpread(PodTopologySpreadArgs([hard], "List"), cluster.handle)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": True}
    incoming = cluster.info(pod(labels={"app": "web"}, metadata={"ownerReferences": [owner]}))
    assert filtered(plugin, cluster, incoming)["a"] is None
    body = {
        "metadata": {"name": "web-1", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    }
    objects.emit("add", wire.convert(body, ReplicaSet))
    assert filtered(plugin, cluster, incoming) == {"a": SKEWED, "b": SKEWED, "x": None, "y": None}


@pytest.mark.parametrize(
    ("kind", "version", "selector", "counted"),
    [
        ("ReplicaSet", "apps/v1", {"matchLabels": {"app": "db"}}, False),
        ("ReplicaSet", "apps/v1", {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ("ReplicaSet", "apps/v1", {"matchLabels": {"app": "web"}}, True),
        ("ReplicaSet", "example.com/v1", {"matchLabels": {"app": "db"}}, True),
        ("ReplicaSet", "apps/v1", {"matchExpressions": [{"key": "tier", "operator": "Never"}]}, True),
    ],
    ids=["contradiction", "and", "equal", "another-kind", "malformed"],
)
def test_the_selector_of_the_owner_is_required_in_addition_to_those_of_services(
    kind: str, version: str, selector: dict[str, Any], *, counted: bool
) -> None:
    cluster = Cluster(*four())
    objects = FakeObjects()
    cluster.use(objects=objects)
    cluster.put(pod(labels={"app": "web"}, on="a"))
    hard = TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule")
    plugin = PodTopologySpread(PodTopologySpreadArgs([hard], "List"), cluster.handle)
    owner = {"apiVersion": version, "kind": kind, "name": "one", "uid": "u", "controller": True}
    incoming = cluster.info(pod(labels={"app": "web"}, metadata={"ownerReferences": [owner]}))
    objects.emit("add", service({"app": "web"}))
    body = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"selector": selector}}
    objects.emit("add", wire.convert(body, ReplicaSet))
    expected = {"a": SKEWED, "b": SKEWED} if counted else {"a": None, "b": None}
    assert filtered(plugin, cluster, incoming) == {**expected, "x": None, "y": None}


def test_a_gained_toleration_wakes_a_pod_whose_constraint_honours_taints() -> None:
    cluster = Cluster()
    hint = next(i.hint for i in PodTopologySpread(None, cluster.handle).interests() if i.resource == "UnscheduledPod")
    assert hint is not None
    for policy, woken in (("Honor", True), ("Ignore", False)):
        bare = spreading(constraint(nodeTaintsPolicy=policy))
        tolerant = msgspec.structs.replace(
            bare, spec=msgspec.structs.replace(bare.spec, tolerations=[Toleration(operator="Exists")])
        )
        assert hint(cluster.info(tolerant), bare, tolerant) is woken


def test_hints() -> None:
    cluster = Cluster()
    interests = PodTopologySpread(None, cluster.handle).interests()
    hints = {interest.resource: interest.hint for interest in interests}
    waiting = cluster.info(spreading(constraint()))
    pod_hint, node_hint = hints["AssignedPod"], hints["Node"]
    assert pod_hint
    assert node_hint
    assert pod_hint(waiting, None, foo("a"))
    assert pod_hint(waiting, foo("a"), None)
    assert not pod_hint(waiting, None, pod(on="a"))
    assert not pod_hint(waiting, None, pod(labels={"foo": ""}, on="a", namespace="other"))
    assert pod_hint(waiting, foo("a"), pod(on="a"))
    assert not pod_hint(waiting, foo("a"), foo("a"))
    zoned, moved, bare = node("a", labels={ZONE: "z1"}), node("a", labels={ZONE: "z2"}), node("a")
    assert node_hint(waiting, None, zoned)
    assert node_hint(waiting, zoned, None)
    assert node_hint(waiting, zoned, moved)
    assert node_hint(waiting, bare, zoned)
    assert not node_hint(waiting, None, bare)
    assert not node_hint(waiting, zoned, zoned)


# Against the plain rules

selectors = st.sampled_from([FOO, {"matchLabels": {"bar": "1"}}, {}, None, {"matchExpressions": [
    {"key": "bar", "operator": "NotIn", "values": ["1"]}]}])  # fmt: skip
constraints = st.builds(
    lambda key, skew, soft, selector, more: constraint(key, skew, soft, selector, **more),
    st.sampled_from([ZONE, HOST, "rack"]),
    st.integers(1, 3),
    st.booleans(),
    selectors,
    st.fixed_dictionaries(
        {},
        optional={
            "minDomains": st.integers(1, 3),
            "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
            "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
            "matchLabelKeys": st.just(["bar"]),
        },
    ),
)
labels = st.dictionaries(st.sampled_from(["foo", "bar"]), st.sampled_from(["", "1"]), max_size=2)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    return node(
        name,
        labels=draw(st.dictionaries(st.sampled_from([ZONE, "rack"]), st.sampled_from(["1", "2", "3"]), max_size=2)),
        taints=[TAINTED] * draw(st.integers(0, 1)),
    )


@st.composite
def placed(draw: st.DrawFn, names: list[str]) -> Pod:
    stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if draw(st.integers(0, 5)) == 0 else {}
    return pod(
        labels=draw(labels),
        on=draw(st.sampled_from(names)),
        namespace=draw(st.sampled_from(["default", "default", "other"])),
        metadata=stamp,
    )


@given(st.data())
@settings(max_examples=60)
def test_it_follows_the_plain_rules_while_the_cluster_changes(data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(data.draw(st.integers(1, 5)))]
    known = {name: data.draw(nodes(name)) for name in names}
    cluster = Cluster(*known.values())
    infos = cluster.put(*(data.draw(placed(names)) for _ in range(data.draw(st.integers(0, 6)))))
    plugin = PodTopologySpread(None, cluster.handle)
    incoming = spreading(*data.draw(st.lists(constraints, min_size=1, max_size=3)), labels=data.draw(labels),
                         nodeSelector=data.draw(st.sampled_from([{}, {}, {"rack": "1"}])))  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        world = World(list(known.values()), [info.pod for info in infos])
        expected = {node.metadata.name: spread(incoming, node, world) for node in world.nodes}
        assert filtered(plugin, cluster, incoming) == expected
        assert scored(plugin, cluster, incoming) == spread_scores(incoming, world.nodes, world)
        match data.draw(st.sampled_from(["add", "remove", "node", "new"])):
            case "add":
                infos += cluster.put(data.draw(placed(names)))
            case "remove" if infos:
                cluster.table.remove_pod(infos.pop(data.draw(st.integers(0, len(infos) - 1))))
            case "node":
                name = data.draw(st.sampled_from(names))
                known[name] = data.draw(nodes(name))
                cluster.table.set_node(known[name])
            case "new":
                name = f"n{len(names)}"
                names.append(name)
                known[name] = data.draw(nodes(name))
                cluster.table.set_node(known[name])


@given(st.data())
@settings(max_examples=60)
def test_default_constraints_follow_the_plain_rules(data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(data.draw(st.integers(1, 6)))]
    cluster = Cluster(*(data.draw(nodes(name)) for name in names))
    objects = FakeObjects()
    cluster.use(objects=objects)
    infos = cluster.put(*(data.draw(placed(names)) for _ in range(data.draw(st.integers(0, 8)))))
    plugin = PodTopologySpread(None, cluster.handle)
    objects.emit("add", service({"foo": ""}))
    incoming = pod("p", labels={"foo": ""})
    world = World(
        [node for node in cluster.table.nodes if node],
        [info.pod for info in infos],
        default_selectors={"p": LabelSelector(match_labels={"foo": ""})},
    )
    feasible = data.draw(st.lists(st.sampled_from(world.nodes), unique_by=lambda n: n.metadata.name, min_size=1))
    expected = spread_scores(incoming, feasible, world, SYSTEM_DEFAULTS)
    assert scored(plugin, cluster, incoming, *(node.metadata.name for node in feasible)) == expected
