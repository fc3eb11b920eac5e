"""Waits, after the lease is acquired, until this replica's caches are as new as the lease (spec 05 §1.4; gate
SyncBarrier).

The previous leader may have bound pods that the watch has not delivered yet. An annotation is written to a pod that
exists for this purpose. When the watch delivers it, all older changes have been delivered too. The newest pod with a
node that is known then must also be counted in the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from control.scheduler.state.versions import reached
from koordlet.api.core import Pod
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, KubeError, NotFound

log = get_logger(__name__)

PREFIX: Final = "scheduling.koordinator.sh/sync-barrier-"
POLL_PERIOD_S: Final = 0.1


class SyncBarrier:
    """See the module text."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        lease: str,
        *,
        get: Callable[[str], Pod | None],
        pods: Callable[[], Iterable[Pod]],
        counted: Callable[[str], str | None],
        timeout: float,
    ) -> None:
        """`namespace`, `name`: the barrier pod. `get`: a pod of the store by `namespace/name`; `pods`: all of them.
        `counted(uid)`: the resourceVersion that the cache has, or None. `timeout`: seconds."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._annotation = PREFIX + lease
        self._get = get
        self._pods = pods
        self._counted = counted
        self._timeout = timeout
        self._clock: Clock = client.clock

    async def passed(self) -> bool:
        """Wait for the barrier. False: timeout, or no barrier pod. Scheduling begins in any case."""
        try:
            async with self._clock.timeout(self._timeout):
                return await self._wait()
        except TimeoutError:
            log.error("Caches may be stale: timeout waiting for the sync barrier", seconds=self._timeout)
            return False

    async def _wait(self) -> bool:
        target = await self._write()
        if target is None:
            log.warning("No sync barrier: the barrier pod does not exist", pod=f"{self._namespace}/{self._name}")
            return False
        key = f"{self._namespace}/{self._name}"
        while True:
            seen = self._get(key)
            if seen is None:
                log.warning("The barrier pod was deleted", pod=key)
                break
            if reached(seen.metadata.resource_version, target):
                break
            await self._clock.sleep(POLL_PERIOD_S)
        anchor = max(
            (pod for pod in self._pods() if pod.spec.node_name),
            key=lambda pod: (len(pod.metadata.resource_version), pod.metadata.resource_version),
            default=None,
        )
        while anchor is not None:
            version = self._counted(anchor.metadata.uid)
            if version is not None and reached(version, anchor.metadata.resource_version):
                break
            now = self._get(anchor.metadata.key)
            if now is None or now.metadata.uid != anchor.metadata.uid:
                break
            await self._clock.sleep(POLL_PERIOD_S)
        return True

    async def _write(self) -> str | None:
        """Write the annotation, with retries. Returns its resourceVersion; None if the barrier pod does not exist."""
        while True:
            now = datetime.fromtimestamp(self._clock.now(), UTC).isoformat().replace("+00:00", "Z")
            body = {"metadata": {"annotations": {self._annotation: now}}}
            try:
                return (await self._client.patch(Pod, self._name, self._namespace, body=body)).metadata.resource_version
            except NotFound:
                return None
            except KubeError as error:
                log.warning("Failed to write the sync barrier, retrying", err=error)
                await self._clock.sleep(POLL_PERIOD_S)
            await asyncio.sleep(0)
