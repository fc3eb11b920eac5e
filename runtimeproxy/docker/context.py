"""What the held Docker calls share: the store and its completion from dockerd, how hooks are asked and told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from koordlet.app.logging import get_logger
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerApi, DockerError
from runtimeproxy.docker.held import Refused
from runtimeproxy.docker.recover import Recovery
from runtimeproxy.hooks.dispatch import LIMIT_SECONDS, Dispatcher, HookRefused
from runtimeproxy.hooks.pods import PodHooks, SkipRule
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ContainerInfo, PodInfo, Store

log = get_logger(__name__)

_T = TypeVar("_T")


class Context:
    """One a process, on one loop. `limit`: seconds that a call waits at most for what is not its own hook: after hooks
    of earlier calls, what dockerd tells of a container or of itself."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        skip: SkipRule,
        api: DockerApi,
        metrics: ProxyMetrics,
        *,
        limit: float = LIMIT_SECONDS,
    ) -> None:
        self.store, self.metrics = store, metrics
        self.recovery = Recovery(store, api, metrics)
        self.close = api.close
        self._hooks = PodHooks(dispatcher, skip, metrics, limit=limit)
        self.unhooked, self.handles = self._hooks.unhooked, self._hooks.handles
        self._telling: set[asyncio.Task[None]] = set()

    async def ask(self, pod: PodInfo, pod_id: str, hook: Hook, request: HookRequest) -> HookResponse | None:
        """See PodHooks. Raises Refused."""
        try:
            return await self._hooks.ask(pod, pod_id, hook, request)
        except HookRefused as error:
            raise Refused(str(error)) from error

    def tell(self, pod: PodInfo, pod_id: str, hook: Hook, request: HookRequest) -> None:
        """Run an after hook beside everything else; nobody waits for it."""
        work = self._hooks.tell(pod, pod_id, hook, request)
        if work is not None:
            task = asyncio.get_running_loop().create_task(work, name=hook.rpc)
            self._telling.add(task)
            task.add_done_callback(self._told)

    def _told(self, done: asyncio.Task[None]) -> None:
        self._telling.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("After hook could not be run", hook=done.get_name(), err=error)

    async def finish(self) -> None:
        """Wait for the after hooks under way; the dispatcher limits each."""
        if self._telling:
            await asyncio.wait(self._telling)

    async def driver(self) -> str:
        """dockerd's cgroup driver; the last one known if dockerd does not tell in time."""
        if not self.recovery.current:
            try:
                await self._in_time(self.recovery.ask_driver())
            except DockerError as error:
                log.warning("Docker's cgroup driver is taken for what it was", driver=self.recovery.driver, err=error)
        return self.recovery.driver

    async def sandbox(self, pod_id: str) -> PodInfo:
        """A sandbox, from dockerd if the store lacks it. Raises Refused when there is none, DockerError when dockerd
        can't be asked."""
        found = await self.pod(pod_id) if pod_id else None
        if found is None:
            raise Refused(f"No such sandbox: {pod_id or f'the container has no label {names.SANDBOX_ID_LABEL}'}")
        return found

    async def pod(self, pod_id: str) -> PodInfo | None:
        """As complete as it gets in time; None when dockerd has no such sandbox. Raises DockerError when nothing is
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
            log.warning("Hooks are told of a sandbox what is known of it", id=pod_id, err=error)
            return known

    async def container(self, container_id: str, *hooks: Hook) -> ContainerInfo | None:
        """A stored container, as complete as it gets in time if one of `hooks` will be asked (or none is named)."""
        known = self.store.containers.get(container_id)
        if known is None or (known.complete and self.recovery.current):
            return known
        if hooks and not any(map(self.handles, hooks)):
            return known
        try:
            return await self._in_time(self.recovery.container(container_id))
        except DockerError as error:
            log.warning("Hooks are told of a container what is known of it", id=container_id, err=error)
            return self.store.containers.get(container_id)

    async def find(self, given: str) -> str | None:
        """See Recovery.find; None, too, when dockerd can't be asked in time."""
        try:
            return await self._in_time(self.recovery.find(given))
        except DockerError as error:
            log.warning("A call passes without hooks: its container can't be looked up", container=given, err=error)
            self.unhooked("unknown-container")
            return None

    async def _in_time(self, asking: Awaitable[_T]) -> _T:
        """Raises DockerError."""
        limit = self._hooks.patience(None)
        try:
            async with asyncio.timeout(limit):
                return await asking
        except TimeoutError as error:
            raise DockerError(f"no answer in {limit:g} s") from error
