"""The whole manager with a real API server: reports become amounts on Nodes, which follow all changes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.device import Device, DeviceInfo, DeviceSpec
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology, ResourceInfo, Zone
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import OVERCOMMIT
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.kube import PatchKind
from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_XPU
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.facts.xpu import XpuCollector
from koordlet.prometheus import Registries
from koordlet.statesinformer.devices.reporter import DeviceReporter
from koordlet.statesinformer.devices.status import Inventory
from tests.control.manager.noderesource.world import make_metric, pod_metric
from tests.waiting import until

BATCH_CPU, BATCH_MEMORY = names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY
G = 10**9


class World:
    """A cluster with one node of 100 cores and 120 G, and its reports."""

    def __init__(self, cluster: Any, metrics: CollectorRegistry) -> None:
        self.cluster, self.until, self.admin, self.metrics = cluster, until, cluster.admin, metrics

    async def node(self, name: str = "n1", cpu: str = "100", memory: str = "120G", **meta: Any) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **meta}}
        amounts = {"cpu": cpu, "memory": memory, "pods": "200"}
        await self.admin.raw("POST", "/api/v1/nodes", body=node)
        body = {"status": {"allocatable": amounts, "capacity": amounts}}
        await self.admin.patch(Node, name, body=body, subresource="status")

    async def report(self, metric: NodeMetric) -> None:
        """As koordlet does; the manager makes the object."""
        name = metric.metadata.name
        await self.until(lambda: self.cluster.spec("nodemetrics", name))
        await self.admin.update_status(NodeMetric, name, status=metric.status)

    async def weighed(self, metric: NodeMetric) -> None:
        """NodeReport, and wait until the manager has looked at it."""
        before = self._looks()
        await self.report(metric)
        await self.until(lambda: self._looks() > before)

    def _looks(self) -> float:
        return self.metrics.get_sample_value("koord_manager_lending_nodes_worked_out_total") or 0.0

    async def pod(self, name: str, cpu: str, memory: str, **labels: str) -> None:
        requests = {"cpu": cpu, "memory": memory}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}],
            },
        }
        await self.admin.raw("POST", "/api/v1/namespaces/default/pods", body=pod)

    async def configure(self, **strategy: Any) -> None:
        both = {"enable": True, "cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65, **strategy}
        await self.cluster.config({"colocation-config": json.dumps(both)})

    async def get(self, name: str = "n1") -> Node:
        node: Node = await self.admin.get(Node, name)
        return node

    async def annotated(self, annotations: Mapping[str, str], labels: Mapping[str, str] = MappingProxyType({})) -> Node:
        """Wait until the node has these annotations and labels."""

        async def there() -> Node | None:
            meta = (node := await self.get()).metadata
            return (
                node
                if annotations.items() <= meta.annotations.items() and labels.items() <= meta.labels.items()
                else None
            )

        annotated_node: Node = await self.until(there)
        return annotated_node

    async def offers(self, resources: Mapping[str, Any], name: str = "n1") -> Node:
        """Wait until the node's allocatable and capacity hold these; None: not at all."""

        async def there() -> Node | None:
            node = await self.get(name)
            amounts = {resource: None if text is None else Quantity(str(text)) for resource, text in resources.items()}
            parts = (node.status.allocatable, node.status.capacity)
            return (
                node
                if all({resource: part.get(resource) for resource in amounts} == amounts for part in parts)
                else None
            )

        changed_node: Node = await self.until(there)
        return changed_node


@pytest.fixture
async def world(cluster: Any, manager: Any) -> World:
    running = await manager("--controllers=nodemetric,noderesource")
    world = World(cluster, running.manager.context.internal)
    await world.node()
    await world.configure()
    return world


def fresh(*pods: Any, ago: float = 0.0, **more: Any) -> NodeMetric:
    return make_metric(*pods, at=SYSTEM_CLOCK.now() - ago, **more)


