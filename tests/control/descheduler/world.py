"""A descheduler without a process: a state filled by hand, plugins with handles, an evict plugin that records.

world = World()
world.node("n1", cpu="4"); world.pod("a", on="n1"); world.load("n1", {"a": {"cpu": "500m"}})
plugin = world.plugin(LowNodeLoad, {"lowThresholds": {"cpu": 30}})
await plugin.balance(world.state.ready_nodes())
assert world.evicted == [...]
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry

from control.component.reading import Reader
from control.descheduler.framework.evictor import EvictionProxy, PlannedEviction, PluginEvictor
from control.descheduler.framework.handle import LeaseReference, PluginHandle, ProcessParts
from control.descheduler.framework.limiter import EvictionLimiter, EvictionLimits
from control.descheduler.framework.plugin import DeschedulerPlugin, EvictionFilterPlugin, EvictOptions, EvictPlugin
from control.descheduler.state.cluster import ClusterState
from control.descheduler.state.loads import load_of
from control.descheduler.state.pods import PodRecord
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector
from tests.control.scheduler import build
from tests.fakeclock import FakeClock

P = TypeVar("P", bound=DeschedulerPlugin)
_versions = itertools.count(1)


class RecordingEvictor(EvictionFilterPlugin, EvictPlugin):
    """Evicts every pod that `protected` does not name, by removing it from nothing but its own list."""

    name = "RecordingEvictor"

    def __init__(self, args: Any = None, handle: PluginHandle | None = None) -> None:
        self.evicted: list[tuple[PodRecord, EvictOptions]] = []
        self.protected: set[str] = set()
        self.failing: set[str] = set()
        self.not_now: set[str] = set()

    def filter(self, pod: PodRecord) -> str | None:
        return "protected" if pod.name in self.protected else None

    def pre_eviction_filter(self, pod: PodRecord) -> str | None:
        return "not now" if pod.name in self.not_now else None

    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        if pod.name in self.failing:
            return False
        self.evicted.append((pod, options))
        return True


class RecordingEvents:
    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def normal(self, about: Any, reason: str, message: str) -> None:
        self.messages.append((reason, message))


class World:
    """See the module text."""

    def __init__(
        self, limits: EvictionLimits = EvictionLimits(), *, dry_run: bool = False, preview: bool = False
    ) -> None:
        self.state = ClusterState()
        self.clock = FakeClock()
        self.evictor = RecordingEvictor()
        self.limiter = EvictionLimiter(limits)
        self.planned: list[PlannedEviction] = []
        self.registry = CollectorRegistry()
        self.interval_s = 120.0
        self.proxy = EvictionProxy("test", self.limiter, dry_run=dry_run, observe=self.planned.append)
        self.proxy.connect([self.evictor], self.evictor)
        self.dry_run = dry_run
        self.preview = preview
        self.client: Any = None
        self.events: Any = None
        self.objects: Any = None
        self.lease: LeaseReference | None = None

    @property
    def evicted(self) -> list[str]:
        """The names of the evicted pods, in order."""
        return [pod.name for pod, _ in self.evictor.evicted]

    @property
    def reasons(self) -> list[str]:
        return [options.reason for _, options in self.evictor.evicted]

    def node(self, name: str, cpu: str = "8", memory: str = "32Gi", pods: int = 110, **more: Any) -> None:
        self.state.set_node(build.node(name, cpu, memory, pods, **more))

    def pod(self, name: str = "", cpu: str | None = "1", memory: str | None = "1Gi", **more: Any) -> PodRecord:
        pod = build.pod(name, cpu, memory, **more)
        self.state.set_pod(pod)
        return self.state.pods[pod.metadata.key]

    def load(
        self,
        node: str,
        pods: Mapping[str, Mapping[str, str]] | None = None,
        system: Mapping[str, str] | None = None,
        *,
        age_s: float | None = 0.0,
        info: bool = True,
    ) -> None:
        """Report a NodeMetric; pods by name (in `default`) or by `namespace/name`. `age_s` None: without a time."""
        entries = []
        for key, usage in (pods or {}).items():
            namespace, _, name = key.rpartition("/")
            entries.append({"namespace": namespace or "default", "name": name, "podUsage": {"resources": dict(usage)}})
        status: dict[str, Any] = {"podsMetric": entries}
        if info:
            status["nodeMetric"] = {"systemUsage": {"resources": dict(system or {})}}
        if age_s is not None:
            status["updateTime"] = wire.Time.fromtimestamp(self.clock.now() - age_s)
        document = {"metadata": {"name": node, "resourceVersion": str(next(_versions))}, "status": status}
        self.state.set_load(load_of(wire.convert(document, NodeMetric)))

    def handle(self, plugin: str, node_selector: LabelSelector | None = None) -> PluginHandle:
        process = ProcessParts(
            self.state,
            self.objects,
            self.client,
            self.clock,
            cast(Any, None),
            self.registry,
            self.dry_run,
            self.interval_s,
            self.preview,
            self.lease,
        )
        return PluginHandle(process, "test", plugin, PluginEvictor(self.proxy, plugin), self.events, node_selector)

    def plugin(self, kind: type[P], args: Mapping[str, Any] | None = None) -> P:
        """A plugin with arguments as in a configuration file, which must be valid."""
        errors: list[str] = []
        read = Reader(errors).struct(dict(args or {}), kind.args_type, "args")
        errors = errors or read.check("args")
        assert errors == []
        return kind(read, self.handle(kind.name))

    def balance(self, plugin: Any, nodes: Sequence[str] | None = None) -> list[str]:
        """Run one pass of a balance plugin; returns the names of the pods that it evicted."""
        return self._pass(plugin.balance, nodes)

    def deschedule(self, plugin: Any, nodes: Sequence[str] | None = None) -> list[str]:
        """Run one pass of a deschedule plugin; returns the names of the pods that it evicted."""
        return self._pass(plugin.deschedule, nodes)

    def _pass(self, call: Any, nodes: Sequence[str] | None) -> list[str]:
        before = len(self.evicted)
        self.limiter.reset()
        ready = self.state.ready_nodes()
        asyncio.run(call([node for node in ready if nodes is None or node.name in nodes]))
        return self.evicted[before:]
