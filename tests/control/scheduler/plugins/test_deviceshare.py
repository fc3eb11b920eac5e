"""DeviceShare: reasons, annotations, NUMA alignment, restarts, and hostile or late input (spec 06 §3)."""

from __future__ import annotations

import json
from functools import partial
from traceback import walk_tb
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from control.devices.search import DevicesLacking
from control.scheduler.config.args import DeviceShareArgs, GPUShareUnsupportedModel
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.podreport import explain
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.plugins.deviceshare import book
from control.scheduler.plugins.deviceshare.decision import StateDecisions
from control.scheduler.plugins.deviceshare.metrics import DeviceShareMetrics
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from koordlet.statesinformer.pods.deviceallocation import devices_of_pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plugins.deviceworld import (
    ALLOCATABLE,
    DeviceWorld,
    allocated,
    device,
    equipped,
    gpu,
    machine,
    rdma,
    with_devices,
)
from tests.control.scheduler.plugins.numaworld import topology

ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED
ONE = {"nvidia.com/gpu": "1"}
HALF = {"koordinator.sh/gpu": "50"}
SHAPE = (2, 1, 32, 2)
"""128 CPUs on 2 NUMA nodes."""


def rejection(world: DeviceWorld, pod: Pod) -> str:
    with pytest.raises(FitError) as failure:
        world.place(pod)
    text = failure.value.text().removeprefix(f"0/{len(world.nodes)} nodes are available: ")
    return text.partition(". preemption")[0].rstrip(".")


def forged(devices: Any, requests: dict[str, str], **more: Any) -> Pod:
    return with_devices(requests, annotations={ALLOCATED: json.dumps(devices)}, on="n0", **more)


# Output


def test_the_annotation_that_koordlet_reads() -> None:
    bound = (world := equipped()).bind(world.place(with_devices({**HALF, "koordinator.sh/rdma": "10"})))
    assert allocated(bound) == {
        "gpu": [
            {
                "minor": 0,
                "id": "GPU-0",
                "resources": {
                    "koordinator.sh/gpu-core": "50",
                    "koordinator.sh/gpu-memory": "40Gi",
                    "koordinator.sh/gpu-memory-ratio": "50",
                },
            }
        ],
        "rdma": [{"minor": 1, "id": "0000:11:00.0", "resources": {"koordinator.sh/rdma": "10"}}],
    }
    accepted = devices_of_pod(bound)
    assert (accepted.error, accepted.refused, set(accepted.devices)) == ("", "", {"gpu", "rdma"})


def test_pods_of_a_few_bytes_have_a_share_that_koordlet_accepts() -> None:
    world = equipped([gpu(0)])
    for _ in range(100):
        assert devices_of_pod(world.bind(world.place(with_devices({names.RESOURCE_GPU_MEMORY: "1"}, cpu="1m")))).shares
    assert rejection(world, with_devices({names.RESOURCE_GPU_MEMORY: "1"}, cpu="1m")) == "1 Insufficient GPU Devices"


def test_a_node_without_device_object_leaves_its_devices_to_the_kubelet() -> None:
    world = equipped(None)
    assert world.run(with_devices(ONE)) == {}


@pytest.mark.parametrize("vendor", ["nvidia", "cambricon"])
def test_what_other_device_plugins_read(vendor: str) -> None:
    """Cambricon's attaches one device to a pod."""
    gates = FeatureGates(SCHEDULER)
    gates.set({"DevicePluginAdaption": True})
    world = equipped(device_labels={names.LABEL_GPU_VENDOR: vendor}, gates=gates)
    if vendor == "cambricon":
        text = "1 the device plugin of cambricon attaches one device to a pod, not 2"
        two = with_devices({"nvidia.com/gpu": "2"})
        assert rejection(world, two) == text
        rows = np.array([0])
        numbers = world.plugin._filter.check(book.need_of_shape(world.cluster.info(two).shape), rows)
        assert world.plugin.reasons.status(int(numbers[0])).message == text.removeprefix("1 ")
        return
    bound = world.bind(world.place(with_devices({"nvidia.com/gpu": "2"})))
    assert bound.metadata.annotations[names.ANNOTATION_GPU_MINORS] == "0,1"
    assert bound.metadata.annotations[names.ANNOTATION_BIND_TIMESTAMP].isdecimal()


