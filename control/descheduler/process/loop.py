"""The main loop: when passes run, and what one pass does (spec 07 §1.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from control.descheduler.framework.limiter import EvictionLimiter
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.framework.profile import DeschedulerProfile, ProfileFailed
from control.descheduler.state.cluster import ClusterState
from koordlet.api.meta import LabelSelector
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class DeschedulingLoop:
    """Runs passes over the profiles."""

    def __init__(
        self,
        profiles: Sequence[DeschedulerProfile],
        state: ClusterState,
        limiter: EvictionLimiter,
        clock: Clock,
        metrics: DeschedulerMetrics,
        *,
        interval_s: float,
        node_selector: LabelSelector | None = None,
    ) -> None:
        """`interval_s`: from the start of a pass to the start of the next one; 0: one pass only."""
        self._profiles = profiles
        self._state = state
        self._limiter = limiter
        self._clock = clock
        self._metrics = metrics
        self._interval_s = interval_s
        self._node_selector = node_selector

    async def run(self) -> None:
        """Run until cancelled. After the only pass of interval 0 it waits: controllers of plugins keep running."""
        while True:
            started = self._clock.monotonic()
            await self.once()
            if self._interval_s <= 0:
                log.info("Descheduling ends after one pass: deschedulingInterval is 0")
                await asyncio.Event().wait()
            await self._clock.sleep(max(0.0, started + self._interval_s - self._clock.monotonic()))

    async def once(self) -> bool:
        """One pass. A failure is logged and ends it; returns whether it was complete."""
        started = self._clock.monotonic()
        self._limiter.reset()
        nodes = self._state.ready_nodes(self._node_selector)
        if len(nodes) <= 1:
            log.error("Not descheduling: the cluster size is 0 or 1", nodes=len(nodes))
            return False
        complete = await self._over_profiles(lambda profile: profile.deschedule(nodes))
        if complete:
            complete = await self._over_profiles(lambda profile: profile.balance(nodes))
        seconds = self._clock.monotonic() - started
        self._metrics.pass_seconds.observe(seconds)
        self._metrics.last_pass.set(self._clock.now())
        log.info("Pass ended", nodes=len(nodes), evicted=self._limiter.total, seconds=round(seconds, 3))
        return complete

    async def _over_profiles(self, call: Callable[[DeschedulerProfile], Awaitable[None]]) -> bool:
        for profile in self._profiles:
            try:
                await call(profile)
            except ProfileFailed as error:
                log.error("Pass ends early: profile failed", profile=profile.name, err=error)
                return False
        return True
