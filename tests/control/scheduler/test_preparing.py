"""Every evaluation is prepared alike: BeforePreFilter, PreFilter, AfterPreFilter, and what they change is reverted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from control.scheduler.cycle.evaluation import evaluate, prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.explain.podreport import explain
from control.scheduler.framework.plugin import CycleState, Plugin, PreFilterResult
from control.scheduler.framework.status import SUCCESS, PluginStatus, unschedulable
from control.scheduler.framework.victimpolicy import JobVictims
from control.scheduler.plugins.coscheduling.jobplanner import JobPlanner, PreemptingJob
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, Fits, cycle_of


class Lender(Plugin):
    """Restores room before PreFilter: removes the pods labelled `lent` from the table for the cycle."""

    name = "Lender"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.calls: list[str] = []
        self.nominated: list[int] = []

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        self.calls.append("trial" if state.trial else "cycle")
        if pod.shape.labels.get("borrows"):
            for row in range(self.table.size):
                for other in [other for other in self.table.pods[row].values() if other.shape.labels.get("lent")]:
                    self.table.remove_pod(other)
                    state.undo.append(lambda other=other, row=row: self.table.add_pod(other, self.table.names[row]))  # type: ignore[arg-type, misc]
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult()

    def after_pre_filter(self, state: CycleState, pod: PodInfo, rows: RowArray | None) -> PluginStatus:
        return unschedulable("not after all") if pod.shape.labels.get("late") else SUCCESS

    def nominate(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        assert pod.row < 0  # not counted yet
        self.nominated.append(row)
        return unschedulable("nothing to take") if pod.shape.labels.get("nominate") == "no" else SUCCESS


def world() -> tuple[Cluster, Any, Lender]:
    cluster = Cluster(node("a", cpu="2"))
    cluster.put(pod(cpu="2", on="a", labels={"lent": "yes"}))
    points = {"preFilter": ("Lender",), "filter": ("Fits",)}
    cycle = cycle_of(cluster, points, {**TOYS, "Lender": Lender})
    lender = cycle.framework.plugins["Lender"]
    assert isinstance(lender, Lender)
    return cluster, cycle, lender


def test_every_caller_restores_and_reverts() -> None:
    cluster, cycle, lender = world()
    borrower = cluster.info(pod(cpu="1", labels={"borrows": "yes"}))
    before = cluster.table.requested.copy()
    assert explain(cycle.framework, borrower, "active").feasible == 1
    planner = JobPlanner(cluster.table, JobVictims())
    planner.connect(lender.runtime)
    state = CycleState()
    _, fitting = evaluate(cycle.framework, state, borrower)
    assert len(fitting) == 1
    state.run_undo()
    row, refused = planner._first(PreemptingJob(borrower, [borrower], lambda other: False), borrower, np.array([0]))
    assert (row, refused) == (0, {})
    assert lender.calls == ["trial"] * 3
    assert np.array_equal(cluster.table.requested, before)
    cycle.place(borrower)
    assert lender.calls[-1] == "cycle"
    assert lender.nominated == [0]


def test_after_pre_filter_ends_an_evaluation() -> None:
    cluster, cycle, _ = world()
    late = cluster.info(pod(cpu="1", labels={"late": "yes"}))
    failure, fitting = evaluate(cycle.framework, CycleState(), late)
    assert not len(fitting)
    assert failure.pre_filter == unschedulable("not after all", plugin="Lender")
    with pytest.raises(FitError, match=late.key):
        cycle.place(late)


def test_a_skipped_plugin_takes_no_part() -> None:
    cluster, cycle, lender = world()
    state = CycleState()
    assert prepare(cycle.framework, state, cluster.info(pod(labels={"late": "yes"})), "Lender").status.ok
    assert lender.calls == []
    assert state.skip_filter == {"Lender"}


def test_nothing_is_claimed_when_nothing_is_nominated() -> None:
    cluster, cycle, lender = world()
    info = cluster.info(pod(cpu="1", labels={"borrows": "yes", "nominate": "no"}))
    with pytest.raises(CycleFailed, match="nothing to take"):
        cycle.place(info)
    assert info.row < 0
    assert not cycle.cache.assumed
    assert Fits.name in cycle.framework.plugins
    assert lender.nominated == [0]