def test_devices_are_released() -> None:
    world = equipped([gpu(0)])
    first = world.bind(world.place(with_devices(ONE)))
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"
    world.remove(first.metadata.uid)
    assert world.minors(with_devices(ONE)) == {"gpu": [0]}


def test_a_failed_binding_releases_devices() -> None:
    world = equipped([gpu(0)])
    placement = world.place(with_devices(ONE))
    world.plugin.unreserve(placement.state, placement.pod, placement.row)
    assert world.plugin.page("n0")["deviceUsed"] == {}


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (with_devices({names.RESOURCE_GPU_CORE: "100"}), "invalid resource device requests: koordinator.sh/gpu-core"),
        (with_devices({"koordinator.sh/gpu": "150"}), "invalid resource device requests: koordinator.sh/gpu: 150"),
        (with_devices(ONE, hint={"gpu": {"allocateStrategy": "x"}}), "gpu.allocateStrategy: 'x' is not one of"),
        (with_devices(ONE, annotations={names.ANNOTATION_DEVICE_JOINT_ALLOCATE: "{"}), "device-joint-allocate"),
        (
            with_devices(
                {
                    names.RESOURCE_GPU_SHARED: "1",
                    names.RESOURCE_HUAWEI_NPU_CORE: "4",
                    names.RESOURCE_HUAWEI_NPU_CPU: "4",
                    names.RESOURCE_GPU_MEMORY: "1Gi",
                }
            ),
            "no matched GPU shared resource template",
        ),
    ],
)
def test_requests_that_no_node_can_serve(subject: Pod, reason: str) -> None:
    world = equipped()
    assert reason in rejection(world, subject)
    assert world.minors(with_devices(ONE)) == {"gpu": [0]}


def test_models_that_do_not_share() -> None:
    args = DeviceShareArgs(gpu_share_unsupported_models=[GPUShareUnsupportedModel(vendor="v", model="m")])
    labels = {names.LABEL_GPU_VENDOR: "v", names.LABEL_GPU_MODEL: "m"}
    world = equipped(labels=labels, args=args)
    assert rejection(world, with_devices(HALF)) == "1 model 'm' of vendor 'v' does not support GPU Share"
    rows = np.array([0])
    numbers = world.plugin._filter.check(book.need_of_shape(world.cluster.info(with_devices(HALF)).shape), rows)
    assert "does not support" in world.plugin.reasons.status(int(numbers[0])).message
    assert world.minors(with_devices(ONE)) == {"gpu": [0]}


def test_the_isolation_provider_of_a_shared_gpu() -> None:
    label = {names.LABEL_GPU_ISOLATION_PROVIDER: "HAMi-core"}
    text = "1 GPUIsolationProviderHAMICore not found on the node"
    assert rejection(equipped(), with_devices(HALF, labels=label)) == text
    assert equipped(labels=label).minors(with_devices(HALF, labels=label)) == {"gpu": [0]}


def test_scores_prefer_the_node_with_more_left() -> None:
    world = equipped([gpu(0)], [gpu(0), gpu(1)], None)
    info, state = world.cluster.info(with_devices(HALF)), CycleState()
    assert prepare(world.cycle.framework, state, info).status.ok
    rows = np.arange(3)
    raw = world.plugin.score(state, info, rows)
    assert raw.tolist() == [75, 87, 0]  # memory is not requested and therefore 100
    assert world.plugin.normalize(state, info, rows, raw).tolist() == [86, 100, 0]
    assert world.plugin.score(state, world.cluster.info(pod()), rows).tolist() == [0, 0, 0]


# NUMA