async def test_a_report_becomes_capacity_with_an_explanation(world: World) -> None:
    await world.report(fresh(pod_metric("gone", "33", "33G"), reclaimable=("10", "15G")))
    overcommitted = {
        BATCH_CPU: 25000,
        BATCH_MEMORY: 33 * G,
        names.RESOURCE_MID_CPU: 10000,
        names.RESOURCE_MID_MEMORY: 15 * G,
    }
    node = await world.offers(overcommitted)
    assert node.status.allocatable["cpu"] == Quantity("100")  # nothing else was touched
    condition = node.status.condition(names.CONDITION_OVERCOMMIT)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "AsMeasured")
    assert (
        "batch-cpu 25000 (capacity 100000, kept free 35000, system 7000, prod and mid pods 33000)" in condition.message
    )
    lending = OVERCOMMIT.get(node.metadata.annotations)
    assert lending is not None
    cpu = lending.batch["cpu"]
    assert cpu.lent == cpu.capacity - cpu.margin - cpu.system - cpu.high == 25000
    origin = json.loads(node.metadata.annotations[names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE])
    assert origin == {"resources": {BATCH_CPU: "25k", BATCH_MEMORY: "33000000000"}}
    await world.annotated({names.ANNOTATION_CPU_NORMALIZATION_RATIO: "1.00"})


async def test_amounts_follow_load_pods_and_configuration(world: World) -> None:
    await world.report(fresh())
    await world.offers({BATCH_CPU: 58000})
    await world.report(fresh(system=("30", "12G")))
    await world.offers({BATCH_CPU: 35000})
    await world.pod("web", "10", "10G", **{names.LABEL_QOS_CLASS: "LS"})
    await world.offers({BATCH_CPU: 25000})
    await world.configure(cpuReclaimThresholdPercent=80)
    await world.offers({BATCH_CPU: 40000})
    await world.admin.raw("DELETE", "/api/v1/namespaces/default/pods/web", params={"gracePeriodSeconds": "0"})
    await world.offers({BATCH_CPU: 50000})
    await world.configure(enable=False)
    node = await world.offers({BATCH_CPU: None, BATCH_MEMORY: None, names.RESOURCE_MID_CPU: None})
    condition = node.status.condition(names.CONDITION_OVERCOMMIT)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "ColocationDisabled")


async def test_small_changes_are_not_written(world: World) -> None:
    await world.report(fresh(system=("15", "12G")))
    await world.offers({BATCH_CPU: 50000})
    await world.report(fresh(system=("10", "12G")))  # 55000 is not more than a tenth above
    await world.node("n2")
    await world.report(msgspec.structs.replace(fresh(system=("9", "12G")), metadata=ObjectMeta(name="n2")))
    await world.offers({BATCH_CPU: 56000}, "n2")
    await world.offers({BATCH_CPU: 50000})
    await world.report(fresh(system=("9", "12G")))
    await world.offers({BATCH_CPU: 56000})


@pytest.mark.parametrize(("ago", "reason"), [(1000.0, "NodeMetricStale"), (-1000.0, "NodeMetricStale")])
async def test_stale_and_future_reports_remove_batch_and_mid(world: World, ago: float, reason: str) -> None:
    await world.report(fresh())
    await world.offers({BATCH_CPU: 58000})
    await world.report(fresh(ago=ago))
    node = await world.offers({BATCH_CPU: None, BATCH_MEMORY: None})
    condition = node.status.condition(names.CONDITION_OVERCOMMIT)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", reason)


async def test_third_party_allocations_are_subtracted(world: World) -> None:
    held = {
        "allocations": [
            {"name": "yarn", "priority": "koord-batch", "resources": {BATCH_CPU: "8000", BATCH_MEMORY: "6G"}},
            {"name": "other", "priority": "koord-mid", "resources": {BATCH_CPU: "1"}},
        ]
    }
    body = {"metadata": {"annotations": {names.ANNOTATION_THIRD_PARTY_ALLOCATIONS: json.dumps(held)}}}
    await world.admin.patch(Node, "n1", body=body)
    await world.report(fresh())
    node = await world.offers({BATCH_CPU: 50000, BATCH_MEMORY: 60 * G})
    origin = json.loads(node.metadata.annotations[names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE])
    assert origin["resources"][BATCH_CPU] == "58k"


