"""The controller with refusals, conflicts and deleted Nodes: attempts, back-off, no duplicate writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.context import ManagerContext
from control.manager.noderesource import controller as module
from control.manager.noderesource.controller import NodeResourceController
from control.manager.options import ManagerOptions
from koordlet.api import gates as api_gates
from koordlet.api import names
from koordlet.api.core import ConfigMap, Node, NodeCondition
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import convert
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import OVERCOMMIT
from koordlet.api.sloconfig import configmap
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.kube import (
    Client,
    ClientConfig,
    Conflict,
    ConnectionFailed,
    EventRecorder,
    KubeError,
    NotFound,
    PatchKind,
    TooManyRequests,
)
from tests.control.manager.noderesource.world import make_metric, make_node

CONFIG = {"colocation-config": '{"enable":true,"cpuReclaimThresholdPercent":65,"memoryReclaimThresholdPercent":65}'}


class Server(Client):
    """An API server with one Node that applies our patches; `answers` are raised first, None lets one through."""

    def __init__(self, node: Node, registry: CollectorRegistry) -> None:
        super().__init__(ClientConfig(server="http://127.0.0.1:1"), registry=registry)
        self.node = node
        self.answers: list[Exception | None] = []
        self.patches: list[dict[str, Any]] = []
        self.gets = 0

    async def get(self, type: Any, name: str, *_: Any, **__: Any) -> Any:
        self.gets += 1
        return self.node

    async def patch(self, type: Any, name: str, *_: Any, body: Any, kind: Any = PatchKind.MERGE, **__: Any) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        meta, status = self.node.metadata, self.node.status
        if body["metadata"]["resourceVersion"] != meta.resource_version:
            raise Conflict(409, "Conflict", "the object has been modified")
        self.patches.append(body)
        parts = {part: dict(getattr(status, part)) for part in ("capacity", "allocatable")}
        for part, have in parts.items():
            for resource, text in body.get("status", {}).get(part, {}).items():
                if text is None:
                    have.pop(resource, None)
                else:
                    have[resource] = Quantity(text)
        conditions = body.get("status", {}).get("conditions")
        new_status = msgspec.structs.replace(status, **parts)
        if conditions:
            new_status = msgspec.structs.replace(new_status, conditions=convert(conditions, list[NodeCondition]))
        annotations = {**meta.annotations, **body["metadata"].get("annotations", {})}
        version = str(int(meta.resource_version or "0") + 1)
        self.node = msgspec.structs.replace(
            self.node,
            metadata=msgspec.structs.replace(meta, annotations=annotations, resource_version=version),
            status=new_status,
        )
        return self.node


class Bench:
    """A controller that knows one node with a report, in front of such a server."""

    def __init__(self) -> None:
        framework, internal = CollectorRegistry(), CollectorRegistry()
        node = make_node()
        self.server = Server(
            msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resource_version="7")),
            framework,
        )
        events = EventRecorder(self.server, "test")
        config = ConfigCache(self.server, events, namespace="n", name="c", registry=internal)
        config._current, problems = configmap.load(configmap.UNREAD, CONFIG)
        assert not problems
        self.context = ManagerContext(
            read(ManagerOptions, []), FeatureGates(api_gates.MANAGER), self.server, Caches(self.server), config, events,
            framework, internal, CollectorRegistry(),
        )  # fmt: skip
        self.controller = NodeResourceController(self.context)
        self.tell(self.server.node)
        self.tell(self.report())

    def report(self, system: str = "7", **more: Any) -> NodeMetric:
        return make_metric(system=(system, "12G"), at=SYSTEM_CLOCK.now(), **more)

    def tell(self, obj: Any) -> None:
        self.context.caches.informer(type(obj))._take(obj)

    def counted(self, status: str, reason: str) -> float:
        labels = {"status": status, "reason": reason}
        return self.context.internal.get_sample_value("slo_controller_node_resource_reconcile_count", labels) or 0.0

    @property
    def batch_cpu(self) -> Quantity | None:
        return self.server.node.status.allocatable.get(names.RESOURCE_BATCH_CPU)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))
    return Bench()


def conflict() -> Conflict:
    return Conflict(409, "Conflict", "the object has been modified")


def busy() -> TooManyRequests:
    return TooManyRequests(429, "TooManyRequests", "later")


@pytest.mark.parametrize("answers", [[], [conflict()], [conflict(), busy(), conflict()]], ids=["at once", "1", "3"])
async def test_after_a_conflict_amounts_are_recalculated(bench: Bench, answers: list[Exception]) -> None:
    bench.server.answers = [*answers]
    await bench.controller.reconcile("n1")
    assert bench.batch_cpu == Quantity.of(58000)
    assert bench.server.gets == len(answers)
    assert bench.counted("succeeded", "updateNodeStatus") == 1
    assert bench.counted("failed", "updateNodeStatus") == len(answers)


async def test_a_stale_cache_is_read_again_and_foreign_changes_count(bench: Bench) -> None:
    """A client reserves CPUs while the cached Node is outdated: the write is based on the new Node."""
    meta = bench.server.node.metadata
    reserved = {names.ANNOTATION_NODE_RESERVATION: '{"resources":{"cpu":"20"}}'}
    bench.server.node = msgspec.structs.replace(
        bench.server.node, metadata=msgspec.structs.replace(meta, annotations=reserved, resource_version="9")
    )
    await bench.controller.reconcile("n1")
    assert bench.batch_cpu == Quantity.of(45000)
    assert bench.server.node.metadata.annotations[names.ANNOTATION_NODE_RESERVATION]


@pytest.mark.parametrize(
    ("answers", "raised"),
    [([conflict()] * 4, Conflict), ([busy()] * 4, TooManyRequests), ([ConnectionFailed("away")], ConnectionFailed)],
    ids=["conflicts", "busy", "away"],
)
async def test_persistent_conflicts_are_left_to_the_queue(
    bench: Bench, answers: list[Exception], raised: type[KubeError]
) -> None:
    bench.server.answers = [*answers]
    with pytest.raises(raised):
        await bench.controller.reconcile("n1")
    assert bench.batch_cpu is None
    await bench.controller.reconcile("n1")
    assert bench.batch_cpu == Quantity.of(58000)


async def test_a_deleted_node_is_not_an_error(bench: Bench) -> None:
    bench.server.answers = [NotFound(404, "NotFound", "gone")]
    await bench.controller.reconcile("n1")
    assert bench.counted("failed", "updateNodeNotFound") == 1
    bench.controller._node_gone(bench.server.node)
    await bench.controller.reconcile("n1")
    assert bench.server.patches == []


async def test_after_a_write_nothing_is_written_again(bench: Bench) -> None:
    await bench.controller.reconcile("n1")
    written = len(bench.server.patches)
    assert written == 2  # status, and the ratio annotation
    bench.controller.sweep(["n1"])
    await bench.controller.reconcile("n1")
    assert len(bench.server.patches) == written
    assert len(bench.controller.queue) == 0


async def test_a_new_leader_does_not_rewrite_current_values(bench: Bench) -> None:
    await bench.controller.reconcile("n1")
    written = len(bench.server.patches)
    successor = NodeResourceController(replace(bench.context, internal=CollectorRegistry()))
    for obj in (bench.server.node, bench.report()):
        bench.context.caches.informer(type(obj))._take(obj)
    successor.table.put_node(bench.server.node)
    successor.sweep(["n1"])
    assert len(successor.queue) == 0
    await successor.reconcile("n1")
    assert len(bench.server.patches) == written


async def test_small_changes_wait_for_the_time_threshold(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.controller.reconcile("n1")
    bench.tell(bench.server.node)
    nearly = bench.report(system="9")  # 56000 after 58000
    bench.tell(msgspec.structs.replace(nearly, metadata=msgspec.structs.replace(nearly.metadata, resource_version="2")))
    bench.controller.sweep(["n1"])
    assert len(bench.controller.queue) == 0
    real = bench.context.clock.monotonic()
    monkeypatch.setattr(type(bench.context.clock), "monotonic", lambda _: real + 301)
    bench.controller.sweep(["n1"])
    assert len(bench.controller.queue) == 1
    await bench.controller.reconcile("n1")
    assert bench.batch_cpu == Quantity.of(56000)


async def test_the_explanation_matches_the_written_amounts(bench: Bench) -> None:
    await bench.controller.reconcile("n1")
    lending = OVERCOMMIT.get(bench.server.node.metadata.annotations)
    assert lending is not None
    allocatable = bench.server.node.status.allocatable
    assert lending.batch["cpu"].lent == allocatable[names.RESOURCE_BATCH_CPU].value()
    assert lending.batch["memory"].lent == allocatable[names.RESOURCE_BATCH_MEMORY].value()
    assert lending.mid["cpu"].lent == allocatable[names.RESOURCE_MID_CPU].value() == 0


async def test_metrics_hold_cores_bytes_and_reasons(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = bench.report(reclaimable=("10", "15G"))
    bench.tell(msgspec.structs.replace(metric, metadata=msgspec.structs.replace(metric.metadata, resource_version="2")))
    bench.controller.sweep(["n1"])

    def amount(resource: str, unit: str) -> float | None:
        labels = {"node": "n1", "resource": resource, "unit": unit}
        name = "slo_controller_node_extended_resource_allocatable_internal"
        return bench.context.internal.get_sample_value(name, labels)

    def nodes(reason: str) -> float | None:
        return bench.context.internal.get_sample_value("koord_manager_lending_nodes", {"reason": reason})

    assert amount(names.RESOURCE_BATCH_CPU, "integer") == 58.0
    assert amount(names.RESOURCE_BATCH_MEMORY, "byte") == 66e9
    assert amount(names.RESOURCE_MID_CPU, "integer") == 10.0
    assert amount(names.RESOURCE_MID_MEMORY, "byte") == 15e9
    assert (nodes("AsMeasured"), nodes("NodeMetricStale")) == (1.0, None)
    bench.tell(make_node(name="mute"))
    bench.controller.sweep(["mute"])
    degraded = "koord_manager_lending_degraded"
    assert bench.context.internal.get_sample_value(degraded, {"node": "mute", "reason": "NodeMetricMissing"}) == 1.0
    assert bench.context.internal.get_sample_value(degraded, {"node": "n1", "reason": "AsMeasured"}) is None
    real = bench.context.clock.monotonic()
    monkeypatch.setattr(type(bench.context.clock), "monotonic", lambda _: real + 301)
    assert amount(names.RESOURCE_BATCH_CPU, "integer") is None


async def test_a_node_that_cannot_be_calculated_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_node(name="n2")
    bench.tell(other)
    work_out = bench.controller._calculate

    def broken(chosen: Any, **more: Any) -> Any:
        chosen = list(chosen)
        if "n1" in chosen:
            raise ZeroDivisionError("n1")
        return work_out(chosen, **more)

    monkeypatch.setattr(bench.controller, "_calculate", broken)
    bench.controller.sweep_safely(["n1", "n2"])
    assert sorted(bench.controller.queue._dirty) == ["n1", "n2"]
    assert bench.counted("failed", "sweep") == 1


async def test_an_invalid_policy_causes_an_event_and_the_last_one_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(EventRecorder, "warning", lambda _, about, reason, text: events.append(f"{reason}: {text}"))
    enabled = CONFIG["colocation-config"].removesuffix("}")

    def configure(version: str, policy: str) -> None:
        data = {"colocation-config": f'{enabled},"extensions":{{"interference":{policy}}}}}'}
        meta = ObjectMeta(name="c", namespace="n", resource_version=version)
        bench.context.config.informer._take(ConfigMap(metadata=meta, data=data))

    def step() -> int:
        bench.controller.sweep(["n1"])
        return bench.controller.calculator._settings["n1"][4].step_percent

    configure("1", '{"stepPercent":30}')
    assert (step(), events) == (30, [])
    configure("2", '{"stepPercent":0}')
    assert step() == 30
    assert events == [
        "ColocationCfgInvalid: colocation-config: extensions.interference.stepPercent: 0 is less than 1;"
        " the last good policy stays in force"
    ]
