"""One preemption for every policy: which pods may go, where they may be, and whether their removal suffices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState, Plugin, PostFilterResult, PreFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable, unschedulable
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.plugins.defaultpreemption.preemption import Preemption
from control.scheduler.state.pods import PodInfo
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plugins.test_defaultpreemption import Evictions
from tests.control.scheduler.toys import TOYS, cycle_of

LIMIT = 2
"""Pods of one team."""


class TeamVictims(VictimPolicy):
    """A team has at most LIMIT pods; only pods of the same team may go."""

    def __init__(self, cluster_pods: Any) -> None:
        self._pods = cluster_pods

    def eligible(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        return super().eligible(victim, preemptor) and _team(victim) == _team(preemptor)

    def rows(self, preemptor: PodInfo) -> Collection[int]:
        return {row for row, pods in enumerate(self._pods) if any(_team(p) == _team(preemptor) for p in pods.values())}

    def none_on(self, node: str, preemptor: PodInfo) -> PluginStatus:
        return unresolvable(f"no team mates on {node}")

    def admits(self, state: CycleState, preemptor: PodInfo) -> PluginStatus:
        present = sum(_team(other) == _team(preemptor) for pods in self._pods for other in pods.values())
        return unschedulable("the team is full") if present >= LIMIT else SUCCESS


class Teams(Plugin):
    """Refuses further pods of a full team before any node is looked at, and preempts within the team."""

    name = "Teams"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.policy = TeamVictims(handle.table.pods)
        self.preemption = Preemption(handle, self.name, self.policy)

    def connect(self, runtime: PluginRuntime) -> None:
        self.preemption.connect(runtime)

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(self.policy.admits(state, pod))

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        return self.preemption.post_filter(state, pod, failure)


def _team(pod: PodInfo) -> str:
    return pod.shape.labels.get("team", "")


def teams(*pods: Any) -> tuple[Cluster, Cycle, Evictions]:
    cluster = Cluster(node("a", cpu="8"), node("b", cpu="8"))
    cluster.put(*pods)
    evictions = Evictions()
    cluster.use(evictor=evictions)
    points = {"preFilter": ("Teams",), "filter": ("Fits",), "postFilter": ("Teams",)}
    return cluster, cycle_of(cluster, points, {**TOYS, "Teams": Teams}), evictions


def member(name: str, team: str, priority: int, on: str = "") -> Any:
    return pod(name, cpu="1", priority=priority, on=on, labels={"team": team})


def test_only_eligible_pods_go_and_only_as_many_as_the_policy_needs() -> None:
    cluster, cycle, evictions = teams(
        member("red-1", "red", 1, "b"), member("red-2", "red", 2, "b"), member("blue", "blue", 0, "a")
    )
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(member("new", "red", 9)))
    assert failure.value.nominated == "b"
    assert evictions.victims == ["red-1"]


def test_a_node_is_left_alone_if_removing_every_eligible_pod_is_not_enough() -> None:
    cluster, cycle, evictions = teams(
        member("red-1", "red", 9, "a"), member("red-2", "red", 9, "a"), member("red-3", "red", 1, "b")
    )
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(member("new", "red", 5)))
    assert evictions.victims == []
    assert failure.value.text() == (
        "0/2 nodes are available: the team is full."
        " preemption: 0/2 nodes are available: 1 no team mates on a, 1 the team is full."
    )
    assert cluster.table.requested[0].sum() == 3000  # the trial is reverted
