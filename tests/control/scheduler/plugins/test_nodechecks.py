"""NodeUnschedulable, NodeName, TaintToleration and NodeAffinity: upstream's cases, and the plain rules at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import NodeAffinityArgs
from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.plugins.nodeaffinity import NodeAffinityPlugin
from control.scheduler.plugins.nodename import NodeName
from control.scheduler.plugins.nodeunschedulable import NodeUnschedulable
from control.scheduler.plugins.tainttoleration import TaintToleration
from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import NodeAffinity as Affinity
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain import nodechecks as plain
from tests.control.scheduler.plain.world import World, scaled
from tests.control.scheduler.plugins.filtering import filtered, scored

U = "UnschedulableAndUnresolvable"
CORDONED = (U, ("node(s) were unschedulable",))
TAINTED = (U, ("node(s) had untolerated taint(s)",))
ELSEWHERE = (U, ("node(s) didn't match the requested node name",))
MISMATCH = (U, ("node(s) didn't match Pod's node affinity/selector",))
ENFORCED = (U, ("node(s) didn't match scheduler-enforced node affinity",))


def hint(plugin: Plugin, resource: str) -> Any:
    return next(i.hint for i in plugin.interests() if i.resource == resource)


def tolerating(*tolerations: Mapping[str, str], name: str = "") -> Pod:
    return pod(name, spec={"tolerations": [dict(toleration) for toleration in tolerations]})


def taint(key: str, value: str, effect: str) -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


# NodeUnschedulable, NodeName


@pytest.mark.parametrize(
    ("incoming", "expected"),
    [
        pytest.param(pod(), CORDONED, id="cordoned"),
        pytest.param(
            tolerating({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}), None, id="tolerated"
        ),
        pytest.param(tolerating({"operator": "Exists"}), None, id="everything tolerated"),
        pytest.param(
            tolerating({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}),
            CORDONED,
            id="another effect tolerated",
        ),
    ],
)
def test_unschedulable(incoming: Pod, expected: object) -> None:
    cluster = Cluster(node("a"), node("b", unschedulable=True))
    assert filtered(NodeUnschedulable(None, cluster.handle), cluster, incoming) == {"a": None, "b": expected}


def test_unschedulable_hints() -> None:
    cluster = Cluster()
    plugin = NodeUnschedulable(None, cluster.handle)
    cordoned, open_ = node("a", unschedulable=True), node("a")
    waiting = cluster.info(pod())
    hints = hint(plugin, "Node")
    assert hints(waiting, cordoned, open_)
    assert hints(waiting, None, open_)
    assert not hints(waiting, open_, open_)
    assert not hints(waiting, open_, cordoned)
    own = hint(plugin, "UnscheduledPod")
    patient = tolerating({"operator": "Exists"})
    patient.metadata.uid = waiting.uid
    assert own(waiting, waiting.pod, patient)
    assert not own(waiting, waiting.pod, waiting.pod)
    assert not own(waiting, waiting.pod, tolerating({"operator": "Exists"}))


def test_node_name() -> None:
    cluster = Cluster(node("a"), node("b"))
    plugin = NodeName(None, cluster.handle)
    assert filtered(plugin, cluster, pod()) == {"a": None, "b": None}
    assert filtered(plugin, cluster, pod(on="b")) == {"a": ELSEWHERE, "b": None}
    assert filtered(plugin, cluster, pod(on="c")) == {"a": ELSEWHERE, "b": ELSEWHERE}


# TaintToleration


@pytest.mark.parametrize(
    ("taints", "tolerations", "expected"),
    [
        pytest.param([], [], None, id="no taints"),
        pytest.param([taint("dedicated", "user1", "NoSchedule")], [], TAINTED, id="nothing tolerated"),
        pytest.param(
            [taint("dedicated", "user1", "NoSchedule")],
            [{"key": "dedicated", "value": "user1", "effect": "NoSchedule"}],
            None,
            id="the same",
        ),
        pytest.param(
            [taint("dedicated", "user2", "NoSchedule")],
            [{"key": "dedicated", "operator": "Equal", "value": "user1", "effect": "NoSchedule"}],
            TAINTED,
            id="another value",
        ),
        pytest.param(
            [taint("foo", "bar", "NoSchedule")],
            [{"key": "foo", "operator": "Exists", "effect": "NoSchedule"}],
            None,
            id="any value",
        ),
        pytest.param([taint("foo", "bar", "NoExecute")], [{"key": "foo", "operator": "Exists"}], None, id="any effect"),
        pytest.param([taint("foo", "bar", "NoExecute")], [{"operator": "Exists"}], None, id="anything"),
        pytest.param([taint("foo", "bar", "PreferNoSchedule")], [], None, id="a preference does not forbid"),
        pytest.param(
            [taint("a", "", "NoSchedule"), taint("b", "", "NoSchedule")],
            [{"key": "a", "operator": "Exists"}],
            TAINTED,
            id="one of two",
        ),
    ],
)
def test_taints(taints: list[dict[str, str]], tolerations: list[dict[str, str]], expected: object) -> None:
    cluster = Cluster(node("a", taints=taints))
    assert filtered(TaintToleration(None, cluster.handle), cluster, tolerating(*tolerations)) == {"a": expected}


def test_fewer_disliked_taints_score_higher() -> None:
    soft = [taint(f"t{i}", "", "PreferNoSchedule") for i in range(3)]
    cluster = Cluster(node("a"), node("b", taints=soft[:1]), node("c", taints=soft), node("d", taints=soft[2:]))
    plugin = TaintToleration(None, cluster.handle)
    incoming = tolerating({"key": "t2", "operator": "Exists"})
    assert scored(plugin, cluster, incoming) == {"a": 100, "b": 50, "c": 0, "d": 100}
    assert scored(plugin, cluster, incoming, "a", "d") == {"a": 100, "d": 100}
    hard_only = tolerating({"key": "t2", "operator": "Exists", "effect": "NoSchedule"})
    assert scored(plugin, cluster, hard_only, "a", "d") == {"a": 100, "d": 0}


def test_a_new_set_of_taints_is_seen_by_old_shapes() -> None:
    cluster = Cluster(node("a"))
    plugin = TaintToleration(None, cluster.handle)
    assert filtered(plugin, cluster, pod("x")) == {"a": None}
    cluster.table.set_node(node("a", taints=[taint("k", "", "NoSchedule")]))
    assert filtered(plugin, cluster, pod("x")) == {"a": TAINTED}


def test_taint_hints() -> None:
    cluster = Cluster()
    hints = hint(TaintToleration(None, cluster.handle), "Node")
    clean, tainted = node("a"), node("a", taints=[taint("k", "", "NoSchedule")])
    waiting = cluster.info(pod())
    assert hints(waiting, tainted, clean)
    assert hints(waiting, None, clean)
    assert not hints(waiting, clean, clean)
    assert not hints(waiting, None, tainted)


# NodeAffinity


def requiring(*terms: Mapping[str, Any], selector: Mapping[str, str] | None = None) -> Pod:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}
    return pod(spec={"affinity": affinity, "nodeSelector": dict(selector or {})})


def is_(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("incoming", "nodes"),
    [
        pytest.param(pod(), "abc", id="nothing asked"),
        pytest.param(pod(spec={"nodeSelector": {"zone": "x"}}), "a", id="selector"),
        pytest.param(pod(spec={"nodeSelector": {"zone": "x", "gen": "9"}}), "", id="selector: all labels"),
        pytest.param(requiring(is_("zone", "In", "x", "y")), "ab", id="In"),
        pytest.param(requiring(is_("zone", "In", "nowhere")), "", id="In: no such value"),
        pytest.param(requiring(is_("zone", "NotIn", "x")), "bc", id="NotIn also matches nodes without the label"),
        pytest.param(requiring(is_("zone", "Exists")), "ab", id="Exists"),
        pytest.param(requiring(is_("zone", "DoesNotExist")), "c", id="DoesNotExist"),
        pytest.param(requiring(is_("gen", "Gt", "2")), "bc", id="Gt"),
        pytest.param(requiring(is_("gen", "Lt", "3")), "a", id="Lt"),
        pytest.param(requiring(is_("gen", "Gt", "two")), "", id="Gt: no number"),
        pytest.param(requiring(is_("zone", "In", "x"), is_("gen", "In", "10")), "ac", id="terms are ORed"),
        pytest.param(
            requiring({"matchExpressions": is_("zone", "Exists")["matchExpressions"] * 2} | named("In", "b")),
            "b",
            id="expressions and fields are ANDed",
        ),
        pytest.param(requiring({}), "", id="an empty term matches nothing"),
        pytest.param(requiring(), "", id="no terms match nothing"),
        pytest.param(requiring(named("In", "b"), named("In", "gone")), "b", id="names"),
        pytest.param(requiring(named("NotIn", "b")), "ac", id="not by name"),
        pytest.param(requiring(is_("zone", "Exists"), selector={"gen": "3"}), "b", id="selector AND affinity"),
    ],
)
def test_affinity(incoming: Pod, nodes: str) -> None:
    cluster = Cluster(
        node("a", labels={"zone": "x", "gen": "1"}),
        node("b", labels={"zone": "y", "gen": "3"}),
        node("c", labels={"gen": "10"}),
    )
    plugin = NodeAffinityPlugin(NodeAffinityArgs(), cluster.handle)
    assert filtered(plugin, cluster, incoming) == {name: None if name in nodes else MISMATCH for name in "abc"}


def test_names_narrow_the_nodes_and_must_not_contradict() -> None:
    cluster = Cluster(node("a"), node("b"), node("c"))
    plugin = NodeAffinityPlugin(NodeAffinityArgs(), cluster.handle)

    def asked(incoming: Pod) -> Any:
        return plugin.pre_filter(CycleState(), cluster.info(incoming))

    assert asked(requiring(named("In", "c"), named("In", "a", "gone"))).rows.tolist() == [0, 2]
    assert asked(requiring(named("In", "c"), is_("zone", "Exists"))).rows is None
    both = {"matchFields": [*named("In", "a")["matchFields"], *named("In", "b")["matchFields"]]}
    refused = asked(requiring(both)).status
    assert (refused.code_name, refused.message) == (U, "pod affinity terms conflict")
    assert asked(pod()).status.skipped


def test_added_affinity_is_checked_first_and_scores_too() -> None:
    added: Affinity = wire.convert(
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [is_("pool", "In", "koord")]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": is_("zone", "In", "x")}],
        },
        Affinity,
    )
    cluster = Cluster(node("a", labels={"pool": "koord"}), node("b", labels={"zone": "x"}))
    plugin = NodeAffinityPlugin(NodeAffinityArgs(added), cluster.handle)
    assert filtered(plugin, cluster, pod()) == {"a": None, "b": ENFORCED}
    assert filtered(plugin, cluster, pod(spec={"nodeSelector": {"zone": "x"}})) == {"a": MISMATCH, "b": ENFORCED}
    assert scored(plugin, cluster, pod()) == {"a": 0, "b": 100}


def preferring(*terms: tuple[int, Mapping[str, Any]]) -> Pod:
    preferred = [{"weight": weight, "preference": term} for weight, term in terms]
    return pod(spec={"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}})


def test_preferences_add_up() -> None:
    cluster = Cluster(node("a", labels={"zone": "x"}), node("b", labels={"zone": "y", "ssd": ""}), node("c"))
    plugin = NodeAffinityPlugin(NodeAffinityArgs(), cluster.handle)
    incoming = preferring((2, is_("zone", "In", "x")), (4, is_("ssd", "Exists")), (4, is_("zone", "Exists")))
    assert scored(plugin, cluster, incoming) == {"a": 75, "b": 100, "c": 0}
    assert scored(plugin, cluster, pod()) is None
    assert scored(plugin, cluster, preferring((3, {}))) == {"a": 0, "b": 0, "c": 0}


def test_affinity_hint() -> None:
    cluster = Cluster()
    hints = hint(NodeAffinityPlugin(NodeAffinityArgs(), cluster.handle), "Node")
    waiting = cluster.info(pod(spec={"nodeSelector": {"zone": "x"}}))
    right, wrong = node("a", labels={"zone": "x"}), node("a")
    assert hints(waiting, None, right)
    assert hints(waiting, wrong, right)
    assert not hints(waiting, right, right)
    assert not hints(waiting, right, wrong)
    assert not hints(waiting, None, wrong)


# Against the plain rules

KEYS, VALUES = st.sampled_from(["zone", "gen", "ssd"]), st.sampled_from(["x", "y", "1", "5", ""])
EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
expressions = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.lists(VALUES, min_size=1, max_size=2),
)
fields = st.builds(
    lambda operator, values: {"key": "metadata.name", "operator": operator, "values": values},
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(["n0", "n1", "n9"]), min_size=1, max_size=1),
)
terms = st.builds(
    lambda e, f: {"matchExpressions": e, "matchFields": f},
    st.lists(expressions, max_size=2),
    st.lists(fields, max_size=1),
)
affinities = st.fixed_dictionaries(
    {"preferredDuringSchedulingIgnoredDuringExecution": st.lists(
        st.fixed_dictionaries({"weight": st.integers(1, 100), "preference": terms}), max_size=3
    )},
    optional={"requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
        {"nodeSelectorTerms": st.lists(terms, max_size=3)}
    )},
)  # fmt: skip
tolerations = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["k1", "k2", "node.kubernetes.io/unschedulable"]),
            "operator": st.sampled_from(["Exists", "Equal"]),
            "value": st.sampled_from(["", "v"]),
            "effect": st.sampled_from(EFFECTS),
        },
    ),
    max_size=3,
)
taints = st.lists(
    st.builds(taint, st.sampled_from(["k1", "k2"]), st.sampled_from(["", "v"]), st.sampled_from(EFFECTS)), max_size=3
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    labels = st.dictionaries(KEYS, VALUES, max_size=3)
    nodes = [
        node(f"n{i}", labels=draw(labels), taints=draw(taints), unschedulable=draw(st.booleans()))
        for i in range(draw(st.integers(1, 7)))
    ]
    return World(nodes)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    spec = {
        "tolerations": draw(tolerations),
        "nodeSelector": draw(st.dictionaries(KEYS, VALUES, max_size=1)),
        "affinity": {"nodeAffinity": draw(affinities)},
    }
    return pod(spec=spec, on=draw(st.sampled_from(["", "", "n1"])))


@given(worlds(), pods(), st.one_of(st.none(), affinities))
def test_plugins_follow_the_plain_rules(world: World, incoming: Pod, extra: Any) -> None:
    cluster = Cluster(*world.nodes)
    added = wire.convert(extra, Affinity) if extra else None
    affinity = NodeAffinityPlugin(NodeAffinityArgs(added), cluster.handle)
    taint_plugin = TaintToleration(None, cluster.handle)

    def expected(rule: Any, *more: Any) -> dict[str, Any]:
        return {node.metadata.name: rule(incoming, node, world, *more) for node in world.nodes}

    assert filtered(NodeUnschedulable(None, cluster.handle), cluster, incoming) == expected(plain.node_unschedulable)
    assert filtered(NodeName(None, cluster.handle), cluster, incoming) == expected(plain.node_name)
    assert filtered(taint_plugin, cluster, incoming) == expected(plain.taint_toleration)
    before = affinity.pre_filter(CycleState(), cluster.info(incoming))
    if before.status.ok:
        assert filtered(affinity, cluster, incoming) == expected(plain.node_affinity, added)
    if before.rows is not None:
        kept = {cluster.table.names[row] for row in before.rows}
        assert {name for name, verdict in expected(plain.node_affinity).items() if verdict is None} <= kept
    assert scored(taint_plugin, cluster, incoming) == scaled(expected(plain.taint_score), reverse=True)
    raw = expected(plain.affinity_score, added)
    assert (scored(affinity, cluster, incoming) or dict.fromkeys(raw, 0)) == scaled(raw)


def test_a_node_without_object_is_no_trouble() -> None:
    cluster = Cluster(node("a"), node("b"))
    cluster.put(pod(on="b"))
    cluster.table.remove_node("b")
    added_again: Node = node("a", labels={"zone": "x"})
    cluster.table.set_node(added_again)
    for plugin in (NodeAffinityPlugin(None, cluster.handle), TaintToleration(None, cluster.handle)):
        assert filtered(plugin, cluster, requiring(is_("zone", "In", "x"))) == {"a": None}
