"""The exact text of score tables and diagnoses (spec 05 §7.1, §7.2)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.debugging import DebugOutput
from control.scheduler.explain.diagnosis import Diagnoses, Diagnosis, diagnose, schedule_diagnosis, score_table
from control.scheduler.framework.plugin import CycleState, PreFilterResult
from control.scheduler.framework.status import SUCCESS, unresolvable, unschedulable
from control.scheduler.framework.suggestion import Suggestion, SuggestionType
from control.scheduler.plugins.coscheduling.plugin import QUESTIONED
from control.scheduler.state.pods import PodInfo
from koordlet.api.pages.placement import ScoredNode
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import POINTS, TOYS, Guard, cycle_over, framework_of
from tests.fakeclock import FakeClock

SCORES = {
    "ImageLocality": 0, "InterPodAffinity": 0, "LoadAwareScheduling": 87, "NodeAffinity": 0, "NodeNUMAResource": 0,
    "NodeResourcesBalancedAllocation": 96, "NodeResourcesFit": 94, "PodTopologySpread": 200, "Reservation": 0,
    "TaintToleration": 100,
}  # fmt: skip
"""Weighted, as in the example."""


def test_a_table_of_scores_is_the_worked_example() -> None:
    best = ScoredNode(node="cn-hangzhou.10.0.4.51", total=577, scores={k: v for k, v in SCORES.items() if v})
    lines = score_table("default/curlimage-545745d8f8-rngp7", [best], reversed(SCORES))
    assert lines == [
        f"| # | Pod | Node | Score | {' | '.join(SCORES)} |",
        f"| --- | --- | --- | ---: | {' | '.join('---:' for _ in SCORES)} |",
        "| 0 | default/curlimage-545745d8f8-rngp7 | cn-hangzhou.10.0.4.51 | 577"
        " | 0 | 0 | 87 | 0 | 0 | 96 | 94 | 200 | 0 | 100 |",
    ]


def test_a_diagnosis_is_the_worked_example() -> None:
    statuses = [("node1", SUCCESS), ("node2", unschedulable("node2-reason"))]
    encoded = msgspec.json.encode(schedule_diagnosis(statuses, ["node1", "node2"])).decode()
    assert encoded == (
        '{"alreadyWaitForBound":2,"nodeOfferSlot":{"node1":1,"node2":1},"nodeFailedDetails":'
        '[{"preemptMightHelp":true,"failedNodes":["node1"]},'
        '{"reason":"node2-reason","preemptMightHelp":true,"failedNodes":["node2"]}]}'
    )


def test_details_are_in_order() -> None:
    statuses = [
        ("d", unresolvable("x", plugin="B")),
        ("c", unschedulable("x", plugin="B")),
        ("b", unschedulable("y", plugin="A")),
        ("a", unschedulable("y", plugin="A")),
    ]
    details = schedule_diagnosis(statuses, []).node_failed_details
    assert [
        (detail.failed_plugin, detail.reason, detail.preempt_might_help, detail.failed_nodes) for detail in details
    ] == [
        ("A", "y", True, ["a", "b"]),
        ("B", "x", True, ["c"]),
        ("B", "x", False, ["d"]),
    ]


class Picky(Guard):
    """Refuses at PreFilter pods that say so; the others are of one job with all pods of namespace `job`."""

    name = "Picky"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        if pod.namespace == "job":
            state.of_job = lambda other: other.namespace == "job"
            state.data[QUESTIONED] = "job/group"
        return PreFilterResult(unresolvable("never") if pod.shape.labels.get("never") else SUCCESS)


def debugged(cluster: Cluster, **more: Any) -> tuple[Cycle, DebugOutput]:
    framework = framework_of(cluster, {**POINTS, "preFilter": ("Picky",)}, {**TOYS, "Picky": Picky})
    debug = DebugOutput(Diagnoses(FakeClock(), **more))
    return cycle_over(cluster, framework, observers=[debug]), debug


def rows(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.koord_fields["row"] for record in caplog.records if record.koord_message == "Scores"]  # type: ignore[attr-defined]


def test_score_tables_are_logged_when_switched_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(node("a", cpu="4"), node("b", cpu="8"), node("c", cpu="2"))
    cycle, debug = debugged(cluster)
    cycle.place(cluster.info(pod("p", cpu="2")))
    assert rows(caplog) == []
    debug.set_scores(2)
    cycle.place(cluster.info(pod("q", cpu="2")))
    table_rows = rows(caplog)
    assert table_rows[0] == "| # | Pod | Node | Score | ByRow | Crowd | Fits |"
    assert [line.split(" | ")[:4] for line in table_rows[2:]] == [
        ["| 0", "default/q", "a", "150"],
        ["| 1", "default/q", "c", "114"],
    ]
    with pytest.raises(ValueError, match="negative"):
        debug.set_scores(-1)


async def test_a_failure_names_waiting_pods_of_its_job() -> None:
    cluster = Cluster(node("a", cpu="2"), node("b", cpu="1", unschedulable=True))
    cycle, debug = debugged(cluster, blocking=True)
    reported: list[Diagnosis] = []
    debug.diagnoses.processors.append(reported.append)
    cycle.place(cluster.info(pod("one", namespace="job", labels={"permit": "wait"})))
    with pytest.raises(FitError):
        cycle.place(cluster.info(pod("two", namespace="job", cpu="2")))
    assert reported == []
    debug.set_diagnoses(True)
    with pytest.raises(FitError):
        cycle.place(cluster.info(pod("two", namespace="job", cpu="2")))
    with pytest.raises(FitError):
        cycle.place(cluster.info(pod("three", labels={"never": "true"})))
    first, second = reported
    assert first.questioned_key == "job/group"
    assert msgspec.to_builtins(first.schedule_diagnosis) == {
        "alreadyWaitForBound": 1,
        "nodeOfferSlot": {"a": 1},
        "nodeFailedDetails": [
            {
                "failedPlugin": "Cordon",
                "reason": "node(s) were unschedulable",
                "failedNodes": ["b"],
            },
            {
                "failedPlugin": "Fits",
                "reason": "Insufficient cpu",
                "preemptMightHelp": True,
                "failedNodes": ["a"],
            },
        ],
    }
    assert (second.questioned_key, second.pre_filter_message) == ("default/three", "never")
    assert second.schedule_diagnosis.node_failed_details == []


async def test_diagnoses_beyond_the_queue_are_dropped() -> None:
    cluster = Cluster(node("a", cpu="1"))
    cycle, debug = debugged(cluster, on=True, limit=3, workers=2)
    reported: list[Diagnosis] = []
    diagnoses = debug.diagnoses
    diagnoses.processors[:] = [reported.append]

    def fail(number: int) -> None:
        with pytest.raises(FitError):
            cycle.place(cluster.info(pod(f"p{number}", cpu="9")))

    for number in range(5):  # no other task runs meanwhile
        fail(number)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(reported) == 3
    fail(6)
    await diagnoses.stop()
    assert [diagnosis.questioned_key for diagnosis in reported] == [f"default/p{number}" for number in (0, 1, 2, 6)]


def test_the_first_suggestion_of_a_cycle_is_kept() -> None:
    state = CycleState()
    first = Suggestion(SuggestionType.DELETE_CLAIM, "delete claim a")
    assert state.suggest(first)
    assert not state.suggest(Suggestion(SuggestionType.EVICT_SELF, "evict p"))
    assert state.suggestion == first
    cluster = Cluster(node("a", cpu="1"))
    cycle, _ = debugged(cluster)
    info = cluster.info(pod("p", cpu="9"))
    with pytest.raises(FitError) as failure:
        cycle.place(info)
    failure.value.suggestion = first
    diagnosis = diagnose(info, failure.value, cluster.table.names, at=0.0)
    assert msgspec.to_builtins(diagnosis)["suggestion"] == {"type": "DeleteConflictPVC", "message": "delete claim a"}


def test_a_diagnosis_has_time_and_key() -> None:
    cluster = Cluster(node("a", cpu="1"))
    cycle, _ = debugged(cluster)
    info = cluster.info(pod("p", cpu="9", labels={"scheduling.koordinator.sh/topology-key-to-explain": "zone"}))
    with pytest.raises(FitError) as failure:
        cycle.place(info)
    failure.value.post_filter = ("preemption: no",)
    text = msgspec.json.encode(diagnose(info, failure.value, cluster.table.names, at=0.0)).decode()
    assert text == (
        '{"timestamp":"1970-01-01T00:00:00Z","questionedKey":"default/p","topologyKeyToExplain":"zone",'
        '"isRootCausePod":true,"scheduleDiagnosis":{"alreadyWaitForBound":0,"nodeFailedDetails":[{"failedPlugin":"Fits",'
        '"reason":"Insufficient cpu","preemptMightHelp":true,"failedNodes":["a"]}]},'
        '"preemptionDiagnosis":{"failedMessage":"preemption: no"}}'
    )
