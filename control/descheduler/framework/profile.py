"""A profile at run time: its plugins, and what one pass does with them (spec 07 §1.3, §3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from control.descheduler.config.load import ResolvedProfile
from control.descheduler.framework.evictor import EvictionProxy, PluginEvictor
from control.descheduler.framework.handle import PluginHandle, ProcessParts
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.framework.plugin import (
    BalancePlugin,
    DeschedulePlugin,
    DeschedulerPlugin,
    EvictionFilterPlugin,
    EvictPlugin,
)
from control.descheduler.state.cluster import NodeRecord
from koordlet.app.logging import get_logger
from koordlet.kube import EventRecorder

log = get_logger(__name__)
K = TypeVar("K", bound=DeschedulerPlugin)


class ProfileFailed(Exception):
    """One or more plugins failed in this pass; the message names them."""


class DeschedulerProfile:
    """The plugins of one profile, each constructed once."""

    def __init__(
        self,
        settings: ResolvedProfile,
        kinds: Mapping[str, type[DeschedulerPlugin]],
        process: ProcessParts,
        proxy: EvictionProxy,
        events: EventRecorder,
    ) -> None:
        """Raises ConfigurationError for arguments that a plugin refuses."""
        self.name = settings.name
        self.node_selector = settings.node_selector
        self.events = events
        self.plugins: dict[str, DeschedulerPlugin] = {}
        self._process = process
        for name in settings.names():
            handle = PluginHandle(process, self.name, name, PluginEvictor(proxy, name), events, settings.node_selector)
            self.plugins[name] = kinds[name](settings.args[name], handle)
        self._deschedule = self._set(settings.enabled["deschedule"], DeschedulePlugin)  # type: ignore[type-abstract]
        self._balance = self._set(settings.enabled["balance"], BalancePlugin)  # type: ignore[type-abstract]
        (evict,) = self._set(settings.enabled["evict"], EvictPlugin)  # type: ignore[type-abstract]
        proxy.connect(self._set(settings.enabled["filter"], EvictionFilterPlugin), evict)  # type: ignore[type-abstract]

    def _set(self, names: Sequence[str], kind: type[K]) -> list[K]:
        return [plugin for name in names if isinstance(plugin := self.plugins[name], kind)]

    def nodes(self, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
        """Those that the profile selects."""
        selector = self.node_selector
        return [node for node in nodes if selector is None or selector.matches(node.labels)]

    async def deschedule(self, nodes: Sequence[NodeRecord]) -> None:
        """Run the deschedule plugins. Raises ProfileFailed after all have run."""
        await self._run(self._deschedule, lambda plugin: plugin.deschedule(self.nodes(nodes)))

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        """Run the balance plugins. Raises ProfileFailed after all have run."""
        await self._run(self._balance, lambda plugin: plugin.balance(self.nodes(nodes)))

    async def _run(self, plugins: Sequence[K], call: Callable[[K], Awaitable[Any]]) -> None:
        failed: list[str] = []
        clock, metrics = self._process.clock, DeschedulerMetrics.of(self._process.registry)
        for plugin in plugins:
            started = clock.monotonic()
            try:
                await call(plugin)
            except Exception as error:
                log.exception("Plugin failed", profile=self.name, plugin=plugin.name, err=error)
                metrics.failures.labels(plugin.name, self.name).inc()
                failed.append(f"{plugin.name}: {error}")
            metrics.plugin_seconds.labels(plugin.name, self.name).observe(clock.monotonic() - started)
        if failed:
            raise ProfileFailed("; ".join(failed))

    async def start(self) -> None:
        """This replica leads: start all plugins."""
        for plugin in self.plugins.values():
            await plugin.start()

    async def stop(self) -> None:
        for plugin in reversed(list(self.plugins.values())):
            await plugin.stop()