def test_cpus_and_gpu_are_from_one_numa_node_and_the_device_decides() -> None:
    devices = [gpu(0, 0, "0"), gpu(1, 1, "1")]
    world = equipped(
        devices,
        labels={names.LABEL_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"},
        topologies=[topology("n0", SHAPE, memory="256Gi")],
    )
    world.run(with_devices(HALF, cpu="1"))
    bound = world.bind(world.place(with_devices(ONE, cpu="8", labels={names.LABEL_QOS_CLASS: "LSR"}, priority=9000)))
    status = json.loads(bound.metadata.annotations[names.ANNOTATION_RESOURCE_STATUS])
    assert ([device["minor"] for device in allocated(bound)["gpu"]], status["cpuset"]) == ([1], "64-71")


def test_a_gpu_on_another_numa_node_than_the_cpus_is_refused_under_single_numa_node() -> None:
    world = equipped(
        [gpu(0, 0, "0"), gpu(1, 1, "1")],
        labels={names.LABEL_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"},
        topologies=[topology("n0", SHAPE, memory="256Gi")],
    )
    lsr = {names.LABEL_QOS_CLASS: "LSR"}
    world.run(with_devices({}, cpu="64", labels=lsr, priority=9000))  # NUMA node 0
    assert world.minors(with_devices(ONE, cpu="8", labels=lsr, priority=9000)) == {"gpu": [1]}
    text = rejection(world, with_devices(ONE, cpu="8", labels=lsr, priority=9000))
    assert text == (
        "1 Unaligned NUMA Hint cause cpu prefer [10] among [10],gpu prefer [01] among [01 11],"
        "memory prefer [10] among [10 11]"
    )


@pytest.mark.parametrize("policy", ["BestEffort", "Restricted", "SingleNUMANode"])
def test_a_node_without_enough_devices_refuses_under_every_policy(policy: str) -> None:
    world = equipped(
        labels={names.LABEL_NUMA_TOPOLOGY_POLICY: policy}, topologies=[topology("n0", SHAPE, memory="256Gi")]
    )
    assert rejection(world, with_devices({"nvidia.com/gpu": "9"})) == "1 Insufficient GPU Devices"
    assert len(world.minors(with_devices({"nvidia.com/gpu": "4"}))["gpu"]) == 4
    assert len(world.minors(with_devices({"nvidia.com/gpu": "4"}))["gpu"]) == 4
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"


def test_devices_on_two_numa_nodes_under_best_effort() -> None:
    world = equipped(
        labels={names.LABEL_NUMA_TOPOLOGY_POLICY: "BestEffort"}, topologies=[topology("n0", SHAPE, memory="256Gi")]
    )
    assert world.minors(with_devices({"nvidia.com/gpu": "6"})) == {"gpu": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("args", "expected"), [(DeviceShareArgs(disable_device_numa_topology_alignment=True), 0), (None, 4)]
)
def test_alignment_can_be_switched_off(args: DeviceShareArgs | None, expected: int) -> None:
    world = equipped(
        args=args,
        labels={names.LABEL_NUMA_TOPOLOGY_POLICY: "SingleNUMANode"},
        topologies=[topology("n0", SHAPE, memory="256Gi")],
    )
    lsr = {names.LABEL_QOS_CLASS: "LSR"}
    world.run(with_devices({}, cpu="60", labels=lsr, priority=9000))  # NUMA node 0
    bound = world.bind(world.place(with_devices(ONE, cpu="8", labels=lsr, priority=9000)))
    assert allocated(bound)["gpu"][0]["minor"] == expected


@pytest.mark.parametrize("pod_policy", ["", "BestEffort", "Restricted", "SingleNUMANode"])
def test_many_nodes_are_decided_like_single_ones(pod_policy: str) -> None:
    """Beyond a few rows, one of each kind of equal nodes is decided for all of them."""
    policies = ("", "BestEffort", "Restricted", "SingleNUMANode")
    nodes, topologies = [], []
    for at in range(24):
        name, policy = f"n{at}", policies[at % 4]
        labels = {names.LABEL_NUMA_TOPOLOGY_POLICY: policy} if policy else {}
        devices = [gpu(0, 0, "0"), gpu(1, 1, "1"), *([] if at % 3 else [gpu(2, 1, "1")])]
        inventory = None if at % 7 == 6 else device(name, devices)
        nodes.append((node(name, cpu="16", memory="64Gi", labels=labels, **ALLOCATABLE), inventory))
        topologies.append(topology(name, (2, 1, 4, 2), memory="8Gi" if at % 5 else "32Gi"))
    world = DeviceWorld(*nodes, topologies=topologies)
    lsr: dict[str, Any] = {"labels": {names.LABEL_QOS_CLASS: "LSR"}, "priority": 9000}
    numa = {names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": pod_policy})} if pod_policy else {}
    for number in range(20):
        world.run(with_devices(HALF if number % 2 else {}, cpu=str(1 + number % 4), memory="3Gi", **lsr))
    numa_plugin = world.cycle.framework.plugins["NodeNUMAResource"]
    rejected = 0
    for requests in (ONE, HALF, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "3"}):
        info, state = (
            world.cluster.info(with_devices(requests, cpu="6", memory="4Gi", annotations=numa, **lsr)),
            CycleState(),
        )
        assert prepare(world.cycle.framework, state, info).status.ok
        rows = np.arange(24)
        for plugin in (numa_plugin, world.plugin):
            every = plugin.filter(state, info, rows).tolist()
            assert every == [int(plugin.filter(state, info, rows[at : at + 1])[0]) for at in range(24)]
            rejected += sum(number != 0 for number in every)
            scores = plugin.score(state, info, rows).tolist()
            assert scores == [int(plugin.score(state, info, rows[at : at + 1])[0]) for at in range(24)]
    assert rejected


# Preemption


def test_a_victim_gives_its_devices() -> None:
    world = equipped([gpu(0)])
    world.run(with_devices(ONE, name="low", priority=1))
    with pytest.raises(FitError):
        world.place(with_devices(ONE, priority=1000))
    assert world.evicted == ["low"]
    assert world.plugin.page("n0")["allocateSet"] == {
        "gpu": {"default/low": {"0": world.plugin.page("n0")["deviceTotalDetail"]["gpu"]["0"]}}
    }


def test_pods_without_devices_are_no_victims() -> None:
    world = equipped([gpu(0)])
    world.run(with_devices({}, name="low", priority=1))
    world.run(with_devices(ONE, name="equal", priority=1000))
    with pytest.raises(FitError):
        world.place(with_devices(ONE, priority=1000))
    assert world.evicted == []


# Restart, hostile and late input


def test_a_restart_gives_the_same_page() -> None:
    world = equipped(machine(), machine())
    joint = {"deviceTypes": ["gpu", "rdma"]}
    for subject in (
        with_devices(HALF),
        with_devices(
            {"nvidia.com/gpu": "3", "koordinator.sh/rdma": "1"}, joint=joint, hint={"rdma": {"vfSelector": {}}}
        ),
        pod(),
    ):
        world.run(subject)
    before = world.plugin.pages()
    assert [*before] == ["n0", "n1"]
    world.start()
    assert world.plugin.pages() == before


@pytest.mark.parametrize(
    ("devices", "requests"),
    [
        ({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}, HALF),
        ({"gpu": [{"minor": 0}, {"minor": 1}]}, ONE),
        ({"gpu": [{"minor": 0}]}, {}),
        ({"gpu": [{"minor": 0}, {"minor": 0}]}, {"nvidia.com/gpu": "2"}),
        ({"gpu": [{"minor": -1}]}, ONE),
        (
            {"gpu": [{"minor": 0, "resources": {names.RESOURCE_GPU_MEMORY_RATIO: "101"}}]},
            {names.RESOURCE_GPU_MEMORY: "1"},
        ),
        ({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "-1"}}]}, ONE),
        (
            {"rdma": [{"minor": 1, "extension": {"vfs": [{"busID": str(number)} for number in range(300)]}}]},
            {"koordinator.sh/rdma": "1"},
        ),
        ({"rdma": [{"minor": 1, "resources": {"koordinator.sh/rdma": "5"}}]}, {"koordinator.sh/rdma": "1"}),
        ([], ONE),
        ({"gpu": [{"minor": 0}]}, {"koordinator.sh/gpu-core": "100"}),
    ],
)
def test_a_forged_allocation_of_a_bound_pod_does_not_count(devices: Any, requests: dict[str, str]) -> None:
    world = equipped()
    world.add(forged(devices, requests))
    assert world.plugin.page("n0")["deviceUsed"] == {}
    assert world.plugin.book.malformed == {"allocation": 1}


