"""A pod report describes what a cycle would do, and changes nothing."""

from __future__ import annotations

import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.podreport import explain
from control.scheduler.plugins.registry import PLUGINS
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import cycle_of

POINTS = {"filter": ("Cordon", "Fits"), "score": ("Fits", "Crowd")}


def test_a_pending_pods_report_lists_the_rejecting_plugins() -> None:
    cluster = Cluster(node("a", cpu="1"), node("b", cpu="1"), node("c", unschedulable=True))
    cycle = cycle_of(cluster, POINTS)
    info = cluster.info(pod(cpu="2"))
    explanation = explain(cycle.framework, info, "unschedulable")
    assert (explanation.state, explanation.nodes, explanation.feasible, explanation.scored) == (
        "unschedulable",
        3,
        0,
        [],
    )
    assert [(r.plugin, r.reason, r.count, r.nodes, r.preemption_might_help) for r in explanation.refused] == [
        ("Fits", "Insufficient cpu", 2, ["a", "b"], True),
        ("Cordon", "node(s) were unschedulable", 1, ["c"], False),
    ]
    with pytest.raises(FitError) as failure:
        cycle.place(info)
    assert explanation.message == failure.value.text()


def test_a_placed_pod_is_evaluated_as_if_it_were_pending() -> None:
    cluster = Cluster(node("a", cpu="4"), node("b", cpu="8"), node("c", cpu="2"))
    cycle = cycle_of(cluster, POINTS)
    (info,) = cluster.put(pod(cpu="2", on="a"))
    before = cluster.table.requested.copy()
    explanation = explain(cycle.framework, info, "placed")
    assert explanation.node == "a"
    assert [(s.node, s.total, s.scores) for s in explanation.scored] == [
        ("b", 175, {"Fits": 75, "Crowd": 100}),
        ("a", 150, {"Fits": 50, "Crowd": 100}),
        ("c", 100, {"Fits": 0, "Crowd": 100}),
    ]
    assert (cluster.table.requested == before).all()
    assert info.row == 0


def test_the_node_that_a_pod_has_does_not_rule_the_others_out() -> None:
    cluster = Cluster(node("a"), node("b"))
    points = {"preFilter": ("NodeName",), "filter": ("NodeName",)}
    cycle = cycle_of(cluster, points, PLUGINS)
    (info,) = cluster.put(pod(on="a"))
    explanation = explain(cycle.framework, info, "placed")
    assert (explanation.node, explanation.feasible, explanation.refused) == ("a", 2, [])
    assert info.pod.spec.node_name == "a"
    named = explain(cycle.framework, cluster.info(pod(on="b")), "active")  # not placed yet: its user has chosen
    assert [(refused.plugin, refused.nodes) for refused in named.refused] == [("NodeName", ["a"])]
