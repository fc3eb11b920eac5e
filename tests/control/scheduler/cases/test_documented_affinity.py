"""The examples of Kubernetes' page on assigning pods to nodes, as decisions of whole cycles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from control.scheduler.config.args import NodeAffinityArgs
from koordlet.api.core import Pod
from koordlet.api.core.selectors import NodeAffinity
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node
from tests.control.scheduler.cases.decisions import HOST, Board, Decision, light, zoned

ZONE = "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
NO_NODE = "didn't match Pod's node affinity/selector"


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def on_nodes(*terms: list[dict[str, Any]], wishes: Mapping[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """`terms`: lists of expressions; `wishes`: weight -> expression."""
    node_affinity: dict[str, Any] = {}
    if terms:
        node_affinity[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    if wishes:
        node_affinity[PREFERRED] = [
            {"weight": weight, "preference": {"matchExpressions": [wish]}} for weight, wish in wishes.items()
        ]
    return {"affinity": {"nodeAffinity": node_affinity}}


# NodeSelector, nodeName, node affinity


def test_a_selector_needs_all_its_labels() -> None:
    nodes = [node("plain"), node("ssd", labels={"disktype": "ssd"}), node("both", labels={"disktype": "ssd", "x": "y"})]
    assert Board(nodes).decide(light("nginx", nodeSelector={"disktype": "ssd"})).fits == "both ssd"
    assert Board(nodes).decide(light("nginx", nodeSelector={"disktype": "ssd", "x": "y"})).fits == "both"
    none = Board(nodes).decide(light("nginx", nodeSelector={"disktype": "nvme"}))
    assert none == Decision("", "", f"0/3 nodes are available: 3 node(s) {NO_NODE}.")


EAST, WEST = "antarctica-east1", "antarctica-west1"
OTHER = expression("another-node-label-key", "In", "another-node-label-value")


def test_required_zones_and_one_preferred_label() -> None:
    nodes = [
        node("east", labels={ZONE: EAST}),
        node("west", labels={ZONE: WEST, "another-node-label-key": "another-node-label-value"}),
        node("north", labels={ZONE: "north", "another-node-label-key": "another-node-label-value"}),
        node("nowhere"),
    ]
    incoming = light("with-node-affinity", **on_nodes([expression(ZONE, "In", EAST, WEST)], wishes={1: OTHER}))
    assert Board(nodes).decide(incoming) == Decision("east west", "west", "")


def test_weights_are_summed_and_the_heavier_wins() -> None:
    """Two nodes fit; one has what weighs 1, the other what weighs 50. What is required is on both."""
    linux = {"kubernetes.io/os": "linux"}
    nodes = [
        node("light", labels={**linux, "label-1": "key-1"}),
        node("heavy", labels={**linux, "label-2": "key-2"}),
        node("windows", labels={"kubernetes.io/os": "windows", "label-1": "key-1", "label-2": "key-2"}),
    ]
    wishes = {1: expression("label-1", "In", "key-1"), 50: expression("label-2", "In", "key-2")}
    incoming = light("with-weights", **on_nodes([expression("kubernetes.io/os", "In", "linux")], wishes=wishes))
    board = Board(nodes)
    assert board.scores(incoming, "NodeAffinity") == {"light": 2 * (100 * 1 // 50), "heavy": 200}
    assert board.decide(incoming) == Decision("heavy light", "heavy", "")


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        (expression("gen", "In", "1", "3"), "n1 n3"),
        (expression("gen", "NotIn", "1"), "n2 n3 none"),
        (expression("gen", "Exists"), "n1 n2 n3"),
        (expression("gen", "DoesNotExist"), "none"),
        (expression("gen", "Gt", "1"), "n2 n3"),
        (expression("gen", "Lt", "3"), "n1 n2"),
    ],
    ids=["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
)
def test_operators(requirement: dict[str, Any], fits: str) -> None:
    nodes = [*(node(f"n{number}", labels={"gen": str(number)}) for number in (1, 2, 3)), node("none")]
    assert Board(nodes).decide(light("p", **on_nodes([requirement]))).fits == fits


def test_terms_are_alternatives_expressions_are_not() -> None:
    nodes = [node("a", labels={"x": "1"}), node("b", labels={"y": "1"}), node("ab", labels={"x": "1", "y": "1"})]
    x, y = expression("x", "Exists"), expression("y", "Exists")
    assert Board(nodes).decide(light("p", **on_nodes([x], [y]))).fits == "a ab b"
    assert Board(nodes).decide(light("p", **on_nodes([x, y]))).fits == "ab"
    assert Board(nodes).decide(light("p", **on_nodes([x]), nodeSelector={"y": "1"})).fits == "ab"


def test_a_profile_may_add_an_affinity_of_its_own() -> None:
    nodes = [node("foo", labels={"scheduler-profile": "foo"}), node("bar")]
    added = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression("scheduler-profile", "In", "foo")]}]}}
    args = {"NodeAffinity": NodeAffinityArgs(added_affinity=wire.convert(added, NodeAffinity))}
    decision = Board(nodes, args=args).decide(light("p"))
    assert decision.fits == "foo"
    refused = Board(nodes, args=args).decide(light("p", nodeSelector={HOST: "bar"}))
    assert "didn't match scheduler-enforced node affinity" in refused.message


def test_a_node_by_name() -> None:
    nodes = [node("kube-01", unschedulable=True), node("kube-02")]
    assert Board(nodes).decide(light("nginx", on="kube-02")).fits == "kube-02"
    refused = Board(nodes).decide(light("nginx", on="kube-01"))
    assert refused.message == (
        "0/2 nodes are available: 1 node(s) didn't match the requested node name, 1 node(s) were unschedulable."
    )


# Pods near to and far from pods


def near(labels: Mapping[str, str], key: str = HOST, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}, **more}


def pods_affinity(
    *, near_to: list[Any] | None = None, far_from: list[Any] | None = None, like: Any = None, dislike: Any = None
) -> dict[str, Any]:
    """Required terms, and preferred ones as (weight, term)."""

    def term_of(required: list[Any] | None, wish: Any) -> dict[str, Any]:
        wishes = [{"weight": wish[0], "podAffinityTerm": wish[1]}] if wish else []
        return {REQUIRED: required or [], PREFERRED: wishes}

    return {"affinity": {"podAffinity": term_of(near_to, like), "podAntiAffinity": term_of(far_from, dislike)}}


def test_near_one_service_and_rather_not_near_another() -> None:
    """Zone V and R have a pod of S1, R has one of S2 as well; zone X has neither."""
    nodes = zoned({"V": ("v1", "v2"), "R": ("r1",), "X": ("x1",)}, key=ZONE)
    pods = [light(labels={"security": name}, on=where) for name, where in (("S1", "v1"), ("S1", "r1"), ("S2", "r1"))]
    terms = pods_affinity(near_to=[near({"security": "S1"}, ZONE)], dislike=(100, near({"security": "S2"}, ZONE)))
    board = Board(nodes, pods)
    incoming = light("with-pod-affinity", **terms)
    assert board.scores(incoming, "InterPodAffinity") == {"v1": 200, "v2": 200, "r1": 0}
    assert board.decide(incoming) == Decision("r1 v1 v2", "v2", "")
    alone = Board(nodes, pods[2:]).decide(incoming)
    assert alone.message == "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."


STORE, WEB = {"app": "store"}, {"app": "web-store"}


def cache(number: int) -> Pod:
    return light(f"redis-{number}", labels=STORE, **pods_affinity(far_from=[near(STORE)]))


def web(number: int) -> Pod:
    return light(f"web-{number}", labels=WEB, **pods_affinity(far_from=[near(WEB)], near_to=[near(STORE)]))


def test_three_caches_and_three_servers_share_three_nodes() -> None:
    board = Board([node(f"node-{number}") for number in (1, 2, 3)])
    everywhere = ["node-1", "node-2", "node-3"]
    assert board.place(web(0)) == [""]  # no cache yet
    assert sorted(board.place(*map(cache, (1, 2, 3)))) == everywhere
    assert sorted(board.place(*map(web, (1, 2, 3)))) == everywhere
    fourth = board.decide(web(4))
    assert fourth.message == "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    assert board.decide(cache(4)).message == fourth.message


def test_a_server_follows_the_caches_that_there_are() -> None:
    board = Board([node(f"node-{number}") for number in (1, 2, 3)])
    (first,) = board.place(cache(1))
    assert board.decide(web(1)).fits == first
    refused = board.decide(web(2)).message
    assert "1 node(s) didn't match pod anti-affinity rules" in refused
    assert "2 node(s) didn't match pod affinity rules" in refused


def test_the_first_of_a_series_that_wants_to_be_together() -> None:
    """The first pod of a group has no pod to join; the following pods must join it."""
    nodes = zoned({"V": ("v1",), "R": ("r1",)}, key=ZONE)
    terms = pods_affinity(near_to=[near(WEB, ZONE)])
    board = Board(nodes)
    assert board.decide(light("first", labels=WEB, **terms)).fits == "r1 v1"
    table = board.cluster.table
    (taken,) = (table.names[row] for row, pods in enumerate(table.pods) if pods)
    assert board.decide(light("second", labels=WEB, **terms)).fits == taken
    assert board.decide(light("stranger", **terms)).fits == taken


def test_existing_anti_affinity_rejects_other_pods() -> None:
    """Anti-affinity holds both ways: the pod that comes has no rule itself."""
    board = Board([node("a"), node("b")])
    lonely = pods_affinity(far_from=[near({"app": "noisy"})])
    board.cluster.put(light("lonely", on="a", **lonely))
    decision = board.decide(light("noisy", labels={"app": "noisy"}))
    assert decision.fits == "b"
    board.cluster.put(light("lonely-2", on="b", **lonely))
    refused = board.decide(light("noisy-2", labels={"app": "noisy"}))
    assert refused.message == "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."


# Namespaces

NAMESPACES = {"default": {}, "blue": {"team": "x"}, "red": {"team": "y"}}


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        pytest.param({}, "d", id="nothing said: the pod's own"),
        pytest.param({"namespaces": ["blue"]}, "b", id="a list"),
        pytest.param({"namespaceSelector": {"matchLabels": {"team": "y"}}}, "r", id="a selector"),
        pytest.param({"namespaceSelector": {}}, "b d r", id="an empty selector means all"),
        pytest.param(
            {"namespaces": ["blue"], "namespaceSelector": {"matchLabels": {"team": "y"}}}, "b r", id="both: either"
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"team": "z"}}}, "", id="a selector that matches no namespace"
        ),
    ],
)
def test_namespaces(more: dict[str, Any], fits: str) -> None:
    pods = [light(labels=STORE, on=name[0], namespace=name) for name in NAMESPACES]
    board = Board([node(name) for name in ("b", "d", "r")], pods, namespaces=NAMESPACES)
    assert board.decide(light("p", **pods_affinity(near_to=[near(STORE, **more)]))).fits == fits


# Revisions and tenants


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        pytest.param({}, "v1", id="any revision"),
        pytest.param({"matchLabelKeys": ["pod-template-hash"]}, "", id="its own revision only, which is nowhere"),
    ],
)
def test_revisions(keys: dict[str, Any], fits: str) -> None:
    nodes = zoned({"V": ("v1",), "R": ("r1",)}, key=ZONE)
    old = light(labels={"app": "database", "pod-template-hash": "old"}, on="v1")
    incoming = light("server", labels={"app": "server", "pod-template-hash": "new"},
                     **pods_affinity(near_to=[near({"app": "database"}, ZONE, **keys)]))  # fmt: skip
    assert Board(nodes, [old]).decide(incoming).fits == fits


@pytest.mark.parametrize(
    ("tenant", "fits"),
    [
        pytest.param("one", "a1 a2", id="its own pool"),
        pytest.param("two", "b1", id="the other one's"),
        pytest.param("three", "c1", id="a newcomer goes where no tenant is"),
    ],
)
def test_tenants_keep_to_their_pools(tenant: str, fits: str) -> None:
    """Near pods of the same tenant, and far from those of every other; pods of no tenant don't matter."""
    nodes = zoned({"A": ("a1", "a2"), "B": ("b1",), "C": ("c1",)}, key="node-pool")
    pods = [
        light(labels={"tenant": "one"}, on="a1"),
        light(labels={"tenant": "two"}, on="b1"),
        light(labels={"app": "of-nobody"}, on="c1"),
    ]
    has_tenant = {"matchExpressions": [expression("tenant", "Exists")]}
    same = {"topologyKey": "node-pool", "labelSelector": {}, "matchLabelKeys": ["tenant"]}
    other = {"topologyKey": "node-pool", "labelSelector": has_tenant, "mismatchLabelKeys": ["tenant"]}
    incoming = light("p", labels={"tenant": tenant}, **pods_affinity(near_to=[same], far_from=[other]))
    assert Board(nodes, pods).decide(incoming).fits == fits
