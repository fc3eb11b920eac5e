"""What a plugin works with (spec 07 §3.3).

The state is read-only for plugins: nodes, pods and NodeMetrics as records with integer amounts (`ClusterState`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from control.component.informers import InformerSet
from control.descheduler.framework.evictor import PluginEvictor
from control.descheduler.framework.leasenote import LeaseNote
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.state.cluster import ClusterState
from koordlet.api.meta import LabelSelector
from koordlet.app.clock import Clock
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, EventRecorder

V = TypeVar("V")


@dataclass(frozen=True)
class LeaseReference:
    """Which lease the leader holds."""

    namespace: str
    name: str


@dataclass(frozen=True)
class ProcessParts:
    """What all profiles of a process share."""

    state: ClusterState
    objects: InformerSet
    client: Client
    clock: Clock
    gates: FeatureGates
    registry: CollectorRegistry
    dry_run: bool
    """The global dry run: nothing may be written, except Events and the lease."""
    interval_s: float
    """`deschedulingInterval`; 0: one pass only."""
    preview: bool = False
    """One pass shows what would move (`--dry-run`): plugins do not wait for conditions to last."""
    lease: LeaseReference | None = None
    """The lease that this process holds while it leads; None: no leader election."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Parts of plugins that all profiles share, see `PluginHandle.share`."""


@dataclass(frozen=True)
class PluginHandle:
    """What one plugin of one profile works with."""

    process: ProcessParts
    profile: str
    plugin: str
    evictor: PluginEvictor
    events: EventRecorder
    """Records Events whose component is the name of the profile."""
    node_selector: LabelSelector | None = None
    """The profile's; None: all nodes."""

    @property
    def state(self) -> ClusterState:
        """The cluster: read-only."""
        return self.process.state

    @property
    def objects(self) -> InformerSet:
        """Informers; request further kinds in constructors only. That of NodeMetric stores `ReportedLoad`."""
        return self.process.objects

    @property
    def client(self) -> Client:
        return self.process.client

    @property
    def clock(self) -> Clock:
        return self.process.clock

    @property
    def gates(self) -> FeatureGates:
        return self.process.gates

    @property
    def registry(self) -> CollectorRegistry:
        return self.process.registry

    @property
    def metrics(self) -> DeschedulerMetrics:
        return DeschedulerMetrics.of(self.process.registry)

    @property
    def dry_run(self) -> bool:
        """The global dry run. `evictor` respects it; a plugin that writes otherwise must check it."""
        return self.process.dry_run

    def lease_note(self, annotation: str, value: type[V]) -> LeaseNote[V] | None:
        """Values of this type that the next leader can read; None without leader election."""
        lease = self.process.lease
        return LeaseNote(self.client, lease.namespace, lease.name, annotation, value) if lease is not None else None

    def share(self, key: str, make: Callable[[], V]) -> V:
        """The process-wide part `key`, constructed at the first call: one arbitrator for all profiles."""
        if key not in self.process.shared:
            self.process.shared[key] = make()
        part: V = self.process.shared[key]
        return part
