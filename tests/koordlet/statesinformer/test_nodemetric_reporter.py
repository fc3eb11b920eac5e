"""When NodeMetric is written: rounds, early reports, and the gauges that mirror them."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.kube import KubeError, NotFound
from koordlet.metriccache import Batch, MetricCache
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.nodemetric.reporter import MAX_REPORT_AGE_S, NodeMetricReporter
from koordlet.statesinformer.nodemetric.status import ReportPolicy
from koordlet.statesinformer.pods.model import Workloads


class World:
    """A reporter whose API server, prediction and clock are told what to do."""

    def __init__(self, **how: Any) -> None:
        self.now = 1000.0
        self.cache, self.registries = MetricCache(), Registries()
        self.registries.node = "node"
        self.written: list[dict[str, Any]] = []
        self.answer: Exception | None = None
        self.foreseen = Forecast(Amount(1000, 1 << 30), Amount(2000, 2 << 30))
        self.states: Any = SimpleNamespace(
            node_name="node", policy=ReportPolicy(), workloads=Workloads(1, MappingProxyType({})),
            node_metric=SimpleNamespace(object=NodeMetric()),
        )  # fmt: skip
        client: Any = SimpleNamespace(patch=self._patch)
        self.reporter = NodeMetricReporter(
            client, self.states, self.cache, self.registries, clock=lambda: self.now, wall=lambda: 0.0,  # type: ignore[arg-type]
            forecast=lambda pods, cold_start: self.foreseen, **how,
        )  # fmt: skip

    async def _patch(self, kind: Any, name: str, *, body: dict[str, Any], subresource: str, field_manager: str) -> None:
        assert (kind, name, subresource, field_manager) == (NodeMetric, "node", "status", "koordlet")
        if self.answer is not None:
            raise self.answer
        self.written.append(body["status"])

    def gauges(self) -> dict[str, float]:
        text = b"".join(generate_latest(r) for r in (self.registries.internal, self.registries.external)).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("koordlet_node")]
        return {name: float(value) for name, _, value in lines}


async def test_a_round_writes_status_only_if_the_object_exists() -> None:
    world = World()
    await world.reporter.report()
    assert world.written[0]["prodPeakMetric"] == {
        "resource": {"resources": {"cpu": "2", "memory": "2Gi"}, "devices": None}
    }
    world.states.node_metric.object = None
    await world.reporter.report()
    assert len(world.written) == 1
    assert world.gauges()['koordlet_node_metric_reports_total{node="node",status="skipped"}'] == 1


EARLY = {
    "nothing moved": (0, Amount(1040, 1 << 30), None),
    "the prediction moved": (0, Amount(1060, 1 << 30), "prediction"),
    "the report is old": (MAX_REPORT_AGE_S, Amount(1000, 1 << 30), "age"),
}


@pytest.mark.parametrize(("later", "reclaimable", "reason"), EARLY.values(), ids=EARLY)
async def test_early_reports(later: float, reclaimable: Amount, reason: str | None) -> None:
    world = World()
    await world.reporter.check()
    assert not world.written, "the first report comes in its own time"
    await world.reporter.report()
    world.now += later
    world.foreseen = Forecast(reclaimable, world.foreseen.peak)
    await world.reporter.check()
    assert len(world.written) == (2 if reason else 1)
    counted = [name for name in world.gauges() if name.startswith("koordlet_node_metric_early_reports_total")]
    assert counted == ([f'koordlet_node_metric_early_reports_total{{node="node",reason="{reason}"}}'] if reason else [])
    await world.reporter.check()
    assert len(world.written) == (2 if reason else 1), "what was reported is what the next check compares with"


async def test_the_threshold_is_node_metrics() -> None:
    world = World()
    world.states.policy = ReportPolicy(diff_percent=50)
    await world.reporter.report()
    world.foreseen = Forecast(Amount(1400, 1 << 30), world.foreseen.peak)
    await world.reporter.check()
    assert len(world.written) == 1


async def test_checks_send_no_requests_while_the_server_is_unreachable() -> None:
    world = World()
    await world.reporter.report()
    world.answer = KubeError("away")
    with pytest.raises(KubeError):
        await world.reporter.report()
    world.foreseen = Forecast.none("something else")
    await world.reporter.check()
    assert world.gauges()['koordlet_node_metric_reports_total{node="node",status="failed"}'] == 1


async def test_a_deleted_object_is_not_a_failure() -> None:
    world = World()
    world.answer = NotFound(404)
    await world.reporter.report()
    assert world.gauges()['koordlet_node_metric_reports_total{node="node",status="skipped"}'] == 1


async def test_gauges_of_the_prediction() -> None:
    world = World()
    assert not world.gauges(), "nothing was predicted yet, which is no failure"
    await world.reporter.report()
    status = 'koordlet_node_resource_priority_reclaimable_status{node="node",priority="koord-prod"}'
    cpu = 'koordlet_node_priority_resource_reclaimable{node="node",priority="koord-prod",resource="cpu",unit="core"}'
    assert (world.gauges()[status], world.gauges()[cpu]) == (0, 1.0)
    world.foreseen = Forecast.none("no node")
    await world.reporter.report()
    assert (world.gauges()[status], world.gauges()[cpu]) == (1, 0.0)


@pytest.mark.parametrize("mirror", [False, True])
async def test_reported_usage_is_exported_only_with_its_gate(mirror: bool) -> None:
    world = World(mirror=mirror)
    batch = Batch(world.now)
    batch.add("node_cpu_usage", 1.5)
    batch.add("node_memory_usage", 1024)
    batch.add("node_numa_cpu_usage", 0.5, "0")
    batch.add("node_numa_memory_usage", 512, "0")
    world.cache.commit(batch)
    await world.reporter.report()
    gauges = {name: value for name, value in world.gauges().items() if "usage" in name}
    expected = {
        'koordlet_node_metric_node_usage{node="node",resource="cpu",unit="core"}': 1.5,
        'koordlet_node_metric_node_usage{node="node",resource="memory",unit="byte"}': 1024,
        'koordlet_node_metric_numa_node_usage{node="node",numa_node_id="0",resource="cpu",unit="core"}': 0.5,
        'koordlet_node_metric_numa_node_usage{node="node",numa_node_id="0",resource="memory",unit="byte"}': 512,
    }
    assert gauges == (expected if mirror else {})
