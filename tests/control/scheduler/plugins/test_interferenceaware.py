"""InterferenceAware: best-effort pods are kept off nodes with victims of interference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import InterferenceAwareArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.interferenceaware import KINDS, InterferenceAware, points
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.loadreports import NOW, metric, pod_usage
from tests.fakeclock import FakeClock

BE = {"koordinator.sh/qosClass": "BE"}
LS = {"koordinator.sh/qosClass": "LS"}


def batch(cpu: str | None = None, memory: str | None = None) -> Pod:
    more: dict[str, Any] = {"kubernetes.io__batch_cpu": cpu, "kubernetes.io__batch_memory": memory}
    return pod(cpu=None, memory=None, labels=BE, **{key: value for key, value in more.items() if value})


def brief(resource: str, container: str = "main", **more: Any) -> dict[str, Any]:
    verdict = {
        "container": container,
        "resource": resource,
        "cause": "neighbour",
        "state": "interfered",
        "confidence": 0.9,
    }
    return verdict | more


def hurt(name: str, *briefs: dict[str, Any], qos: str = "LS") -> dict[str, Any]:
    return pod_usage(f"default/{name}", "1", "1Gi", interference=list(briefs)) | {"qos": qos}


class World:
    def __init__(self, *names: str, **args: Any) -> None:
        self.cluster = Cluster(*(node(name) for name in names or ("a",)))
        self.clock = FakeClock(NOW)
        self.cluster.use(clock=self.clock)
        self.plugin = InterferenceAware(InterferenceAwareArgs(**args), self.cluster.handle)

    def reasons(self, pod: Pod) -> list[str]:
        info, state = self.cluster.info(pod), CycleState()
        exempt = self.plugin.pre_filter(state, info).status.skipped
        numbers = self.plugin.filter(state, info, self.cluster.table.all)
        assert not (exempt and numbers.any())
        backwards = np.arange(self.cluster.table.size)[::-1]
        assert self.plugin.filter(state, info, backwards).tolist() == numbers.tolist()[::-1]
        return [self.plugin.reasons.status(int(number)).message for number in numbers]

    def scores(self) -> list[int]:
        info, state = self.cluster.info(pod()), CycleState()
        self.plugin.pre_filter(state, info)
        points_of: list[int] = self.plugin.score(state, info, self.cluster.table.all).tolist()
        return points_of


def text(kind: str) -> str:
    return f"node(s) had pods suffering from {kind} interference"


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([hurt("x", brief("cpu")), hurt("y", brief("cpu"))], text("cpu"), id="cpu"),
        pytest.param([hurt("x", brief("cpu"), brief("cache", "side"))], text("cpu"), id="caches are cpu"),
        pytest.param([hurt("x", brief("cpu"), brief("cache"))], "", id="a container counts once"),
        pytest.param([hurt("x", brief("memory"), brief("memory", "side"))], "", id="not what it uses"),
        pytest.param([hurt("x", brief("io"), brief("io", "side"))], text("io"), id="disks"),
        pytest.param([hurt("x", brief("network"), brief("network", "side"))], text("network"), id="network"),
        pytest.param([hurt("x", brief("cpu"))], "", id="below the threshold"),
        pytest.param([hurt(n, brief("cpu"), qos="BE") for n in "xy"], "", id="victims are best-effort themselves"),
        pytest.param([hurt(n, brief("cpu", cause="self")) for n in "xy"], "", id="caused by itself"),
        pytest.param([hurt(n, brief("cpu", state="suspected")) for n in "xy"], "", id="only suspected"),
        pytest.param([hurt(n, brief("cpu", state="recovering")) for n in "xy"], text("cpu"), id="not yet recovered"),
        pytest.param([hurt(n, brief("cpu", confidence=0.4)) for n in "xy"], "", id="not sure"),
        pytest.param([hurt(n, brief("other")) for n in "xy"], "", id="unknown resource"),
        pytest.param([pod_usage("default/x", "1", "1Gi", interference={"a": 1}) | {"qos": "LS"}], "", id="other shape"),
    ],
)
def test_refused_pods_of_batch_cpu(pods: list[dict[str, Any]], expected: str) -> None:
    world = World()
    world.plugin.set_metric(metric("a", "1", "1Gi", pods=pods))
    assert world.reasons(batch("1000")) == [expected]


@pytest.mark.parametrize(
    ("subject", "kinds"),
    [
        (batch("1000"), {"cpu", "io", "network"}),
        (batch(None, "1Gi"), {"memory", "io", "network"}),
        (batch("1000", "1Gi"), set(KINDS)),
        (batch(), set(KINDS)),
        (pod(labels=LS), set()),
        (pod(), set()),
    ],
    ids=["cpu", "memory", "both", "nothing requested", "service", "burstable"],
)
def test_who_is_refused_for_what(subject: Pod, kinds: set[str]) -> None:
    for kind in KINDS:
        world = World()
        world.plugin.set_metric(metric("a", pods=[hurt(n, brief(kind)) for n in "xy"]))
        assert world.reasons(subject) == [text(kind) if kind in kinds else ""]


def test_the_score_falls_with_the_number_of_victims() -> None:
    world = World("a", "b", "c", "d")
    world.plugin.set_metric(metric("b", pods=[hurt("x", brief("cpu"))]))
    world.plugin.set_metric(metric("c", pods=[hurt(n, brief("cpu")) for n in "xyz"]))
    world.plugin.set_metric(metric("d", pods=[hurt(n, brief("cpu"), brief("io"), brief("network")) for n in "xy"]))
    assert world.scores() == [100, 75, 50, 0]


def test_old_reports_say_nothing() -> None:
    world = World("a", "b")
    for name, at in (("a", NOW), ("b", NOW + 60)):
        world.plugin.set_metric(metric(name, at=at, pods=[hurt(n, brief("cpu")) for n in "xy"]))
    assert world.reasons(batch()) == [text("cpu")] * 2
    position = world.cluster.table.pod_log.end
    world.clock.jump(180)
    assert world.reasons(batch()) == ["", text("cpu")]
    assert world.scores() == [100, 50]
    assert world.cluster.table.pod_log.since(position) == [0]
    world.plugin.set_metric(metric("a", at=None, pods=[hurt(n, brief("cpu")) for n in "xy"]))
    assert world.reasons(batch())[0] == ""


def test_reports_wake_the_pods_that_fit_now() -> None:
    world = World()
    hint = world.plugin.interests()[0].hint
    assert hint is not None
    bad, good = metric("a", pods=[hurt(n, brief("cpu")) for n in "xy"]), metric("a")
    info = world.cluster.info(batch())
    world.plugin.set_metric(bad)
    assert not hint(info, good, bad)
    world.plugin.set_metric(good)
    assert hint(info, bad, good)
    assert not hint(info, None, metric("unknown"))


def test_rows_are_used_again_and_nodes_may_come_after_their_reports() -> None:
    world = World()
    world.plugin.set_metric(metric("late", pods=[hurt(n, brief("cpu")) for n in "xy"]))
    world.plugin.set_metric(metric("a", pods=[hurt(n, brief("io")) for n in "xy"]))
    world.cluster.table.remove_node("a")
    world.cluster.table.set_node(node("late"))
    assert world.reasons(batch()) == [text("cpu")]
    assert world.plugin.nodes_page()["late"]["hurt"]["cpu"] == 2
    world.plugin.drop_metric(metric("late"))
    assert world.reasons(batch()) == [""]


@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.lists(st.integers(0, 200), min_size=4, max_size=4),
    st.integers(0, 3),
)
def test_points_fall_with_the_number_of_victims(
    numbers: list[int], thresholds: list[int], weights: list[int], at: int
) -> None:
    score = points(numbers, thresholds, weights)
    worse = [number + (place == at) for place, number in enumerate(numbers)]
    assert 0 <= points(worse, thresholds, weights) <= score <= 100
    assert points([0] * 4, thresholds, weights) == 100


STEP = st.tuples(
    st.sampled_from(("report", "drop", "time", "node")),
    st.sampled_from("abc"),
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.sampled_from(("cpu", "cache", "memory", "io", "network"))), max_size=8
    ),
    st.sampled_from((0, 60, 170, 180)),
)


@given(st.lists(STEP, max_size=14), st.dictionaries(st.sampled_from(KINDS), st.integers(0, 3)))
def test_the_columns_agree_with_a_new_computation(steps: list[Any], thresholds: dict[str, int]) -> None:
    world = World("a", "b", "c", thresholds=thresholds)
    last: dict[str, tuple[float, set[tuple[str, str]]]] = {}
    for what, name, briefs, age in steps:
        if what == "report":
            report = metric(
                name, at=world.clock.now() - age, pods=[hurt(f"{p}{n}", brief(r)) for n, (p, r) in enumerate(briefs)]
            )
            world.plugin.set_metric(report)
            last[name] = (world.clock.now() - age, {(f"{p}{n}", r) for n, (p, r) in enumerate(briefs)})
        elif what == "drop":
            world.plugin.drop_metric(metric(name))
            last.pop(name, None)
        elif what == "time":
            world.clock.jump(age)
        else:
            world.cluster.table.set_node(node(name, cpu="4"))
    expected = []
    for name in "abc":
        at, briefs = last.get(name, (0.0, set()))
        counted = dict.fromkeys(KINDS, 0)
        if world.clock.now() - at < 180:
            for kind in KINDS:
                names = (kind, "cache") if kind == "cpu" else (kind,)
                counted[kind] = len({p for p, r in briefs if r in names})
        over = [kind for kind in KINDS if 0 < thresholds.get(kind, 0) <= counted[kind]]
        expected.append(text(over[0]) if over else "")
    assert world.reasons(batch()) == expected
