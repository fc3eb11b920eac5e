"""What the held Docker calls share: the store, how hooks are asked and told, what dockerd says of a container."""

from __future__ import annotations

import asyncio

from koordlet.app.logging import get_logger
from runtimeproxy.dispatch import LIMIT_SECONDS, Dispatcher, HookRefused
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerApi, Inspected, NoSuchContainer
from runtimeproxy.docker.bodies import Members, env_map
from runtimeproxy.docker.held import Refused
from runtimeproxy.docker.infos import container_info, pod_info
from runtimeproxy.hooks import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.podhooks import PodHooks, SkipRule
from runtimeproxy.store import PodInfo, Store

log = get_logger(__name__)


class Context:
    """One a process, on one loop. `driver`: dockerd's cgroup driver, `cgroupfs` or `systemd`; `limit`: seconds that a
    call waits at most for the after hooks of earlier ones."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        skip: SkipRule,
        api: DockerApi,
        driver: str,
        metrics: ProxyMetrics,
        *,
        limit: float = LIMIT_SECONDS,
    ) -> None:
        self.store, self.api, self.driver, self.metrics = store, api, driver, metrics
        self._hooks = PodHooks(dispatcher, skip, metrics, limit=limit)
        self.unhooked = self._hooks.unhooked
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

    async def sandbox(self, pod_id: str) -> PodInfo:
        """A sandbox; one that dockerd has and the store lacks is fetched.

        Raises Refused when there is none, DockerError when dockerd can't be asked, Undecodable.
        """
        if pod_id and pod_id not in self.store.pods:
            try:
                self.remember(await self.api.inspect(pod_id))
            except NoSuchContainer as error:
                raise Refused(f"No such sandbox: {pod_id}") from error
        found = self.store.pods.get(pod_id)
        if found is None:
            raise Refused(f"No such sandbox: {pod_id or f'the container has no label {names.SANDBOX_ID_LABEL}'}")
        return found

    def remember(self, entry: Inspected) -> str | None:
        """Store what dockerd says of a container; `sandbox`, `container`, or None for what isn't Kubernetes' own.

        A container whose sandbox isn't stored is left out too. Raises Undecodable.
        """
        name = names.parse_name(entry.name)
        if name is None:
            return None
        labels = entry.config.labels or {}
        host = Members(bytes(entry.host_config), f"{entry.name}: HostConfig")
        if labels.get(names.TYPE_LABEL) == names.SANDBOX_TYPE:
            self.store.put_pod(entry.id, pod_info(name, labels, host, self.driver))
            return "sandbox"
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        pod = self.store.pods.get(pod_id)
        if pod is None:
            log.warning("A container without its sandbox is left to itself", container=entry.name, sandbox=pod_id)
            return None
        envs = env_map(entry.config.env or [])
        self.store.put_container(container_info(name, labels, envs, host, self.driver, pod_id, pod, entry.id))
        return "container"