async def test_zones_normalization_and_devices(world: World) -> None:
    zone = [
        ResourceInfo(name=name, capacity=amount, allocatable=amount, available=amount)
        for name, amount in (("cpu", Quantity("50")), ("memory", Quantity("60G")), ("vendor.io/x", Quantity("1")))
    ]
    info = {"cpuModel": "Fast", "hyperThreadEnabled": True}
    topology = NodeResourceTopology(
        metadata=ObjectMeta(name="n1", annotations={names.ANNOTATION_CPU_BASIC_INFO: json.dumps(info)}),
        zones=[Zone(name=f"node-{numa}", type="Node", resources=zone) for numa in (0, 1)],
    )
    await world.admin.create(topology)
    gpus = [
        DeviceInfo(type="gpu", minor=minor, health=minor < 2, resources={names.RESOURCE_GPU_CORE: Quantity("100")})
        for minor in range(3)
    ]
    device = Device(
        metadata=ObjectMeta(name="n1", labels={names.LABEL_GPU_MODEL: "X1"}),
        spec=DeviceSpec(devices=[*gpus, DeviceInfo(type="rdma", minor=0, health=True)]),
    )
    await world.admin.create(device)
    ratios = {"enable": True, "ratioModel": {"Fast": {"hyperThreadEnabledRatio": 1.2}}}
    amplify = {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5, "memory": 2.5}}
    strategy = {"enable": True, "cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65}
    await world.cluster.config(
        {
            "colocation-config": json.dumps(strategy),
            "cpu-normalization-config": json.dumps(ratios),
            "resource-amplification-config": json.dumps(amplify),
        }
    )
    await world.report(fresh(pod_metric("gone", "33", "33G")))
    await world.offers({BATCH_CPU: 30000, names.RESOURCE_GPU: 200, names.RESOURCE_RDMA: 100})

    annotations = {
        names.ANNOTATION_CPU_NORMALIZATION_RATIO: "1.20",
        names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO: '{"cpu":1.80,"memory":2.50}',
    }
    await world.annotated(annotations, {names.LABEL_GPU_MODEL: "X1"})

    async def zoned(cpu: str, memory: str) -> list[str] | None:
        reported = await world.admin.get(NodeResourceTopology, "n1")
        amounts = {BATCH_CPU: Quantity(cpu), BATCH_MEMORY: Quantity(memory)}
        for numa_zone in reported.zones:
            have = {r.name: r for r in numa_zone.resources}
            if any(name not in have for name in amounts) or any(
                getattr(have[name], part) != amount
                for name, amount in amounts.items()
                for part in ("capacity", "allocatable", "available")
            ):
                return None
        return [resource.name for resource in reported.zones[0].resources]

    # (50 - 17.5 - 3.5 - 16.5) * 1.2 cores, 60 - 21 - 6 - 16.5 G
    listed = await world.until(lambda: zoned("15000", "16500M"))
    assert listed == ["cpu", BATCH_CPU, BATCH_MEMORY, "memory", "vendor.io/x"]
    await world.report(fresh(ago=1000.0))
    await world.until(lambda: zoned("0", "0"))
    await world.until(lambda: _stages(world.metrics) == ALL_STAGES)
    await world.offers({BATCH_CPU: None, names.RESOURCE_GPU: 200})
    await world.admin.delete(Device, "n1")
    await world.offers({names.RESOURCE_GPU: None, names.RESOURCE_GPU_CORE: None, names.RESOURCE_RDMA: None})


async def test_persistent_interference_reduces_overcommit_and_is_explained(world: World) -> None:
    how = {"persistSeconds": 60, "stepSeconds": 30, "stepPercent": 20, "floorPercent": 60, "recoverPercent": 40}
    await world.configure(extensions={"interference": how})
    brief = {"container": "c", "resource": "cpu", "cause": "neighbour", "state": "interfered", "confidence": 0.9}
    expected = {"interference": [{**brief, "culprit": "demo/burn/main"}]}

    def report(ago: float, interfered: bool) -> NodeMetric:
        victim = pod_metric("web", "1", "1G", extensions=expected if interfered else None)
        return fresh(victim, ago=ago, extensions={"interference": {"interfered": {"cpu": 2 if interfered else 0}}})

    await world.report(report(600, True))
    await world.offers({BATCH_CPU: 57000})
    await world.report(report(500, True))
    node = await world.offers({BATCH_CPU: 45600, BATCH_MEMORY: 65 * G})
    condition = node.status.condition(names.CONDITION_OVERCOMMIT)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "InterferencePersists")
    assert "80 % of cpu: 2 containers delayed by co-located pods, culprits: demo/burn" in condition.message
    await world.report(report(400, True))
    await world.offers({BATCH_CPU: 34200})
    await world.weighed(report(300, True))  # at the floor already
    for ago in (200, 130, 60, 0):
        await world.weighed(report(ago, False))
    node = await world.offers({BATCH_CPU: 57000})
    condition = node.status.condition(names.CONDITION_OVERCOMMIT)
    assert condition is not None
    assert condition.reason == "AsMeasured"


