"""DefaultPreemption: which pods may preempt, which pods are victims, and which node is cheapest (spec 05 §3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import ExtenderResult
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.defaultpreemption.victims import Victims, best, split_by_budget
from control.scheduler.state.pods import PodInfo
from koordlet.api.core.workloads import PodDisruptionBudget
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, cycle_of, queue_with

POINTS = {"preEnqueue": ("DefaultPreemption",), "filter": ("Cordon", "Fits"), "postFilter": ("DefaultPreemption",)}
REGISTRY = {**TOYS, "DefaultPreemption": DefaultPreemption}


class Evictions:
    """Notes who was evicted; nothing is deleted."""

    def __init__(self) -> None:
        self.victims: list[str] = []
        self.cleared: list[str] = []

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        assert message == "koord-scheduler: preempting to accommodate a higher priority pod"
        self.victims += [victim.name for victim in victims]

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        self.cleared += [pod.name for pod in pods]

    def evicting_for(self, uid: str) -> bool:
        return bool(self.victims)


def budget(app: str, allowed: int, disrupted: Sequence[str] = ()) -> PodDisruptionBudget:
    body = {
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {
            "disruptionsAllowed": allowed,
            "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z"),
        },
    }
    return wire.convert(body, PodDisruptionBudget)


def preempting(cluster: Cluster, budgets: Sequence[PodDisruptionBudget] = ()) -> tuple[Cycle, Evictions]:
    evictions = Evictions()
    cluster.use(evictor=evictions)
    cluster.use(objects=SimpleNamespace(informer=lambda kind: SimpleNamespace(list=lambda: list(budgets))))
    return cycle_of(cluster, POINTS, REGISTRY), evictions


def started(second: int) -> dict[str, Any]:
    return {"startTime": f"2026-01-01T00:00:{second:02}Z"}


def fail(cycle: Cycle, pod: PodInfo, extenders: ExtenderResult | None = None) -> FitError:
    with pytest.raises(FitError) as failure:
        cycle.place(pod, extenders)
    return failure.value


def test_the_fewest_and_least_important_pods_are_victims() -> None:
    cluster = Cluster(node("a", cpu="4"))
    cluster.put(
        pod("high", cpu="1", priority=50, on="a"),
        pod("old", cpu="1", priority=1, on="a", status=started(1)),
        pod("young", cpu="1", priority=1, on="a", status=started(30)),
        pod("equal", cpu="1", priority=100, on="a"),
    )
    cycle, evictions = preempting(cluster)
    info = cluster.info(pod("new", cpu="1", priority=100))
    failure = fail(cycle, info)
    assert failure.nominated == "a"
    assert evictions.victims == ["young"]
    assert cluster.table.requested[0, 0] == 4000  # the trial was taken back


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"preemptionPolicy": "Never"}, "preemption: not eligible due to preemptionPolicy=Never."),
        (
            {},
            "preemption: 0/3 nodes are available: 1 Insufficient cpu, 1 No preemption victims found for incoming pod,"
            " 1 Preemption is not helpful for scheduling.",
        ),
    ],
    ids=["never", "nothing helps"],
)
def test_the_failure_message_of_preemption(spec: dict[str, Any], message: str) -> None:
    cluster = Cluster(node("a", cpu="1"), node("b", cpu="8", unschedulable=True), node("c", cpu="1"))
    cluster.put(pod("low", cpu="500m", priority=0, on="a"))
    cycle, evictions = preempting(cluster)
    failure = fail(cycle, cluster.info(pod("new", cpu="2", priority=100, spec=spec)))
    assert failure.text() == f"0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu. {message}"
    assert evictions.victims == []


def test_no_pod_is_preempted_where_only_an_extender_rejects_the_node() -> None:
    cluster = Cluster(node("a", cpu="4"))
    cluster.put(pod("low", cpu="1", priority=0, on="a"))
    cycle, evictions = preempting(cluster)
    failure = fail(cycle, cluster.info(pod("new", cpu="1", priority=9)), ExtenderResult(frozenset()))
    assert failure.text() == (
        "0/1 nodes are available: 1 node(s) were not allowed by an extender."
        " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert evictions.victims == []


def test_waits_for_victims_that_are_terminating_on_the_nominated_node() -> None:
    cluster = Cluster(node("a", cpu="1"))
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    dying = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.put(pod("low", cpu="1", priority=0, on="a", metadata=dying, status={"conditions": [condition]}))
    cycle, evictions = preempting(cluster)
    info = cluster.info(pod("new", cpu="1", priority=9, status={"nominatedNodeName": "a"}))
    failure = fail(cycle, info)
    assert "not eligible due to a terminating pod on the nominated node." in failure.text()
    advice = "Suggestion: {type: WaitingVictimReleased, message: wait until the removed pods on node a are gone}"
    assert failure.text().endswith(advice)
    assert failure.post_filter[-1] == advice
    assert evictions.victims == []


def test_a_budget_is_broken_only_where_nothing_else_helps() -> None:
    cluster = Cluster(node("a", cpu="1"), node("b", cpu="1"))
    cluster.put(
        pod("kept", cpu="1", priority=1, on="a", labels={"app": "kept"}),
        pod("free", cpu="1", priority=5, on="b", labels={"app": "free"}),
    )
    cycle, evictions = preempting(cluster, [budget("kept", 0), budget("free", 1)])
    assert fail(cycle, cluster.info(pod(cpu="1", priority=9))).nominated == "b"
    assert evictions.victims == ["free"]


def test_stays_out_of_the_queue_while_victims_are_being_deleted() -> None:
    cluster = Cluster(node("a", cpu="1"))
    cluster.put(pod("low", cpu="1", priority=0, on="a"))
    cycle, _ = preempting(cluster)
    plugin = cycle.framework.plugins["DefaultPreemption"]
    info = cluster.info(pod("new", cpu="1", priority=9))
    assert plugin.pre_enqueue(info).ok
    fail(cycle, info)
    assert plugin.pre_enqueue(info).rejected


def test_lesser_pods_lose_their_nomination_to_the_node() -> None:
    cluster = Cluster(node("a", cpu="1"))
    cluster.put(pod("low", cpu="1", priority=0, on="a"))
    lesser, greater = cluster.info(pod("lesser", priority=1)), cluster.info(pod("greater", cpu="0", priority=10))

    cluster.use(queue=queue_with("a", lesser, greater))
    cycle, evictions = preempting(cluster)
    fail(cycle, cluster.info(pod("new", cpu="1", priority=9)))
    assert (lesser.nominated, greater.nominated) == ("", "a")
    assert evictions.cleared == ["lesser"]


def test_each_removal_uses_up_what_a_budget_allows() -> None:
    cluster = Cluster(node("a"))
    pods = [cluster.info(pod(f"p{i}", labels={"app": "x"})) for i in range(4)]
    breaking, harmless = split_by_budget(pods, [budget("x", 1, disrupted=["p0"])])
    assert [p.name for p in breaking] == ["p2", "p3"]
    assert [p.name for p in harmless] == ["p0", "p1"]


def test_a_budget_with_an_invalid_selector_matches_no_pod() -> None:
    invalid = budget("x", 0)
    invalid.spec.selector = LabelSelector(match_labels={"app": "not a value!"})
    pods = [Cluster(node("a")).info(pod("p", labels={"app": "x"}))]
    assert split_by_budget(pods, [invalid]) == ([], pods)


def victims(row: int, violations: int, *pods: tuple[int, int]) -> Victims:
    cluster = Cluster()
    infos = [cluster.info(pod(priority=priority, status=started(start))) for priority, start in pods]
    return Victims(row, tuple(infos), violations)


@pytest.mark.parametrize(
    "candidates",
    [
        pytest.param([victims(1, 0, (9, 0)), victims(0, 1, (0, 0))], id="fewest budget violations"),
        pytest.param([victims(1, 0, (3, 0), (3, 0)), victims(0, 0, (4, 0))], id="lowest highest priority"),
        pytest.param([victims(1, 0, (3, 0), (1, 0)), victims(0, 0, (3, 0), (2, 0))], id="lowest sum"),
        pytest.param([victims(1, 0, (3, 0)), victims(0, 0, (3, 0), (-5, 0))], id="fewest pods"),
        pytest.param([victims(1, 0, (3, 20)), victims(0, 0, (3, 10))], id="latest start"),
        pytest.param([victims(1, 0, (3, 20)), victims(0, 0, (3, 20))], id="first"),
    ],
)
def test_the_node_with_the_least_harm_is_chosen(candidates: list[Victims]) -> None:
    assert best(candidates).row == 1


_pods = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 20)), max_size=12)


@settings(max_examples=80, deadline=None)
@given(_pods, st.integers(1, 6), st.integers(0, 20))
def test_victims_are_needed_and_enough(placed: list[tuple[int, int, int]], cpu: int, priority: int) -> None:
    """On the chosen node the pod fits without the victims, does not fit with any one of them, and all are lower."""
    cluster = Cluster(*(node(f"n{i}", cpu="6") for i in range(3)))
    infos = {
        info.name: info
        for i, (n, size, p) in enumerate(placed)
        for info in cluster.put(pod(f"p{i}", cpu=str(size), priority=p, on=f"n{n}"))
    }
    before = cluster.table.requested.copy()
    cycle, evictions = preempting(cluster)
    preemptor = cluster.info(pod("new", cpu=str(cpu), priority=priority))
    try:
        cycle.place(preemptor)
    except FitError as failure:
        assert (cluster.table.requested == before).all()
        victims = [infos[name] for name in evictions.victims]
        if failure.nominated:
            row = cluster.table.rows[failure.nominated]
            free = 6000 - int(before[0, row])
            freed = free + sum(v.requests["cpu"] for v in victims)
            assert {v.row for v in victims} == {row}
            assert all(v.priority < priority for v in victims)
            assert freed >= cpu * 1000
            assert all(freed - v.requests["cpu"] < cpu * 1000 for v in victims)
        else:
            for row in range(3):
                lower = sum(p.requests["cpu"] for p in infos.values() if p.row == row and p.priority < priority)
                fits = 6000 - int(before[0, row]) + lower >= cpu * 1000
                assert not (lower and fits)
    else:
        assert evictions.victims == []
