"""The evictor that plugins work with: filters, then limits, then the profile's evict plugin (spec 07 §3.2).

if handle.evictor.filter(pod) is None:
    await handle.evictor.evict(pod, "node is overutilized, ...")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from control.descheduler.framework.limiter import EvictionLimiter
from control.descheduler.framework.plugin import EvictionFilterPlugin, EvictOptions, EvictPlugin
from control.descheduler.state.pods import PodRecord
from koordlet.app.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True)
class PlannedEviction:
    """An eviction that was carried out, or that a dry run would carry out."""

    pod: str
    """`namespace/name`"""
    node: str
    profile: str
    plugin: str
    reason: str
    dry_run: bool


class EvictionProxy:
    """The evictor of one profile."""

    def __init__(
        self,
        profile: str,
        limiter: EvictionLimiter,
        *,
        dry_run: bool,
        observe: Callable[[PlannedEviction], object] | None = None,
    ) -> None:
        """`observe` is called for every eviction, also in a dry run."""
        self._profile = profile
        self._limiter = limiter
        self._dry_run = dry_run
        self._observe = observe
        self._filters: Sequence[EvictionFilterPlugin] = ()
        self._evict: EvictPlugin | None = None

    def connect(self, filters: Sequence[EvictionFilterPlugin], evict: EvictPlugin) -> None:
        """Called once by the profile, when all its plugins exist."""
        self._filters = filters
        self._evict = evict

    def filter(self, pod: PodRecord) -> str | None:
        """Why the pod may not be evicted, by the first filter plugin that refuses it; None if it may."""
        for plugin in self._filters:
            refusal = plugin.filter(pod)
            if refusal is not None:
                return refusal
        return None

    def pre_eviction_filter(self, pod: PodRecord) -> str | None:
        """Like `filter`, for a pod that is about to be evicted."""
        for plugin in self._filters:
            refusal = plugin.pre_eviction_filter(pod)
            if refusal is not None:
                return refusal
        return None

    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        """False if a limit is reached or the evict plugin failed. A dry run counts towards the limits, too."""
        refusal = self._limiter.refusal(pod.node, pod.namespace)
        if refusal is not None:
            log.info("Not evicting pod", pod=pod.key, node=pod.node, plugin=options.plugin, why=refusal)
            return False
        if self._dry_run:
            log.info(
                "Dry run: would evict pod", pod=pod.key, node=pod.node, plugin=options.plugin, reason=options.reason
            )
        elif self._evict is None:
            raise RuntimeError(f"profile {self._profile}: evict called before all plugins were constructed")
        elif not await self._evict.evict(pod, options):
            return False
        self._limiter.done(pod.node, pod.namespace)
        self._observed(pod, options, dry_run=self._dry_run)
        return True

    def pretend(self, pod: PodRecord, options: EvictOptions) -> None:
        """Report an eviction that a plugin's own dry run would make; limits are not charged."""
        log.info("Dry run: would evict pod", pod=pod.key, node=pod.node, plugin=options.plugin, reason=options.reason)
        self._observed(pod, options, dry_run=True)

    def _observed(self, pod: PodRecord, options: EvictOptions, *, dry_run: bool) -> None:
        if self._observe is not None:
            self._observe(PlannedEviction(pod.key, pod.node, self._profile, options.plugin, options.reason, dry_run))

    def node_limit_exceeded(self, node: str) -> bool:
        return self._limiter.node_limit_exceeded(node)


class PluginEvictor:
    """The proxy for one plugin: fills in the plugin's name."""

    def __init__(self, proxy: EvictionProxy, plugin: str) -> None:
        self._proxy = proxy
        self._plugin = plugin
        self.filter = proxy.filter
        self.pre_eviction_filter = proxy.pre_eviction_filter
        self.node_limit_exceeded = proxy.node_limit_exceeded

    async def evict(self, pod: PodRecord, options: EvictOptions | str = "", *, dry_run: bool = False) -> bool:
        """See `EvictionProxy.evict`; a text is the reason. `dry_run`: of the plugin; see `EvictionProxy.pretend`."""
        if isinstance(options, str):
            options = EvictOptions(reason=options)
        options = replace(options, plugin=options.plugin or self._plugin)
        if dry_run:
            self._proxy.pretend(pod, options)
            return True
        return await self._proxy.evict(pod, options)
