"""Leader election over coordination.k8s.io/v1 Leases, with client-go's rules.

The holder renews every `retry_period`; when it has not managed to for `renew_deadline` it stops leading, before
`lease_duration` lets anybody else begin. Others never compare clocks with the holder: they watch whether the lease
*changes*, and take it once it has not for its duration as measured by their own monotonic clock, so skewed or
jumping wall clocks do no harm. Two candidates that write at once are told apart by resourceVersion.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from koordlet.api.core import Lease, LeaseSpec
from koordlet.api.encoding.wire import MicroTime, WireError
from koordlet.api.meta import ObjectMeta
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube.client import Client
from koordlet.kube.errors import Conflict, KubeError, NotFound
from koordlet.kube.metrics import LeaderMetrics

log = get_logger(__name__)
R = TypeVar("R")
_RETRY_JITTER = 1.2


class LeadershipLost(Exception):
    """The lease could not be renewed in time, or somebody else holds it."""


class LeaderElector:
    """One candidate for one lease. `run(lead)` campaigns, leads while the lease holds, and releases it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        on_started: Callable[[], object] | None = None,
        on_lost: Callable[[], object] | None = None,
        on_new_leader: Callable[[str], object] | None = None,
        registry: CollectorRegistry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not lease_duration > renew_deadline > retry_period * _RETRY_JITTER:
            raise ValueError("need lease_duration > renew_deadline > 1.2 x retry_period")
        if not identity:
            raise ValueError("a candidate needs an identity")
        self.namespace, self.name, self.identity = namespace, name, identity
        self._client = client
        self._clock: Clock = client.clock
        self._duration, self._deadline, self._retry = lease_duration, renew_deadline, retry_period
        self._on_started, self._on_lost, self._on_new_leader = on_started, on_lost, on_new_leader
        self._rng = rng or random.Random()
        self._lease: Lease | None = None
        self._observed_at = 0.0
        self._renewed_at = 0.0  # when the last successful attempt began: nobody else counts from earlier
        self._reported = ""
        self.is_leader = False
        metrics = LeaderMetrics.of(registry if registry is not None else client.registry)
        title = f"{namespace}/{name}"
        self._m_leader = metrics.is_leader.labels(title)
        self._m_changes = metrics.transitions.labels(title)
        self._m_failures = metrics.renew_failures.labels(title)

    @property
    def leader(self) -> str:
        """Who holds the lease as last observed; "" when nobody does."""
        return (self._lease.spec.holder_identity or "") if self._lease is not None else ""

    @property
    def unrenewed(self) -> float:
        """Seconds since the lease was last taken or renewed; 0 while somebody else leads."""
        return self._clock.monotonic() - self._renewed_at if self.is_leader else 0.0

    async def run(self, lead: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Wait to be leader, then run `lead()` beside the renewals; its result.

        When the lease is lost `lead` is cancelled, `on_lost` called and LeadershipLost raised. When `lead` ends or
        this is cancelled the lease is released, so that the next candidate need not wait.
        """
        await self._acquire()
        self._set_leader(True)
        log.info("Leading", lease=f"{self.namespace}/{self.name}", identity=self.identity)
        work: asyncio.Task[R] | None = None
        renew: asyncio.Task[None] | None = None
        lost = False
        try:
            if self._on_started is not None:
                self._on_started()
            work = asyncio.create_task(lead(), name=f"leading:{self.name}")
            renew = asyncio.create_task(self._renew_until_lost(), name=f"lease:{self.name}")
            await asyncio.wait({work, renew}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            lost = True
            raise LeadershipLost(f"lease {self.namespace}/{self.name} is not ours any more") from renew.exception()
        finally:
            tasks = [task for task in (work, renew) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._set_leader(False)
            if lost and self._on_lost is not None:
                self._on_lost()
            if not lost:
                await self._release()

    async def _acquire(self) -> None:
        while not await self._try():
            # Stretched at random, so that candidates don't write in step.
            await self._clock.sleep(self._retry * (1 + (_RETRY_JITTER - 1) * self._rng.random()))

    async def _renew_until_lost(self) -> None:
        """Return when the lease is lost."""
        while True:
            left = self._renewed_at + self._deadline - self._clock.monotonic()
            try:
                async with self._clock.timeout(left):
                    await self._clock.sleep(self._retry)
                    while not await self._try():
                        self._m_failures.inc()
                        if self.leader not in ("", self.identity):
                            return  # somebody else took it: no use waiting out the deadline
                        await self._clock.sleep(self._retry)
            except TimeoutError:
                log.error("Lease not renewed in time", lease=f"{self.namespace}/{self.name}")
                return

    async def _try(self) -> bool:
        """One attempt to take or renew the lease; False when it is not ours afterwards."""
        begun = self._clock.monotonic()
        try:
            ours = await self._try_once()
        except Conflict:  # somebody wrote between our read and our write: look again next time
            return False
        except (KubeError, WireError) as error:
            log.warning("Lease attempt failed", lease=f"{self.namespace}/{self.name}", err=error)
            return False
        if ours:
            self._renewed_at = begun
        return ours

    async def _try_once(self) -> bool:
        try:
            self._observe(await self._client.get(Lease, self.name, self.namespace))
        except NotFound:
            self._observe(await self._client.create(self._new_lease(), namespace=self.namespace))
            return True
        assert self._lease is not None
        spec = self._lease.spec
        mine = spec.holder_identity == self.identity
        if not mine and spec.holder_identity:
            lasts = float(spec.lease_duration_seconds or self._duration)
            if self._clock.monotonic() < self._observed_at + lasts:
                return False
        now = self._now()
        body: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._duration),
            "renewTime": str(now),
        }
        if not mine:
            body |= {"acquireTime": str(now), "leaseTransitions": (spec.lease_transitions or 0) + 1}
        await self._write(body)
        return True

    async def _write(self, spec: dict[str, Any]) -> None:
        """Patch the lease on condition that it is still as last seen. Raises Conflict."""
        assert self._lease is not None
        version = self._lease.metadata.resource_version
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        self._observe(await self._client.patch(Lease, self.name, self.namespace, body=body))

    async def _release(self) -> None:
        if self._lease is None or self.leader != self.identity:
            return
        try:
            async with self._clock.timeout(self._retry):
                spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": str(self._now())}
                try:
                    await self._write(spec)
                except Conflict:  # a renewal that was under way when we were stopped got through
                    self._observe(await self._client.get(Lease, self.name, self.namespace))
                    if self.leader == self.identity:
                        await self._write(spec)
        except (KubeError, TimeoutError) as error:  # the next candidate waits out the duration instead
            log.warning("Lease not released", lease=f"{self.namespace}/{self.name}", err=error)

    def _observe(self, lease: Lease) -> None:
        """Remember the lease; when it changed, also that it changed now."""
        if self._lease is None or lease.spec != self._lease.spec:
            self._observed_at = self._clock.monotonic()
        self._lease = lease
        if self.leader and self.leader != self._reported:
            self._reported = self.leader
            self._m_changes.inc()
            log.info("New leader", lease=f"{self.namespace}/{self.name}", leader=self.leader)
            if self._on_new_leader is not None:
                self._on_new_leader(self.leader)

    def _new_lease(self) -> Lease:
        now = self._now()
        return Lease(
            metadata=ObjectMeta(name=self.name, namespace=self.namespace),
            spec=LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=int(self._duration),
                acquire_time=now,
                renew_time=now,
                lease_transitions=0,
            ),
        )

    def _now(self) -> MicroTime:
        return MicroTime.from_unix(self._clock.now())

    def _set_leader(self, leading: bool) -> None:
        self.is_leader = leading
        self._m_leader.set(1 if leading else 0)
