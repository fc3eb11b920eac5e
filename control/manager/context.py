"""The dependencies of controllers and webhooks: API client, caches, configuration, clock, metric registries.

Built once by the process (or by a test); read-only afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.options import ManagerOptions
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.app.clock import Clock
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, EventRecorder

COMPONENT = "koordinator-manager"
"""The name of this component at the API server: user agent, lease, event source."""


@dataclass(frozen=True)
class ManagerContext:
    """See the module docstring. The registry `framework` is served on /metrics, `internal` (spec 04 §19) on
    /internal-metrics, `external` on /external-metrics."""

    options: ManagerOptions
    gates: FeatureGates
    client: Client
    caches: Caches
    config: ConfigCache
    events: EventRecorder
    framework: CollectorRegistry
    internal: CollectorRegistry
    external: CollectorRegistry
    namespace: str = KOORDINATOR_NAMESPACE
    """Where the components run, and so their accounts are."""

    @property
    def clock(self) -> Clock:
        return self.client.clock
