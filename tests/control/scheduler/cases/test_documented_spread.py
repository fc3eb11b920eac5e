"""The examples of Kubernetes' page on topology spread constraints, as decisions of whole cycles.

node1 and node2 are in zoneA, node3 and node4 in zoneB; pods that count have the label foo=bar.
"""

from __future__ import annotations

from typing import Any

import pytest

from control.scheduler.config.args import PodTopologySpreadArgs
from koordlet.api.core import Node, Pod, Service
from koordlet.api.core.selectors import TopologySpreadConstraint
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node
from tests.control.scheduler.cases.decisions import HOST, Board, light, zoned

FOO = {"foo": "bar"}
ZONE = "topology.kubernetes.io/zone"
FOUR = {"zoneA": ("node1", "node2"), "zoneB": ("node3", "node4")}
ANYWHERE = "node1 node2 node3 node4"
SKEWED = "didn't match pod topology spread constraints"


def rule(key: str = "zone", skew: int = 1, *, soft: bool = False, **more: Any) -> dict[str, Any]:
    action = "ScheduleAnyway" if soft else "DoNotSchedule"
    selector = {"matchLabels": FOO}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": action, "labelSelector": selector, **more}


def mypod(*rules: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return light("mypod", labels=FOO if labels is None else labels, topologySpreadConstraints=list(rules), **spec)


def there(text: str, **more: Any) -> list[Pod]:
    """A pod that counts on each of these nodes."""
    return [light(labels=FOO, on=name, **more) for name in text.split()]


def affine(operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": "zone", "operator": operator, "values": list(values)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("pods", "incoming", "fits"),
    [
        pytest.param("node1 node2 node3", mypod(rule()), "node3 node4", id="one rule: zone A would have 3 to 1"),
        pytest.param("node1 node2 node3", mypod(rule(skew=2)), ANYWHERE, id="a skew of 2 lets zone A in"),
        pytest.param("node1 node2 node3", mypod(rule("node")), "node4", id="by node: only the empty one"),
        pytest.param("node1 node2 node3", mypod(rule(soft=True)), ANYWHERE, id="a preference refuses no node"),
        pytest.param("node1 node2 node3", mypod(rule(), rule("node")), "node4", id="two rules: both must hold"),
        pytest.param("node1 node2 node3", mypod(rule(), rule("node", skew=2)), "node3 node4", id="the second is lax"),
        pytest.param("", mypod(rule(), rule("node")), ANYWHERE, id="the first pod goes anywhere"),
        pytest.param(
            "node1 node2 node3",
            mypod(rule(), labels={}),
            ANYWHERE,
            id="a pod that its own selector does not mean changes no skew, so 2 to 1 stays 1",
        ),
        pytest.param(
            "node1 node1 node2 node3", mypod(rule(), labels={}), "node3 node4", id="such a pod may not join 3 to 1"
        ),
    ],
)
def test_four_nodes(pods: str, incoming: Pod, fits: str) -> None:
    decision = Board(zoned(FOUR), there(pods)).decide(incoming)
    assert decision.fits == fits


def test_a_wish_prefers_the_zone_with_fewer() -> None:
    incoming = mypod(rule(soft=True))
    board = Board(zoned(FOUR), there("node1 node2 node3"))
    scores = board.scores(incoming, "PodTopologySpread")
    assert scores["node1"] == scores["node2"] < scores["node3"] == scores["node4"]
    assert board.decide(incoming).best == "node4"  # of zone B, the node that is empty


def test_of_two_wishes_both_count() -> None:
    board = Board(zoned(FOUR), there("node1 node2 node3"))
    incoming = mypod(rule(soft=True), rule("node", soft=True))
    scores = board.scores(incoming, "PodTopologySpread")
    assert scores["node4"] > scores["node3"] > scores["node1"] == scores["node2"]
    assert board.decide(incoming).best == "node4"


# Rules that contradict each other

THREE = {"zoneA": ("node1", "node2"), "zoneB": ("node3",)}
FIVE_PODS = "node1 node1 node2 node3 node3"


@pytest.mark.parametrize(
    ("incoming", "fits"),
    [
        pytest.param(mypod(rule()), "node3", id="the zones want B"),
        pytest.param(mypod(rule("node")), "node2", id="the nodes want node2"),
        pytest.param(mypod(rule(), rule("node")), "", id="no node satisfies both"),
        pytest.param(mypod(rule(skew=2), rule("node")), "node2", id="solved: zones may differ by 2"),
        pytest.param(mypod(rule(), rule("node", skew=2)), "node3", id="solved: nodes may differ by 2"),
        pytest.param(mypod(rule(), rule("node", soft=True)), "node3", id="solved: the node is a preference"),
        pytest.param(mypod(rule(soft=True), rule("node")), "node2", id="solved: the zone is a preference"),
    ],
)
def test_rules_in_conflict(incoming: Pod, fits: str) -> None:
    decision = Board(zoned(THREE), there(FIVE_PODS)).decide(incoming)
    assert decision.fits == decision.best == fits
    assert decision.message == ("" if fits else f"0/3 nodes are available: 3 node(s) {SKEWED}.")


# Which nodes make domains

FIVE = {**FOUR, "zoneC": ("node5",)}


@pytest.mark.parametrize(
    ("incoming", "fits"),
    [
        pytest.param(mypod(rule()), "node5", id="zone C has none: only it may be filled"),
        pytest.param(mypod(rule(), affinity=affine("NotIn", "zoneC")), "node3 node4", id="affinity leaves zone C out"),
        pytest.param(mypod(rule(), nodeSelector={"zone": "zoneA"}), "node1 node2", id="a selector leaves one zone"),
        pytest.param(
            mypod(rule(nodeAffinityPolicy="Honor"), affinity=affine("NotIn", "zoneC")), "node3 node4", id="Honor"
        ),
        pytest.param(
            mypod(rule(nodeAffinityPolicy="Ignore"), affinity=affine("NotIn", "zoneC")),
            "",
            id="Ignore: zone C counts, and may not be used",
        ),
    ],
)
def test_node_affinity(incoming: Pod, fits: str) -> None:
    assert Board(zoned(FIVE), there("node1 node2 node3")).decide(incoming).fits == fits


@pytest.mark.parametrize(
    ("policy", "tolerant", "fits"),
    [
        pytest.param({}, False, "", id="by default a tainted zone counts, and can't be used"),
        pytest.param({"nodeTaintsPolicy": "Ignore"}, False, "", id="Ignore is the default"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, False, "node3 node4", id="Honor: it is no domain"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, True, "node5", id="Honor: it is one for who tolerates it"),
    ],
)
def test_node_taints(policy: dict[str, str], tolerant: bool, fits: str) -> None:
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    nodes = [*zoned(FOUR), *zoned({"zoneC": ("node5",)}, taints=[taint])]
    tolerations = [{"key": "dedicated", "operator": "Exists"}] if tolerant else []
    incoming = mypod(rule(**policy), tolerations=tolerations)  # type: ignore[arg-type]
    assert Board(nodes, there("node1 node2 node3")).decide(incoming).fits == fits


@pytest.mark.parametrize(
    ("pods", "least", "fits"),
    [
        pytest.param("node1 node3", None, ANYWHERE, id="1 and 1"),
        pytest.param("node1 node3", 2, ANYWHERE, id="there are as many domains as must be"),
        pytest.param("node1 node3", 3, "", id="one domain is missing: the least is 0"),
        pytest.param("node1", 3, "node3 node4", id="one domain is missing: only up to the skew"),
    ],
)
def test_least_number_of_domains(pods: str, least: int | None, fits: str) -> None:
    more = {} if least is None else {"minDomains": least}
    assert Board(zoned(FOUR), there(pods)).decide(mypod(rule(**more))).fits == fits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        pytest.param((2, 2, 1), "c", id="the least is 1: only the third"),
        pytest.param((2, 2, 2), "a b c", id="even"),
        pytest.param((2, 1, 1), "b c", id="two below"),
        pytest.param((3, 1, 1), "b c", id="an existing skew elsewhere refuses no node"),
    ],
)
def test_three_zones(counts: tuple[int, ...], fits: str) -> None:
    nodes = zoned({"A": "a", "B": "b", "C": "c"})
    pods = there(" ".join(name for name, number in zip("abc", counts, strict=True) for _ in range(number)))
    assert Board(nodes, pods).decide(mypod(rule())).fits == fits


