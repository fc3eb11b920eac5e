"""Requests and use summed up in trees of quotas: worked examples, bad input, and random histories (spec 06 §5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.quota.admission import AdmissionRules, refusal
from control.quota.amounts import differs, to_list
from control.quota.figures import RuntimeRules
from control.quota.forest import ForestRules, QuotaForest
from control.quota.info import QuotaInfo
from control.quota.runtime import scaled_minima
from control.quota.tree import MAX_DEPTH
from koordlet.api import names
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import Quantity
from tests.control.quota.quotabuild import figure, forest, guaranteeing, pod, quota, runtime, submit
from tests.control.scheduler.plain.quotas import PlainQuota, PlainQuotaPod, PlainQuotas


def refused(
    quotas: QuotaForest,
    name: str,
    request: dict[str, int],
    *,
    check_parents: bool = False,
    non_preemptible: bool = False,
) -> str:
    figures = quotas.get(name)
    assert figures is not None
    rules = AdmissionRules(check_parents=check_parents)
    return refusal(quotas.tree(figures), figures, request, rules, non_preemptible=non_preemptible)


def test_requests_are_capped_on_the_way_up() -> None:
    quotas = forest(
        1000,
        [
            quota("test1", min=80, max=96, is_parent=True),
            quota("a", "test1", min=50, max=60, is_parent=True),
            quota("a1", "a", min=20, max=30),
        ],
    )
    requests = []
    for more in (10, 15, 30):
        submit(quotas, "a1", more)
        requests.append([figure(quotas, name, "request") for name in ("a1", "a", "test1")] + [runtime(quotas, "a1")])
    assert requests == [[10, 10, 10, 10], [25, 25, 25, 25], [55, 30, 30, 30]]


def test_quotas_that_lend_nothing_request_their_min() -> None:
    quotas = forest(
        100,
        [
            quota("p", min=60, is_parent=True, allow_lent=False),
            quota("c1", "p", min=20, allow_lent=False),
            quota("c2", "p", min=20, allow_lent=False),
        ],
    )
    assert [figure(quotas, name, "request") for name in ("p", "c1", "c2")] == [60, 20, 20]
    submit(quotas, "c1", 60)
    assert [figure(quotas, name, "request") for name in ("p", "c1", "c2")] == [80, 60, 20]


def test_two_levels_share_what_the_upper_one_gets() -> None:
    quotas = forest(
        90,
        [
            quota("P", min=40, weight=60, is_parent=True),
            quota("Q", min=30, weight=40),
            quota("p1", "P", min=10, weight=40),
            quota("p2", "P", min=10, weight=20),
        ],
    )
    submit(quotas, "p1", 40)
    submit(quotas, "p2", 20)
    submit(quotas, "Q", 50)
    assert (runtime(quotas, "P"), runtime(quotas, "Q")) == (52, 38)
    submit(quotas, "p2", 10)  # the requests below P are 40 and 30 now
    assert (runtime(quotas, "P"), runtime(quotas, "p1"), runtime(quotas, "p2")) == (52, 31, 21)


@pytest.mark.parametrize(
    ("total", "scale", "expected"),
    [
        (200, True, [200, 66667, 66667, 66666]),
        (600, True, [600, 200000, 200000, 200000]),
        (200, False, [300, 100000, 100000, 100000]),
    ],
    ids=["scaled", "enough", "off"],
)
def test_minima_are_scaled_where_the_parent_has_less(total: int, scale: bool, expected: list[int]) -> None:
    cpu = {"cpu": 100_000}
    quotas = forest(
        {"cpu": total * 1000},
        [
            quota("P", min={"cpu": 300_000}, max={"cpu": 600_000}, is_parent=True),
            *(quota(name, "P", min=cpu, max={"cpu": 600_000}) for name in "abc"),
        ],
        ForestRules(RuntimeRules(scale_min=scale)),
    )
    for name in "abc":
        submit(quotas, name, {"cpu": 200_000})
    runtimes = [runtime(quotas, name, "cpu") for name in "Pabc"]
    assert [runtimes[0] // 1000, *runtimes[1:]] == expected


def test_what_is_used_is_guaranteed() -> None:
    quotas = forest(
        50,
        [
            quota("q1", min=20, is_parent=True),
            quota("q2", "q1", min=10),
            quota("q3", "q1", min=5),
        ],
        guaranteeing(),
    )
    guarantees = []
    for more in (0, 5, 10, 10):
        submit(quotas, "q2", more, assigned=True)
        guarantees.append(
            tuple(f"{figure(quotas, name, 'allocated')}/{figure(quotas, name, 'guaranteed')}" for name in ("q2", "q1"))
        )
    assert guarantees == [("0/10", "15/20"), ("5/10", "15/20"), ("15/15", "20/20"), ("25/25", "30/30")]


def test_trees_take_their_total_from_the_default_tree() -> None:
    total = {"cpu": 200_000}

    def root(cpu: str, ignore: str = "") -> QuotaInfo:
        labels = {
            names.LABEL_QUOTA_TREE_ID: "T",
            names.LABEL_QUOTA_IS_ROOT: "true",
            names.LABEL_QUOTA_IGNORE_DEFAULT_TREE: ignore,
        }
        annotations = {names.ANNOTATION_QUOTA_TOTAL_RESOURCE: f'{{"cpu": "{cpu}"}}'}
        body = {"metadata": {"name": "troot", "labels": labels, "annotations": annotations}}
        return QuotaInfo.of(wire.convert(body, ElasticQuota))

    quotas = QuotaForest(ForestRules(multiple_trees=True), lambda: total)

    def default() -> int:
        return quotas.trees()[""].shared("cpu")

    quotas.put(root("80"))
    assert (default(), quotas.trees()["T"].shared("cpu")) == (120_000, 80_000)
    quotas.put(root("100"))
    assert default() == 100_000
    quotas.put(root("100", ignore="true"))
    assert default() == 200_000
    quotas.put(root("100"))
    quotas.remove("troot")
    assert default() == 200_000
    assert set(quotas.trees()) == {""}


def test_a_quota_stays_in_its_tree_and_is_ignored_by_parents_of_others() -> None:
    quotas = QuotaForest(ForestRules(multiple_trees=True), lambda: {"memory": 10})
    quotas.put(quota("a", tree="T"))
    quotas.put(quota("a", tree="U", min=1))
    quotas.put(quota("b", "a", tree="U"))
    figures = quotas.get("a")
    assert figures is not None
    assert quotas.tree(figures).id == "T"
    child = quotas.get("b")
    assert child is not None
    assert not child.attached


@pytest.mark.parametrize(
    ("label", "namespace", "expected"),
    [
        ("named", "team", "named"),
        ("missing", "team", names.DEFAULT_QUOTA),
        ("", "team", "team"),
        ("", "listed", "by-list"),
        ("", "elsewhere", names.DEFAULT_QUOTA),
    ],
    ids=["label", "unknown", "namespace", "listed", "default"],
)
def test_the_quota_of_a_pod(label: str, namespace: str, expected: str) -> None:
    quotas = forest(
        100,
        [
            quota("named"),
            quota("team", namespace="team"),
            quota("elsewhere", namespace="other"),
            quota("by-list", namespaces=("listed",)),
            quota(names.DEFAULT_QUOTA),
        ],
    )
    routed = quotas.route(label, namespace)
    assert routed is not None
    assert routed.name == expected


def test_pods_move_when_their_quota_appears_and_goes() -> None:
    quotas = forest(100, [quota(names.DEFAULT_QUOTA)])
    submit(quotas, "late", 7, assigned=True)
    assert figure(quotas, names.DEFAULT_QUOTA, "used") == 7
    assert quotas.trees()[""].shared("memory") == 93
    quotas.put(quota("late"))
    assert (figure(quotas, "late", "used"), figure(quotas, names.DEFAULT_QUOTA, "used")) == (7, 0)
    quotas.remove("late")
    assert figure(quotas, names.DEFAULT_QUOTA, "used") == 7
    assert figure(quotas, names.ROOT_QUOTA, "used") == 7


def test_without_the_default_quota_a_pod_may_have_none() -> None:
    quotas = forest(100, [quota(names.DEFAULT_QUOTA), quota("a")], ForestRules(default_disabled=True))
    submit(quotas, "missing", 5, assigned=True)
    submit(quotas, "", 5, assigned=True)
    assert quotas.route("", "default") is None
    assert figure(quotas, names.ROOT_QUOTA, "used") == 0


@pytest.mark.parametrize(
    "parents",
    [{"a": "b", "b": "a"}, {"a": "a"}, {"a": "missing"}, {"a": "b", "b": "c", "c": "b"}],
    ids=["cycle", "itself", "missing", "above a cycle"],
)
def test_a_quota_that_does_not_lead_to_the_root_has_no_runtime(parents: dict[str, str]) -> None:
    quotas = forest(100, [quota("fine"), *(quota(name, parent, min=5) for name, parent in parents.items())])
    submit(quotas, "a", 3, assigned=True)
    submit(quotas, "fine", 3)
    figures = quotas.get("a")
    assert figures is not None
    assert not figures.attached
    assert (runtime(quotas, "a"), runtime(quotas, "fine")) == (0, 3)
    assert figure(quotas, "a", "used") == 3
    quotas.put(quota("missing"))
    quotas.put(quota("b"))
    if "a" not in parents.values() or parents["a"] == "b":
        assert runtime(quotas, "a") > 0


def test_the_minima_of_a_level_are_scaled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(total: int, minima: dict[str, int]) -> dict[str, int]:
        calls.append(total)
        return scaled_minima(total, minima)

    monkeypatch.setattr("control.quota.figures.scaled_minima", counted)
    quotas = forest(100, [quota(name, min=50) for name in "abcd"])
    tree = quotas.trees()[""]
    for each in quotas.quotas():
        submit(quotas, each.name, 60)
        assert tree.scaled_min(each) == {"memory": 25}
    assert [runtime(quotas, name) for name in "abcd"] == [25] * 4
    assert calls == [100]
    quotas.put(quota("a", min=250))
    assert [tree.scaled_min(each)["memory"] for each in quotas.quotas()] == [62, 12, 12, 12]
    assert calls == [100, 100]


@pytest.mark.parametrize("name", ["cpu", "memory", "hugepages-2Mi", "example.com/gpu"])
@pytest.mark.parametrize("amount", [0, 1, 1500, 2**62, 2**63 - 1, 2**63, 2**64, 10**30])
def test_amounts_are_the_same_after_they_were_written(name: str, amount: int) -> None:
    written = wire.decode(wire.encode(to_list({name: amount})), dict[str, Quantity])  # type: ignore[var-annotated]
    assert not differs({name: amount}, written)


def test_a_chain_of_quotas_is_bounded() -> None:
    length = 2000
    parents = [names.ROOT_QUOTA, *(f"q{at}" for at in range(length - 1))]
    quotas = forest(100, [quota(f"q{at}", parent) for at, parent in enumerate(parents)])
    for at in (MAX_DEPTH - 1, MAX_DEPTH, length - 1):
        submit(quotas, f"q{at}", 3)
    attached = [quota.name for quota in quotas.quotas() if quota.attached]
    assert attached == [f"q{at}" for at in range(MAX_DEPTH)]
    assert [runtime(quotas, quota.name) for quota in quotas.quotas()] == [3] * MAX_DEPTH + [0] * (length - MAX_DEPTH)


def test_amounts_that_make_no_sense_are_bounded() -> None:
    annotations = {names.ANNOTATION_QUOTA_SHARED_WEIGHT: '{"cpu": "-1", "memory": "1e900"}'}
    body = {
        "metadata": {"name": "odd", "annotations": annotations},
        "spec": {"min": {"cpu": "-5", "memory": "9", "gpu": "1"}, "max": {"cpu": "1e300", "memory": "4"}},
    }
    quotas = forest({"cpu": 1000, "memory": 100}, [QuotaInfo.of(wire.convert(body, ElasticQuota))])
    figures = quotas.get("odd")
    assert figures is not None
    assert figures.min == {"cpu": 0, "memory": 4}  # not above max, nothing without max
    assert figures.max == {"cpu": 2**63 - 1, "memory": 4}
    assert figures.weight["cpu"] == 0
    submit(quotas, "odd", {"cpu": 2**62, "memory": 2**62, "gpu": 2**62})
    assert runtime(quotas, "odd") == 4
    assert runtime(quotas, "odd", "cpu") == 0  # a weight of 0 gets no share


@pytest.mark.parametrize(
    ("used", "requested", "non_preemptible", "expected"),
    [
        (
            {"cpu": 8000},
            {"cpu": 3000},
            False,
            "Insufficient quotas, quotaName: a, runtime: cpu:10, used: cpu:8, pod's request: cpu:3, "
            "exceedDimensions: [cpu]",
        ),
        ({"cpu": 8000}, {"cpu": 2000}, False, ""),
        ({}, {}, False, ""),
        (
            {"cpu": 9000},
            {"cpu": 1500},
            True,
            "Insufficient quotas, quotaName: a, runtime: cpu:10, used: cpu:9, pod's request: cpu:1500m, "
            "exceedDimensions: [cpu]",
        ),
    ],
    ids=["too much", "just", "nothing", "both limits"],
)
def test_the_refusal_of_a_pod(
    used: dict[str, int], requested: dict[str, int], non_preemptible: bool, expected: str
) -> None:
    quotas = forest({"cpu": 10_000}, [quota("a", max={"cpu": 20_000})])
    submit(quotas, "a", used, assigned=True)
    submit(quotas, "a", requested)
    submit(quotas, "a", {"cpu": 20_000})  # the runtime is all that there is
    assert refused(quotas, "a", requested, non_preemptible=non_preemptible) == expected


def test_non_preemptible_pods_are_limited_by_min() -> None:
    quotas = forest({"cpu": 50_000}, [quota("a", min={"cpu": 10_000}, max={"cpu": 20_000})])
    submit(quotas, "a", {"cpu": 9000}, assigned=True, non_preemptible=True)
    submit(quotas, "a", {"cpu": 2000})
    assert refused(quotas, "a", {"cpu": 2000}) == ""
    assert refused(quotas, "a", {"cpu": 2000}, non_preemptible=True) == (
        "Insufficient non-preemptible quotas, quotaName: a, min: cpu:10, nonPreemptibleUsed: cpu:9, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )


def test_every_ancestor_can_be_asked() -> None:
    quotas = forest(
        100,
        [
            quota("top", max=10, is_parent=True),
            quota("mid", "top", max=50, is_parent=True),
            quota("a", "mid", min=8),
            quota("b", "mid", min=8),
        ],
    )
    submit(quotas, "a", 8, assigned=True)
    submit(quotas, "b", 5)
    assert refused(quotas, "b", {"memory": 5}) == ""
    assert refused(quotas, "b", {"memory": 5}, check_parents=True) == (
        "Insufficient quotas, quotaNameTopo: [mid b], runtime: memory:10, used: memory:8, pod's request: memory:5, "
        "exceedDimensions: [memory]"
    )


# Random histories

NAMES = ("a", "b", "c", "d", "e")
RESOURCES = ("cpu", "memory")
small = st.integers(0, 12)
amounts = st.fixed_dictionaries({}, optional=dict.fromkeys(RESOURCES, small))


@st.composite
def quotas(draw: st.DrawFn) -> tuple[QuotaInfo, PlainQuota]:
    name = draw(st.sampled_from((*NAMES, names.DEFAULT_QUOTA)))
    parent = names.ROOT_QUOTA if name == names.DEFAULT_QUOTA else draw(st.sampled_from((names.ROOT_QUOTA, *NAMES)))
    limit, weight = draw(amounts), draw(amounts)
    minimum, lends = draw(amounts), draw(st.booleans())
    info = quota(name, parent, min=minimum, max=limit, weight=weight, allow_lent=lends)
    return info, PlainQuota(name, parent, minimum, limit, weight, lends)


steps = st.one_of(
    st.tuples(st.just("quota"), quotas()),
    st.tuples(st.just("remove"), st.sampled_from((*NAMES, names.DEFAULT_QUOTA))),
    st.tuples(st.just("total"), amounts),
    st.tuples(st.just("pod"), st.tuples(st.integers(0, 7), st.sampled_from(NAMES), amounts, st.booleans())),
    st.tuples(st.just("assign"), st.tuples(st.integers(0, 7), st.booleans())),
    st.tuples(st.just("gone"), st.integers(0, 7)),
    st.tuples(st.just("read"), st.none()),
)


class Twins:
    """A forest and the plain lists."""

    def __init__(self, scale: bool) -> None:
        self.scale = scale
        self.total: dict[str, int] = {}
        self.quotas: dict[str, PlainQuota] = {}
        self.pods: dict[int, PlainQuotaPod] = {}
        self.forest = QuotaForest(ForestRules(RuntimeRules(scale_min=scale)), lambda: self.total)

    def apply(self, step: str, what: Any) -> None:
        match step:
            case "quota":
                info, plain = what
                self.forest.put(info)
                self.quotas[plain.name] = plain
            case "remove":
                self.forest.remove(what)
                self.quotas.pop(what, None)
            case "total":
                self.total = what
            case "pod":
                number, name, request, non_preemptible = what
                known = self.pods.get(number)
                consumer = pod(name, request, non_preemptible=non_preemptible)
                consumer.uid = f"n{number}"
                self.forest.set_pod(consumer)
                assigned = known.assigned if known is not None else False
                self.pods[number] = PlainQuotaPod(f"n{number}", name, request, assigned, non_preemptible)
            case "assign":
                number, assigned = what
                if number in self.pods:
                    self.forest.assign(f"n{number}", assigned)
                    old = self.pods[number]
                    self.pods[number] = PlainQuotaPod(old.name, old.quota, old.request, assigned, old.non_preemptible)
            case "gone":
                self.forest.drop_pod(f"n{what}")
                self.pods.pop(what, None)
            case "read":
                self.forest.refresh()

    def compare(self) -> None:
        plain = PlainQuotas(self.total, self.quotas, list(self.pods.values()), self.scale)
        for figures in self.forest.quotas():
            name, tree = figures.name, self.forest.tree(figures)
            assert figures.attached == plain.attached(name)
            for resource in figures.max:
                assert figures.used.get(resource, 0) == plain.used(name, resource), (name, resource)
                if figures.attached:
                    assert figures.request.get(resource, 0) == plain.request(name, resource), (name, resource)
                assert tree.runtime(figures, resource) == plain.runtime(name, resource), (name, resource)
            own = [pod for pod in self.pods.values() if plain.of(pod) == name]
            assert len(figures.pods) == len(own)
        self.check_invariants(plain)

    def check_invariants(self, plain: PlainQuotas) -> None:
        for tree in self.forest.trees().values():
            for parent in (tree.root, *tree.quotas.values()):
                children = list(parent.children.values())
                for resource in RESOURCES:
                    total = tree.level_total(parent, resource) if parent.attached else 0
                    runtimes = {child.name: tree.runtime(child, resource) for child in children}
                    if self.scale:
                        assert sum(runtimes.values()) <= total
                    for child in children:
                        assert runtimes[child.name] <= child.max.get(resource, 0)
            for pods in self.pods.values():
                figures = self.forest.route(pods.quota, "default")
                if figures is None or pods.assigned:
                    continue
                text = refusal(
                    tree, figures, dict(pods.request), AdmissionRules(), non_preemptible=pods.non_preemptible
                )
                assert bool(text) == bool(plain.refused(pods)), text


@given(st.booleans(), st.lists(steps, max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_history_gives_the_figures_of_the_lists(scale: bool, history: list[tuple[str, Any]]) -> None:
    twins = Twins(scale)
    for step, what in history:
        twins.apply(step, what)
        if step == "read":
            twins.compare()
    twins.compare()
    for number in list(twins.pods):
        twins.apply("gone", number)
    for figures in twins.forest.quotas():
        for field in ("self_request", "self_used", "used", "np_request", "np_used", "pods"):
            assert not any(getattr(figures, field).values())  # nothing leaks
    assert not twins.forest._routes
