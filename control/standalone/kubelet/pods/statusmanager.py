"""Sends pod statuses to the API server: only the newest, unchanged ones not at all, failed ones again later.

One task sends for all pods, in the order of their first change, so that a hundred pods that change at once
make sequential requests. While the API server is unavailable, the newest status of each pod is kept and sent later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone.kubelet.node.apirequests import NodeApi
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube.errors import ApiError, Conflict, KubeError, NotFound

log = get_logger(__name__)

RETRY_FIRST_SECONDS = 0.5
RETRY_MAX_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Pending:
    namespace: str
    name: str
    status: Mapping[str, Any]


class StatusManager:
    def __init__(self, api: NodeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        self._sent: dict[str, Mapping[str, Any]] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="status-manager")

    async def stop(self) -> None:
        await end_tasks(self._task)

    def set(self, uid: str, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        if uid not in self._pending and self._sent.get(uid) == status:
            return
        self._pending[uid] = _Pending(namespace, name, status)
        self._wake.set()

    def lost(self, uid: str, seen: Mapping[str, Any] | None) -> bool:
        """Whether the API has another phase than the one sent last, so that it has to be sent again."""
        sent = self._sent.get(uid)
        if sent is None or uid in self._pending or (seen or {}).get("phase") == sent.get("phase"):
            return False
        del self._sent[uid]
        return True

    def forget(self, uid: str) -> None:
        self._pending.pop(uid, None)
        self._sent.pop(uid, None)

    async def _run(self) -> None:
        delay = RETRY_FIRST_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            for uid in list(self._pending):
                entry = self._pending.get(uid)
                if entry is None or await self._send(uid, entry):
                    delay = RETRY_FIRST_SECONDS
                    continue
                self.failures += 1
                await self._clock.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_SECONDS)
                self._wake.set()
                break

    async def _send(self, uid: str, entry: _Pending) -> bool:
        """False when the request should be repeated."""
        try:
            await self._api.patch_pod_status(entry.namespace, entry.name, uid, entry.status)
        except (NotFound, Conflict):
            pass  # the pod was deleted, or its name belongs to another pod
        except ApiError as error:
            if error.status < 500 and error.status not in (401, 403, 429):
                log.error("The API server rejected a pod status", pod=f"{entry.namespace}/{entry.name}", err=error)
            else:
                log.warning("Cannot send a pod status", pod=f"{entry.namespace}/{entry.name}", err=error)
                return False
        except KubeError as error:
            log.warning("Cannot send a pod status", pod=f"{entry.namespace}/{entry.name}", err=error)
            return False
        if self._pending.get(uid) is entry:
            del self._pending[uid]
            self._sent[uid] = entry.status
        return True

    async def finalize(self, uid: str, namespace: str, name: str) -> None:
        """Delete the API object after its last status was sent; repeats until it is deleted."""
        delay = RETRY_FIRST_SECONDS
        while True:
            entry = self._pending.get(uid)
            if entry is None or await self._send(uid, entry):
                try:
                    await self._api.delete_pod(namespace, name, uid)
                    return
                except (NotFound, Conflict):
                    return
                except KubeError as error:
                    log.warning("Cannot delete a pod, trying again", pod=f"{namespace}/{name}", err=error)
            await self._clock.sleep(delay)
            delay = min(delay * 2, RETRY_MAX_SECONDS)