def test_an_allocation_of_another_scheduler_counts() -> None:
    world = equipped()
    foreign = forged({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}, ONE)
    foreign.spec.scheduler_name = "koord-scheduler-2"
    world.add(foreign)
    assert rejection(world, with_devices({"nvidia.com/gpu": "8"})) == "1 Insufficient GPU Devices"


def test_the_allocation_of_a_pending_pod_counts_nowhere() -> None:
    world = equipped()
    claim = {"gpu": [{"minor": 7, "resources": {"koordinator.sh/gpu-core": "100"}}]}
    annotations = {ALLOCATED: json.dumps(claim)}
    assert world.minors(with_devices(ONE, annotations=annotations)) == {"gpu": [0]}
    plain = world.bind(world.place(pod(annotations=annotations)))
    assert ALLOCATED not in plain.metadata.annotations
    assert world.plugin.page("n0")["deviceUsed"]["koordinator.sh/gpu-core"] == "100"


def test_devices_that_two_pods_claim_are_not_free_until_both_are_gone() -> None:
    world = equipped([gpu(0)])
    claim = {
        "gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100", names.RESOURCE_GPU_MEMORY_RATIO: "100"}}]
    }
    pods = [forged(claim, ONE) for _ in range(2)]
    for claimant in pods:
        world.add(claimant)
    assert world.plugin.book.malformed == {"conflict": 1}
    world.remove(pods[0].metadata.uid)
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"
    world.remove(pods[1].metadata.uid)
    assert world.minors(with_devices(ONE)) == {"gpu": [0]}