# What goes without saying


def test_pods_of_other_namespaces_do_not_count() -> None:
    board = Board(zoned(FOUR), there("node1 node2 node3", namespace="other"))
    assert board.decide(mypod(rule())).fits == ANYWHERE


def test_nodes_without_the_label_are_passed_over() -> None:
    """node1 has no zone: its two pods are not counted, so zone A has one pod and zone B two."""
    nodes = [node("node1", labels={"node": "node1"}), *zoned({"zoneA": ("node2",), "zoneB": ("node3",)})]
    decision = Board(nodes, there(FIVE_PODS)).decide(mypod(rule()))
    assert decision.fits == "node2"


def test_a_mistyped_label_keeps_pods_away() -> None:
    nodes = [*zoned(THREE), node("node5", labels={"node": "node5", "zone-typo": "zoneC"})]
    assert Board(nodes, there(FIVE_PODS)).decide(mypod(rule())).fits == "node3"
    refused = Board(nodes, there(FIVE_PODS)).decide(mypod(rule(), rule("node")))
    missing = f"1 node(s) {SKEWED} (missing required label)"
    assert refused.message == f"0/4 nodes are available: {missing}, 3 node(s) {SKEWED}."


def test_a_zone_that_is_empty_of_nodes_is_no_domain() -> None:
    """Zones without nodes do not count: a pod refused because of zone C fits once the last node of C is removed."""
    board = Board(zoned(FIVE), there("node1 node3"))
    assert board.decide(mypod(rule(), nodeSelector={"zone": "zoneC"})).fits == "node5"
    board = Board(zoned(FIVE), there("node1 node3"))
    board.cluster.table.remove_node("node5")
    assert board.decide(mypod(rule())).fits == ANYWHERE


