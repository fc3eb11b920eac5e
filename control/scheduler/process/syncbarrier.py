"""Waiting, after the lease is won, until this replica's copy is as new as the lease (spec 05 §1.4; gate SyncBarrier).

The replica that led before may have bound pods that our watch has not told of yet. A mark is written on a pod that
exists for this; when the mark comes back through the watch, everything older has come, too. The newest pod with a node
that is then known must also be counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from koordlet.api.core import Pod
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, KubeError, NotFound

log = get_logger(__name__)

PREFIX: Final = "scheduling.koordinator.sh/sync-barrier-"
POLL_SECONDS: Final = 0.1


def reached(version: str, target: str) -> bool:
    """Whether resourceVersion `version` is `target` or newer."""
    return (len(version), version) >= (len(target), target)


class SyncBarrier:
    """`pods`: the store's pods by key and all of them; `counted(uid)`: the version that the cache has, or None."""

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
        self._client, self._namespace, self._name = client, namespace, name
        self._mark = PREFIX + lease
        self._get, self._pods, self._counted = get, pods, counted
        self._timeout = timeout
        self._clock: Clock = client.clock

    async def passed(self) -> bool:
        """Wait. False: the time was up, or there was nothing to wait by; scheduling begins all the same."""
        try:
            async with self._clock.timeout(self._timeout):
                return await self._wait()
        except TimeoutError:
            log.error("The copy of the cluster may be stale: the barrier did not come back", seconds=self._timeout)
            return False

    async def _wait(self) -> bool:
        target = await self._write()
        if target is None:
            log.warning("No barrier: its pod does not exist", pod=f"{self._namespace}/{self._name}")
            return False
        key = f"{self._namespace}/{self._name}"
        while True:
            seen = self._get(key)
            if seen is None:
                log.warning("The barrier's pod is gone", pod=key)
                break
            if reached(seen.metadata.resource_version, target):
                break
            await self._clock.sleep(POLL_SECONDS)
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
            await self._clock.sleep(POLL_SECONDS)
        return True

    async def _write(self) -> str | None:
        """The version of the mark; None without a pod to write it on. Tries until it works."""
        while True:
            now = datetime.fromtimestamp(self._clock.now(), UTC).isoformat().replace("+00:00", "Z")
            body = {"metadata": {"annotations": {self._mark: now}}}
            try:
                return (await self._client.patch(Pod, self._name, self._namespace, body=body)).metadata.resource_version
            except NotFound:
                return None
            except KubeError as error:
                log.warning("Cannot write the barrier yet", err=error)
                await self._clock.sleep(POLL_SECONDS)
            await asyncio.sleep(0)
