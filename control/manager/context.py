"""What every controller and webhook is given: access to the API, caches, configuration, clock, metrics.

Built once by the process (or by a test), read-only afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.options import Options
from koordlet.app.clock import Clock
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, EventRecorder

COMPONENT = "koordinator-manager"
"""How the process names itself to the API server: user agent, lease, event source."""


@dataclass(frozen=True)
class Context:
    """See the module text. `framework` is served on /metrics, `internal` (spec 04 §19) on /internal-metrics."""

    options: Options
    gates: FeatureGates
    client: Client
    caches: Caches
    config: ConfigCache
    events: EventRecorder
    framework: CollectorRegistry
    internal: CollectorRegistry
    external: CollectorRegistry

    @property
    def clock(self) -> Clock:
        return self.client.clock
