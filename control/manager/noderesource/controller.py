"""The noderesource controller: NodeMetric and friends in; Node status, Node metadata and NUMA zones out (spec 04 §6).

Informers tell the `Table` what changes, on every replica, so that a new leader has it at hand. A sweep works out all
nodes that something happened to, a column operation a step, and every `FULL_SECONDS` all of them, because time alone
makes a report stale; it only decides who must be written. Those go through the queue and are worked out once more from
what is known then, so that a write never carries old amounts. Each write names the resourceVersion it was made for;
after a conflict the object is read again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import msgspec

from control.manager.config import EVENT_INVALID
from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.metrics import FAILED, SUCCEEDED, ManagerMetrics
from control.manager.noderesource.calculate import Calculator, Plugins, Result
from control.manager.noderesource.decide import Decision, Synced, decide, new_zones, overdue
from control.manager.noderesource.metrics import LendingCollector, NodeResourceMetrics, Told, rows
from control.manager.noderesource.table import Table
from control.manager.options import NODERESOURCE_PLUGINS, selected
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.pages.overcommit import DISABLED
from koordlet.api.registry import resource_for
from koordlet.api.sloconfig.configmap import SLOConfig
from koordlet.api.sloconfig.documents import COLOCATION_KEY
from koordlet.api.sloconfig.lending import InterferencePolicyError, policy_of
from koordlet.app.logging import get_logger
from koordlet.app.turns import give_way
from koordlet.kube import Conflict, KubeError, NotFound, PatchKind, TooManyRequests

log = get_logger(__name__)

FULL_SECONDS: Final = 30.0
GATHER_SECONDS: Final = 0.2
"""Events come in bursts: those of so long are worked out together."""
CHUNK: Final = 10
"""Nodes worked out together: two milliseconds, after which webhooks have the loop."""
PAUSES: Final = (0.01, 0.05, 0.25)
"""Before the second, third and fourth attempt after a conflict or a 429; a tenth of it at random on top."""


class NodeResourceController(Controller):
    """See the module text."""

    name: ClassVar[str] = "noderesource"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        caches = context.caches
        self.nodes, self.pods = caches.informer(Node), caches.informer(Pod)
        self.metrics, self.devices = caches.informer(NodeMetric), caches.informer(Device)
        self.topologies = caches.informer(NodeResourceTopology)
        self.table = Table(strict=context.options.strict_parity)
        chosen = context.options.noderesource_plugins
        plugins = frozenset(name for name in NODERESOURCE_PLUGINS if selected(name, chosen))
        self.calculator = Calculator(
            Plugins(plugins, shared_gpu=context.gates.enabled("EnableSyncGPUSharedResource")), self._plugin_failed
        )
        self._synced: dict[str, Synced] = {}
        self._told: dict[str, Told] = {}
        self._woken = asyncio.Event()
        self._failures: dict[str, int] = {}
        self._rng = random.Random()
        self._steps = ManagerMetrics.of(context.internal).node_resource
        self._plugin_steps = ManagerMetrics.of(context.internal).plugins
        self._shown = NodeResourceMetrics.of(context.internal)
        context.internal.register(LendingCollector(self._told, context.clock))
        self._listen()
        for name in sorted(plugins):
            self._plugin_steps.labels(name, SUCCEEDED, "Setup").inc()

    # --- what happens

    def _listen(self) -> None:
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
                on_add=lambda obj, fn=added: self._tell(fn, obj),
                on_update=lambda old, new, fn=updated: self._tell(fn, old, new),
                on_delete=lambda obj, fn=deleted: self._tell(fn, obj),
            )
        self.context.config.subscribe(self._configured)

    def _tell(self, fn: Any, *objects: Any) -> None:
        fn(*objects)
        if self.table.dirty:
            self._woken.set()

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
        self._told.pop(name, None)

    def _configured(self, _: SLOConfig, config: SLOConfig) -> None:
        """What the ConfigMap's own checks do not know: our extension. Told where its author looks."""
        self._all()
        found, about = config.colocation, self.context.config.informer.object
        if found is None or about is None:
            return
        for name, strategy in (("", found.cluster), *((one.name, one.strategy) for one in found.nodes)):
            try:
                policy_of(strategy)
            except InterferencePolicyError as error:
                where = f"{COLOCATION_KEY}: {name}: " if name else f"{COLOCATION_KEY}: "
                text = f"{where}{error}; the last good policy stays in force"
                self.context.events.warning(about, EVENT_INVALID, text)

    def _all(self) -> None:
        self.table.dirty.update(self.table.nodes)
        self._woken.set()

    # --- sweeps

    def watch(self) -> None:
        self._all()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run(), name="noderesource:writes")
            group.create_task(self._sweep_for_ever(), name="noderesource:sweeps")

    async def _sweep_for_ever(self) -> None:
        clock = self.context.clock
        full_at = clock.monotonic() + FULL_SECONDS
        while True:
            try:
                async with clock.timeout(max(full_at - clock.monotonic(), 0.0)):
                    await self._woken.wait()
                await clock.sleep(GATHER_SECONDS)
            except TimeoutError:
                self._all()
                full_at = clock.monotonic() + FULL_SECONDS
            self._woken.clear()
            names, self.table.dirty = sorted(self.table.dirty), set()
            for start in range(0, len(names), CHUNK):
                self.sweep_safely(names[start : start + CHUNK])
                await give_way()

    def sweep_safely(self, names: Sequence[str]) -> None:
        """`sweep`, or each node alone where one of them cannot be worked out, so that only that one waits."""
        try:
            self.sweep(names)
        except Exception as error:
            log.exception("Cannot work out nodes together", nodes=len(names), err=error)
            self._steps.labels(FAILED, "sweep").inc()
            for name in names:
                self.queue.add(name)

    def sweep(self, names: Sequence[str]) -> None:
        """Work out what these nodes lend and queue those that must be written."""
        begun = self.context.clock.monotonic()
        for result, decision in self._work_out(names, in_words=False):
            name = result.node.metadata.name
            if decision:
                self.queue.add(name)
            else:
                self._synced[name] = decision.confirmed
        self._shown.seconds.observe(self.context.clock.monotonic() - begun)
        self._shown.nodes.inc(len(names))

    def _work_out(self, names: Iterable[str], *, in_words: bool = True) -> list[tuple[Result, Decision]]:
        config, clock = self.context.config, self.context.clock
        now, wall = clock.monotonic(), clock.now()
        results = self.calculator.run(self.table, config.current, config.strategy, names, wall)
        self.calculator.zone_values(self.table, results)
        worked_out = []
        for result in results:
            name = result.node.metadata.name
            topology, synced = self.table.topologies.get(name), self._synced.get(name, Synced())
            decision = decide(result, topology, synced, now=now, wall=wall, in_words=in_words)
            worked_out.append((result, decision))
            self._told[name] = _told(result, now)
        self._count_plugins(results)
        return worked_out

    # --- writes

    async def reconcile(self, key: str) -> float | None:
        for pause in (*PAUSES, None):
            worked_out = self._work_out([key])
            if not worked_out:
                self._synced.pop(key, None)
                return None
            result, decision = worked_out[0]
            if decision.problem:
                log.once(f"{key}:{decision.problem}", "Passing over an annotation of a Node", node=key,
                         problem=decision.problem)  # fmt: skip
            try:
                await self._write(key, result, decision)
                return None
            except (Conflict, TooManyRequests) as error:
                if pause is None:
                    raise
                log.debug("Node changed meanwhile, once more", node=key, err=error)
                await self.context.clock.sleep(pause * (1 + 0.1 * self._rng.random()))
                if not await self._read_again(key):
                    return None
        return None

    async def _write(self, key: str, result: Result, decision: Decision) -> None:
        client, clock = self.context.client, self.context.clock
        self._synced[key] = decision.confirmed
        if decision.status:
            patch = client.patch(Node, key, body=decision.status, kind=PatchKind.STRATEGIC, subresource="status")
            if not await self._node_written(key, "status", patch):
                return
            self._synced[key] = replace(self._synced[key], node=clock.monotonic())
        if decision.meta:
            body = decision.meta
            if decision.status:  # that write has made a new version of the Node
                version = self.table.nodes[key].metadata.resource_version
                body = {"metadata": {**body["metadata"], "resourceVersion": version}}
            if not await self._node_written(key, "metadata", client.patch(Node, key, body=body)):
                return
        if decision.zones:
            await self._write_zones(key, result)

    async def _node_written(self, key: str, what: str, request: Any) -> bool:
        """Await a patch of the Node; False when there is no such Node any more."""
        reason, gone = _REASONS[what]
        try:
            node: Node = await request
        except NotFound:
            self._steps.labels(FAILED, gone).inc()
            return False
        except KubeError:
            self._steps.labels(FAILED, reason).inc()
            raise
        self._steps.labels(SUCCEEDED, reason).inc()
        self._shown.writes.labels(what).inc()
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

    async def _write_zones(self, key: str, result: Result) -> None:
        """Zones are written whole, so they are taken from the API server, with what others keep there."""
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
                self._shown.writes.labels("zones").inc()
        except NotFound:
            return  # it went meanwhile, and the zones with it
        except KubeError:
            self._steps.labels(FAILED, "updateNodeResourceTopology").inc()
            raise
        self._synced[key] = replace(self._synced[key], topology=clock.monotonic())

    # --- metrics

    def _plugin_failed(self, plugin: str, node: str, error: Exception) -> None:
        self._failures[plugin] = self._failures.get(plugin, 0) + 1
        log.once(f"{plugin}:{error}", "A plug-in cannot work on a node", plugin=plugin, node=node, err=error)

    def _count_plugins(self, results: Sequence[Result]) -> None:
        reset = sum(result.reason == DISABLED for result in results)
        failures, self._failures = self._failures, {}
        for plugin in self.calculator.plugins.enabled:
            failed = failures.get(plugin, 0)
            self._plugin_steps.labels(plugin, SUCCEEDED, "ResourceCalculate").inc(max(len(results) - reset - failed, 0))
            self._plugin_steps.labels(plugin, SUCCEEDED, "ResourceReset").inc(reset)
            self._plugin_steps.labels(plugin, FAILED, "ResourceCalculate").inc(failed)


_REASONS: Final = {
    "status": ("updateNodeStatus", "updateNodeNotFound"),
    "metadata": ("patchNodeMeta", "updateNodeMetaNotFound"),
}


def _told(result: Result, now: float) -> Told:
    of, index = result.of, result.index
    if of is None:
        return Told(now, result.reason, (100, 100), ())
    lent = rows(result.node.metadata.name, of.batch_units[index], of.mid_units[index])
    return Told(now, result.reason, of.percent[index], lent)
