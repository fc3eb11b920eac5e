"""What plugins see of objects: names that are current, less what is reserved (spec 05 §1.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.scheduler.state.transform import transform_device, transform_node, transform_pod, transform_quota
from koordlet.api.core import Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding import wire
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import node, pod

BATCH_CPU, OLD_CPU = "kubernetes.io/batch-cpu", "koordinator.sh/batch-cpu"


def gates(*on: str) -> FeatureGates:
    feature_gates = FeatureGates(SCHEDULER)
    feature_gates.set(dict.fromkeys(on, True))
    return feature_gates


def requests(pod: Pod) -> dict[str, str]:
    return {name: str(amount) for name, amount in pod.spec.containers[0].resources.requests.items()}


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({OLD_CPU: "500"}, {BATCH_CPU: "500"}),
        ({OLD_CPU: "500", BATCH_CPU: "100"}, {OLD_CPU: "500", BATCH_CPU: "100"}),
        ({"kubernetes.io/gpu-core": "50"}, {"koordinator.sh/gpu-core": "50"}),
        ({"cpu": "1"}, {"cpu": "1"}),
    ],
    ids=["renamed", "both-stay", "device", "untouched"],
)
def test_deprecated_names_of_requests(amounts: dict[str, str], expected: dict[str, str]) -> None:
    body = {"containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]}
    body |= {"initContainers": body["containers"], "overhead": amounts}  # type: ignore[dict-item]
    transformed = transform_pod(pod(spec=body), gates())
    for resources in (
        transformed.spec.containers[0].resources.requests,
        transformed.spec.containers[0].resources.limits,
        transformed.spec.init_containers[0].resources.requests,
        transformed.spec.overhead,
    ):
        assert {name: str(amount) for name, amount in resources.items()} == expected


def test_deprecated_names_in_the_device_annotation() -> None:
    key = "scheduling.koordinator.sh/device-allocated"
    text = json.dumps({"gpu": [{"minor": 0, "resources": {"kubernetes.io/gpu-core": "100"}}]})
    transformed = transform_pod(pod(annotations={key: text}), gates())
    devices = json.loads(transformed.metadata.annotations[key])
    assert devices["gpu"][0]["resources"] == {"koordinator.sh/gpu-core": "100"}
    broken = transform_pod(pod(annotations={key: '{"kubernetes.io/gpu-core'}), gates())
    assert broken.metadata.annotations[key] == '{"kubernetes.io/gpu-core'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu:kubernetes.io/batch-cpu", {BATCH_CPU: "1500", "memory": "1Gi"}),
        ("cpu:", {"memory": "1Gi"}),
        ("cpu", {"cpu": "1500m", "memory": "1Gi"}),
        ("cpu:a:b,memory:m", {"cpu": "1500m", "m": "1Gi"}),
        ("cpu:memory", {"cpu": "1500m", "memory": "1Gi"}),
    ],
    ids=["milli", "erased", "no-colon", "two-colons", "target-exists"],
)
def test_replaced_resources(text: str, expected: dict[str, str]) -> None:
    annotations = {"pod.koordinator.sh/replace-resources": text}
    transformed = transform_pod(pod(cpu="1500m", annotations=annotations), gates("ReplaceResourcesTransformer"))
    assert requests(transformed) == expected
    assert requests(transform_pod(pod(annotations=annotations), gates())) == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("named", "value", "expected"),
    [
        ("koord-prod", None, 9500),
        ("koord-mid", 0, 7500),
        ("koord-batch", None, 5500),
        ("koord-free", None, 3500),
        ("koord-prod", 7, 7),
    ],
)
def test_priority_by_class(named: str, value: int | None, expected: int) -> None:
    labels = {"koordinator.sh/priority-class": named}
    assert transform_pod(pod(labels=labels, priority=value), gates("PriorityTransformer")).spec.priority == expected
    assert transform_pod(pod(labels=labels, priority=value), gates()).spec.priority == value


def test_preemption_policy_by_label() -> None:
    labels = {"scheduling.koordinator.sh/preemption-policy": "PreemptLowerPriority"}
    on = gates("PreemptionPolicyTransformer")
    assert transform_pod(pod(labels=labels), on).spec.preemption_policy == "PreemptLowerPriority"
    assert transform_pod(pod(), on).spec.preemption_policy == "Never"
    assert transform_pod(pod(labels=labels), gates()).spec.preemption_policy is None


def test_the_schedulers_name_by_label() -> None:
    transformed = transform_pod(pod(labels={"scheduling.koordinator.sh/scheduler-name": "other"}), gates())
    assert transformed.spec.scheduler_name == "other"
    key = "internal.scheduling.koordinator.sh/original-scheduler-name"
    assert transformed.metadata.annotations[key] == "koord-scheduler"
    assert key not in transform_pod(pod(), gates()).metadata.annotations
    same = {"scheduling.koordinator.sh/scheduler-name": "koord-scheduler"}
    assert key not in transform_pod(pod(labels=same), gates()).metadata.annotations, "nothing changed"


@pytest.mark.parametrize(
    ("reservation", "expected"),
    [
        ({"resources": {"cpu": "2", BATCH_CPU: "1000"}}, {"cpu": "6", BATCH_CPU: "4k"}),
        ({"resources": {"cpu": "20"}}, {"cpu": "0", BATCH_CPU: "4k"}),
        ({"resources": {"cpu": "2"}, "applyPolicy": "Default"}, {"cpu": "6", BATCH_CPU: "4k"}),
        ({"resources": {"cpu": "2"}, "applyPolicy": "ReservedCPUsOnly"}, {"cpu": "8", BATCH_CPU: "4k"}),
        ({"reservedCPUs": "0-2"}, {"cpu": "5", BATCH_CPU: "4k"}),
        ("malformed", {"cpu": "8", BATCH_CPU: "4k"}),
    ],
    ids=["subtracted", "never-below-zero", "default-policy", "other-policy", "cpus", "malformed"],
)
def test_node_reservations(reservation: Any, expected: dict[str, str]) -> None:
    machine = node(
        "n",
        annotations={"node.koordinator.sh/reservation": json.dumps(reservation)},
        **{"kubernetes.io__batch_cpu": "4k"},  # type: ignore[arg-type]
    )
    allocatable = transform_node(machine).status.allocatable
    assert {name: str(allocatable[name]) for name in expected} == expected


def test_devices_and_quotas() -> None:
    device: Device = wire.convert({"spec": {"devices": [{"resources": {"kubernetes.io/rdma": "100"}}]}}, Device)
    assert [*transform_device(device).spec.devices[0].resources] == ["koordinator.sh/rdma"]
    quota: ElasticQuota = wire.convert({"spec": {"min": {OLD_CPU: "1"}, "max": {OLD_CPU: "2"}}}, ElasticQuota)
    assert ([*transform_quota(quota).spec.min], [*quota.spec.max]) == ([BATCH_CPU], [BATCH_CPU])
