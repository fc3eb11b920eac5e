"""Shared by all held Docker calls: the store, its completion from dockerd, hook calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from koordlet.app.logging import get_logger
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.interception import DockerCallRefused
from runtimeproxy.docker.recover import DockerRecovery
from runtimeproxy.hooks.dispatch import HOOK_TIMEOUT_S, HookDispatcher, HookRefused
from runtimeproxy.hooks.pods import PodHooks, SkipRule
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredContainer, StoredPod

log = get_logger(__name__)

_T = TypeVar("_T")


class DockerCallContext:
    """One per process and event loop. `timeout`: seconds that a call waits at most for anything but its own hook: post
    hooks of earlier calls, dockerd's details of a container or of itself."""

    def __init__(
        self,
        store: ProxyStore,
        dispatcher: HookDispatcher,
        skip: SkipRule,
        api: DockerApi,
        metrics: ProxyMetrics,
        *,
        timeout: float = HOOK_TIMEOUT_S,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self.recovery = DockerRecovery(store, api, metrics)
        self.close = api.close
        self._hooks = PodHooks(dispatcher, skip, metrics, timeout=timeout)
        self.unhooked = self._hooks.unhooked
        self.handles = self._hooks.handles
        self._post_hooks: set[asyncio.Task[None]] = set()

    async def run_pre(self, pod: StoredPod, pod_id: str, hook: Hook, request: HookRequest) -> HookResponse | None:
        """See `PodHooks.run_pre`. Raises DockerCallRefused."""
        try:
            return await self._hooks.run_pre(pod, pod_id, hook, request)
        except HookRefused as error:
            raise DockerCallRefused(str(error)) from error

    def run_post(self, pod: StoredPod, pod_id: str, hook: Hook, request: HookRequest) -> None:
        """Run a post hook in the background."""
        work = self._hooks.run_post(pod, pod_id, hook, request)
        if work is not None:
            task = asyncio.get_running_loop().create_task(work, name=hook.rpc)
            self._post_hooks.add(task)
            task.add_done_callback(self._post_hook_ended)

    def _post_hook_ended(self, done: asyncio.Task[None]) -> None:
        self._post_hooks.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("Post hook failed", hook=done.get_name(), err=error)

    async def finish(self) -> None:
        """Wait for running post hooks; the dispatcher limits each."""
        if self._post_hooks:
            await asyncio.wait(self._post_hooks)

    async def driver(self) -> str:
        """dockerd's cgroup driver; the last known one if dockerd does not respond in time."""
        if not self.recovery.current:
            try:
                await self._in_time(self.recovery.refresh_driver())
            except DockerError as error:
                log.warning("Using the last known cgroup driver of Docker", driver=self.recovery.driver, err=error)
        return self.recovery.driver

    async def sandbox(self, pod_id: str) -> StoredPod:
        """A sandbox, from dockerd if the store lacks it. Raises DockerCallRefused when there is none, DockerError when
        dockerd cannot be queried."""
        pod = await self.pod(pod_id) if pod_id else None
        if pod is None:
            raise DockerCallRefused(
                f"No such sandbox: {pod_id or f'the container has no label {names.SANDBOX_ID_LABEL}'}"
            )
        return pod

    async def pod(self, pod_id: str) -> StoredPod | None:
        """A sandbox, as complete as possible in time; None when dockerd has none. Raises DockerError when nothing is
        known."""
        known = self.store.pods.get(pod_id)
        if known is not None and known.complete and self.recovery.current:
            return known
        try:
            return await self._in_time(self.recovery.pod(pod_id))
        except DockerError as error:
            known = self.store.pods.get(pod_id)
            if known is None:
                raise
            log.warning("Hook request has an incomplete sandbox", id=pod_id, err=error)
            return known

    async def container(self, container_id: str, *hooks: Hook) -> StoredContainer | None:
        """A stored container, as complete as possible in time if one of `hooks` will run (or none is given)."""
        known = self.store.containers.get(container_id)
        if known is None or (known.complete and self.recovery.current):
            return known
        if hooks and not any(map(self.handles, hooks)):
            return known
        try:
            return await self._in_time(self.recovery.container(container_id))
        except DockerError as error:
            log.warning("Hook request has an incomplete container", id=container_id, err=error)
            return self.store.containers.get(container_id)

    async def find(self, reference: str) -> str | None:
        """See `DockerRecovery.find`; also None when dockerd does not respond in time."""
        try:
            return await self._in_time(self.recovery.find(reference))
        except DockerError as error:
            log.warning("Forwarding a call without hooks: cannot look up its container", container=reference, err=error)
            self.unhooked("unknown-container")
            return None

    async def _in_time(self, query: Awaitable[_T]) -> _T:
        """Raises DockerError."""
        max_wait = self._hooks.max_wait(None)
        try:
            async with asyncio.timeout(max_wait):
                return await query
        except TimeoutError as error:
            raise DockerError(f"no response in {max_wait:g} s") from error
