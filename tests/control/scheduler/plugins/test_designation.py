"""Designated allocation: a scheduling hint and the result annotations say what a pod is to get (spec 06 §2.9, §3.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import CycleFailed
from koordlet.api import names
from koordlet.api.core import Pod
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.deviceworld import DeviceWorld, allocated, equipped, gpu, machine, with_devices
from tests.control.scheduler.plugins.numaworld import NumaWorld, lsr, status_of, topology, world

STATUS, DEVICES = names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_DEVICE_ALLOCATED
HINT = names.ANNOTATION_SCHEDULING_HINT
FULL = {"requiredCPUBindPolicy": "FullPCPUs"}
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
TOPOLOGY = topology("n0", (2, 1, 32, 2))
NO_CPUS = "not enough cpus available to satisfy request"


def hinted(**designated: Any) -> dict[str, str]:
    """Annotations of a pod that designates its CPUs (`cpus`), or its devices (`devices`)."""
    keys = {"cpus": ("NodeNUMAResource", STATUS), "devices": ("DeviceShare", DEVICES)}
    extensions: dict[str, Any] = {keys[name][0]: {} for name in designated}
    return {
        HINT: json.dumps({"extensions": extensions}),
        **{keys[name][1]: json.dumps(value) for name, value in designated.items()},
    }


def rejection(world: NumaWorld | DeviceWorld, subject: Pod) -> str:
    with pytest.raises(FitError) as failure:
        world.place(subject)
    return failure.value.text().removeprefix("0/1 nodes are available: ").partition(". preemption")[0].rstrip(".")


def test_a_pod_gets_the_designated_cpus_and_no_others() -> None:
    scene = world(count=1)
    assert status_of(scene.bind(scene.place(lsr("2", spec=FULL))))["cpuset"] == "0-1"
    subject = lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "6-7"}))
    assert scene.run(subject)["cpuset"] == "6-7"
    assert rejection(scene, lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "6-7"}))) == f"1 {NO_CPUS}"
    assert rejection(scene, lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "0-1"}))) == f"1 {NO_CPUS}"


def test_a_node_with_the_designated_cpus_is_chosen() -> None:
    scene = world(count=3)
    for taken in ("n0", "n2"):
        scene.add(lsr("2", annotations={STATUS: json.dumps({"cpuset": "8-9"})}, on=taken, spec=FULL))
    placement = scene.place(lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "8-9"})))
    assert placement.node == "n1"


@pytest.mark.parametrize(
    ("cpus", "reason"),
    [
        ({"cpuset": "1-2"}, NO_CPUS),  # two halves of cores, against FullPCPUs
        ({"cpuset": "2"}, NO_CPUS),  # too few
        ({"cpuset": "100-101"}, NO_CPUS),  # the node has no such CPUs
        ({"cpuset": "0-1"}, NO_CPUS),  # reserved
        ({"cpuset": "2-3", "numaNodeResources": [{"node": 0, "resources": {"cpu": "2"}}]}, NO_CPUS),  # without policy
    ],
)
def test_what_the_rules_do_not_give_is_not_designated(cpus: dict[str, Any], reason: str) -> None:
    scene = world(reserved="0-1")
    assert rejection(scene, lsr("2", spec=FULL, annotations=hinted(cpus=cpus))) == f"1 {reason}"


def test_designated_zones_are_kept() -> None:
    scene = world()
    zone = [{"node": 1, "resources": {"cpu": "2", "memory": "1Gi"}}]
    designated = hinted(cpus={"cpuset": "8-9", "numaNodeResources": zone})
    subject = lsr("2", memory="1Gi", numa=SINGLE, spec=FULL, annotations=designated)
    assert scene.run(subject) == {"cpuset": "8-9", "numaNodeResources": zone}
    both = [{"node": node, "resources": {"cpu": "1", "memory": "512Mi"}} for node in (0, 1)]
    split = pod(
        cpu="2",
        memory="1Gi",
        annotations={
            names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps(SINGLE),
            **hinted(cpus={"numaNodeResources": both}),
        },
    )
    assert "Unaligned NUMA Hint" in rejection(scene, split)


def test_more_than_the_request_is_an_error_of_the_pod() -> None:
    scene = world()
    with pytest.raises(CycleFailed, match="4 CPUs are more than the pod requests"):
        scene.place(lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "0-3"})))


@pytest.mark.parametrize(
    "hint",
    [None, "{}", '{"extensions":{"DeviceShare":{}}}'],
)
def test_without_a_hint_for_the_plugin_the_annotation_of_a_pending_pod_designates_nothing(hint: str | None) -> None:
    scene = world()
    annotations = {STATUS: json.dumps({"cpuset": "6-7"}), **({} if hint is None else {HINT: hint})}
    assert scene.run(lsr("2", spec=FULL, annotations=annotations))["cpuset"] == "0-1"


def test_a_restart_keeps_what_was_designated() -> None:
    scene = world()
    scene.run(lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "6-7"})))
    scene.start()
    assert rejection(scene, lsr("2", spec=FULL, annotations=hinted(cpus={"cpuset": "6-7"}))) == f"1 {NO_CPUS}"


# Devices


def whole(*minors: int) -> list[dict[str, Any]]:
    amounts = {names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100"}
    return [{"minor": minor, "resources": amounts} for minor in minors]


def test_a_pod_gets_the_designated_devices_and_no_others() -> None:
    world = equipped(machine())
    subject = with_devices({"nvidia.com/gpu": "2"}, annotations=hinted(devices={"gpu": whole(3, 6)}))
    assert world.minors(subject) == {"gpu": [3, 6]}
    again = with_devices({"nvidia.com/gpu": "2"}, annotations=hinted(devices={"gpu": whole(5, 6)}))
    assert rejection(world, again) in ("1 Insufficient GPU Devices", "1 Insufficient gpu devices")
    assert world.minors(with_devices({"nvidia.com/gpu": "1"}, annotations=hinted(devices={"gpu": whole(5)}))) == {
        "gpu": [5]
    }


def test_fewer_or_unhealthy_devices_are_refused() -> None:
    world = equipped([gpu(0), gpu(1), gpu(2, health=False)])
    for minors in ((0,), (0, 2), (0, 9)):
        subject = with_devices({"nvidia.com/gpu": "2"}, annotations=hinted(devices={"gpu": whole(*minors)}))
        assert rejection(world, subject) in ("1 Insufficient GPU Devices", "1 Insufficient gpu devices")


def test_a_designated_virtual_function_is_taken() -> None:
    world = equipped(machine())
    hint = {"rdma": {"vfSelector": {"matchLabels": {"type": "fast"}}}}
    function = {"minor": -1, "busID": "0000:12:00.2"}
    nic = [{"minor": 2, "resources": {names.RESOURCE_RDMA: "1"}, "extension": {"vfs": [function]}}]
    designated = hinted(devices={"rdma": nic})

    def subject() -> Pod:
        return with_devices({names.RESOURCE_RDMA: "1"}, hint=hint, annotations=designated)

    bound = world.bind(world.place(subject()))
    assert allocated(bound)["rdma"][0]["extension"]["vfs"] == [function]
    assert rejection(world, subject()) == "1 Insufficient rdma devices"


def test_a_shared_gpu_is_designated() -> None:
    world = equipped(machine())
    part = [{"minor": 4, "resources": {names.RESOURCE_GPU_CORE: "50", names.RESOURCE_GPU_MEMORY_RATIO: "50"}}]
    for _ in range(2):
        subject = with_devices({"koordinator.sh/gpu": "50"}, annotations=hinted(devices={"gpu": part}))
        assert world.minors(subject) == {"gpu": [4]}
    subject = with_devices({"koordinator.sh/gpu": "50"}, annotations=hinted(devices={"gpu": part}))
    assert "Insufficient" in rejection(world, subject)


def test_more_devices_than_requested_are_refused() -> None:
    world = equipped(machine())
    subject = with_devices({"nvidia.com/gpu": "1"}, annotations=hinted(devices={"gpu": whole(0, 1)}))
    assert "2 devices of type gpu are more than 1" in rejection(world, subject)


def test_numa_nodes_follow_designated_devices() -> None:
    world = equipped(machine(), topologies=[TOPOLOGY])
    policy = {names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps(SINGLE)}
    subject = with_devices(
        {"nvidia.com/gpu": "1"}, cpu="2", annotations={**policy, **hinted(devices={"gpu": whole(6)})}
    )
    bound = world.bind(world.place(subject))
    assert [each["node"] for each in status_of(bound)["numaNodeResources"]] == [1]
    assert [each["minor"] for each in allocated(bound)["gpu"]] == [6]


def test_a_designated_device_without_numa_node_has_no_numa_hint() -> None:
    world = equipped([{**gpu(0), "topology": {"socketID": -1, "nodeID": -1, "pcieID": "0"}}], topologies=[TOPOLOGY])
    policy = {names.ANNOTATION_NUMA_TOPOLOGY_SPEC: json.dumps(SINGLE)}
    subject = with_devices(
        {"nvidia.com/gpu": "1"}, cpu="2", annotations={**policy, **hinted(devices={"gpu": whole(0)})}
    )
    assert rejection(world, subject) == "1 Designated Allocation Lack NUMA Node ID"