def test_a_device_that_disappears_while_allocated_is_named_and_stays_taken() -> None:
    world = equipped([gpu(0), gpu(1)])
    first = world.bind(world.place(with_devices(ONE)))
    world.report(device("n0", [gpu(1)]))
    assert world.plugin.book.malformed == {"conflict": 1}
    assert world.minors(with_devices(ONE)) == {"gpu": [1]}
    world.report(device("n0", [gpu(0), gpu(1)]))
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"
    world.remove(first.metadata.uid)
    assert world.minors(with_devices(ONE)) == {"gpu": [0]}


def test_a_device_that_fails_is_not_given_again() -> None:
    world = equipped([gpu(0), gpu(1)])
    world.report(device("n0", [gpu(0, health=False), gpu(1)]))
    assert world.minors(with_devices(ONE)) == {"gpu": [1]}
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"


def test_a_device_object_that_is_deleted_and_comes_back() -> None:
    world = equipped([gpu(0), gpu(1)])
    world.run(with_devices(ONE))
    world.forget("n0")
    assert rejection(world, with_devices(ONE)) == "1 Insufficient GPU Devices"
    world.report(device("n0", [gpu(0), gpu(1)]))
    assert world.minors(with_devices(ONE)) == {"gpu": [1]}


def test_the_devices_of_a_node_that_is_gone_are_forgotten() -> None:
    world = equipped()
    world.plugin.book.sync()
    world.forget("n0")
    world.cluster.table.remove_node("n0")
    world.plugin.book.sync()
    assert world.plugin.book.inventories == {}
    with pytest.raises(LookupError, match="cannot find node n0"):
        world.plugin.page("n0")


def test_devices_may_be_older_than_their_node() -> None:
    world = equipped()
    world.report(device("n1", [gpu(0), gpu(1)]))
    world.cluster.table.set_node(node("n1", cpu="256", **ALLOCATABLE))
    assert world.place(with_devices({"nvidia.com/gpu": "2"}, cpu="200")).node == "n1"


def test_a_malformed_device_is_named_and_the_others_are_used() -> None:
    world = equipped([gpu(0), gpu(0), gpu(1)])
    assert world.plugin.book.malformed == {"device": 1}
    assert world.minors(with_devices({"nvidia.com/gpu": "2"})) == {"gpu": [0, 1]}


def test_a_row_is_not_confused_with_the_node_that_had_it_before() -> None:
    world = equipped([gpu(0)])
    world.plugin.book.sync()
    world.cluster.table.remove_node("n0")
    world.cluster.table.set_node(node("n9", cpu="64", **ALLOCATABLE))
    assert world.run(with_devices(ONE)) == {}


