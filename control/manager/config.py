"""The ConfigMap `slo-controller-config` in force: watched by an informer, merged with defaults, last good value kept.

A key with an invalid value keeps its previous value, and the leader (see `send_events`) sends a Warning event on the
ConfigMap that names the key and the path; the other keys take effect. Deleting the ConfigMap changes nothing until the
process restarts; a ConfigMap that is absent at the start means the defaults (spec 04 §3.4). Subscribers are notified of
changes. `strategy` returns the co-location strategy of one node (§3.5). The pure code is in `koordlet.api.sloconfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from koordlet.api.core import ConfigMap, Node
from koordlet.api.sloconfig import colocation, configmap, profile
from koordlet.api.sloconfig.colocation import ColocationStrategy
from koordlet.api.sloconfig.configmap import UNREAD, SLOConfig
from koordlet.api.sloconfig.extensions import ExtensionPlugin, merge_extensions
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter, gauge
from koordlet.kube import Client, EventRecorder, ObjectInformer

log = get_logger(__name__)

EVENT_INVALID = "ColocationCfgInvalid"
"""Event reason for a document that parses but holds values out of bounds; Koordinator sends no event for it."""
EXTENSIONS: tuple[ExtensionPlugin, ...] = (profile.INTERFERENCE_PLUGIN,)

Listener = Callable[[SLOConfig, SLOConfig], object]


class ConfigMetrics(MetricSet):
    """Loads of the ConfigMap, and its invalid keys."""

    loads = counter("koord_manager_config_loads_total", "Loads of the SLO ConfigMap.")
    bad = gauge(
        "koord_manager_config_key_bad",
        "1 while a key of the SLO ConfigMap is invalid and its last good value is in force.",
        "key",
    )


class ConfigCache:
    """The configuration in force. It is a service: `start` it, then wait for `informer.synced`."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        namespace: str,
        name: str,
        registry: CollectorRegistry,
        strict_parity: bool = False,
    ) -> None:
        self.name = "slo-config"
        self.informer = ObjectInformer(client, ConfigMap, name, namespace, name="slo-config")
        self.extension_values: Mapping[str, Any] = {}
        """Extension plug-in -> its parsed part of the ConfigMap; see `extensions_for_node`."""
        self._current: SLOConfig = UNREAD
        self._events = events
        self._listeners: list[Listener] = []
        self._bad: dict[str, str] = {}
        self._sends_events = False
        self._unsent: list[tuple[ConfigMap, str, str]] = []
        self._strict = strict_parity
        self._metrics = ConfigMetrics.of(registry)
        self.informer.add_handler(on_add=self._load, on_update=self._updated)

    @property
    def current(self) -> SLOConfig:
        """The configuration in force; UNREAD before the first sync."""
        if self._current is UNREAD and self.informer.synced.is_set():
            self._current, _ = configmap.load(UNREAD, None)  # synced and nothing loaded: there is no ConfigMap
        return self._current

    @property
    def bad(self) -> Mapping[str, str]:
        """Invalid key -> the reason why its value in the ConfigMap is not in force."""
        return self._bad

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` on every change of the configuration in force."""
        self._listeners.append(listener)

    def send_events(self) -> None:
        """Send the pending Events about invalid keys, and every later one at once. Only the leader calls this."""
        self._sends_events = True
        unsent, self._unsent = self._unsent, []
        for config, reason, message in unsent:
            self._events.warning(config, reason, message)

    def strategy(self, node: Node) -> ColocationStrategy | None:
        """The effective co-location strategy of a node; None until a valid configuration was read."""
        merged = self.current.colocation
        if merged is None:
            return None
        return colocation.for_node(merged, node.metadata.labels, node.metadata.annotations, strict_parity=self._strict)

    async def start(self) -> None:
        await self.informer.start()

    async def stop(self) -> None:
        await self.informer.stop()

    def _updated(self, old: ConfigMap, new: ConfigMap) -> None:
        if old.data != new.data:
            self._load(new)

    def _load(self, config: ConfigMap) -> None:
        before = self._current
        values = self.extension_values
        after, problems = configmap.load(before, config.data)
        self.extension_values, extension_errors = merge_extensions(EXTENSIONS, values, config.data)
        self._current = after
        self._metrics.loads.inc()
        self._unsent = []
        bad = {problem.key: problem.message for problem in problems}
        for problem in problems:
            self._refuse(config, problem.key, problem.event or EVENT_INVALID, problem.message)
        for plugin, message in extension_errors.items():
            bad[plugin] = message
            self._refuse(config, plugin, configmap.EVENT_SLO, message)
        for key in self._bad.keys() - bad.keys():
            self._metrics.bad.labels(key).set(0)
        self._bad = bad
        log.info("Loaded the configuration", version=config.metadata.resource_version, invalid=",".join(sorted(bad)))
        if after != before or self.extension_values != values:
            for listener in self._listeners:
                listener(before, after)

    def _refuse(self, config: ConfigMap, key: str, reason: str, message: str) -> None:
        self._metrics.bad.labels(key).set(1)
        log.error("Invalid configuration key, keeping its last good value", key=key, reason=message)
        self._unsent.append((config, reason, f"{key}: {message}; the last good configuration stays in force"))
        if self._sends_events:
            self.send_events()
