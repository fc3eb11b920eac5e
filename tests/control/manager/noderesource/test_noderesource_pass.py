"""A calculation pass: which nodes overcommit, NUMA zones by the examples of spec 04 §6.4, plug-ins, plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from control.manager.noderesource.calculate import (
    BATCH_RESOURCE,
    GPU,
    MID_RESOURCE,
    Calculator,
    EnabledPlugins,
    NodeResult,
)
from control.manager.noderesource.decide import Synced, decide
from control.manager.noderesource.table import OvercommitTable
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device, DeviceInfo, DeviceSpec
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import AS_MEASURED, DISABLED, MISSING, STALE
from koordlet.api.sloconfig import colocation, configmap
from koordlet.api.sloconfig.configmap import SLOConfig
from tests.control.manager.noderesource.world import NOW, make_metric, make_node, make_pod, pod_metric

G = 10**9
CPU, MEMORY = names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY
ENABLED = '{"enable":true,"cpuReclaimThresholdPercent":65,"memoryReclaimThresholdPercent":65%s}'


def config(text: str = ENABLED % "", **keys: str) -> SLOConfig:
    loaded, problems = configmap.load(configmap.UNREAD, {"colocation-config": text, **keys})
    assert not problems
    return loaded


def zone(name: str, cpu: str, memory: str) -> Zone:
    amounts = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return Zone(
        name=name,
        type="Node",
        resources=[
            ResourceInfo(name=resource, capacity=amount, allocatable=amount, available=amount)
            for resource, amount in amounts.items()
        ],
    )


def two_zones() -> NodeResourceTopology:
    zones = [zone("node-0", "50", "62G"), zone("node-1", "50", "58G")]
    return NodeResourceTopology(metadata=ObjectMeta(name="n1"), zones=zones)


def run(
    node: Node,
    metric: NodeMetric | None = None,
    pods: Sequence[Pod] = (),
    *,
    slo_config: SLOConfig | None = None,
    topology: NodeResourceTopology | None = None,
    device: Device | None = None,
    plugins: EnabledPlugins = EnabledPlugins(),
    now: float = NOW,
    failed: list[tuple[str, str]] | None = None,
) -> NodeResult:
    table, slo_config = OvercommitTable(), slo_config or config()
    table.put_node(node)
    for pod in pods:
        table.put_pod(pod)
    if metric is not None:
        table.put_metric(metric)
    if topology is not None:
        table.put_topology(topology)
    if device is not None:
        table.put_device(device)

    def strategy(row_node: Node) -> Any:
        assert slo_config.colocation is not None
        return colocation.for_node(slo_config.colocation, row_node.metadata.labels, row_node.metadata.annotations)

    def note(plugin: str, name: str, error: Exception) -> None:
        assert failed is not None, error
        failed.append((plugin, str(error)))

    calculator = Calculator(plugins, note)
    results = calculator.run(table, slo_config, strategy, [node.metadata.name, "unknown"], now)
    calculator.zone_values(table, results)
    assert len(results) == 1
    return results[0]


# --- zones


def test_zones_first_example() -> None:
    pods = [
        make_pod("prod", ("5", "5G"), numa=[0]),
        make_pod("prod1", ("6", "6G")),
        make_pod("mid", ("22", "22G"), priority="mid"),
    ]
    used = [pod_metric(name, cpu, f"{cpu}G") for name, cpu in (("prod", "5"), ("prod1", "6"), ("mid", "22"))]
    result = run(make_node(), make_metric(*used), pods, topology=two_zones())
    assert result.zones == [
        {CPU: Quantity("10000"), MEMORY: Quantity("15300M")},
        {CPU: Quantity("15000"), MEMORY: Quantity("17700M")},
    ]


def test_zones_second_example() -> None:
    pods = [
        make_pod("lse", ("10", "10G"), qos="LSE", numa=[0]),
        make_pod("prod1", ("6", "10G")),  # its request is not in the text, and follows from 60 G in all
        make_pod("mid", ("20", "40G"), priority="mid"),
        make_pod("done", ("2", "4G"), phase="Succeeded"),
    ]
    used = [pod_metric("prod1", "6", "6G"), pod_metric("mid", "22", "22G"), pod_metric("done", "2", "4G")]
    slo_config = config(ENABLED % ',"memoryCalculatePolicy":"request"')
    result = run(make_node(), make_metric(*used), pods, topology=two_zones(), slo_config=slo_config)
    assert (result.plan.overcommit[CPU], result.plan.overcommit[MEMORY]) == (Quantity("18000"), Quantity("18G"))
    assert result.zones == [
        {CPU: Quantity("4000"), MEMORY: Quantity("5300M")},
        {CPU: Quantity("14000"), MEMORY: Quantity("12700M")},
    ]


@pytest.mark.parametrize(
    ("numa", "cpu"),
    [((0,), (0, 12)), ((1,), (12, 0)), ((0, 1), (6, 6)), ((7,), (6, 6)), ((0, 7), (0, 12)), ((), (6, 6))],
    ids=str,
)
def test_bound_pods_are_subtracted_from_their_zones(numa: tuple[int, ...], cpu: tuple[int, int]) -> None:
    metric = make_metric(pod_metric("p", "12", "1G"), system=("0", "0"))
    result = run(make_node(), metric, [make_pod("p", ("12", "1G"), numa=numa)], topology=two_zones())
    assert result.zones is not None
    assert [zone[CPU] for zone in result.zones] == [Quantity.of(32500 - 12000 + 1000 * part) for part in cpu]


def test_a_third_of_a_core_is_rounded_up_in_each_zone() -> None:
    zones = [zone(f"node-{numa}", "10", "10G") for numa in range(3)]
    topology = NodeResourceTopology(metadata=ObjectMeta(name="n1"), zones=zones)
    result = run(make_node(), make_metric(system=("1", "1")), topology=topology)
    assert result.zones is not None
    assert [zone_result[CPU] for zone_result in result.zones] == [Quantity.of(6500 - 334)] * 3
    assert [zone_result[MEMORY] for zone_result in result.zones] == [Quantity("6499999999666m")] * 3


def test_zones_without_cpu_and_memory_are_not_changed() -> None:
    zones = [Zone(name="node-0", type="Node")]
    assert (
        run(
            make_node(), make_metric(), topology=NodeResourceTopology(metadata=ObjectMeta(name="n1"), zones=zones)
        ).zones
        is None
    )


# --- which nodes overcommit


@pytest.mark.parametrize(
    ("text", "annotation", "metric", "age", "reason"),
    [
        (ENABLED % "", None, True, 0, AS_MEASURED),
        (ENABLED % "", None, True, 900, AS_MEASURED),
        (ENABLED % "", None, True, 901, STALE),
        (ENABLED % "", None, True, -901, STALE),
        (ENABLED % ',"degradeTimeMinutes":1', None, True, 61, STALE),
        (ENABLED % "", None, False, 0, MISSING),
        ("{}", None, True, 0, DISABLED),
        ("{}", '{"enable":true}', True, 0, DISABLED),
        (ENABLED % "", '{"enable":false}', True, 0, DISABLED),
        (ENABLED % "", '{"enable":', True, 0, AS_MEASURED),
        (ENABLED % ',"nodeConfigs":[{"nodeSelector":{},"enable":false}]', None, True, 0, DISABLED),
    ],
    ids=[
        "fresh",
        "on-the-edge",
        "stale",
        "future",
        "own-age",
        "missing",
        "off",
        "off-for-all",
        "off-here",
        "broken-annotation",
        "off-by-group",
    ],
)
def test_which_nodes_overcommit(text: str, annotation: str | None, metric: bool, age: int, reason: str) -> None:
    annotations = {names.ANNOTATION_COLOCATION_STRATEGY: annotation} if annotation else {}
    node = make_node(annotations=annotations, extended={CPU: "1", MEMORY: "1"})
    result = run(node, make_metric() if metric else None, slo_config=config(text), now=NOW + age, topology=two_zones())
    assert result.reason == reason
    assert result.overcommits is (reason == AS_MEASURED)
    if not result.overcommits:
        assert set(result.plan.overcommit.values()) == {None}
        assert result.zones == [{CPU: Quantity("0"), MEMORY: Quantity("0")}] * 2


def test_nothing_is_calculated_without_a_valid_configuration() -> None:
    table = OvercommitTable()
    table.put_node(make_node())
    assert Calculator(EnabledPlugins()).run(table, configmap.UNREAD, lambda _: None, ["n1"], NOW) == []


def test_a_node_without_batch_is_not_changed_while_colocation_is_off() -> None:
    result = run(make_node(), make_metric(), slo_config=config("{}"))
    assert not decide(result, None, Synced(), now=0.0, wall=NOW)


def test_a_node_without_capacity_is_not_changed() -> None:
    node = make_node()
    node.status.allocatable = {}
    assert not decide(run(node, make_metric()), None, Synced(), now=0.0, wall=NOW)


def test_disabling_removes_batch_and_mid_and_amplification() -> None:
    amplified = {names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO: '{"cpu":1.50}'}
    node = make_node(extended={CPU: "5", names.RESOURCE_GPU: "100"}, annotations=amplified)
    decision = decide(run(node, make_metric(), slo_config=config("{}")), None, Synced(), now=0.0, wall=NOW)
    assert decision.status["status"]["allocatable"] == {CPU: None}
    assert decision.meta["metadata"]["annotations"] == {names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO: None}


# --- plug-ins


@pytest.mark.parametrize(
    ("enabled", "written"),
    [
        ({BATCH_RESOURCE}, {CPU, MEMORY}),
        ({MID_RESOURCE}, {names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY}),
        ({GPU}, set()),
    ],
    ids=str,
)
def test_only_selected_plugins_write(enabled: set[str], written: set[str]) -> None:
    plugins = EnabledPlugins(frozenset(enabled))
    device = Device(
        metadata=ObjectMeta(name="n1"),
        spec=DeviceSpec(
            devices=[DeviceInfo(type="gpu", health=True, resources={names.RESOURCE_GPU_CORE: Quantity("100")})]
        ),
    )
    for metric in (make_metric(), None):
        result = run(make_node(), metric, plugins=plugins, device=device, topology=two_zones())
        assert set(result.plan.overcommit) == written
        assert (result.zones is not None) is (BATCH_RESOURCE in enabled)
        assert result.plan.annotations == {}
        gpu = {names.RESOURCE_GPU: Quantity("100"), names.RESOURCE_GPU_CORE: Quantity("100")}
        assert result.plan.devices == (gpu if GPU in enabled else {})


def test_a_failing_plugin_keeps_its_annotation_and_the_others_continue() -> None:
    failed: list[tuple[str, str]] = []
    keys = {
        "cpu-normalization-config": '{"enable":true}',
        "resource-amplification-config": '{"enable":true,"resourceAmplificationRatio":{"memory":0.5}}',
    }
    old = {
        names.ANNOTATION_CPU_NORMALIZATION_RATIO: "1.30",
        names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO: '{"cpu":1.30}',
    }
    result = run(make_node(annotations=old), make_metric(), slo_config=config(**keys), failed=failed)
    assert [plugin for plugin, _ in failed] == ["CPUNormalization", "ResourceAmplification"]
    assert result.plan.annotations == {}
    assert result.plan.overcommit[CPU] == Quantity("58000")


def test_an_invalid_interference_extension_is_reported_and_the_default_is_used() -> None:
    failed: list[tuple[str, str]] = []
    slo_config = config(ENABLED % ',"extensions":{"interference":{"stepPercent":0}}')
    result = run(make_node(), make_metric(), slo_config=slo_config, failed=failed)
    assert result.reason == AS_MEASURED
    assert failed == [("BatchResource", "extensions.interference.stepPercent: 0 is less than 1")]


# --- the table


def test_moved_terminated_and_deleted_pods_are_removed() -> None:
    table = OvercommitTable()
    table.put_node(make_node())
    table.put_metric(make_metric())
    pod = make_pod("a", ("10", "1G"))
    rows = []
    events: tuple[Callable[[], object], ...] = (
        lambda: table.put_pod(pod),
        lambda: table.put_pod(make_pod("a", ("10", "1G"), phase="Succeeded"), pod),
        lambda: table.put_pod(pod),
        lambda: table.put_pod(make_pod("a", ("10", "1G"), node="n2"), pod),
        lambda: table.put_pod(pod),
        lambda: table.drop_pod(pod),
        lambda: table.drop_pod(pod),
    )
    for event in events:
        event()
        rows.append(table.row("n1").high_request[0] // G)
    assert rows == [10, 0, 10, 0, 10, 0, 0]


def test_a_node_is_dirty_only_after_relevant_changes() -> None:
    table = OvercommitTable()
    table.put_node(make_node())
    table.put_pod(make_pod("a", ("1", "1G")))
    table.dirty.clear()
    table.put_pod(make_pod("a", ("1", "1G")))  # a heartbeat
    table.put_pod(make_pod("waits", ("1", "1G"), node=""))
    assert table.dirty == set()
    table.put_pod(make_pod("a", ("2", "1G")))
    assert table.dirty == {"n1"}
