"""Leader election over coordination.k8s.io/v1 Leases, with client-go's rules.

The holder renews the lease every `retry_period`. If renewals fail for `renew_deadline` it stops leading, before
`lease_duration` allows another candidate to start. Candidates never compare clocks with the holder: they take the lease
once it has not changed for its duration, measured by their own monotonic clock, so skewed or jumping wall clocks have
no effect. Of two concurrent writes one fails because of its resourceVersion.
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
from koordlet.app.tasks import end_tasks
from koordlet.kube.advice import advice
from koordlet.kube.client import Client
from koordlet.kube.errors import Conflict, KubeError, NotFound
from koordlet.kube.metrics import LeaderMetrics

log = get_logger(__name__)
R = TypeVar("R")
_RETRY_JITTER = 1.2


class LeadershipLost(Exception):
    """The lease was not renewed in time, or another candidate holds it."""


class LeaderElector:
    """One candidate for one lease. `run(lead)` acquires the lease, runs `lead` while it holds it, and releases it."""

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
        registry: CollectorRegistry | None = None,
    ) -> None:
        if not lease_duration > renew_deadline > retry_period * _RETRY_JITTER:
            raise ValueError("need lease_duration > renew_deadline > 1.2 x retry_period")
        if not identity:
            raise ValueError("a candidate needs an identity")
        self.namespace = namespace
        self.name = name
        self.identity = identity
        self._client = client
        self._clock: Clock = client.clock
        self._duration = lease_duration
        self._deadline = renew_deadline
        self._retry = retry_period
        self._on_started = on_started
        self._on_lost = on_lost
        self._lease: Lease | None = None
        self._observed_at = 0.0
        self._renewed_at = 0.0  # start of the last successful renewal, which no other candidate observed earlier
        self._reported = ""
        self.is_leader = False
        metrics = LeaderMetrics.of(registry if registry is not None else client.registry)
        title = f"{namespace}/{name}"
        self._m_leader = metrics.is_leader.labels(title)
        self._m_changes = metrics.transitions.labels(title)
        self._m_failures = metrics.renew_failures.labels(title)

    @property
    def leader(self) -> str:
        """The last observed holder of the lease; empty if there is none."""
        return (self._lease.spec.holder_identity or "") if self._lease is not None else ""

    @property
    def unrenewed(self) -> float:
        """Seconds since the lease was last acquired or renewed; 0 while this candidate does not lead."""
        return self._clock.monotonic() - self._renewed_at if self.is_leader else 0.0

    async def run(self, lead: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Acquire the lease, run `lead()` while renewing it, and return the result.

        If the lease is lost, `lead` is cancelled, `on_lost` called and LeadershipLost raised. If `lead` ends or this is
        cancelled, the lease is released, so that the next candidate does not have to wait.
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
            raise LeadershipLost(f"lease {self.namespace}/{self.name} was lost") from renew.exception()
        finally:
            tasks = [task for task in (work, renew) if task is not None]
            await end_tasks(*tasks)
            self._set_leader(False)
            if lost and self._on_lost is not None:
                self._on_lost()
            if not lost:
                await self._release()

    async def _acquire(self) -> None:
        # An attempt that took longer than the renew deadline is repeated: leading would end at once.
        while not await self._try() or self._clock.monotonic() - self._renewed_at >= self._deadline:
            # Random jitter, so that candidates do not write at the same time.
            await self._clock.sleep(self._retry * (1 + (_RETRY_JITTER - 1) * random.random()))

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
                            return  # another candidate took it
                        await self._clock.sleep(self._retry)
            except TimeoutError:
                log.error("Lease not renewed in time", lease=f"{self.namespace}/{self.name}")
                return

    async def _try(self) -> bool:
        """One attempt to acquire or renew the lease; returns whether this candidate holds it."""
        started_at = self._clock.monotonic()
        try:
            held = await self._try_once()
        except Conflict:  # another client wrote between the read and the write: read again in the next attempt
            return False
        except (KubeError, WireError) as error:
            log.warning("Lease attempt failed", lease=f"{self.namespace}/{self.name}", err=error, advice=advice(error))
            return False
        if held:
            self._renewed_at = started_at
        return held

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
        """Patch the lease if it is unchanged since it was last observed. Raises Conflict."""
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
                except Conflict:  # a renewal that was in progress at the stop succeeded
                    self._observe(await self._client.get(Lease, self.name, self.namespace))
                    if self.leader == self.identity:
                        await self._write(spec)
        except (KubeError, TimeoutError) as error:  # the next candidate waits for the duration
            log.warning("Lease not released", lease=f"{self.namespace}/{self.name}", err=error)

    def _observe(self, lease: Lease) -> None:
        """Store the lease; if it changed, also the time of the change."""
        if self._lease is None or lease.spec != self._lease.spec:
            self._observed_at = self._clock.monotonic()
        self._lease = lease
        if self.leader and self.leader != self._reported:
            self._reported = self.leader
            self._m_changes.inc()
            log.info("New leader", lease=f"{self.namespace}/{self.name}", leader=self.leader)

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
