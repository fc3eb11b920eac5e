"""NodeNUMAResource: reasons, scores, annotations, restarts and hostile input (spec 06 §2)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from rich.text import Text

from control.ctl.views.placement import placement_page
from control.scheduler.config.args import NodeNUMAResourceArgs, ScoringStrategy, WeightedResource
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.explain.podreport import explain
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.nodenumaresource import filtering
from control.scheduler.plugins.nodenumaresource.columns import MAX_RESOURCES
from control.scheduler.plugins.nodenumaresource.metrics import NumaCounters
from control.scheduler.plugins.nodenumaresource.ratios import UNIT, amplify
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.core import Pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plugins.numaworld import NumaWorld, lsr, topology, world

FULL = {"requiredCPUBindPolicy": "FullPCPUs"}
SPREAD = {"requiredCPUBindPolicy": "SpreadByPCPUs"}
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
STATUS, SPEC = names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_RESOURCE_SPEC
BIND, NUMA = names.LABEL_CPU_BIND_POLICY, names.LABEL_NUMA_TOPOLOGY_POLICY
RATIO = names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO
MOST = NodeNUMAResourceArgs(
    scoring_strategy=ScoringStrategy(
        type="MostAllocated", resources=[WeightedResource(name=name, weight=1) for name in ("cpu", "memory")]
    )
)


def rejection(world: NumaWorld, pod: Pod) -> str:
    with pytest.raises(FitError) as failure:
        world.place(pod)
    return (
        failure.value.text()
        .removeprefix(f"0/{len(world.nodes)} nodes are available: ")
        .partition(". preemption")[0]
        .rstrip(".")
    )


@pytest.mark.parametrize(
    ("topology_options", "subject", "reason"),
    [
        ({"labels": {NUMA: "Restricted"}}, lsr("2", numa=SINGLE), "node(s) NUMA Topology policy not match"),
        ({}, lsr("1500m"), "the requested CPUs must be integer"),
        ({"labels": {BIND: "FullPCPUsOnly"}}, pod(cpu="1500m"), "the requested CPUs must be integer"),
        ({"cpu": "32", "annotations": {RATIO: '{"cpu":2.00}'}}, lsr("17"), "Insufficient amplified cpu"),
        ({"annotations": {RATIO: '{"cpu":"x"}'}}, lsr("2"), "node(s) invalid CPU amplification ratio"),
        ({"annotations": {names.ANNOTATION_CPU_TOPOLOGY: "{"}}, lsr("2"), "node(s) invalid CPU Topology"),
        (
            {"labels": {BIND: "SpreadByPCPUs"}},
            lsr("2", spec=FULL),
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
        ),
        ({}, lsr("3", spec=FULL), "node(s) requested cpus not multiple cpus per core"),
        ({"labels": {BIND: "FullPCPUsOnly"}}, lsr("3"), "node(s) requested cpus not multiple cpus per core"),
        ({}, lsr("10", spec=SPREAD), "not enough cpus available to satisfy request"),
        ({"reserved": "0"}, lsr("16", spec=FULL), "not enough cpus available to satisfy request"),
        ({"reserved": "0"}, lsr("16"), "not enough cpus available to satisfy request"),
        ({"zones": False}, lsr("2", numa=SINGLE), "node(s) missing NUMA resources"),
        (
            {"zones": False},
            lsr("2", numa={"numaTopologyPolicy": "BestEffort"}),
            "node(s) Insufficient NUMA Node resources",
        ),
    ],
)
def test_reasons(topology_options: dict[str, Any], subject: Pod, reason: str) -> None:
    if names.ANNOTATION_CPU_TOPOLOGY in topology_options.get("annotations", {}):
        numa_world = NumaWorld((node("n0", cpu="16"), topology("n0", (2, 1, 4, 2), **topology_options)))
    else:
        numa_world = world(**topology_options)
    text = rejection(numa_world, subject)
    assert text.removeprefix("1 ") == reason


def test_resources_in_different_zones_are_named_with_their_bits() -> None:
    numa_world = world((2, 1, 4, 2), memory="4Gi")
    numa_world.run(lsr("7", numa=SINGLE, memory="1Gi"))  # zone 0: one CPU left
    numa_world.run(pod(cpu="1", memory="3Gi", annotations={names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps(SINGLE)}))
    text = rejection(numa_world, lsr("6", numa=SINGLE, memory="4Gi"))
    assert text.startswith("1 Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]")


@pytest.mark.parametrize(
    ("annotation", "where"),
    [
        ({SPEC: "{"}, SPEC),
        ({SPEC: '{"requiredCPUBindPolicy": "Full"}'}, "requiredCPUBindPolicy: 'Full' is not one of"),
        ({SPEC: '{"preferredCPUExclusivePolicy": "All"}'}, "preferredCPUExclusivePolicy: 'All'"),
        ({names.ANNOTATION_NUMA_TOPOLOGY_SPEC: '{"numaTopologyPolicy": "x"}'}, "numaTopologyPolicy: 'x'"),
        ({names.ANNOTATION_NUMA_TOPOLOGY_SPEC: "[]"}, names.ANNOTATION_NUMA_TOPOLOGY_SPEC),
    ],
)
def test_a_malformed_annotation_is_an_error_for_its_pod_only(annotation: dict[str, str], where: str) -> None:
    numa_world = world()
    with pytest.raises(CycleFailed, match="(?s)" + where.replace("[", r"\[")):
        numa_world.place(lsr("2", annotations=annotation))
    assert numa_world.run(lsr("2")) == {"cpuset": "0-1"}


@pytest.mark.parametrize(
    ("qos", "priority", "bound"),
    [("LSE", 9000, True), ("LSR", 9999, True), ("LS", 9000, False), ("", 9000, False), ("LSR", 5500, False)],
)
def test_classes_that_get_cpus(qos: str, priority: int, bound: bool) -> None:
    candidate = lsr("2", labels={names.LABEL_QOS_CLASS: qos}, priority=priority)
    assert ("cpuset" in world().run(candidate)) is bound


@pytest.mark.parametrize(
    ("spec", "labels", "written"),
    [
        ({}, {}, {"preferredCPUBindPolicy": "FullPCPUs"}),
        ({"preferredCPUBindPolicy": "Default"}, {}, {"preferredCPUBindPolicy": "FullPCPUs"}),
        ({"requiredCPUBindPolicy": "Default"}, {}, {"requiredCPUBindPolicy": "FullPCPUs"}),
        ({}, {BIND: "SpreadByPCPUs"}, {"requiredCPUBindPolicy": "SpreadByPCPUs"}),
        (SPREAD, {}, SPREAD),
    ],
)
def test_the_spec_is_completed(spec: dict[str, str], labels: dict[str, str], written: dict[str, str]) -> None:
    numa_world = world(labels=labels)
    bound = numa_world.bind(numa_world.place(lsr("2", spec=spec)))
    assert json.loads(bound.metadata.annotations[SPEC]) == written


def test_constrained_burst_binds_nothing_and_keeps_its_spec() -> None:
    numa_world = world()
    spec = {"requiredCPUBindPolicy": "ConstrainedBurst"}
    bound = numa_world.bind(numa_world.place(lsr("2", spec=spec)))
    assert STATUS not in bound.metadata.annotations
    assert json.loads(bound.metadata.annotations[SPEC]) == spec


def test_the_status_of_a_pod_with_zones() -> None:
    assert world(memory="32Gi").run(lsr("4", memory="8Gi", numa=SINGLE)) == {
        "cpuset": "0-3",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4", "memory": "8Gi"}}],
    }


def test_reserved_cpus_are_never_given() -> None:
    numa_world = world((1, 1, 4, 2), reserved="0-3")
    assert numa_world.run(lsr("4", spec=FULL)) == {"cpuset": "4-7"}


# Restart, hostile and late input


def test_a_restart_gives_the_same_page() -> None:
    numa_world = world(count=2)
    for subject in (lsr("4"), lsr("2", spec=SPREAD), lsr("2", numa=SINGLE), pod(cpu="1")):
        numa_world.run(subject)
    before = [numa_world.page(f"n{at}") for at in range(2)]
    numa_world.start()
    assert [numa_world.page(f"n{at}") for at in range(2)] == before


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ('{"cpuset": "0-3"}', {"cpu": "2"}),
        ('{"cpuset": "0-3"', {}),
        ('{"cpuset": "3-0"}', {}),
        ('{"cpuset": "0", "numaNodeResources": [{"node": 0, "resources": {"cpu": "9"}}]}', {}),
        ('{"numaNodeResources": [{"node": -1, "resources": {"cpu": "1"}}]}', {}),
        ('{"numaNodeResources": [{"node": 0}, {"node": 0}]}', {}),
        ('{"numaNodeResources": [{"node": 0, "resources": {"memory": "-1"}}]}', {}),
    ],
    ids=["too many", "malformed", "no list", "amount", "node", "repeated", "negative"],
)
def test_a_forged_status_of_a_bound_pod_does_not_count(status: str, more: dict[str, Any]) -> None:
    numa_world = world()
    numa_world.add(lsr(**{"cpu": "4", "annotations": {STATUS: status}, "on": "n0", **more}))
    assert numa_world.page("n0")["availableCPUs"] == "0-15"
    assert numa_world.plugin.book.malformed == {"allocation": 1}


def test_a_status_of_a_pod_of_another_scheduler_counts() -> None:
    """Of a profile with another name, or of a second scheduler on the same nodes."""
    numa_world = world()
    candidate = lsr("4", annotations={STATUS: '{"cpuset": "0-3"}'}, on="n0")
    candidate.spec.scheduler_name = "koord-scheduler-2"
    numa_world.add(candidate)
    assert numa_world.page("n0")["availableCPUs"] == "4-15"


def test_the_status_of_a_pending_pod_counts_nowhere() -> None:
    numa_world = world()
    assert numa_world.run(lsr("2", annotations={STATUS: '{"cpuset": "8-9"}'})) == {"cpuset": "0-1"}
    plain = numa_world.bind(numa_world.place(pod(cpu="2", annotations={STATUS: '{"cpuset": "8-9"}'})))
    assert STATUS not in plain.metadata.annotations
    assert numa_world.page("n0")["availableCPUs"] == "2-15"


@pytest.mark.parametrize("forged_first", [True, False])
def test_cpus_that_two_pods_claim_are_not_free_until_both_are_gone(forged_first: bool) -> None:
    """Two leaders may have overlapped: each pod may run on what it claims."""
    numa_world = world()

    def annotated(name: str, second: int, cpuset: str) -> Pod:
        created = f"2026-01-01T00:00:0{second}Z"
        metadata = {"creationTimestamp": created}
        return lsr("4", name=name, on="n0", annotations={STATUS: json.dumps({"cpuset": cpuset})}, metadata=metadata)

    genuine, forged = annotated("genuine", 1, "0-3"), annotated("forged", 2, "2-5")
    for each in (forged, genuine) if forged_first else (genuine, forged):
        numa_world.add(each)
    assert numa_world.page("n0")["availableCPUs"] == "6-15"
    numa_world.remove(genuine.metadata.uid)
    assert numa_world.page("n0")["availableCPUs"] == "0-1,6-15"
    numa_world.remove(forged.metadata.uid)
    assert numa_world.page("n0")["availableCPUs"] == "0-15"


def test_a_topology_may_come_after_the_pods_and_before_the_node() -> None:
    numa_world = NumaWorld((node("n0", cpu="16"), None))
    numa_world.add(lsr("4", on="n0", annotations={STATUS: '{"cpuset": "0-3"}'}))
    numa_world.report(topology("later", (1, 1, 4, 2)))
    assert rejection(numa_world, lsr("2")) == "1 node(s) invalid CPU Topology"
    numa_world.report(topology("n0", (2, 1, 4, 2)))
    assert numa_world.run(lsr("2")) == {"cpuset": "8-9"}
    numa_world.cluster.table.set_node(node("later", cpu="8"))
    assert numa_world.page("later")["availableCPUs"] == "0-7"


def test_a_node_that_lost_cpus_keeps_its_pods() -> None:
    numa_world = world((2, 1, 4, 2))
    numa_world.run(lsr("16"))
    numa_world.report(topology("n0", (1, 1, 4, 2)))
    page = numa_world.page("n0")
    assert page["availableCPUs"] == ""
    assert page["allocatedCPUs"]["15"] == {"cpuID": 15, "refCount": 1, "exclusivePolicy": ""}
    numa_world.remove(next(iter(numa_world.pods)))
    assert numa_world.page("n0")["availableCPUs"] == "0-7"
    numa_world.report(topology("n0", (2, 1, 4, 2)))
    assert numa_world.page("n0")["availableCPUs"] == "0-15"


def test_cpus_that_the_kubelet_pins_over_those_of_a_pod_are_given_to_nobody_else() -> None:
    """The pod keeps its CPUs; a CPU is free when both are gone, in either order."""
    pinned = [{"namespace": "a", "name": "b", "uid": "c", "cpuset": "2-5", "managedByKubelet": True}]
    overlapping = topology("n0", (2, 1, 4, 2), annotations={names.ANNOTATION_POD_CPU_ALLOCS: json.dumps(pinned)})
    for pod_first in (True, False):
        numa_world = world((2, 1, 4, 2))
        assert numa_world.run(lsr("4")) == {"cpuset": "0-3"}
        numa_world.report(overlapping)
        page = numa_world.page("n0")
        assert (page["reservedCPUs"], page["availableCPUs"]) == ("2-5", "6-15")
        assert {*page["allocatedCPUs"]} == {"0", "1", "2", "3"}
        numa_world.start()
        numa_world.report(overlapping)
        assert numa_world.page("n0") == page
        assert "not enough cpus available" in rejection(numa_world, lsr("12"))
        if pod_first:
            numa_world.remove(next(iter(numa_world.pods)))
            assert numa_world.page("n0")["availableCPUs"] == "0-1,6-15"
            numa_world.report(topology("n0", (2, 1, 4, 2)))
        else:
            numa_world.report(topology("n0", (2, 1, 4, 2)))
            assert numa_world.page("n0")["availableCPUs"] == "4-15"
            numa_world.remove(next(iter(numa_world.pods)))
        assert numa_world.page("n0")["availableCPUs"] == "0-15"


def test_malformed_input_is_counted_and_the_rest_is_used() -> None:
    numa_world = world()
    numa_world.report(topology("n0", (2, 1, 4, 2), annotations={names.ANNOTATION_POD_CPU_ALLOCS: "{"}))
    numa_world.cluster.table.set_node(node("n0", cpu="16", memory="64Gi", annotations={RATIO: '{"cpu": -1}'}))
    assert rejection(numa_world, lsr("2")) == "1 node(s) invalid CPU amplification ratio"
    numa_world.cluster.table.set_node(node("n0", cpu="16", memory="64Gi"))
    assert numa_world.run(lsr("2")) == {"cpuset": "0-1"}
    registry = CollectorRegistry()
    NumaCounters.once(registry, numa_world.plugin.book.malformed)
    values = {
        kind: registry.get_sample_value("scheduler_numa_malformed_input_total", {"kind": kind})
        for kind in ("topology", "ratio", "allocation")
    }
    assert values == {"topology": 1, "ratio": 1, "allocation": 0}


# Preemption, unreserve and pages


def test_preemption_frees_cpus() -> None:
    numa_world = world((1, 1, 4, 2), cpu="16")  # cpu is no bottleneck, CPUs are
    for priority in (9001, 9002):
        numa_world.run(lsr("4", priority=priority))
    with pytest.raises(FitError) as failure:
        numa_world.place(lsr("4", priority=9999, spec=FULL))
    assert failure.value.nominated == "n0"
    assert len(numa_world.evicted) == 1
    assert numa_world.page("n0")["availableCPUs"] == ""


def test_preemption_takes_a_pod_of_the_numa_node_that_then_fits() -> None:
    """Zone 0: a pod of 8 CPUs; zone 1: two of 4. Any of them would do for the node, the least important one goes."""
    numa_world = world((2, 1, 4, 2), memory="4Gi", cpu="64")
    for name, cpu, priority in (("a", "8", 9002), ("b", "4", 9001), ("c", "4", 9003)):
        numa_world.run(lsr(cpu, name=name, memory="1Gi", priority=priority, numa=SINGLE))
    for cpu, victims in (("4", ["b"]), ("6", ["a"])):
        numa_world.evicted.clear()
        with pytest.raises(FitError) as failure:
            numa_world.place(lsr(cpu, memory="1Gi", priority=9999, numa=SINGLE))
        assert failure.value.nominated == "n0"
        assert numa_world.evicted == victims


def test_a_pod_on_trial_holds_what_it_would_get() -> None:
    """Room for nominated pods, and gangs that are planned pod by pod."""
    numa_world = world((2, 1, 4, 2))
    forged = numa_world.cluster.info(lsr("12", annotations={STATUS: '{"cpuset": "0"}'}))
    with numa_world.cluster.table.what_if() as trial:
        trial.add(forged, 0)
        assert numa_world.page("n0")["availableCPUs"] == "12-15"
        assert rejection(numa_world, lsr("6")) == "1 not enough cpus available to satisfy request"
    assert numa_world.run(lsr("6")) == {"cpuset": "0-5"}


def test_an_unreserved_pod_holds_nothing() -> None:
    numa_world = world()
    placement = numa_world.place(lsr("4"))
    assert numa_world.page("n0")["availableCPUs"] == "4-15"
    numa_world.cycle.release(placement)
    assert numa_world.page("n0")["availableCPUs"] == "0-15"


def test_profiles_share_what_pods_hold() -> None:
    numa_world = world()
    numa_world.place(lsr("4"))
    numa_world.cluster.use(profile="other")
    other = type(numa_world.plugin)(None, numa_world.cluster.handle)
    assert other.node_page("n0")["availableCPUs"] == "4-15"


def test_the_page_of_an_unknown_node_or_without_topology_is_an_error() -> None:
    numa_world = NumaWorld((node("n0"), None))
    with pytest.raises(RuntimeError, match=r"^cannot find node n1$"):
        numa_world.page("n1")
    with pytest.raises(RuntimeError, match=r"^node n0 has no valid CPU topology$"):
        numa_world.page("n0")


# Amplified CPUs and scores


@pytest.mark.parametrize(
    ("existing", "subject"),
    [(lsr("32"), pod(cpu="32")), (pod(cpu="32"), lsr("32"))],
    ids=["bound, then shared", "shared, then bound"],
)
def test_bound_cpus_count_amplified(existing: Pod, subject: Pod) -> None:
    numa_world = world((1, 1, 16, 2), cpu="64", annotations={RATIO: '{"cpu":2.00}'})
    numa_world.run(existing)
    assert rejection(numa_world, subject) == "1 Insufficient amplified cpu"


def test_amplified_zones() -> None:
    """16 CPUs at ratio 1.5 are 24; 4 bound ones take 6 of them."""
    numa_world = world((1, 1, 8, 2), cpu="24", annotations={RATIO: '{"cpu":1.50}'})
    numa_world.run(lsr("4"))
    page = numa_world.page("n0")
    assert page["remainingNUMANodeResources"]["0"]["cpu"] == "18000m"
    assert page["allocatedNUMANodeResources"]["0"]["cpu"] == "6000m"
    assert page["amplificationRatios"] == {"cpu": 1.5}


@pytest.mark.parametrize(
    ("amount", "ratio", "result"),
    [(1000, 1.1, 1100), (1001, 1.5, 1502), (7, 1.0, 7), (7, 0.5, 7), (3, 2.0, 6)],
)
def test_amplification_rounds_up_and_is_exact(amount: int, ratio: float, result: int) -> None:
    assert amplify(amount, round(ratio * UNIT)) == result


def score(world: NumaWorld, pod: Pod) -> int:
    info, state = world.cluster.info(pod), CycleState()
    assert prepare(world.cycle.framework, state, info).status.ok
    return int(world.plugin.score(state, info, np.array([0], np.intp))[0])


def amplified_world() -> NumaWorld:
    name, shape = "n0", (2, 1, 16, 2)
    amplified = node(name, cpu="128", memory="60Gi", annotations={RATIO: '{"cpu":2.00}'})
    return NumaWorld((amplified, topology(name, shape)), args=MOST)


def test_scores_of_amplified_cpus() -> None:
    assert score(amplified_world(), pod(cpu="8", memory="16Gi")) == 16
    assert score(amplified_world(), lsr("8", memory="16Gi")) == 19
    numa_world = amplified_world()
    numa_world.run(lsr("20", memory="4Gi"))
    assert score(numa_world, pod(cpu="8", memory="16Gi")) == 35


def test_the_score_of_the_chosen_zone() -> None:
    numa_world = NumaWorld(
        (node("n0", cpu="104", memory="256Gi", labels={NUMA: "SingleNUMANode"}),
         topology("n0", (2, 1, 26, 2), memory="128Gi")),
        args=MOST,
    )  # fmt: skip
    assert score(numa_world, lsr("21", memory="40Gi")) == 35


def test_the_zone_with_the_higher_score_is_chosen() -> None:
    """Two zones of 52 CPUs: the lower one of two empty zones, then the emptier one."""
    numa_world = world((2, 1, 26, 2), memory="128Gi", cpu="104")
    assert numa_world.run(lsr("4", memory="8Gi", numa=SINGLE))["cpuset"] == "0-3"
    assert numa_world.run(lsr("4", memory="8Gi", numa=SINGLE))["cpuset"] == "52-55"


def test_plain_pods_skip_the_filter_while_no_node_demands_anything() -> None:
    numa_world = world()
    state = CycleState()
    prepare(numa_world.cycle.framework, state, numa_world.cluster.info(pod(cpu="1")))
    assert "NodeNUMAResource" in state.skip_filter
    numa_world.cluster.table.set_node(node("n0", cpu="16", labels={BIND: "FullPCPUsOnly"}))
    state = CycleState()
    prepare(numa_world.cycle.framework, state, numa_world.cluster.info(pod(cpu="1")))
    assert "NodeNUMAResource" not in state.skip_filter


def test_a_reservation_holds_cpus_like_a_pod() -> None:
    """More in test_numa_reservations.py."""
    numa_world = world()
    reserved = PodInfo(lsr("4"), numa_world.cluster.shapes.shape(lsr("4")), "Reservation")
    placement = numa_world.cycle.place(reserved)
    assert numa_world.prepared(placement).metadata.annotations[STATUS] == '{"cpuset":"0-3"}'
    assert numa_world.page("n0")["availableCPUs"] == "4-15"
    numa_world.cycle.release(placement)
    bound = lsr("4", annotations={STATUS: '{"cpuset": "4-7"}'}, on="n0")
    numa_world.cycle.cache.set_pod(bound, "Reservation")
    assert numa_world.page("n0")["availableCPUs"] == "0-3,8-15"


# Explanations


def test_an_explanation_names_policies_and_numa_nodes() -> None:
    numa_world = world((2, 1, 4, 2), memory="4Gi", labels={NUMA: "SingleNUMANode"})
    numa_world.run(lsr("6", memory="1Gi"))
    numa_world.run(lsr("4", memory="3Gi"))
    report = explain(
        numa_world.cycle.framework, numa_world.cluster.info(lsr("6", memory="2Gi", spec=FULL)), "unschedulable"
    )
    (refused,) = report.refused
    assert (refused.plugin, refused.nodes) == ("NodeNUMAResource", ["n0"])
    assert refused.details == [
        "NUMA topology policy: SingleNUMANode of the node, none of the pod",
        "CPU bind policy: FullPCPUs, required by the pod",
        "CPUs of its own: 6; 6 of the 6 free ones can be used",
        "NUMA node 0 (single): too little cpu 2 of 6",
        "NUMA node 1 (single): too little cpu 4 of 6, memory 1024Mi of 2048Mi",
    ]
    shown = "\n".join(line.plain for line in placement_page(report) if isinstance(line, Text))
    assert "NodeNUMAResource on n0:\n  NUMA topology policy: SingleNUMANode of the node" in shown


def test_resources_of_zones_are_limited() -> None:
    numa_world = world()
    columns = numa_world.plugin.book.columns
    indexes = {columns.resource(f"example.com/r{number}") for number in range(MAX_RESOURCES + 10)}
    assert len(columns.resources) == MAX_RESOURCES
    assert None in indexes
    assert numa_world.run(lsr("2")) == {"cpuset": "0-1"}


def test_a_resource_beyond_the_limit_is_ignored_on_every_path() -> None:
    """Zones lack it, so it would refuse the pod. Filter for all rows, for one row and Reserve agree."""
    numa_world = world((2, 1, 4, 2))
    for number in range(MAX_RESOURCES):
        numa_world.plugin.book.columns.resource(f"example.com/r{number}")
    numa_world.report(topology("n0", (2, 1, 4, 2), more={"example.com/late": "1"}))
    numa_world.report(topology("n0", (2, 1, 4, 2), more={"example.com/late": "1"}))
    more: dict[str, Any] = {"example.com__late": "3"}
    info, state = numa_world.cluster.info(lsr("2", numa=SINGLE, **more)), CycleState()
    assert prepare(numa_world.cycle.framework, state, info).status.ok
    rows = np.array([0], np.intp)
    columns = numa_world.plugin._filter.check(numa_world.plugin._need(info), rows)
    assert (columns.tolist(), numa_world.plugin.filter(state, info, rows).tolist()) == ([0], [0])
    assert numa_world.plugin.reserve(state, info, 0).ok
    assert len(numa_world.plugin.book.columns.resources) == MAX_RESOURCES
    numa_world.page("n0")
    assert numa_world.plugin.book.malformed == {"topology": 2}


@pytest.mark.parametrize("by_row", [True, False], ids=["one row", "columns"])
def test_distinct_texts_about_hints_are_bounded(by_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant can ask for any mixture of resources, and reasons are never freed."""
    monkeypatch.setattr(filtering, "MAX_TEXTS", 2)
    gpus = {f"example.com/r{number}": "1" for number in range(5)}
    numa_world = world((2, 1, 4, 2), more=gpus)
    messages = []
    for name in gpus:
        more: dict[str, Any] = {name.replace("/", "__"): "3"}
        info, state = numa_world.cluster.info(lsr("2", numa=SINGLE, **more)), CycleState()
        assert prepare(numa_world.cycle.framework, state, info).status.ok
        rows = np.array([0], np.intp)
        checked = (
            numa_world.plugin.filter(state, info, rows)
            if by_row
            else numa_world.plugin._filter.check(numa_world.plugin._need(info), rows)
        )
        messages.append(numa_world.plugin.reasons.status(int(checked[0])).message)
    assert ["example.com/r0" in messages[0], "example.com/r1" in messages[1]] == [True, True]
    assert messages[2:] == [filtering.UNALIGNED] * 3
