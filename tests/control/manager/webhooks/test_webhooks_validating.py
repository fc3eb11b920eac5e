"""Which pods are refused, and in which words (spec 04 §12)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from control.manager.webhooks import enhanced
from control.manager.webhooks.devices import device_errors
from control.manager.webhooks.errors import aggregate, forbidden, invalid, required
from control.manager.webhooks.podvalidating import class_errors, forbidden_annotations
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError, convert

QOS, SUB, CLASS = "koordinator.sh/qosClass", "koordinator.sh/priority", "koordinator.sh/priority-class"
PRIORITY = {"none": None, "prod": 9500, "mid": 7500, "batch": 5500, "free": 3500}


def pod(
    labels: dict[str, str] | None = None,
    priority: int | None = None,
    requests: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    return convert(
        {
            "metadata": {"name": "p", "labels": labels or {}, "annotations": annotations or {}},
            "spec": {
                "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": requests or {}}}],
                **spec,
            },
        },
        Pod,
    )


def errors(subject: Pod, old: Pod | None = None, *, may_change: bool = False) -> list[str]:
    return class_errors(subject, old, priority_label_may_change=may_change)


def test_field_errors_have_the_format_of_apimachinery() -> None:
    assert invalid("a.b", "x", "no") == 'a.b: Invalid value: "x": no'
    assert invalid("a.b", 3, "no") == "a.b: Invalid value: 3: no"
    assert required("a", "why") == "a: Required value: why"
    assert forbidden("a", "why") == "a: Forbidden: why"
    assert aggregate(["e1"]) == "e1"
    assert aggregate(["e1", "e2", "e1"]) == "[e1, e2]"


REFUSED = {("LSR", "none"), ("LSR", "mid"), ("LSR", "batch"), ("LSR", "free"), ("BE", "none"), ("BE", "prod")}
COMBINATIONS = list(itertools.product(["", "LS", "LSE", "LSR", "BE", "SYSTEM"], PRIORITY))


@pytest.mark.parametrize(("qos", "priority"), COMBINATIONS, ids=[f"{q or 'none'}-{p}" for q, p in COMBINATIONS])
def test_combinations_of_qos_and_priority(qos: str, priority: str) -> None:
    messages = errors(pod({QOS: qos} if qos else {}, PRIORITY[priority], {"cpu": "2"}))
    if (qos, priority) in REFUSED:
        shown = f"koord-{priority}" if priority != "none" else "none"
        assert messages == [
            f"labels.{QOS}: Forbidden: {QOS}={qos} and priorityClass={shown} cannot be used in combination"
        ]
    else:
        assert messages == []


BATCH = {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "1Gi"}
RESOURCES = {
    "batch as BE": (pod({QOS: "BE"}, 5500, BATCH), []),
    "batch without QoS": (
        pod({}, 5500, BATCH),
        [
            f"labels.{QOS}: Required value: a pod that requests kubernetes.io/batch-cpu and kubernetes.io/batch-memory "
            "must be of QoS class BE"
        ],
    ),
    "batch as LS": (
        pod({QOS: "LS"}, 9500, {"kubernetes.io/batch-cpu": "1"}),
        [f'labels.{QOS}: Invalid value: "LS": a pod that requests kubernetes.io/batch-cpu must be of QoS class BE'],
    ),
    "batch of zero": (pod({QOS: "LS"}, 9500, {"kubernetes.io/batch-cpu": "0"}), []),
    "LSR with whole cores": (pod({QOS: "LSR"}, 9500, {"cpu": "4"}), []),
    "LSE with a part of a core": (
        pod({QOS: "LSE"}, 9500, {"cpu": "100m"}),
        [
            'spec.containers[*].resources.requests.cpu: Invalid value: "100m": '
            "the requested CPUs of a pod of QoS class LSE must be an integer"
        ],
    ),
    "LSR without cpu": (
        pod({QOS: "LSR"}, 9500, {"memory": "1Gi"}),
        ["spec.containers[*].resources.requests.cpu: Required value: a pod of QoS class LSR must request CPUs"],
    ),
    "batch resources with prod priority": (
        pod({QOS: "BE"}, 9500, BATCH),
        [f"labels.{QOS}: Forbidden: {QOS}=BE and priorityClass=koord-prod cannot be used in combination"],
    ),
}


@pytest.mark.parametrize(("subject", "expected"), RESOURCES.values(), ids=RESOURCES)
def test_resources_of_classes(subject: Pod, expected: list[str]) -> None:
    assert errors(subject) == expected


CHANGES = {
    "nothing": ({QOS: "BE"}, 5500, {QOS: "BE"}, 5500, []),
    "value inside the class": ({}, 5500, {}, 5000, []),
    "qos": ({QOS: "LS"}, 5500, {QOS: "BE"}, 5500, [f'labels.{QOS}: Invalid value: "LS": field is immutable']),
    "qos removed": ({}, 5500, {QOS: "BE"}, 5500, [f'labels.{QOS}: Invalid value: "": field is immutable']),
    "unknown qos is none": ({QOS: "what"}, 5500, {}, 5500, []),
    "class": ({}, 9500, {}, 5500, ['spec.priority: Invalid value: "koord-prod": field is immutable']),
    "class by label": (
        {CLASS: "koord-mid"}, 5500, {}, 5500, ['spec.priority: Invalid value: "koord-mid": field is immutable'],
    ),
    "sub-priority": ({SUB: "2"}, 5500, {SUB: "1"}, 5500, [f'labels.{SUB}: Invalid value: "2": field is immutable']),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "priority", "old", "old_priority", "expected"), CHANGES.values(), ids=CHANGES)
def test_immutable_fields(
    labels: dict[str, str], priority: int, old: dict[str, str], old_priority: int, expected: list[str]
) -> None:
    assert errors(pod(labels, priority), pod(old, old_priority)) == expected


def test_a_gate_lets_the_sub_priority_change() -> None:
    assert errors(pod({SUB: "2"}), pod({SUB: "1"}), may_change=True) == []


def test_all_errors_of_the_step_are_returned() -> None:
    messages = errors(pod({QOS: "LSR"}, 5500, {"cpu": "100m"}), pod({QOS: "BE"}, 9500))
    assert [text.split(": ")[1] for text in messages] == [
        "Invalid value",
        "Invalid value",
        "Forbidden",
        "Invalid value",
    ]


def test_the_mark_of_reserve_pods_is_forbidden() -> None:
    assert forbidden_annotations(pod()) == []
    (text,) = forbidden_annotations(pod(annotations={"scheduling.koordinator.sh/reserve-pod": "true"}))
    assert text.startswith("annotations.scheduling.koordinator.sh/reserve-pod: Forbidden: ")


PATH = "spec.containers[0].resources.requests[koordinator.sh/"
DEVICES = {
    "none": ({}, []),
    "whole": ({"gpu": 100}, []),
    "part": ({"gpu": 50}, []),
    "nothing": ({"gpu": 0}, ["gpu"]),
    "one and a half": ({"gpu": 150}, ["gpu"]),
    "gpu and shared": ({"gpu": 100, "gpu.shared": 1}, ["gpu"]),
    "core and ratio without shared": ({"gpu-core": 150, "gpu-memory-ratio": 7}, []),
    "shared": ({"gpu.shared": 2, "gpu-core": 100, "gpu-memory-ratio": 200}, []),
    "shared by bytes": ({"gpu.shared": 2, "gpu-memory": 4000}, []),
    "shared of zero": ({"gpu.shared": 0, "gpu-memory": 1}, ["gpu.shared"]),
    "shared without memory": ({"gpu.shared": 1, "gpu-core": 50}, ["gpu.shared"]),
    "shared with both memories": ({"gpu.shared": 1, "gpu-memory": 1, "gpu-memory-ratio": 1}, ["gpu-memory"]),
    "core does not divide": ({"gpu.shared": 2, "gpu-core": 51, "gpu-memory": 1}, ["gpu-core"]),
    "ratio does not divide": ({"gpu.shared": 2, "gpu-memory-ratio": 51}, ["gpu-memory-ratio"]),
    "npu stops the checks": ({"gpu.shared": 1, "huawei.com/npu-core": 4}, []),
}


@pytest.mark.parametrize(("amounts", "refused"), DEVICES.values(), ids=DEVICES)
def test_gpu_requests(amounts: dict[str, int], refused: list[str]) -> None:
    requests = {name if "/" in name else f"koordinator.sh/{name}": str(n) for name, n in amounts.items()}
    messages = device_errors(pod(requests=requests))
    assert [text.split("]: ")[0] for text in messages] == [PATH + name for name in refused]
    assert all("Forbidden" in text for text in messages)


RULES = (
    '[{"name":"team","requiredLabels":["team","cost"],"namespaceWhitelist":["", "kube-system"]},'
    '{"name":"app","requiredLabels":["app"]}]'
)


def test_enhanced_rules() -> None:
    rules = enhanced.parse({"enable": " True ", "rules": RULES})
    assert enhanced.check(rules, {"team": "", "cost": "1", "app": ""}, "default") == []
    assert enhanced.check(rules, {"app": "a"}, "default") == [
        "metadata.labels: Required value: rule team requires the labels team, cost"
    ]
    assert enhanced.check(rules, {}, "kube-system") == [
        "metadata.labels: Required value: rule app requires the labels app"
    ]
    assert enhanced.check(rules, {"pod.koordinator.sh/skip-enhanced-validation": "true"}, "default") == []


@pytest.mark.parametrize("data", [None, {}, {"rules": RULES}, {"enable": "yes", "rules": RULES}, {"enable": "true"}])
def test_enhanced_rules_that_are_off(data: dict[str, str] | None) -> None:
    assert enhanced.check(enhanced.parse(data), {}, "default") == []


def test_malformed_rules_keep_the_last_valid_ones() -> None:
    config = enhanced.EnhancedConfig()
    assert config.update({"enable": "true", "rules": RULES}) is None
    good = config.rules
    assert "rules" in (config.update({"enable": "true", "rules": "["}) or "")
    assert config.rules is good
    assert config.update(None) is None
    assert not config.rules.enabled
    with pytest.raises(WireError, match="requiredLabels"):
        enhanced.parse({"enable": "true", "rules": '[{"requiredLabels": "team"}]'})
