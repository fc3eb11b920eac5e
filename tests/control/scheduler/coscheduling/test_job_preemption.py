"""The planner of preemption for gangs: costs, placements and victims (spec 05 §11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.framework.plugin import CycleState, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code, error, unschedulable
from control.scheduler.framework.victimpolicy import JobVictims
from control.scheduler.plugins.coscheduling import jobplanner
from control.scheduler.plugins.coscheduling.jobplanner import (
    JobPlanner,
    NotHelpful,
    PreemptingJob,
    PreemptionPlan,
    SimulationFailed,
    by_importance,
    costs,
)
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import CPU, selected
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, cycle_of

KEY = "scheduling.koordinator.sh/questioned-object-key"


def info(name: str, priority: int = 0, job: str = "", **labels: str) -> PodInfo:
    return Cluster().info(pod(name, priority=priority, labels=labels | ({KEY: job} if job else {})))


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({0: [("a", 5, "")], 1: [("b", 7, "")]}, {0: 0, 1: 1}),
        ({0: [("a", 5, ""), ("b", 7, "")], 1: [("c", 9, "")]}, {0: 1, 1: 2}),
        ({0: [("a", 5, ""), ("b", 5, "")], 1: [("c", 7, "")], 2: [("d", 5, "")]}, {0: 0, 1: 1, 2: 0}),
        ({0: [("a", 5, ""), ("b", 7, ""), ("c", 7, "")], 1: [("d", 7, "")]}, {0: 2, 1: 1}),
        ({0: [("a", 5, "j"), ("b", 9, "j"), ("c", 9, "j")], 1: [("d", 7, "")]}, {0: 2, 1: 1}),
        ({0: [("a", 7, "j"), ("b", 7, "k")], 1: [("c", 5, "j")]}, {0: 2, 1: 0}),
    ],
    ids=["ranks", "sum", "lowest is free", "without a label each for itself", "once a job, the highest", "two jobs"],
)
def test_cost(on: Mapping[int, list[tuple[str, int, str]]], expected: Mapping[int, int]) -> None:
    assert costs({row: [info(*pod) for pod in pods] for row, pods in on.items()}) == expected


@pytest.mark.parametrize(
    ("priority", "labels", "expected"),
    [
        (9, {}, True),
        (10, {}, False),
        (9, {"scheduling.koordinator.sh/disable-preemptible": "true"}, False),
        (9, {"scheduling.koordinator.sh/disable-preemptible": "false"}, True),
        (9, {"quota.scheduling.koordinator.sh/preemptible": "false"}, False),
        (9, {"quota.scheduling.koordinator.sh/preemptible": "true"}, True),
    ],
    ids=["lower", "equal", "disabled", "not disabled", "kept by its quota", "left by its quota"],
)
def test_which_pods_may_be_victims(priority: int, labels: dict[str, str], expected: bool) -> None:
    assert JobVictims().eligible(info("a", priority, **labels), info("b", 10)) is expected


def test_victims_are_ordered_by_importance() -> None:
    pods = [info("d", 1, "a"), info("b", 5, "z"), info("c", 5, "y"), info("a", 5, "y")]
    assert [pod.name for pod in by_importance(pods)] == ["a", "c", "b", "d"]


def planner(cluster: Cluster) -> JobPlanner:
    return connected(cycle_of(cluster, {"filter": ("Fits",)}, TOYS))


def connected(cycle: Cycle, skip: str = "") -> JobPlanner:
    """A planner that works with the plugins of the cycle."""
    job_planner = JobPlanner(cycle.table, JobVictims(), skip)
    job_planner.connect(next(iter(cycle.framework.plugins.values())).runtime)
    return job_planner


def job(cluster: Cluster, *sizes: int, priority: int = 100, **more: Any) -> PreemptingJob:
    members = [
        cluster.info(pod(f"m{number}", f"{size}m", priority=priority, **more)) for number, size in enumerate(sizes)
    ]
    return PreemptingJob(members[0], members, lambda other: other in members)


def places(cluster: Cluster, preempting_job: PreemptingJob, plan: PreemptionPlan) -> dict[str, str]:
    return {pod.name: cluster.table.names[plan.rows[pod.uid]] for pod in preempting_job.members}


def gone(plan: PreemptionPlan) -> list[str]:
    return sorted(pod.name for pods in plan.victims.values() for pod in pods)


def test_members_that_were_placed_stay_for_the_next() -> None:
    """Two nodes with room for two each after the removals: the third member goes to the other (§17, D3)."""
    cluster = Cluster(node("n1", cpu="2"), node("n2", cpu="2"))
    cluster.put(*(pod(f"v{number}", "1", priority=1, on=f"n{number % 2 + 1}") for number in range(4)))
    planned_job = job(cluster, 1000, 1000, 1000)
    plan = planner(cluster).plan(planned_job, cluster.table.valid.nonzero()[0])
    assert places(cluster, planned_job, plan) == {"m0": "n1", "m1": "n1", "m2": "n2"}
    assert gone(plan) == ["v0", "v2", "v3"]


def test_the_cheapest_node_and_no_more_victims_than_needed() -> None:
    cluster = Cluster(node("n1", cpu="4"), node("n2", cpu="4"))
    cluster.put(pod("dear", "4", priority=50, on="n1"))
    cluster.put(*(pod(f"v{priority}", "1", priority=priority, on="n2") for priority in (1, 2, 3)))
    planned_job = job(cluster, 3000)
    plan = planner(cluster).plan(planned_job, cluster.table.valid.nonzero()[0])
    assert places(cluster, planned_job, plan) == {
        "m0": "n1"
    }  # ranks 0, 1, 2 sum up to the rank of the dear one: by name
    cluster.put(pod("dearer", "0", priority=60, on="n1"))
    plan = planner(cluster).plan(planned_job, cluster.table.valid.nonzero()[0])
    assert places(cluster, planned_job, plan) == {"m0": "n2"}
    assert gone(plan) == ["v1", "v2"]


def test_smaller_members_use_nodes_without_victims() -> None:
    cluster = Cluster(node("n1", cpu="4"), node("n2", cpu="1"))
    cluster.put(pod("v", "4", priority=1, on="n1"))
    planned_job = job(cluster, 3000, 1000)
    plan = planner(cluster).plan(planned_job, cluster.table.valid.nonzero()[0])
    assert places(cluster, planned_job, plan) == {"m0": "n1", "m1": "n2"}


def test_the_message_when_preemption_does_not_help() -> None:
    cluster = Cluster(*(node(f"n{number}", cpu="2") for number in range(4)))
    cluster.put(pod("v0", "1", priority=1, on="n0"), pod("high", "1", priority=200, on="n0"))
    cluster.put(pod("v1", "2", priority=1, on="n1"), pod("h2", "1", priority=200, on="n2"))
    with pytest.raises(NotHelpful) as failure:
        planner(cluster).plan(job(cluster, 2000, 2000), cluster.table.valid.nonzero()[0][:3])
    assert str(failure.value) == (
        "0/4 nodes are available: 1 Preemption is not helpful for scheduling, 1 no potential victims, "
        "2 Insufficient cpu."
    )


def test_no_victims_anywhere() -> None:
    cluster = Cluster(node("n0", cpu="1"), node("n1", cpu="1"))
    with pytest.raises(NotHelpful, match=r"^0/2 nodes are available: 2 no potential victims\.$"):
        planner(cluster).plan(job(cluster, 2000), cluster.table.valid.nonzero()[0])


class Silence(Plugin):
    """No node, as long as a noisy pod is on any."""

    name = "Silence"
    reads = Reads.CLUSTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        noisy = any(other.shape.labels.get("noisy") for pods in self.table.pods for other in pods.values())
        reason = self.reasons.number(Code.UNSCHEDULABLE, "it is noisy") if noisy else 0
        return np.full(len(selected(rows, self.table.size)), reason, np.int16)


@pytest.mark.parametrize("where", ["n1", "n2"])
def test_a_plan_must_hold_beside_the_remaining_pods(where: str) -> None:
    cluster = Cluster(node("n1", cpu="1"), node("n2", cpu="1"))
    cluster.put(*(pod(f"v{n}", priority=1, on=n, labels={"noisy": "1"} if n == where else {}) for n in ("n1", "n2")))
    planner = connected(cycle_of(cluster, {"filter": ("Fits", "Silence")}, {**TOYS, "Silence": Silence}))
    planned_job = job(cluster, 1000)
    if where == "n1":
        assert gone(planner.plan(planned_job, cluster.table.valid.nonzero()[0])) == ["vn1"]
        return
    with pytest.raises(NotHelpful, match=r"^the plan does not hold with those who stay: it is noisy$"):
        planner.plan(planned_job, cluster.table.valid.nonzero()[0])
    assert [len(pods) for pods in cluster.table.pods[:2]] == [1, 1]


class Moody(Plugin):
    """Fails, rejects or narrows at PreFilter as the pod's label says."""

    name = "Moody"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        match pod.shape.labels.get("mood"):
            case "error":
                return PreFilterResult(error("the plugin is unwell"))
            case "no":
                return PreFilterResult(unschedulable("not today"))
            case "n2":
                return PreFilterResult(rows=np.array([self.table.rows["n2"]], np.intp))
        return PreFilterResult()

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        return np.zeros(len(selected(rows, self.table.size)), np.int16)