def test_states_are_numbered_again_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MAX_STATES", 3)
    world = equipped([gpu(0), gpu(1)], [gpu(0), gpu(1), gpu(2)])
    bound_pods = [world.bind(world.place(with_devices(HALF, cpu="1"))) for _ in range(10)]
    held = {(pod.spec.node_name, each["minor"]) for pod in bound_pods for each in allocated(pod)["gpu"]}
    assert len(held) == 5
    assert len(world.plugin.book.states) <= 5
    assert rejection(world, with_devices(HALF)) == "2 Insufficient GPU Devices"


def test_an_explanation_names_devices() -> None:
    world = equipped([gpu(0), gpu(1, health=False), rdma(1)])
    world.run(with_devices({"koordinator.sh/gpu": "60"}))
    report = explain(world.cycle.framework, world.cluster.info(with_devices(HALF)), "unschedulable")
    (refused,) = report.refused
    assert (refused.plugin, refused.nodes) == ("DeviceShare", ["n0"])
    assert refused.details == [
        "gpu: 1 with koordinator.sh/gpu-core 50, koordinator.sh/gpu-memory-ratio 50 each; of 2 devices 1 are healthy "
        "and 0 have enough",
        "gpu 0: too little koordinator.sh/gpu-core 40 of 50, koordinator.sh/gpu-memory-ratio 40 of 50, "
        "koordinator.sh/gpu-memory 34359738368 of 42949672960",
    ]


def test_metrics() -> None:
    world = equipped([gpu(0), gpu(0)], device_labels={names.LABEL_SECONDARY_DEVICE_WELL_PLANNED: "false"})
    world.add(forged([], ONE))
    registry = CollectorRegistry()
    DeviceShareMetrics.once(registry, world.plugin.book)
    counted = {
        kind: registry.get_sample_value("scheduler_device_malformed_input_total", {"kind": kind})
        for kind in ("device", "allocation", "conflict")
    }
    assert counted == {"device": 1, "allocation": 1, "conflict": 0}
    assert registry.get_sample_value("scheduler_secondary_device_not_well_planned", {"node_name": "n0"}) == 1


# Costs


def test_pods_without_devices_are_not_scored() -> None:
    world = equipped()
    for subject, code in ((pod(), Code.SKIP), (with_devices(ONE), Code.SUCCESS)):
        status = world.plugin.pre_score(CycleState(), world.cluster.info(subject), np.array([0]))
        assert status.code is code


def test_pods_of_different_quotas_share_decisions() -> None:
    """They have different shapes, and equal demands."""
    world = equipped()
    quotas = ({names.LABEL_QUOTA_NAME: name} for name in ("a", "b"))
    first, second = (world.cluster.info(with_devices(ONE, labels=labels)) for labels in quotas)
    assert first.shape is not second.shape
    assert book.need_of_shape(first.shape) is book.need_of_shape(second.shape)
    other = world.cluster.info(with_devices(ONE, joint={"deviceTypes": ["gpu"]}))
    assert book.need_of_shape(other.shape) is not book.need_of_shape(first.shape)
    numa = world.cycle.framework.plugins["NodeNUMAResource"]
    assert isinstance(numa, NodeNUMAResource)
    assert numa._need(first) is numa._need(second)
    assert numa._need(first) is not numa._need(world.cluster.info(with_devices(HALF)))


def test_a_remembered_refusal_does_not_grow() -> None:
    world = equipped([gpu(0)])
    world.bind(world.place(with_devices(ONE)))
    info = world.cluster.info(with_devices(ONE))
    need = book.need_of_shape(info.shape)
    world.plugin.book.sync()
    decisions = StateDecisions(world.plugin.book, world.plugin._decisions.strategy, world.plugin._templates)
    lengths = []
    for decide in (partial(decisions.of_row, numa=None), decisions.hints):
        for _ in range(5):
            with pytest.raises(DevicesLacking) as refused:
                decide(need, 0)
            lengths.append(len([*walk_tb(refused.value.__traceback__)]))
    assert max(lengths) == min(lengths)
