"""ScheduleExplanations: their status, how often it is written, and their expiry (spec 05 §7.2, 06 §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.config.args import DefaultPreemptionArgs
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.explain.controller import MAX_PER_SWEEP, ExplanationController, expired, status_body
from control.scheduler.explain.jobreport import explain_job
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.state.pods import PodInfo
from koordlet.api.crs.explanation import ScheduleExplanation, ScheduleExplanationStatus, SchedulingResult
from koordlet.api.encoding import wire
from koordlet.kube import NotFound, ServerError
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, cycle_of
from tests.fakeclock import FakeClock

POINTS = {"filter": ("Cordon", "Fits"), "score": ("Fits",), "postFilter": ("DefaultPreemption",)}
EXPLAIN = "scheduling.koordinator.sh/topology-key-to-explain"


def cycle_over(cluster: Cluster) -> Cycle:
    plugins = {**TOYS, DefaultPreemption.name: DefaultPreemption}
    return cycle_of(cluster, POINTS, plugins, args={DefaultPreemption.name: DefaultPreemptionArgs()})


def told(cycle: Cycle, *pods: PodInfo) -> ScheduleExplanationStatus:
    return explain_job(cycle.framework, pods)


def test_a_feasible_pods_status_names_its_node() -> None:
    cluster = Cluster(node("a", cpu="4"), node("b", cpu="8"))
    info = cluster.info(pod("p", cpu="2"))
    status = told(cycle_over(cluster), info)
    assert status.schedulable
    assert wire.to_builtins(placed(status)) == [{"namespace": "default", "name": "p", "uid": info.uid, "nodeName": "b"}]


def placed(status: ScheduleExplanationStatus) -> list[SchedulingResult]:
    (part,) = status.detailed_explanation
    assert part.schedule_explanation is not None
    return part.schedule_explanation.feasible_scheduling_result


def test_an_infeasible_pods_status_has_reasons_and_possible_victims() -> None:
    cluster = Cluster(node("a", cpu="2"), node("b", cpu="2"), node("c", unschedulable=True))
    cluster.put(pod("low", cpu="2", on="b", priority=1), pod("high", cpu="2", on="a", priority=99))
    before = cluster.table.requested.copy()
    status = told(cycle_over(cluster), cluster.info(pod("p", cpu="2", priority=10)))
    assert (status.schedulable, status.schedulable_after_preemption) == (False, True)
    assert status.failed_message == "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
    (part,) = status.detailed_explanation
    assert part.schedule_explanation is not None
    details = part.schedule_explanation.node_failed_details
    assert [
        (detail.failed_plugin, detail.reason, detail.preempt_might_help, detail.failed_nodes) for detail in details
    ] == [
        ("Cordon", "node(s) were unschedulable", False, ["c"]),
        ("Fits", "Insufficient cpu", True, ["a", "b"]),
    ]
    (there,) = part.node_possible_victims
    assert (there.node_name, [victim.name for victim in there.possible_victims]) == ("b", ["low"])
    assert part.preempt_explanation is not None
    assert part.preempt_explanation.feasible_scheduling_result[0].node_name == "b"
    assert (cluster.table.requested == before).all()


def test_members_of_a_job_are_placed_one_after_another() -> None:
    cluster = Cluster(node("a", cpu="2"), node("b", cpu="2"))
    (there,) = cluster.put(pod("m0", cpu="1", on="a"))
    members = [cluster.info(pod(f"m{n}", cpu="1")) for n in (1, 2, 3, 4)]
    status = told(cycle_over(cluster), *members, there)
    assert [result.name for result in placed(status)] == ["m0", "m1", "m2", "m3"]
    assert sorted(result.node_name for result in placed(status)) == ["a", "a", "b", "b"]
    assert status.failed_message == "default/m4: 0/2 nodes are available: 2 Insufficient cpu."
    assert not status.schedulable_after_preemption
    assert told(cycle_over(cluster), *members[:3], there).schedulable


def test_topology_domains_are_evaluated_separately() -> None:
    zones = {"a": ("1", "x"), "b": ("1", "x"), "c": ("4", "y")}
    nodes = [node(name, cpu=cpu, labels={"zone": zone}) for name, (cpu, zone) in zones.items()]
    cluster = Cluster(*nodes, node("d", cpu="9"))
    status = told(cycle_over(cluster), cluster.info(pod("p", cpu="2", labels={EXPLAIN: "zone"})))
    assert status.schedulable
    domains = [(part.topology_domain, part.schedulable, part.failed_message) for part in status.detailed_explanation]
    assert domains == [("x", False, "0/2 nodes are available: 2 Insufficient cpu."), ("y", True, "")]


class Api:
    """A client that remembers what is written, and the copy of what is there."""

    def __init__(self, *questions: ScheduleExplanation) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.there = {question.metadata.uid: question for question in questions}
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.failure: Exception | None = None

    def list(self) -> list[ScheduleExplanation]:
        return list(self.there.values())

    async def patch(self, kind: type, name: str, namespace: str, *, body: Any, subresource: str) -> None:
        if self.failure is not None:
            raise self.failure
        assert subresource == "status"
        question = self.there[body["metadata"]["uid"]]
        question.status = wire.convert(body["status"], ScheduleExplanationStatus)
        self.written.append((name, body["status"]))

    async def delete(self, kind: type, name: str, namespace: str, *, uid: str) -> None:
        del self.there[uid]

    def count(self, result: str) -> float:
        return self.registry.get_sample_value("scheduler_schedule_explanations_total", {"result": result}) or 0.0


def question(name: str, key: str, *, ttl: str | None = None, created: str = "2023-11-14T22:13:20Z") -> Any:
    spec = {"questionObjectKey": key} | ({"ttl": ttl} if ttl is not None else {})
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": created}
    return wire.convert({"metadata": meta, "spec": spec}, ScheduleExplanation)


def service(api: Any, pods: Sequence[PodInfo], cycle: Cycle) -> ExplanationController:
    known = {pod.key: pod for pod in pods}
    return ExplanationController(api, lambda key: (cycle.framework, [known[key]]) if key in known else None, api)


async def test_statuses_are_written_when_changed_and_once_a_minute() -> None:
    cluster = Cluster(node("a", cpu="1"))
    info = cluster.info(pod("p", cpu="2"))
    api = Api(question("q", "default/p"))
    explanations = service(api, [info], cycle_over(cluster))
    for _ in range(10):  # twenty seconds
        await explanations.sweep()
        await api.clock.advance(2)
    assert [status["failedMessage"] for _, status in api.written] == ["0/1 nodes are available: 1 Insufficient cpu."]
    cluster.table.set_node(node("b", cpu="4"))
    for _ in range(6):
        await explanations.sweep()
        await api.clock.advance(2)
    assert len(api.written) == 2
    assert (api.written[1][1]["schedulable"], api.written[1][1]["failedMessage"]) == (True, "")
    for _ in range(36):
        await explanations.sweep()
        await api.clock.advance(2)
    assert len(api.written) == 3
    assert api.count("written") == 3


async def test_sweeps_are_limited_and_reach_every_object() -> None:
    cluster = Cluster(node("a"))
    api = Api(*(question(f"q{n}", "default/nobody") for n in range(MAX_PER_SWEEP + 5)))
    explanations = service(api, [], cycle_over(cluster))
    await explanations.sweep()
    assert len(api.written) == MAX_PER_SWEEP
    await explanations.sweep()
    assert len({name for name, _ in api.written}) == MAX_PER_SWEEP + 5
    assert api.written[0][1]["failedMessage"] == 'no pod, gang or job "default/nobody" is scheduled here'


async def test_failed_writes_are_counted_and_do_not_stop_the_sweep() -> None:
    api = Api(question("q", "default/p"), question("r", ""))
    explanations = service(api, [], cycle_over(Cluster(node("a"))))
    api.failure = ServerError(500, "away")
    await explanations.sweep()
    assert api.count("failed") == 2
    api.failure = NotFound(404, "gone")
    await api.clock.advance(10)
    await explanations.sweep()
    assert api.count("failed") == 2
    api.failure = None
    await api.clock.advance(10)
    await explanations.sweep()
    assert {name: status["failedMessage"] for name, status in api.written}["r"] == "spec.questionObjectKey is empty"


@pytest.mark.parametrize(
    ("ttl", "seconds", "expected"),
    [(None, 86399, False), (None, 86400, True), ("0s", 10**8, False), ("1m0s", 59, False), ("1m0s", 60, True)],
)
def test_time_to_live(ttl: str | None, seconds: float, expected: bool) -> None:
    assert expired(question("q", "k", ttl=ttl), 1_700_000_000 + seconds) is expected


async def test_expired_objects_are_deleted() -> None:
    api = Api(question("q", "default/p", ttl="1m0s"))
    explanations = service(api, [], cycle_over(Cluster(node("a"))))
    await explanations.sweep()
    await api.clock.advance(60)
    await explanations.sweep()
    assert api.there == {}
    assert (api.count("expired"), len(api.written)) == (1, 1)


def test_a_merge_leaves_nothing_of_the_last_answer() -> None:
    assert set(status_body(ScheduleExplanationStatus())) == {
        "schedulable", "schedulableAfterPreemption", "failedMessage", "lastUpdateTime", "detailedExplanation",
    }  # fmt: skip
