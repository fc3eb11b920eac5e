"""The cycle: remembered answers equal fresh ones, refusals leave nothing behind, failures say why."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.framework.plugin import (
    OTHER_REASON,
    CycleState,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reads,
    Reasons,
)
from control.scheduler.framework.status import Code, PluginStatus, unschedulable
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.plugins.results import passes
from control.scheduler.state.columns import Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, Guard, cycle_of, evaluated, queue_with


def test_places_where_most_is_free() -> None:
    cluster = Cluster(node("a", cpu="2"), node("b", cpu="8"), node("c", cpu="4"))
    cycle = cycle_of(cluster, {"filter": ("Fits",), "score": ("Fits",)})
    placement = cycle.place(cluster.info(pod(cpu="1")))
    assert placement.node == "b"
    assert cluster.table.requested[0, placement.row] == 1000
    assert placement.feasible == 3


def test_the_message_when_no_node_fits() -> None:
    cluster = Cluster(node("a", cpu="1"), node("b", unschedulable=True), node("c", cpu="1", unschedulable=True))
    cycle = cycle_of(cluster)
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(cpu="2")))
    assert failure.value.text() == ("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.")
    assert failure.value.plugins() == {"Cordon", "Fits"}
    assert failure.value.preemptible().tolist() == [0]


def test_without_nodes_the_pod_is_unschedulable() -> None:
    with pytest.raises(CycleFailed, match="no nodes available") as failure:
        cycle_of(Cluster()).place(Cluster().info(pod()))
    assert failure.value.status.rejected  # so that the condition's reason is Unschedulable


def _only(*names: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": list(names)}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def test_nodes_outside_the_named_ones_are_counted_even_if_none_of_those_exists() -> None:
    cluster = Cluster(node("a"), node("b"))
    cycle = cycle_of(cluster, {"preFilter": ("NodeAffinity",), "filter": ("NodeAffinity",)}, PLUGINS)
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(spec=_only("gone"))))
    assert failure.value.text() == "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    assert failure.value.plugins() == {"NodeAffinity"}  # a new node may help


class Refuses(Plugin):
    """Rejects every pod before Filter, in a way that preemption may resolve."""

    name = "Refuses"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(unschedulable("full"))


class Prepares(Plugin):
    """Writes what its filter would need."""

    name = "Prepares"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        state.data[self.name] = True
        return PreFilterResult()

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        assert state.data[self.name]
        return PostFilterResult(unschedulable("tried"))


def test_plugins_after_a_rejection_that_preemption_may_resolve_are_prepared() -> None:
    cluster = Cluster(node("a"))
    registry = {"Refuses": Refuses, "Prepares": Prepares, "DynamicResources": PLUGINS["DynamicResources"]}
    points = {"preFilter": ("Refuses", "Prepares"), "postFilter": ("DynamicResources", "Prepares")}
    with pytest.raises(FitError) as failure:
        cycle_of(cluster, points, registry).place(cluster.info(pod()))  # type: ignore[arg-type]
    assert failure.value.plugins() == {"Refuses"}
    assert failure.value.text() == "0/1 nodes are available: full. no new claims to deallocate, tried"
    assert failure.value.text(bare=True) == "0/1 nodes are available: 1 full."


class Observes(Plugin):
    """Keeps what the PostFilter plugins decided."""

    name = "Observes"

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        return PostFilterResult(unschedulable(*pod.shape.labels.get("says", "").split()), pod.shape.labels.get("node"))

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, failure: FitError, result: PostFilterResult | None
    ) -> None:
        self.result = result


@pytest.mark.parametrize(
    ("labels", "expected"),
    [({}, (None, ())), ({"says": "no"}, (None, ("no",))), ({"node": "", "says": "no"}, ("", ("no",)))],
    ids=["nothing", "reason", "nomination"],
)
def test_plugins_after_post_filter_see_its_result_also_without_a_nomination(
    labels: dict[str, str], expected: Any
) -> None:
    cluster = Cluster(node("a", cpu="1"))
    points = {"filter": ("Fits",), "postFilter": ("Observes",)}
    cycle = cycle_of(cluster, points, {**TOYS, "Observes": Observes})
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(cpu="2", labels=labels)))
    observer = cycle.framework.plugins["Observes"]
    assert isinstance(observer, Observes)
    assert observer.result is not None
    assert (observer.result.nominated, observer.result.status.reasons) == expected
    assert failure.value.nominated == expected[0]


@pytest.mark.parametrize("label", ["reserve", "permit"])
def test_the_message_of_a_refusal_after_the_choice_counts_one_node(label: str) -> None:
    cluster = Cluster(node("a"), node("b"))
    with pytest.raises(CycleFailed) as failure:
        cycle_of(cluster).place(cluster.info(pod(labels={label: "no"})))
    assert failure.value.text == f"0/1 nodes are available: 1 {failure.value.status.message}."


@pytest.mark.parametrize("label", ["reserve", "permit"])
def test_a_refusal_after_the_choice_leaves_nothing(label: str) -> None:
    cluster = Cluster(node("a"))
    cycle = cycle_of(cluster)
    info = cluster.info(pod(labels={label: "no"}))
    with pytest.raises(CycleFailed, match="not "):
        cycle.place(info)
    assert info.row == -1
    assert not info.assumed
    assert not cluster.table.requested.any()
    guard = cycle.framework.plugins["Guard"]
    assert isinstance(guard, Guard)
    assert guard.reserved == set()


async def test_a_parked_pod_is_assumed_until_allowed_or_rejected() -> None:
    cluster = Cluster(node("a"))
    cycle = cycle_of(cluster)
    placement = cycle.place(cluster.info(pod(labels={"permit": "wait"})))
    assert placement.parked == {"Guard": 30}
    waiter = asyncio.create_task(cycle.waiting.wait(placement.pod.uid))
    await asyncio.sleep(0)
    assert [p.key for p in cycle.waiting.waiting_pods()] == [placement.pod.key]
    assert cycle.waiting.reject(placement.pod.uid, "Guard", "gang broke up")
    status = await waiter
    assert (status.rejected, status.message, status.plugin) == (True, "gang broke up", "Guard")
    cycle.release(placement)
    assert not cluster.table.requested.any()
    assert len(cycle.waiting) == 0


def test_room_is_left_for_a_nominated_pod() -> None:
    """Spec 05 §5.5: free 4 cores, a nominee of equal priority with 3: a pod of 2 fails, one of 1 does not."""
    cluster = Cluster(node("a", cpu="4"))
    nominee = cluster.info(pod(cpu="3", priority=100))
    cluster.use(queue=queue_with("a", nominee))
    cycle = cycle_of(cluster, {"filter": ("Fits",)})
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(cpu="2", priority=100)))
    assert failure.value.text() == "0/1 nodes are available: 1 Insufficient cpu."
    assert cycle.place(cluster.info(pod(cpu="2", priority=101))).node == "a"
    assert cycle.place(cluster.info(pod(cpu="1", priority=101))).node == "a"


class NeedsCompany(Plugin):
    """Nodes with another pod."""

    name = "NeedsCompany"

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        return 0 if self.table.pods[row] else self.reasons.number(Code.UNSCHEDULABLE, "lonely")


@pytest.mark.parametrize("gate", [False, True])
def test_a_node_may_fit_only_beside_the_nominated_pods(gate: bool) -> None:
    """By default it must fit without them, too (spec 05 §5.5)."""
    cluster = Cluster(node("a", cpu="4"), node("b", cpu="4"))
    gates = FeatureGates(SCHEDULER)
    gates.set({"SkipFilterWithNominatedPods": gate})
    cluster.use(queue=queue_with("b", cluster.info(pod(cpu="1", priority=100))), gates=gates)
    cycle = cycle_of(cluster, {"filter": ("NeedsCompany",)}, {"NeedsCompany": NeedsCompany})
    if gate:
        assert cycle.place(cluster.info(pod(priority=100))).node == "b"
        return
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(priority=100)))
    assert failure.value.text() == "0/2 nodes are available: 2 lonely."


def test_the_status_beside_nominated_pods_is_reported() -> None:
    """A pod that would fit nowhere anyway is told what it is told beside those that are nominated."""
    cluster = Cluster(node("a", cpu="4", pods=1))
    cluster.use(queue=queue_with("a", cluster.info(pod(cpu="1", priority=100))))
    cycle = cycle_of(cluster, {"filter": ("NodeResourcesFit",)}, PLUGINS)
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(cpu="5", priority=100)))
    assert failure.value.text() == "0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods."


_step = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("gone"), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("node"), st.integers(0, 7), st.integers(1, 9)),
    st.tuples(st.just("cordon"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("lost"), st.integers(0, 7), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_step, max_size=40))
def test_cached_results_equal_fresh_ones(steps: list[tuple[str, int, int]]) -> None:
    """After any history a cycle with a memory and one without agree on who fits, why not, and on every total."""
    cluster = Cluster(*(node(f"n{i}", cpu="4") for i in range(3)))
    cycle = cycle_of(cluster)
    placed: list[PodInfo] = []
    for kind, a, b in steps:
        match kind:
            case "place":
                gang = {"gang.scheduling.koordinator.sh/name": f"g{len(placed)}"} if a % 2 else {}
                info = cluster.info(pod(cpu=f"{a + 1}", labels={"divisor": str(b)}, annotations=gang))
                if cluster.table.nodes_alive:
                    fresh = cycle_of(cluster, seed=2)
                    assert _answers(cycle, info) == _answers(fresh, info)
                    try:
                        placed.append(cycle.place(info).pod)
                    except FitError as failure:
                        assert failure.text().startswith(f"0/{cluster.table.nodes_alive} nodes are available: ")
            case "gone":
                if placed:
                    cycle.cache.remove_pod(placed.pop(a % len(placed)).uid)
            case "node":
                cluster.table.set_node(node(f"n{a}", cpu=str(b)))
            case "cordon":
                cluster.table.set_node(node(f"n{a}", unschedulable=bool(b)))
            case "lost":
                cluster.table.remove_node(f"n{a}")
    assert sum(len(pods) for pods in cluster.table.pods) == len(placed)


_change = st.tuples(st.sampled_from(("pod", "node", "none")), st.integers(0, 15))
_looks = st.lists(st.tuples(_change, st.none() | st.sets(st.integers(0, 15), min_size=1)), max_size=20)


@settings(max_examples=60, deadline=None)
@given(_looks)
def test_rows_that_pre_filter_left_out_are_evaluated_when_they_are_needed(
    looks: list[tuple[tuple[str, int], set[int] | None]],
) -> None:
    """Every second row is too small for the pod, or becomes so."""
    cluster = Cluster(*(node(f"n{i}", cpu=str(1 + i % 2 * 2)) for i in range(16)))
    cycle = cycle_of(cluster)
    info = cluster.info(pod(cpu="2"))
    for (kind, row), chosen in looks:
        if kind == "pod":
            cluster.table.add_pod(cluster.info(pod(cpu="500m")), f"n{row}")
        if kind == "node":
            cluster.table.set_node(node(f"n{row}", cpu=str(1 + row * 7 % 5)))
        rows = None if chosen is None else np.array(sorted(chosen), np.intp)
        assert _answers(cycle, info, rows) == _answers(cycle_of(cluster, seed=2), info, rows)


def _answers(cycle: Cycle, pod: PodInfo, rows: RowArray | None = None) -> tuple[list[int], list[int]]:
    """(feasible rows among `rows`, their totals) as the cycle sees them."""
    state = CycleState()
    feasible, totals_of = evaluated(cycle, state, pod, rows)
    if not len(feasible):
        return [], []
    totals = totals_of()
    assert np.all(np.diff(feasible) > 0)
    return feasible.tolist(), totals.tolist()


def test_a_plugins_exception_leaves_nothing_claimed() -> None:
    cluster = Cluster(node("a"))
    cycle = cycle_of(cluster)
    guard = cycle.framework.plugins["Guard"]
    assert isinstance(guard, Guard)

    def broken(*args: object) -> PluginStatus:
        raise RuntimeError("broken")

    guard.permit = broken  # type: ignore[assignment, method-assign]
    info = cluster.info(pod())
    with pytest.raises(RuntimeError, match="broken"):
        cycle.place(info)
    assert guard.reserved == set()
    assert (info.row, info.assumed) == (-1, False)
    assert not cluster.table.requested.any()


def test_the_first_plugin_determines_the_reason_also_if_it_evaluates_single_nodes() -> None:
    cluster = Cluster(node("a", cpu="1"), node("b", cpu="1"))
    cycle = cycle_of(cluster, {"filter": ("ByRow", "Fits")})
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod(cpu="2", labels={"divisor": "2"})))
    assert failure.value.text() == "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were divisible."


class Moody(Plugin):
    """Looks at one node at a time, and goes by something that is in no table."""

    name = "Moody"
    reads = Reads.CLUSTER
    refuses = True

    def filter_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        return self.reasons.number(Code.UNSCHEDULABLE, "not in the mood") if self.refuses else 0

    def score_row(self, state: CycleState, pod: PodInfo, row: int) -> int:
        return 0 if self.refuses else 10 * row


def test_a_row_plugin_that_reads_the_cluster_runs_in_every_cycle() -> None:
    cluster = Cluster(node("a"), node("b"))
    cycle = cycle_of(cluster, {"filter": ("Moody",), "score": ("Moody",)}, {"Moody": Moody})
    moody = cycle.framework.plugins["Moody"]
    assert isinstance(moody, Moody)
    info = cluster.info(pod("p"))
    with pytest.raises(FitError):
        cycle.place(info)
    moody.refuses = False
    assert cycle.place(info).node == "b"


class Fails(Plugin):
    """Raises for pods with the label `fails`, like a plugin with a defect."""

    name = "Fails"
    reads = Reads.PODS

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        if pod.name == "fails":
            raise RuntimeError("defect")
        return passes(rows, self.table.size)


def test_after_a_filter_failed_the_rows_are_evaluated_again() -> None:
    """Otherwise the next pod of the shape would be placed on a row that is full by now."""
    cluster = Cluster(node("a", cpu="4"))
    cycle = cycle_of(cluster, {"filter": ("Fails", "Fits"), "score": ("Fits",)}, {**TOYS, "Fails": Fails})
    cycle.place(cluster.info(pod("first", cpu="2")))
    cycle.place(cluster.info(pod("other", cpu="1")))
    with pytest.raises(Exception, match="defect"):
        cycle.place(cluster.info(pod("fails", cpu="2")))
    with pytest.raises(FitError):
        cycle.place(cluster.info(pod("last", cpu="2")))
    assert cluster.table.requested[0, 0] == 3000


def test_the_number_of_distinct_reasons_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts contain what tenants write, and the numbers are 16 bits."""
    monkeypatch.setattr("control.scheduler.framework.plugin.MAX_REASONS", 4)
    reasons = Reasons()
    numbers = {reasons.number(Code.UNSCHEDULABLE, f"Insufficient a.com/r{at}") for at in range(100)}
    numbers |= {reasons.number(Code.UNRESOLVABLE, f"Insufficient a.com/r{at}") for at in range(100)}
    assert max(numbers) == 5
    assert reasons.status(4) == PluginStatus(Code.UNSCHEDULABLE, (OTHER_REASON,))
    assert reasons.status(5) == PluginStatus(Code.UNRESOLVABLE, (OTHER_REASON,))
