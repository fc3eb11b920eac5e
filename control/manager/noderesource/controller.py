"""The noderesource controller: reads NodeMetrics, Nodes, Pods, Devices and topologies; writes Node status, Node
metadata and NUMA zones (spec 04 §6).

Informers update the `OvercommitTable` on every replica, so a new leader starts with complete data. A sweep recalculates
all changed nodes with column operations, and all nodes every `FULL_SWEEP_S` because a report becomes stale by time.
The sweep only decides which nodes must be written. These go through the work queue and are recalculated from the then
current data, so a write never carries outdated amounts. Each write is conditional on the resourceVersion it was
computed for; after a conflict the object is read again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import msgspec

from control.manager.config import EVENT_INVALID
from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.metrics import FAILED, SUCCEEDED, ManagerMetrics
from control.manager.noderesource.calculate import (
    BATCH_RESOURCE,
    META_PLUGINS,
    STATUS_PLUGINS,
    Calculator,
    EnabledPlugins,
    NodeResult,
)
from control.manager.noderesource.decide import NodeDecision, Synced, decide, is_reported, new_zones, overdue
from control.manager.noderesource.metrics import NodeResourceMetrics, NodeSeries, OvercommitCollector, amount_rows
from control.manager.noderesource.table import OvercommitTable
from control.manager.options import NODERESOURCE_PLUGINS, selected
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.pages.overcommit import DISABLED
from koordlet.api.registry import resource_for
from koordlet.api.sloconfig.configmap import SLOConfig
from koordlet.api.sloconfig.documents import COLOCATION_KEY
from koordlet.api.sloconfig.overcommit import InterferencePolicyError, policy_of
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.kube import Conflict, KubeError, NotFound, PatchKind, TooManyRequests

log = get_logger(__name__)

FULL_SWEEP_S: Final = 30.0
BATCH_DELAY_S: Final = 0.2
"""Events come in bursts: a sweep waits this long after the first event, to process a burst at once."""
CHUNK_NODES: Final = 10
"""Nodes calculated at once, in about 2 ms; between chunks the event loop serves webhook requests."""
RETRY_DELAYS_S: Final = (0.01, 0.05, 0.25)
"""Delays before the second, third and fourth attempt after a conflict or a 429, plus a random jitter of up to 10 %."""


class NodeResourceController(ManagerController):
    """See the module docstring."""

    name: ClassVar[str] = "noderesource"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        caches = context.caches
        self.nodes, self.pods = caches.informer(Node), caches.informer(Pod)
        self.metrics, self.devices = caches.informer(NodeMetric), caches.informer(Device)
        self.topologies = caches.informer(NodeResourceTopology)
        self.table = OvercommitTable(strict=context.options.strict_parity)
        items = context.options.noderesource_plugins
        plugins = frozenset(name for name in NODERESOURCE_PLUGINS if selected(name, items))
        self.calculator = Calculator(
            EnabledPlugins(plugins, shared_gpu=context.gates.enabled("EnableSyncGPUSharedResource")),
            self._plugin_failed,
        )
        self._synced: dict[str, Synced] = {}
        self._exported: dict[str, NodeSeries] = {}
        self._changed = asyncio.Event()
        self._failures: dict[str, int] = {}
        self._rng = random.Random()
        self._steps = ManagerMetrics.of(context.internal).node_resource
        self._plugin_steps = ManagerMetrics.of(context.internal).plugins
        self._pass_metrics = NodeResourceMetrics.of(context.internal)
        context.internal.register(OvercommitCollector(self._exported, context.clock))
        self._add_handlers()
        for name in sorted(plugins):
            self._plugin_steps.labels(name, SUCCEEDED, "Setup").inc()

    def _add_handlers(self) -> None:
        table = self.table
        handlers: tuple[tuple[Any, Any, Any, Any], ...] = (
            (self.nodes, table.put_node, lambda _, node: table.put_node(node), self._node_gone),
            (self.pods, table.put_pod, lambda old, pod: table.put_pod(pod, old), table.drop_pod),
            (self.metrics, table.put_metric, self._metric_changed, self._metric_gone),
            (self.topologies, table.put_topology, lambda _, new: table.put_topology(new), self._topology_gone),
            (self.devices, table.put_device, lambda _, new: table.put_device(new), table.drop_device),
        )
        for informer, added, updated, deleted in handlers:
            informer.add_handler(
                on_add=lambda obj, fn=added: self._update_table(fn, obj),
                on_update=lambda old, new, fn=updated: self._update_table(fn, old, new),
                on_delete=lambda obj, fn=deleted: self._update_table(fn, obj),
            )
        self.context.config.subscribe(self._configured)

    def _update_table(self, fn: Any, *objects: Any) -> None:
        fn(*objects)
        if self.table.dirty:
            self._changed.set()

    def _metric_changed(self, old: NodeMetric, new: NodeMetric) -> None:
        if old is new or old.status != new.status:
            self.table.put_metric(new)

    def _metric_gone(self, metric: NodeMetric) -> None:
        self.table.drop_metric(metric)
        self._forget_sync(metric.metadata.name, node=None)

    def _topology_gone(self, topology: NodeResourceTopology) -> None:
        self.table.drop_topology(topology)
        self._forget_sync(topology.metadata.name, topology=None)

    def _forget_sync(self, name: str, **parts: None) -> None:
        if name in self._synced:
            self._synced[name] = replace(self._synced[name], **parts)

    def _node_gone(self, node: Node) -> None:
        name = node.metadata.name
        self.table.drop_node(node)
        self.calculator.forget(name)
        self._synced.pop(name, None)
        self._exported.pop(name, None)

    def _configured(self, _: SLOConfig, config: SLOConfig) -> None:
        """Recalculate all nodes, and send Events about invalid `interference` extensions, which the ConfigMap's parser
        does not check."""
        self._mark_all()
        colocation, config_map = config.colocation, self.context.config.informer.object
        if colocation is None or config_map is None:
            return
        strategies = (("", colocation.cluster), *((group.name, group.strategy) for group in colocation.nodes))
        for name, strategy in strategies:
            try:
                policy_of(strategy)
            except InterferencePolicyError as error:
                where = f"{COLOCATION_KEY}: {name}: " if name else f"{COLOCATION_KEY}: "
                text = f"{where}{error}; the last good policy stays in force"
                self.context.events.warning(config_map, EVENT_INVALID, text)

    def _mark_all(self) -> None:
        self.table.dirty.update(self.table.nodes)
        self._changed.set()

    def watch(self) -> None:
        self._mark_all()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run(), name="noderesource:writes")
            group.create_task(self._sweep_loop(), name="noderesource:sweeps")

    async def _sweep_loop(self) -> None:
        clock = self.context.clock
        full_at = clock.monotonic() + FULL_SWEEP_S
        while True:
            try:
                async with clock.timeout(max(full_at - clock.monotonic(), 0.0)):
                    await self._changed.wait()
                await clock.sleep(BATCH_DELAY_S)
            except TimeoutError:
                self._mark_all()
                full_at = clock.monotonic() + FULL_SWEEP_S
            self._changed.clear()
            names, self.table.dirty = sorted(self.table.dirty), set()
            for start in range(0, len(names), CHUNK_NODES):
                self.sweep_safely(names[start : start + CHUNK_NODES])
                await yield_to_loop()

    def sweep_safely(self, names: Sequence[str]) -> None:
        """`sweep`; if it raises, queue every node, so that only the node that causes the error is retried."""
        try:
            self.sweep(names)
        except Exception as error:
            log.exception("Cannot calculate a chunk of nodes, queueing each node", nodes=len(names), err=error)
            self._steps.labels(FAILED, "sweep").inc()
            for name in names:
                self.queue.add(name)

    def sweep(self, names: Sequence[str]) -> None:
        """Recalculate these nodes and queue those that must be written."""
        started = self.context.clock.monotonic()
        for result, decision in self._calculate(names, with_explanation=False):
            name = result.node.metadata.name
            if decision:
                self.queue.add(name)
            else:
                self._synced[name] = decision.confirmed
        self._pass_metrics.seconds.observe(self.context.clock.monotonic() - started)
        self._pass_metrics.nodes.inc(len(names))

    def _calculate(
        self, names: Iterable[str], *, with_explanation: bool = True
    ) -> list[tuple[NodeResult, NodeDecision]]:
        config, clock = self.context.config, self.context.clock
        now, wall = clock.monotonic(), clock.now()
        results = self.calculator.run(self.table, config.current, config.strategy, names, wall)
        self.calculator.zone_values(self.table, results)
        decisions = []
        for result in results:
            name = result.node.metadata.name
            topology, synced = self.table.topologies.get(name), self._synced.get(name, Synced())
            decision = decide(result, topology, synced, now=now, wall=wall, with_explanation=with_explanation)
            decisions.append((result, decision))
            self._exported[name] = _series(result, now)
        self._count_plugins(results)
        self._count_checks(decisions)
        return decisions

    async def reconcile(self, key: str) -> float | None:
        for delay_s in (*RETRY_DELAYS_S, None):
            decisions = self._calculate([key])
            if not decisions:
                self._synced.pop(key, None)
                return None
            result, decision = decisions[0]
            if decision.problem:
                log.once(
                    f"{key}:{decision.problem}", "Ignoring an annotation of a Node", node=key, problem=decision.problem
                )
            try:
                await self._write(key, result, decision)
                return None
            except (Conflict, TooManyRequests) as error:
                if delay_s is None:
                    raise
                log.debug("Write of a Node refused, retrying", node=key, err=error)
                await self.context.clock.sleep(delay_s * (1 + 0.1 * self._rng.random()))
                if not await self._read_again(key):
                    return None
        return None

    async def _write(self, key: str, result: NodeResult, decision: NodeDecision) -> None:
        client, clock = self.context.client, self.context.clock
        self._synced[key] = decision.confirmed
        if decision.status:
            patch = client.patch(Node, key, body=decision.status, kind=PatchKind.STRATEGIC, subresource="status")
            if not await self._node_written(key, "status", patch):
                return
            self._synced[key] = replace(self._synced[key], node=clock.monotonic())
        if decision.meta:
            body = decision.meta
            if decision.status:  # the status write created a new version of the Node
                version = self.table.nodes[key].metadata.resource_version
                body = {"metadata": {**body["metadata"], "resourceVersion": version}}
            if not await self._node_written(key, "metadata", client.patch(Node, key, body=body)):
                return
        if decision.zones:
            await self._write_zones(key, result)

    async def _node_written(self, key: str, what: str, request: Any) -> bool:
        """Await a patch of the Node; False when the Node no longer exists."""
        reason, not_found_reason = _REASONS[what]
        try:
            node: Node = await request
        except NotFound:
            self._steps.labels(FAILED, not_found_reason).inc()
            return False
        except KubeError:
            self._steps.labels(FAILED, reason).inc()
            raise
        self._steps.labels(SUCCEEDED, reason).inc()
        self._pass_metrics.writes.labels(what).inc()
        self.table.put_node(node)
        return True

    async def _read_again(self, key: str) -> bool:
        try:
            node = await self.context.client.get(Node, key)
        except NotFound:
            self._steps.labels(FAILED, "updateNodeNotFound").inc()
            return False
        except KubeError:
            self._steps.labels(FAILED, "updateNodeGetError").inc()
            raise
        self.table.put_node(node)
        return True

    async def _write_zones(self, key: str, result: NodeResult) -> None:
        """Write the zones. A patch replaces the whole list, so it is built from the API server's current object, which
        preserves the fields of other writers."""
        client, clock = self.context.client, self.context.clock
        path = resource_for(NodeResourceTopology).path(None, key)
        renewed = overdue(self._synced[key].topology, clock.monotonic(), result.strategy)
        try:
            present = msgspec.json.decode(await client.raw("GET", path))
            zones = new_zones(present.get("zones") or [], result, refresh=renewed)
            if zones is not None:
                body = {"metadata": {"resourceVersion": present["metadata"]["resourceVersion"]}, "zones": zones}
                await client.patch(NodeResourceTopology, key, body=body)
                self._steps.labels(SUCCEEDED, "updateNodeResourceTopology").inc()
                self._pass_metrics.writes.labels("zones").inc()
        except NotFound:
            return  # the object was deleted meanwhile, with its zones
        except KubeError:
            self._steps.labels(FAILED, "updateNodeResourceTopology").inc()
            self._plugin_steps.labels(BATCH_RESOURCE, FAILED, "NodePreUpdate").inc()
            raise
        self._plugin_steps.labels(BATCH_RESOURCE, SUCCEEDED, "NodePreUpdate").inc()
        self._synced[key] = replace(self._synced[key], topology=clock.monotonic())

    def _plugin_failed(self, plugin: str, node: str, error: Exception) -> None:
        self._failures[plugin] = self._failures.get(plugin, 0) + 1
        log.once(f"{plugin}:{error}", "A plug-in failed for a node", plugin=plugin, node=node, err=error)

    def _count_plugins(self, results: Sequence[NodeResult]) -> None:
        reset = sum(result.reason == DISABLED for result in results)
        failures, self._failures = self._failures, {}
        for plugin in self.calculator.plugins.enabled:
            failed = failures.get(plugin, 0)
            self._plugin_steps.labels(plugin, SUCCEEDED, "ResourceCalculate").inc(max(len(results) - reset - failed, 0))
            self._plugin_steps.labels(plugin, SUCCEEDED, "ResourceReset").inc(reset)
            self._plugin_steps.labels(plugin, FAILED, "ResourceCalculate").inc(failed)

    def _count_checks(self, decisions: Sequence[tuple[NodeResult, NodeDecision]]) -> None:
        """The stages in which plug-ins put their results into the desired Node and compare it with the current one."""
        checked = [decision for result, decision in decisions if is_reported(result.node)]
        unread = sum(bool(decision.problem) for decision in checked)
        for plugin in self.calculator.plugins.enabled:
            failed = unread if plugin == BATCH_RESOURCE else 0
            self._plugin_steps.labels(plugin, SUCCEEDED, "NodePrepare").inc(len(checked) - failed)
            self._plugin_steps.labels(plugin, FAILED, "NodePrepare").inc(failed)
            if plugin in STATUS_PLUGINS:
                self._plugin_steps.labels(plugin, SUCCEEDED, "NodeStatusCheck").inc(len(checked))
            if plugin in META_PLUGINS:
                self._plugin_steps.labels(plugin, SUCCEEDED, "NodeStatusCheckMeta").inc(len(checked))


_REASONS: Final = {
    "status": ("updateNodeStatus", "updateNodeNotFound"),
    "metadata": ("patchNodeMeta", "updateNodeMetaNotFound"),
}


def _series(result: NodeResult, now: float) -> NodeSeries:
    of, index = result.of, result.index
    if of is None:
        return NodeSeries(now, result.reason, (100, 100), ())
    amounts = amount_rows(result.node.metadata.name, of.batch_units[index], of.mid_units[index])
    return NodeSeries(now, result.reason, of.percent[index], amounts)
