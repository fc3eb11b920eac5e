"""InterPodAffinity: upstream's cases, and the plain rules while pods, nodes and namespaces change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.config.args import InterPodAffinityArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.interpodaffinity import InterPodAffinity
from control.scheduler.plugins.interpodaffinity.owners import Owners
from koordlet.api.core import Namespace, Node, Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain.podaffinity import inter_pod_affinity, inter_pod_scores
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import filtered, scored
from tests.control.scheduler.plugins.informers import FakeObjects

ZONE, HOST = "zone", "kubernetes.io/hostname"
NEAR = ("UnschedulableAndUnresolvable", ("node(s) didn't match pod affinity rules",))
FAR = ("Unschedulable", ("node(s) didn't match pod anti-affinity rules",))
EXISTING = ("Unschedulable", ("node(s) didn't satisfy existing pods anti-affinity rules",))
WEB, DB = {"app": "web"}, {"app": "db"}


def term(labels: Mapping[str, str] | None = None, key: str = ZONE, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"topologyKey": key, **more}
    return body if labels is None else body | {"labelSelector": {"matchLabels": dict(labels)}}


def with_terms(
    labels: Mapping[str, str] | None = None,
    *,
    near: list[Any] | None = None,
    far: list[Any] | None = None,
    like: list[tuple[int, Any]] | None = None,
    dislike: list[tuple[int, Any]] | None = None,
    on: str = "",
    namespace: str = "default",
    name: str = "",
) -> Pod:
    def preferred(terms: list[tuple[int, Any]] | None) -> list[dict[str, Any]]:
        return [{"weight": weight, "podAffinityTerm": affinity_term} for weight, affinity_term in terms or []]

    required, wished = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    affinity = {
        "podAffinity": {required: near or [], wished: preferred(like)},
        "podAntiAffinity": {required: far or [], wished: preferred(dislike)},
    }
    return pod(name, labels=labels, on=on, namespace=namespace, spec={"affinity": affinity})


def four() -> list[Node]:
    """Two zones of two nodes, and one node without a zone."""
    return [*(node(name, labels={ZONE: "1" if name in "ab" else "2"}) for name in "abxy"), node("q")]


def verdicts(pods: list[Pod], incoming: Pod) -> dict[str, Any]:
    cluster = Cluster(*four())
    cluster.put(*pods)
    return filtered(InterPodAffinity(None, cluster.handle), cluster, incoming)


def web(on: str, **more: Any) -> Pod:
    return pod(labels=WEB, on=on, **more)


@pytest.mark.parametrize(
    ("pods", "incoming", "refused", "reason"),
    [
        pytest.param([], with_terms(), "", None, id="no terms"),
        pytest.param([web("a")], with_terms(near=[term(WEB)]), "xyq", NEAR, id="near: same zone"),
        pytest.param([web("a")], with_terms(near=[term(WEB, HOST)]), "bxyq", NEAR, id="near: same host"),
        pytest.param([], with_terms(near=[term(WEB)]), "abxyq", NEAR, id="near: no pod there"),
        pytest.param([], with_terms(WEB, near=[term(WEB)]), "q", NEAR, id="near: the first of a series"),
        pytest.param([web("x")], with_terms(WEB, near=[term(WEB)]), "abq", NEAR, id="near: the second of a series"),
        pytest.param([web("q")], with_terms(WEB, near=[term(WEB)]), "q", NEAR, id="near: one that is in no zone"),
        pytest.param(
            [web("x", namespace="other")], with_terms(WEB, near=[term(WEB)]), "q", NEAR, id="near: other namespace"
        ),
        pytest.param(
            [web("x", namespace="other")], with_terms(near=[term(WEB, namespaces=["other"])]), "abq", NEAR, id="named"
        ),
        pytest.param(
            [web("a"), pod(labels=DB, on="x")],
            with_terms(near=[term(WEB), term(DB)]),
            "abxyq",
            NEAR,
            id="near: one pod must be meant by all terms",
        ),
        pytest.param(
            [pod(labels={"app": "web", "tier": "1"}, on="a")],
            with_terms(near=[term(WEB), term({"tier": "1"}, HOST)]),
            "bxyq",
            NEAR,
            id="near: meant by all terms",
        ),
        pytest.param([web("a")], with_terms(far=[term(WEB)]), "ab", FAR, id="far: zone"),
        pytest.param([web("a")], with_terms(far=[term(WEB, HOST)]), "a", FAR, id="far: host"),
        pytest.param([web("q")], with_terms(far=[term(WEB)]), "", None, id="far: one that is in no zone"),
        pytest.param(
            [web("a"), pod(labels=DB, on="x")], with_terms(far=[term(WEB), term(DB, HOST)]), "abx", FAR, id="far: two"
        ),
        pytest.param([with_terms(far=[term(WEB)], on="a")], pod(labels=WEB), "ab", EXISTING, id="existing: zone"),
        pytest.param([with_terms(far=[term(WEB)], on="a")], pod(labels=DB), "", None, id="existing: others"),
        pytest.param(
            [with_terms(far=[term(WEB)], on="a")],
            pod(labels=WEB, namespace="other"),
            "",
            None,
            id="existing: its own namespace only",
        ),
        pytest.param(
            [with_terms(far=[term(WEB, namespaces=["other"])], on="a")],
            pod(labels=WEB, namespace="other"),
            "ab",
            EXISTING,
            id="existing: the namespace it names",
        ),
        pytest.param(
            [with_terms({"app": "web", "v": "1"}, far=[term(WEB, matchLabelKeys=["v"])], on="a")],
            pod(labels={"app": "web", "v": "2"}),
            "",
            None,
            id="existing: only pods with its own value of v",
        ),
        pytest.param(
            [with_terms({"app": "web", "v": "1"}, far=[term(WEB, mismatchLabelKeys=["v"])], on="a")],
            pod(labels={"app": "web", "v": "2"}),
            "ab",
            EXISTING,
            id="existing: only pods with another value of v",
        ),
        pytest.param([web("a")], with_terms(far=[term(None)]), "", None, id="no selector matches no pod"),
        pytest.param([web("a")], with_terms(far=[term({})]), "ab", FAR, id="an empty selector matches every pod"),
    ],
)
def test_required(pods: list[Pod], incoming: Pod, refused: str, reason: Any) -> None:
    assert verdicts(pods, incoming) == {name: reason if name in refused else None for name in "abxyq"}


def test_own_affinity_is_reported_before_that_of_existing_pods() -> None:
    existing = [with_terms(WEB, far=[term(WEB, HOST)], on="a")]
    assert verdicts(existing, with_terms(WEB, far=[term(WEB)]))["a"] == FAR
    assert verdicts(existing, with_terms(WEB, near=[term(DB)]))["a"] == NEAR
    assert verdicts(existing, with_terms(WEB, far=[term(DB)]))["a"] == EXISTING


def test_skips_when_nothing_concerns_the_pod() -> None:
    cluster = Cluster(*four())
    plugin = InterPodAffinity(None, cluster.handle)
    infos = cluster.put(with_terms(far=[term(WEB)], on="a"))

    def skips(pod: Pod) -> bool:
        return plugin.pre_filter(CycleState(), cluster.info(pod)).status.skipped

    assert skips(pod(labels=DB))
    assert not skips(pod(labels=WEB))
    assert not skips(with_terms(far=[term(DB)]))
    cluster.table.remove_pod(infos[0])
    assert skips(pod(labels=WEB))


def test_a_malformed_selector_fails_only_its_pod() -> None:
    cluster = Cluster(*four())
    plugin = InterPodAffinity(None, cluster.handle)
    broken = {"topologyKey": ZONE, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}
    cluster.put(with_terms(far=[broken], on="a"))
    assert filtered(plugin, cluster, pod(labels=WEB)) == dict.fromkeys("abxyq")
    status = plugin.pre_filter(CycleState(), cluster.info(with_terms(near=[broken]))).status
    assert status.code_name == "Error"


def scores(pods: list[Pod], incoming: Pod, **args: Any) -> dict[str, int] | None:
    cluster = Cluster(*four())
    cluster.put(*pods)
    return scored(InterPodAffinity(InterPodAffinityArgs(**args), cluster.handle), cluster, incoming)


@pytest.mark.parametrize(
    ("pods", "incoming", "expected"),
    [
        pytest.param([web("a")], pod(), None, id="nothing preferred"),
        pytest.param([], with_terms(like=[(5, term(WEB))]), None, id="no matching pod"),
        pytest.param([web("a")], with_terms(like=[(5, term(WEB))]), [100, 100, 0, 0, 0], id="own liking"),
        pytest.param([web("a")], with_terms(dislike=[(5, term(WEB))]), [0, 0, 100, 100, 100], id="own dislike"),
        pytest.param(
            [web("a"), web("a"), web("x")],
            with_terms(like=[(2, term(WEB)), (4, term(WEB, HOST))]),
            [100, 33, 50, 16, 0],  # 12, 4, 6, 2, 0
            id="sums",
        ),
        pytest.param([with_terms(like=[(7, term(WEB))], on="x")], pod(labels=WEB), [0, 0, 100, 100, 0], id="liked"),
        pytest.param(
            [with_terms(dislike=[(7, term(WEB))], on="x")], pod(labels=WEB), [100, 100, 0, 0, 100], id="disliked"
        ),
        pytest.param([with_terms(near=[term(WEB)], on="x")], pod(labels=WEB), [0, 0, 100, 100, 0], id="hard affinity"),
        pytest.param([with_terms(far=[term(WEB)], on="x")], pod(labels=WEB), None, id="hard anti-affinity counts not"),
    ],
)
def test_preferred(pods: list[Pod], incoming: Pod, expected: list[int] | None) -> None:
    assert scores(pods, incoming) == (None if expected is None else dict(zip("abxyq", expected, strict=True)))


def test_arguments() -> None:
    hard = [with_terms(near=[term(WEB)], on="x"), with_terms(like=[(3, term(WEB, HOST))], on="a")]
    assert scores(hard, pod(labels=WEB), hard_pod_affinity_weight=6) == {"a": 50, "b": 0, "x": 100, "y": 100, "q": 0}
    assert scores(hard, pod(labels=WEB), hard_pod_affinity_weight=0) == {"a": 100, "b": 0, "x": 0, "y": 0, "q": 0}
    assert scores(hard, pod(labels=WEB), ignore_preferred_terms_of_existing_pods=True) is None


def namespace(name: str, **labels: str) -> Namespace:
    return wire.convert({"metadata": {"name": name, "labels": labels}}, Namespace)


def test_namespaces_are_followed() -> None:
    cluster = Cluster(*four())
    objects = FakeObjects()
    cluster.use(objects=objects)
    plugin = InterPodAffinity(None, cluster.handle)
    cluster.put(
        web("a", namespace="prod"), with_terms(far=[term(WEB, namespaceSelector={"matchLabels": {"t": "1"}})], on="x")
    )
    incoming = with_terms(far=[term(WEB, namespaceSelector={"matchLabels": {"t": "1"}})])
    stranger = pod(labels=WEB, namespace="prod")
    assert filtered(plugin, cluster, incoming) == dict.fromkeys("abxyq")
    assert filtered(plugin, cluster, stranger) == dict.fromkeys("abxyq")
    objects.emit("add", namespace("prod", t="1"))
    assert filtered(plugin, cluster, incoming) == dict.fromkeys("abxyq") | {"a": FAR, "b": FAR}
    assert filtered(plugin, cluster, stranger) == dict.fromkeys("abxyq") | {"x": EXISTING, "y": EXISTING}
    objects.emit("update", namespace("prod", t="1"), namespace("prod", t="2"))
    assert filtered(plugin, cluster, incoming) == dict.fromkeys("abxyq")
    assert filtered(plugin, cluster, stranger) == dict.fromkeys("abxyq")


def test_terms_of_the_past_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owners, "MIN_TERMS_TO_COMPACT", 4)
    cluster = Cluster(*four())
    owners = Owners(cluster.table, "x")
    for number in range(50):
        (info,) = cluster.put(with_terms(far=[term({"n": str(number)})], on="a"))
        cluster.table.remove_pod(info)
        cluster.table.set_node(node("q"))
        owners.sync()
    assert len(owners) <= 8


def test_hints() -> None:
    cluster = Cluster()
    hints = {interest.resource: interest.hint for interest in InterPodAffinity(None, cluster.handle).interests()}
    pod_hint, node_hint = hints["AssignedPod"], hints["Node"]
    assert pod_hint
    assert node_hint
    near, far = cluster.info(with_terms(near=[term(WEB)])), cluster.info(with_terms(WEB, far=[term(WEB)]))
    assert pod_hint(near, None, web("a"))
    assert not pod_hint(near, None, pod(labels=DB, on="a"))
    assert not pod_hint(near, web("a"), None)
    assert pod_hint(near, pod("p", labels=DB, on="a"), pod("p", labels=WEB, on="a"))
    assert pod_hint(far, web("a"), None)
    assert not pod_hint(far, None, web("a"))
    assert pod_hint(cluster.info(pod(labels=DB)), with_terms(far=[term(DB)], on="a"), None)
    zoned, moved, bare = node("a", labels={ZONE: "1"}), node("a", labels={ZONE: "2"}), node("a")
    assert node_hint(near, None, zoned)
    assert not node_hint(near, None, bare)
    assert node_hint(near, zoned, moved)
    assert not node_hint(near, zoned, zoned)


# Against the plain rules

selectors = st.sampled_from([None, {}, WEB, DB, {"tier": "1"}])
terms = st.builds(
    lambda labels, key, more: term(labels, key, **more),
    selectors,
    st.sampled_from([ZONE, ZONE, HOST, "rack"]),
    st.fixed_dictionaries(
        {},
        optional={
            "namespaces": st.just(["other"]),
            "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "1"}}]),
            "matchLabelKeys": st.just(["tier"]),
            "mismatchLabelKeys": st.just(["app"]),
        },
    ),
)
weighted = st.tuples(st.integers(1, 100), terms)
labels = st.fixed_dictionaries({}, optional={"app": st.sampled_from(["web", "db"]), "tier": st.sampled_from("12")})


@st.composite
def pods(draw: st.DrawFn, on: str = "") -> Pod:
    few = {"max_size": 2}
    return with_terms(
        draw(labels),
        near=draw(st.lists(terms, **few)),  # type: ignore[arg-type]
        far=draw(st.lists(terms, **few)),  # type: ignore[arg-type]
        like=draw(st.lists(weighted, **few)),  # type: ignore[arg-type]
        dislike=draw(st.lists(weighted, **few)),  # type: ignore[arg-type]
        on=on,
        namespace=draw(st.sampled_from(["default", "default", "other"])),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    values = st.sampled_from(["1", "2"])
    return node(name, labels=draw(st.fixed_dictionaries({}, optional={ZONE: values, "rack": values})))


@given(st.data())
@settings(max_examples=80)
def test_it_follows_the_plain_rules_while_the_cluster_changes(data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(data.draw(st.integers(1, 5)))]
    known = {name: data.draw(nodes(name)) for name in names}
    cluster = Cluster(*known.values())
    objects = FakeObjects()
    cluster.use(objects=objects)
    plugin = InterPodAffinity(InterPodAffinityArgs(data.draw(st.sampled_from([0, 1, 50]))), cluster.handle)
    namespaces: dict[str, Mapping[str, str]] = {}
    infos = cluster.put(
        *(data.draw(pods(data.draw(st.sampled_from(names)))) for _ in range(data.draw(st.integers(0, 4))))
    )
    incoming = data.draw(pods())
    for _ in range(data.draw(st.integers(1, 4))):
        world = World([node for node in cluster.table.nodes if node], [info.pod for info in infos], namespaces)
        expected = {node.metadata.name: inter_pod_affinity(incoming, node, world) for node in world.nodes}
        assert filtered(plugin, cluster, incoming) == expected
        if world.nodes:
            plain = inter_pod_scores(incoming, world.nodes, world, hard_weight=plugin.args.hard_pod_affinity_weight)
            scores = scored(plugin, cluster, incoming)
            assert (scores or dict.fromkeys(expected, 0)) == (plain or dict.fromkeys(expected, 0))
        match data.draw(st.sampled_from(["add", "remove", "node", "gone", "namespace"])):
            case "add":
                infos += cluster.put(data.draw(pods(data.draw(st.sampled_from(names)))))
            case "remove" if infos:
                cluster.table.remove_pod(infos.pop(data.draw(st.integers(0, len(infos) - 1))))
            case "node":
                cluster.table.set_node(data.draw(nodes(data.draw(st.sampled_from([*names, "late"])))))
            case "gone":
                cluster.table.remove_node(data.draw(st.sampled_from(names)))
            case "namespace":
                given_labels = data.draw(st.sampled_from([{}, {"team": "1"}]))
                name = data.draw(st.sampled_from(["default", "other"]))
                namespaces[name] = given_labels
                objects.emit("add", namespace(name, **given_labels))


@given(st.lists(pods("n0"), max_size=4), st.lists(pods("n1"), max_size=2), pods(), st.data())
@settings(max_examples=50)
def test_trials_are_seen_and_leave_no_trace(
    first: list[Pod], second: list[Pod], incoming: Pod, data: st.DataObject
) -> None:
    both = [node("n0", labels={ZONE: "1"}), node("n1", labels={ZONE: "2"})]
    cluster = Cluster(*both)
    plugin = InterPodAffinity(None, cluster.handle)
    infos = cluster.put(*first, *second)

    def agree(left: list[Pod]) -> None:
        world = World(both, left)
        expected = {node.metadata.name: inter_pod_affinity(incoming, node, world) for node in both}
        assert filtered(plugin, cluster, incoming) == expected

    agree([*first, *second])
    gone = data.draw(st.sets(st.sampled_from(range(len(infos))))) if infos else set()
    with cluster.table.what_if() as trial:
        for number in gone:
            trial.remove(infos[number])
        agree([info.pod for number, info in enumerate(infos) if number not in gone])
    agree([*first, *second])