@pytest.mark.parametrize(
    ("mood", "failure", "message"),
    [
        ("error", SimulationFailed, "the plugin is unwell"),
        ("no", NotHelpful, "0/2 nodes are available: 2 not today."),
        ("n2", None, ""),
    ],
)
def test_pre_filter_takes_part_in_planning(mood: str, failure: type[Exception] | None, message: str) -> None:
    cluster = Cluster(node("n1", cpu="1"), node("n2", cpu="1"))
    cluster.put(*(pod(f"v{name}", priority=1, on=name) for name in ("n1", "n2")))
    points = {"preFilter": ("Moody",), "filter": ("Fits", "Moody")}
    cycle = cycle_of(cluster, points, {**TOYS, "Moody": Moody})
    planned_job = job(cluster, 1000, labels={"mood": mood})
    rows = cluster.table.valid.nonzero()[0]
    if failure is None:
        assert gone(connected(cycle).plan(planned_job, rows)) == ["vn2"]
        assert gone(connected(cycle, "Moody").plan(planned_job, rows)) == ["vn1"]
    else:
        with pytest.raises(failure) as problem:
            connected(cycle).plan(planned_job, rows)
        assert str(problem.value) == message
    assert [len(pods) for pods in cluster.table.pods[:2]] == [1, 1]


