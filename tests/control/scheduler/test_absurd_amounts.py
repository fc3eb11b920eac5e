"""Negative and absurd amounts of pods and nodes do not affect the placement of other pods.

API servers refuse most of these; a scheduler must not depend on that, since one pod that is already on a node is
enough to be counted in the decisions about all pods.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.component.amounts import MAX_AMOUNT
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.state.table import CPU, MAX_RESOURCES, MEMORY
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import cycle_of

FILTERS = ("NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
           "PodTopologySpread", "InterPodAffinity")  # fmt: skip
SCORES = ("TaintToleration", "NodeAffinity", "NodeResourcesFit", "PodTopologySpread", "InterPodAffinity",
          "NodeResourcesBalancedAllocation", "ImageLocality")  # fmt: skip
POINTS = {"preFilter": (*FILTERS, "NodeResourcesBalancedAllocation"), "filter": FILTERS, "score": SCORES}

ABSURD = ("-1", "-4", "-1n", "1e30", "1e999", "9223372036854775807", "-9223372036854775808", "8Ei", "1n")


def cycle(*nodes: Node) -> tuple[Cluster, Cycle]:
    cluster = Cluster(*nodes)
    return cluster, cycle_of(cluster, POINTS, PLUGINS)


def asking(cpu: str | None, memory: str | None = None, **more: Any) -> Pod:
    return pod(cpu=cpu, memory=memory, **more)


def outcome(cycle: Cycle, cluster: Cluster, pod: Pod) -> str:
    """The node, or why there is none."""
    try:
        return cycle.place(cluster.info(pod)).node
    except FitError as failure:
        return failure.text()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param(asking("-4"), "a", id="negative counts as nothing"),
        pytest.param(asking("1n"), "a", id="a billionth of a core is a thousandth"),
        pytest.param(asking("1e30"), "0/1 nodes are available: 1 Insufficient cpu.", id="more than there is"),
        pytest.param(asking(None, "8Ei"), "0/1 nodes are available: 1 Insufficient memory.", id="2^63 bytes"),
        pytest.param(
            asking("9223372036854775807", "9223372036854775807"),
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
            id="both",
        ),
        pytest.param(
            asking(None, None, spec={"overhead": {"cpu": "-1"}}), "a", id="an overhead that gives something back"
        ),
        pytest.param(
            asking(None, None, **{"example.com__gpu": "1"}), "0/1 nodes are available: 1 Insufficient example.com/gpu.",
            id="what no node has",
        ),
    ],
)  # fmt: skip
def test_a_pod_is_placed_or_its_failure_reported(subject: Pod, expected: str) -> None:
    cluster, scheduling = cycle(node("a"))
    assert outcome(scheduling, cluster, subject) == expected


@pytest.mark.parametrize("amount", ABSURD)
def test_others_are_placed_beside_a_pod_that_is_there_already(amount: str) -> None:
    cluster, scheduling = cycle(node("a"), node("b"))
    strange = cluster.put(asking(amount, amount, on="a"), asking(amount, amount, on="a"))
    assert cluster.table.requested[CPU, 0] >= 0 <= cluster.table.requested[MEMORY, 0]
    placed = [outcome(scheduling, cluster, pod(cpu="2")) for _ in range(8)]
    counts = (placed.count("a"), placed.count("b"))
    full = amount.startswith(("1e", "9", "8"))  # nothing more fits beside them
    assert counts in ((0, 4), (3, 4), (4, 4))
    assert (counts[0] == 0) == full
    for info in strange:
        cluster.table.remove_pod(info)
    assert cluster.table.requested[CPU, 0] == 2000 * counts[0]


@pytest.mark.parametrize("amount", ABSURD)
def test_absurd_capacities_do_not_break_cycles(amount: str) -> None:
    cluster, scheduling = cycle(node("a", cpu=amount, memory=amount), node("b"))
    assert outcome(scheduling, cluster, pod(cpu="2", spec={"nodeName": "b"})) == "b"
    assert outcome(scheduling, cluster, asking("1e30")).startswith("0/2 nodes are available: 2 Insufficient cpu")
    endless = amount.startswith(("1e", "9", "8"))
    assert (outcome(scheduling, cluster, pod(cpu="2", spec={"nodeName": "a"})) == "a") == endless
    assert int(cluster.table.allocatable[CPU, 0]) in range(MAX_AMOUNT)


def test_a_node_with_a_malformed_amount_is_no_node() -> None:
    with pytest.raises(wire.WireError, match="not a quantity"):
        node("a", cpu="lots")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from((*ABSURD, "1", "500m")), st.sampled_from((*ABSURD, "1Gi"))), max_size=12))
def test_sums_come_back_to_nothing_and_never_overflow(amounts: list[tuple[str, str]]) -> None:
    cluster, scheduling = cycle(node("a"), node("b", cpu="9223372036854775807", memory="8Ei"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of sums that overflow
        infos = cluster.put(*(asking(cpu, memory, on="a") for cpu, memory in amounts))
        assert (cluster.table.requested >= 0).all()
        assert (
            outcome(scheduling, cluster, pod("sane", cpu="2", spec={"nodeSelector": {"kubernetes.io/hostname": "b"}}))
            == "b"
        )
        for info in infos:
            cluster.table.remove_pod(info)
    assert not cluster.table.requested[:, 0].any()
    assert not cluster.table.nonzero[:, 0].any()


def _asking_for(names: list[str]) -> Pod:
    return asking("1", **{name.replace("/", "__"): "1" for name in names})


def test_a_pod_may_request_a_limited_number_of_resources() -> None:
    placing, cluster = (scheduling := cycle(node("a", cpu="4")))[1], scheduling[0]
    text = outcome(placing, cluster, _asking_for([f"x/r{at}" for at in range(48)]))
    assert text == "0/1 nodes are available: 1 Too many resources requested, at most 48 are allowed."
    assert len(cluster.table.resources) == 4


def test_resources_that_pods_invent_take_a_limited_number_of_columns() -> None:
    """Beyond it they are known to no node; pods and nodes with other resources are not affected."""
    cluster, placing = cycle(node("a", cpu="400"))
    texts = {
        outcome(placing, cluster, _asking_for([f"x/r{at}" for at in range(first, first + 40)]))
        for first in range(0, 400, 40)
    }
    assert len(texts) == 10
    assert all(text.startswith("0/1 nodes are available: 1 Insufficient x/r") for text in texts)
    assert len(cluster.table.resources) == MAX_RESOURCES == len(cluster.table.requested) - 1
    cluster.put(pod("bound", on="a", x__late="5"))
    assert cluster.table.requested[CPU, 0] == 1000
    assert outcome(placing, cluster, asking("1")) == "a"
