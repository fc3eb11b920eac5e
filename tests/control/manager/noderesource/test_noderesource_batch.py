"""Spec 04 §6.3: worked examples, the pod table, and invalid input."""

from __future__ import annotations

from typing import Any

import pytest

from control.manager.noderesource.pods import pod_facts
from control.manager.noderesource.report import read_report
from control.manager.noderesource.reserved import node_facts
from control.manager.noderesource.units import LIMIT, ZERO
from koordlet.api import names
from koordlet.api.crs.nodemetric import NodeMetric, NodeMetricStatus
from koordlet.api.encoding.wire import Time
from tests.control.manager.noderesource.world import (
    NOW,
    batch_of,
    host_app,
    make_metric,
    make_node,
    make_pod,
    pod_metric,
    strategy,
)

G = 10**9
PODS = [
    make_pod("a", ("20", "20G")),
    make_pod("b", ("10", "10G"), priority="batch", qos="BE"),
    make_pod("c", ("10", "20G"), ("10", "20G")),
    make_pod("d", ("10", "10G"), phase="Succeeded"),
]
USED = (
    pod_metric("a", "11", "11G"),
    pod_metric("b", "10", "10G", "koord-batch"),
    pod_metric("c", "22", "22G"),
)


def percents(cpu: int, memory: int, **more: Any) -> dict[str, Any]:
    return {"cpu_reclaim_threshold_percent": cpu, "memory_reclaim_threshold_percent": memory, **more}


def reservation(text: str) -> dict[str, str]:
    return {names.ANNOTATION_NODE_RESERVATION: text}


RESERVED = reservation('{"resources":{"cpu":"10","memory":"20G"}}')
LISTED = reservation('{"resources":{"cpu":"3","memory":"20G"},"reservedCPUs":"0-9"}')
LITTLE = reservation('{"resources":{"cpu":"2","memory":"5G"}}')
FIVE = reservation('{"resources":{"memory":"5G"}}')
REQUEST = {"memory_calculate_policy": "request"}
MAXIMUM = {"cpu_calculate_policy": "maxUsageRequest"}


@pytest.mark.parametrize(
    ("node", "how", "metric", "expected"),
    [
        pytest.param({}, percents(65, 65), {}, [25000, 33 * G], id="usage"),
        pytest.param({"annotations": RESERVED}, percents(65, 65), {}, [22000, 25 * G], id="annotation-reserves"),
        pytest.param({"annotations": LISTED}, percents(65, 65), {}, [22000, 25 * G], id="listed-cpus"),
        pytest.param(
            {"allocatable": ("90", "100G"), "annotations": LITTLE}, percents(65, 65), {}, [22000, 25 * G], id="kubelet"
        ),
        pytest.param({}, percents(70, 80, **REQUEST), {}, [30000, 36 * G], id="memory-request"),
        pytest.param({"annotations": FIVE}, percents(70, 80, **REQUEST), {}, [30000, 31 * G], id="request-reserved"),
        pytest.param({}, percents(70, 80, **REQUEST, **MAXIMUM), {}, [21000, 36 * G], id="cpu-maximum"),
        pytest.param({}, percents(150, 120, **REQUEST, **MAXIMUM), {}, [101000, 84 * G], id="over-100"),
        pytest.param(
            {},
            percents(150, 120, **REQUEST, **MAXIMUM, batch_cpu_threshold_percent=100),
            {},
            [100000, 84 * G],
            id="batch-limit",
        ),
        pytest.param(
            {}, percents(150, 120, memory_calculate_policy="maxUsageRequest"), {}, [110000, 72 * G], id="memory-maximum"
        ),
        pytest.param(
            {},
            percents(65, 65),
            {"system": ("4", "6G"), "host_apps": [host_app("3", "6G", "koord-prod")]},
            [25000, 33 * G],
            id="host-app-prod",
        ),
        pytest.param(
            {},
            percents(65, 65),
            {"system": ("4", "6G"), "host_apps": [host_app("3", "6G", "koord-mid")]},
            [25000, 33 * G],
            id="host-app-mid",
        ),
        pytest.param(
            {},
            percents(65, 65),
            {"system": ("4", "6G"), "host_apps": [host_app("3", "6G", "koord-batch")]},
            [28000, 39 * G],
            id="host-app-batch",
        ),
        pytest.param({}, percents(65, 65, cpu_calculate_policy="surprise"), {}, [25000, 33 * G], id="unknown-policy"),
        pytest.param({}, percents(65, 65, cpu_calculate_policy="request"), {}, [25000, 33 * G], id="cpu-request"),
        pytest.param({}, percents(0, 0), {}, [0, 0], id="never-negative"),
    ],
)
def test_worked_examples(
    node: dict[str, Any], how: dict[str, Any], metric: dict[str, Any], expected: list[int]
) -> None:
    assert batch_of(make_node(**node), PODS, make_metric(*USED, **metric), strategy(**how)) == expected


def test_pods_with_exclusive_cpus_count_with_their_request() -> None:
    pods = [
        make_pod("e", ("10", "10G"), qos="LSE"),
        make_pod("p", ("6", "6G")),
        make_pod("m", ("22", "22G"), priority="mid"),
    ]
    metric = make_metric(pod_metric("e", "5", "5G"), pod_metric("p", "6", "6G"), pod_metric("m", "22", "22G"))
    assert batch_of(make_node(), pods, metric, strategy(**percents(65, 65))) == [20000, 33 * G]