def test_a_plan_may_need_more_than_the_first_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobplanner, "FIRST_NODES", 1)
    cluster = Cluster(*(node(f"n{number}", cpu=str(number)) for number in range(1, 8)))
    cluster.put(*(pod(f"v{number}", str(number), priority=1, on=f"n{number}") for number in range(1, 8)))
    planned_job = job(cluster, 3000, 7000, 5000, 4000)
    plan = planner(cluster).plan(planned_job, cluster.table.valid.nonzero()[0])
    assert places(cluster, planned_job, plan) == {"m0": "n3", "m1": "n7", "m2": "n5", "m3": "n4"}
    assert gone(plan) == ["v3", "v4", "v5", "v7"]
    with pytest.raises(NotHelpful, match=r"^0/7 nodes are available: 7 Insufficient cpu\.$"):
        planner(cluster).plan(job(cluster, 7000, 7000), cluster.table.valid.nonzero()[0])


PODS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from((1, 5, 9, 200))), max_size=14)


@settings(deadline=None)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), PODS, st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_victims_are_needed_and_enough(nodes: list[int], there: list[tuple[int, int, int]], sizes: list[int]) -> None:
    """Against sums in plain Python; and nothing is left changed, whether there is a plan or not."""
    cluster = Cluster(*(node(f"n{number}", cpu=str(cores)) for number, cores in enumerate(nodes)))
    table, free = cluster.table, list(nodes)
    placed: list[PodInfo] = []
    for number, (at, size, priority) in enumerate(there):
        at %= len(nodes)
        if size <= free[at]:
            free[at] -= size
            placed += cluster.put(pod(f"v{number}", str(size), priority=priority, on=f"n{at}"))
    planned_job = job(cluster, *(1000 * size for size in sizes))
    rows = table.valid.nonzero()[0]
    before = (table.requested.copy(), [set(pods) for pods in table.pods], [other.row for other in placed])
    try:
        plan = planner(cluster).plan(planned_job, rows)
    except NotHelpful:
        plan = None
    assert (table.requested == before[0]).all()
    assert [set(pods) for pods in table.pods] == before[1]
    assert [other.row for other in placed] == before[2]
    assert all(member.row == -1 for member in planned_job.members)
    if plan is None:
        if len(set(sizes)) == 1 and any(other.priority < 100 for other in placed):
            lower = [sum(o.requests["cpu"] for o in placed if o.row == row and o.priority < 100) for row in rows]
            slots = sum((1000 * free[row] + lower[row]) // (1000 * sizes[0]) for row in rows)
            assert slots < len(sizes), "equal members would have had a place"
        return
    assert set(plan.rows) == {member.uid for member in planned_job.members}
    for row in rows.tolist():
        requested = sum(member.requests["cpu"] for member in planned_job.members if plan.rows[member.uid] == row)
        victims = plan.victims.get(row, ())
        assert all(victim.row == row and victim.priority < 100 for victim in victims)
        room = int(table.allocatable[CPU, row] - table.requested[CPU, row]) + sum(v.requests["cpu"] for v in victims)
        assert requested <= room, "not enough"
        for victim in victims:
            assert requested > room - victim.requests["cpu"], "a victim more than needed"