async def test_concurrent_foreign_writes_are_preserved(world: World) -> None:
    await world.report(fresh())
    await world.offers({BATCH_CPU: 58000})
    for turn in range(15):
        await world.admin.patch(Node, "n1", body={"metadata": {"annotations": {"demo/turn": str(turn)}}})
        await world.report(fresh(system=(str(10 + 3 * turn), "12G")))
        body = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": f"turn{turn}"}]}}
        await world.admin.patch(Node, "n1", body=body, kind=PatchKind.STRATEGIC, subresource="status")
    node = await world.offers({BATCH_CPU: 13000})
    assert node.metadata.annotations["demo/turn"] == "14"
    ready = node.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "turn14"


async def test_an_accelerator_that_a_file_describes_becomes_capacity(world: World, tmp_path: Path) -> None:
    """File -> koordlet's collector -> Device -> Node; a chip that breaks, and a file that goes, take it away again."""
    await world.report(fresh())
    cache, registries = MetricCache(), Registries()
    collector = XpuCollector(tmp_path, cache, registries, CollectorConditions(registries), wall_ns=time.time_ns)
    node = await world.get()
    reporter = DeviceReporter(
        world.admin, "n1", node=lambda: node, registries=registries, wall=SYSTEM_CLOCK.now,
        inventory=lambda: Inventory(xpus=cache.facts.get(FACT_XPU)),
    )  # fmt: skip
    await reporter.stored.start()
    await reporter.stored.synced.wait()
    resources = {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20"}
    card = {"vendor": "huawei", "model": "Ascend-910B3", "resources": resources}

    async def describe(*healthy: bool) -> None:
        cards = [
            card | {"uuid": f"npu-{n}", "minor": str(n), "status": {"healthy": healthy_now, "errCode": "chip error"}}
            for n, healthy_now in enumerate(healthy)
        ]
        (tmp_path / "ic-device").write_text(json.dumps(cards))
        collector.read()
        await reporter.report()

    both = {"koordinator.sh/gpu-memory": "128Gi", "huawei.com/npu-core": 40, "koordinator.sh/gpu-memory-ratio": 200}
    none: dict[str, Any] = dict.fromkeys(both)
    try:
        await describe(True, True)
        labels = {names.LABEL_GPU_VENDOR: "huawei", names.LABEL_GPU_MODEL: "Ascend-910B3"}
        await world.offers(both)
        await world.annotated({}, labels)
        await describe(True, False)
        await world.offers({"koordinator.sh/gpu-memory": "64Gi", "huawei.com/npu-core": 20})
        (tmp_path / "ic-device").unlink()
        collector.read()
        await reporter.report()
        await world.offers(none)
    finally:
        await reporter.stored.stop()


ALL_STAGES = {
    "MidResource": {"Setup", "NodePrepare", "NodeStatusCheck", "ResourceCalculate"},
    "BatchResource": {"Setup", "NodePreUpdate", "NodePrepare", "NodeStatusCheck", "ResourceCalculate"},
    "CPUNormalization": {"Setup", "NodePrepare", "NodeStatusCheckMeta", "ResourceCalculate"},
    "ResourceAmplification": {"Setup", "NodePrepare", "NodeStatusCheckMeta", "ResourceCalculate"},
    "GPUDeviceResource": {"Setup", "NodePrepare", "NodeStatusCheck", "NodeStatusCheckMeta", "ResourceCalculate"},
    "RDMADeviceResource": {"Setup", "NodePrepare", "NodeStatusCheck", "ResourceCalculate"},
}
"""Plug-in -> stages that have succeeded (spec 04 §19), after a node with zones and devices that is not switched off."""


def _stages(registry: CollectorRegistry) -> dict[str, set[str]]:
    succeeded: dict[str, set[str]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == "slo_controller_node_resource_run_plugin_status" and sample.value:
                labels = sample.labels
                assert labels["status"] == "succeeded" or labels["reason"] != "NodePrepare", labels
                if labels["status"] == "succeeded" and labels["reason"] != "ResourceReset":
                    succeeded.setdefault(labels["plugin"], set()).add(labels["reason"])
    return succeeded