@pytest.mark.parametrize(
    ("metric_priority", "expected"),
    [("koord-prod", 58000 - 4000), ("", 58000 - 4000), ("koord-batch", 58000), ("koord-free", 58000)],
)
def test_usage_without_a_pod_counts_unless_it_is_batch(metric_priority: str, expected: int) -> None:
    metric = make_metric(pod_metric("gone", "4", "1G", metric_priority))
    finished = [make_pod("gone", ("1", "1G"), phase="Failed")]
    assert batch_of(make_node(), finished, metric, strategy(**percents(65, 65)))[0] == expected


@pytest.mark.parametrize(("strict", "expected"), [(False, 58000 - 20000), (True, 58000)])
def test_a_pod_not_measured_yet_counts_with_its_request(strict: bool, expected: int) -> None:
    how = strategy(**percents(65, 65, **MAXIMUM))
    assert batch_of(make_node(), [make_pod("a", ("20", "1G"))], make_metric(), how, strict=strict)[0] == expected


@pytest.mark.parametrize(("priority", "qos"), [("none", None), ("prod", "LSR"), ("mid", "LS"), ("none", "LS")])
def test_high_priority_classes_are_subtracted(priority: str, qos: str | None) -> None:
    # Without label and without a request of its own a pod is best effort; this one has a request.
    pods = [make_pod("x", ("10", "1G"), priority=priority, qos=qos)]
    assert batch_of(make_node(), pods, make_metric(), strategy(**percents(65, 65)))[0] == 48000


@pytest.mark.parametrize(("priority", "qos"), [("batch", "BE"), ("free", "BE"), ("none", "BE")])
def test_batch_classes_are_not_subtracted(priority: str, qos: str) -> None:
    pods = [make_pod("x", ("10", "1G"), priority=priority, qos=qos)]
    assert batch_of(make_node(), pods, make_metric(), strategy(**percents(65, 65)))[0] == 58000


def test_parts_of_a_milli_core_round_up_at_the_end_only() -> None:
    metric = make_metric(pod_metric("gone", "1000000001n", "1G"), system=("500000n", "1G"))
    # 65 cores less 1.000000001 and 0.0005 are 63.999499999, that is 63999.499999 milli-cores.
    assert batch_of(make_node(), [], metric, strategy(**percents(65, 65)))[0] == 64000


@pytest.mark.parametrize(("cpu", "percent", "margin"), [("100m", 71, 29), ("1", 99, 10), ("3", 57, 1290)])
def test_the_margin_is_truncated_as_binary_double(cpu: str, percent: int, margin: int) -> None:
    whole = int(float(cpu.removesuffix("m")) * (1 if cpu.endswith("m") else 1000))
    expected = int(whole * ((100 - percent) / 100))
    assert abs(expected - margin) <= 1
    batch = batch_of(make_node(cpu=cpu), [], make_metric(system=("0", "0")), strategy(**percents(percent, 65)))[0]
    assert batch == whole - expected


def test_amplified_allocatable_does_not_hide_the_kubelet_reservation() -> None:
    raw = {names.ANNOTATION_RAW_ALLOCATABLE: '{"cpu":"90","memory":"100G"}'}
    own = node_facts(make_node(allocatable=("180", "200G"), annotations=raw))
    assert own.kubelet == (10 * G, 20 * G * 1000)
    assert node_facts(make_node(allocatable=("180", "200G"))).kubelet == ZERO


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"resources":{"cpu":"many"}}', '{"reservedCPUs":"0-"}', '{"reservedCPUs":"9-0"}']
)
def test_a_malformed_reservation_counts_as_missing(text: str) -> None:
    assert node_facts(make_node(annotations=reservation(text))).annotation == ZERO


def test_huge_amounts_are_clamped() -> None:
    node = make_node(cpu="1E", memory="1E")
    assert node_facts(node).capacity == (LIMIT, LIMIT)
    assert min(batch_of(node, [make_pod("a", ("1E", "1E"))] * 3, make_metric(), strategy(**percents(10**9, 65)))) >= 0


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param(None, id="absent"),
        pytest.param(NodeMetric(), id="never reported"),
        pytest.param(make_metric(at=None), id="without a time"),
        pytest.param(NodeMetric(status=NodeMetricStatus(update_time=Time.from_unix(NOW))), id="without the node"),
    ],
)
def test_unusable_reports(metric: NodeMetric | None) -> None:
    assert read_report(metric) is None


def test_a_malformed_resource_status_means_not_bound() -> None:
    bound = pod_facts(make_pod("a", ("1", "1G"), numa=[1, 0, 1]))
    assert bound is not None
    assert bound.numa == (0, 1)
    broken = make_pod("b", ("1", "1G"))
    broken.metadata.annotations[names.ANNOTATION_RESOURCE_STATUS] = "{"
    facts = pod_facts(broken)
    assert facts is not None
    assert facts.numa == ()


def test_pods_that_use_no_resources_of_a_node() -> None:
    assert pod_facts(make_pod("a", node="")) is None
    assert pod_facts(make_pod("a", phase="Failed")) is None
    assert pod_facts(make_pod("a", phase="")) is None