# Revisions, defaults


@pytest.mark.parametrize(
    ("keys", "fits"),
    [
        pytest.param([], "c", id="both revisions together: one node is free"),
        pytest.param(["pod-template-hash"], "a b c", id="the new revision spreads for itself"),
        pytest.param(["pod-template-hash", "absent"], "a b c", id="keys that the pod lacks are left aside"),
    ],
)
def test_revisions(keys: list[str], fits: str) -> None:
    """Two of the old revision run; the first of the new one comes."""
    old, new = {**FOO, "pod-template-hash": "old"}, {**FOO, "pod-template-hash": "new"}
    nodes = [node(name) for name in "abc"]
    pods = [light(labels=old, on=name) for name in "ab"]
    incoming = mypod(rule(HOST, matchLabelKeys=keys), labels=new)
    assert Board(nodes, pods).decide(incoming).fits == fits


SERVICE: Service = wire.convert({"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": FOO}}, Service)


def by_default(*rules: TopologySpreadConstraint) -> dict[str, Any]:
    return {"PodTopologySpread": PodTopologySpreadArgs(list(rules), "List")}


def three_zones() -> list[Node]:
    return zoned({"A": ("a1", "a2"), "B": ("b1",), "C": ("c1",)}, key=ZONE)


def test_the_built_in_defaults_hold_for_pods_of_services() -> None:
    """Zones by 5 and hosts by 3, both as preferences; a pod with constraints of its own is not affected."""
    pods = there("a1 a1 a2 b1")
    incoming = light("mypod", labels=FOO)
    none = Board(three_zones(), pods).scores(incoming, "PodTopologySpread")
    assert set(none.values()) == {0}
    board = Board(three_zones(), pods, objects=[SERVICE])
    scores = board.scores(incoming, "PodTopologySpread")
    assert scores["c1"] > scores["b1"] > scores["a2"] > scores["a1"]
    assert board.decide(incoming).best == "c1"
    own = mypod(rule("node", skew=9))
    assert board.scores(own, "PodTopologySpread") == dict.fromkeys(("a1", "a2", "b1", "c1"), 0)


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        pytest.param(by_default(), "a1 a2 b1 c1", id="an empty list switches the defaults off"),
        pytest.param(
            by_default(TopologySpreadConstraint(max_skew=1, topology_key=ZONE, when_unsatisfiable="DoNotSchedule")),
            "b1 c1",
            id="a list of one's own, here a hard one",
        ),
    ],
)
def test_defaults_of_the_profile(args: dict[str, Any], fits: str) -> None:
    pods = there("a1 a2 b1 c1")
    incoming = light("mypod", labels=FOO)
    board = Board(three_zones(), pods, args=args, objects=[SERVICE])
    assert board.scores(incoming, "PodTopologySpread") == dict.fromkeys(fits.split(), 0)
    assert board.decide(incoming).fits == fits


def test_a_series_of_pods_keeps_the_skew() -> None:
    """Ten equal pods, one after the other: never more than one apart, by zone and by node."""
    board = Board(zoned(FOUR))
    placed = board.place(*(mypod(rule(), rule("node")) for _ in range(10)))
    for count in range(1, 11):
        counts = [placed[:count].count(f"node{number}") for number in range(1, 5)]
        assert max(counts) - min(counts) <= 1
        assert abs(counts[0] + counts[1] - counts[2] - counts[3]) <= 1
