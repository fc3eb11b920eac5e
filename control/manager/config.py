"""`slo-controller-config` in force: followed through an informer, merged with defaults, the last good kept.

A key that can't be used keeps what it held before and is told (by the leader: `tell`) as a Warning event on the
ConfigMap that names key and path; the others go on. A ConfigMap that is deleted changes nothing until the restart;
absent at the start means defaults (spec 04 §3.4). Whoever wants to know of a change subscribes; `strategy` is the
co-location strategy of one node (§3.5). Pure parts are in `koordlet.api.sloconfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.api.core import ConfigMap, Node
from koordlet.api.sloconfig import colocation, configmap, interference
from koordlet.api.sloconfig.colocation import ColocationStrategy
from koordlet.api.sloconfig.configmap import UNREAD, SLOConfig
from koordlet.api.sloconfig.extensions import ExtensionPlugin, merge_extensions
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet
from koordlet.kube import Client, EventRecorder, ObjectInformer

log = get_logger(__name__)

EVENT_INVALID = "ColocationCfgInvalid"
"""A document that parses and is out of bounds; the reference sends no event for it."""
EXTENSIONS: tuple[ExtensionPlugin, ...] = (interference.PLUGIN,)

Listener = Callable[[SLOConfig, SLOConfig], object]


class ConfigMetrics(MetricSet):
    """How the ConfigMap was taken."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.loads = Counter("koord_manager_config_loads_total", "Times the SLO ConfigMap was read.", registry=registry)
        self.bad = Gauge(
            "koord_manager_config_key_bad", "1 while a key of the SLO ConfigMap is refused and its last good value"
            " is in force.", ["key"], registry=registry,
        )  # fmt: skip


class ConfigCache:
    """The configuration in force. A service: `start`, then wait for `informer.synced`."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        namespace: str,
        name: str,
        registry: CollectorRegistry | None = None,
        extensions: tuple[ExtensionPlugin, ...] = EXTENSIONS,
        strict_parity: bool = False,
    ) -> None:
        self.name = "slo-config"
        self.informer = ObjectInformer(client, ConfigMap, name, namespace, name="slo-config")
        self.extensions = extensions
        self.extension_values: Mapping[str, Any] = {}
        """What the extension plug-ins keep of the ConfigMap; see `extensions_for_node`."""
        self._current: SLOConfig = UNREAD
        self._events = events
        self._listeners: list[Listener] = []
        self._bad: dict[str, str] = {}
        self._telling = False
        self._untold: list[tuple[ConfigMap, str, str]] = []
        self._strict = strict_parity
        self._metrics = ConfigMetrics.of(registry)
        self.informer.add_handler(on_add=self._load, on_update=self._updated)

    @property
    def current(self) -> SLOConfig:
        """What is in force; UNREAD before the first sync."""
        if self._current is UNREAD and self.informer.synced.is_set():
            self._current, _ = configmap.load(UNREAD, None)  # synced and nothing loaded: there is no ConfigMap
        return self._current

    @property
    def bad(self) -> Mapping[str, str]:
        """Key -> why what the ConfigMap says there is not in force."""
        return self._bad

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` at every change of what is in force."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """Send Events from now on, first those about what is refused already. Only one replica should."""
        self._telling = True
        untold, self._untold = self._untold, []
        for config, reason, message in untold:
            self._events.warning(config, reason, message)

    def strategy(self, node: Node) -> ColocationStrategy | None:
        """The effective co-location strategy of a node; None while no configuration was ever usable."""
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
        self.extension_values, extension_errors = merge_extensions(self.extensions, values, config.data)
        self._current = after
        self._metrics.loads.inc()
        self._untold = []
        bad = {problem.key: problem.message for problem in problems}
        for problem in problems:
            self._refuse(config, problem.key, problem.event or EVENT_INVALID, problem.message)
        for plugin, message in extension_errors.items():
            bad[plugin] = message
            self._refuse(config, plugin, configmap.EVENT_SLO, message)
        for key in self._bad.keys() - bad.keys():
            self._metrics.bad.labels(key).set(0)
        self._bad = bad
        log.info("Configuration read", version=config.metadata.resource_version, refused=",".join(sorted(bad)))
        if after != before or self.extension_values != values:
            for listener in self._listeners:
                listener(before, after)

    def _refuse(self, config: ConfigMap, key: str, reason: str, message: str) -> None:
        self._metrics.bad.labels(key).set(1)
        log.error("Key of the configuration refused, the last good stays", key=key, reason=message)
        self._untold.append((config, reason, f"{key}: {message}; the last good configuration stays in force"))
        if self._telling:
            self.tell()
