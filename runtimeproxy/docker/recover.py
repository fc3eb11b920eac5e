"""What the proxy must know of Docker's containers that it did not see being made (spec 08 §12).

One list fills the store before the proxy serves, which takes dockerd some milliseconds on a full node. Resources,
cgroup parents and variables are in the description of each container, and follow behind the calls that are served
meanwhile: dockerd keeps whoever asks for one waiting as long as it is starting that container. A call that needs a
container whose description has not come asks for just this.

What cgroup parents mean depends on dockerd's cgroup driver, which may be another when dockerd comes back: it is asked
for again before it is needed next, and if it is another, so are descriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from koordlet.app.logging import get_logger
from runtimeproxy.cri.recover import few
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerApi, DockerError, Inspected, Listed, NoSuchContainer
from runtimeproxy.docker.bodies import Members, Undecodable, env_map
from runtimeproxy.docker.infos import container_info, pod_info
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ContainerInfo, PodInfo, Store

log = get_logger(__name__)


class Recovery:
    """Fills a store from dockerd. `driver`: its cgroup driver, `cgroupfs` or `systemd`, when it was asked last; empty
    before."""

    def __init__(self, store: Store, api: DockerApi, metrics: ProxyMetrics) -> None:
        self._store, self._api, self._metrics = store, api, metrics
        self._asking = asyncio.Lock()
        self.driver = ""

    @property
    def current(self) -> bool:
        """Whether the dockerd that there is has told its driver."""
        return not self._api.restarted

    async def ask_driver(self) -> None:
        """Where the driver isn't that of the dockerd that there is. Raises DockerError."""
        async with self._asking:
            if self.current:
                return
            driver = (await self._api.info()).cgroup_driver
            if driver == self.driver:
                return
            store, before, self.driver = self._store, self.driver, driver
            log.info("Docker has another cgroup driver" if before else "Docker answers", driver=driver, before=before)
            for pod_id, pod in store.pods.items():
                store.put_pod(pod_id, replace(pod, complete=False))
            for container in store.containers.values():
                store.put_container(replace(container, complete=False))

    async def lists(self) -> None:
        """All of Kubernetes' containers, without details; what the store has already stays. Raises DockerError."""
        listed = await self._api.containers()
        for one in sorted(listed, key=lambda one: _is_container(one.labels)):  # sandboxes first
            name = next((name for given in one.names or () if (name := names.parse_name(given)) is not None), None)
            if name is not None:
                self._list(one, name)
        log.info("Store rebuilt", sandboxes=len(self._store.pods), containers=len(self._store.containers))

    def _list(self, one: Listed, name: KubernetesName) -> None:
        store, labels = self._store, one.labels or {}
        if not _is_container(labels):
            if one.id not in store.pods:
                store.put_pod(one.id, pod_info(name, labels, None, self.driver))
                self._metrics.recoveries.labels("sandbox").inc()
            return
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        pod = store.pods.get(pod_id)
        if pod is None:
            log.warning("A container without its sandbox is left to itself", container=one.id, sandbox=pod_id)
        elif one.id not in store.containers:
            store.put_container(container_info(name, labels, {}, None, self.driver, pod_id, pod, one.id))
            self._metrics.recoveries.labels("container").inc()

    async def details(self) -> None:
        """Complete everything that is not; sandboxes first, as containers are told with theirs. What dockerd does not
        tell is asked for again by the call that needs it."""
        store = self._store
        async with self._api.kept():
            await few(lambda one: _logged(self.pod(one)), [one for one, pod in store.pods.items() if not pod.complete])
            known = [one for one, container in store.containers.items() if not container.complete]
            await few(lambda one: _logged(self.container(one)), known)

    async def pod(self, pod_id: str) -> PodInfo | None:
        """A sandbox with its details, from dockerd when the store does not know it or not all of it. None when it is no
        sandbox that dockerd knows. Raises DockerError."""
        await self.ask_driver()
        known = self._store.pods.get(pod_id)
        if known is not None and known.complete:
            return known
        try:
            entry = await self._api.inspect(pod_id)
        except NoSuchContainer:
            return None
        now = self._store.pods.get(pod_id)
        if now is not None and now.complete:  # by another call
            return now
        name = names.parse_name(entry.name)
        if name is None or _is_container(entry.config.labels):
            return None
        made = self._sandbox(entry, name)
        if now is not None or known is None:  # else stopped meanwhile
            self._store.put_pod(entry.id, made)
        return made

    async def container(self, container_id: str) -> ContainerInfo | None:
        """A container with its details; None when the store does not know it. Raises DockerError."""
        await self.ask_driver()
        known = self._store.containers.get(container_id)
        if known is None or known.complete:
            return known
        pod = await self.pod(known.pod_id) or known.pod
        entry = await self._api.inspect(container_id)
        now = self._store.containers.get(container_id)
        name = names.parse_name(entry.name)
        if now is None or now.complete or name is None:
            return now
        made = self._container(entry, name, known.pod_id, pod)
        self._store.put_container(made)
        return made

    async def find(self, given: str) -> str | None:
        """The id of a container of Kubernetes' that the store lacks, by id or name: it is in the store then. It was
        made past the proxy, or for a call to the one before this proxy when this had its list. Raises DockerError."""
        await self.ask_driver()
        try:
            entry = await self._api.inspect(given)
        except NoSuchContainer:
            return None
        if entry.id in self._store.containers or entry.id in self._store.pods:
            return entry.id
        name, labels = names.parse_name(entry.name), entry.config.labels or {}
        if name is None:
            return None
        if not _is_container(labels):
            self._store.put_pod(entry.id, self._sandbox(entry, name))
            return entry.id
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        pod = await self.pod(pod_id) if pod_id else None
        if pod is None:
            log.warning("A container without its sandbox is left to itself", container=entry.name, sandbox=pod_id)
            return None
        self._store.put_container(self._container(entry, name, pod_id, pod))
        return entry.id

    async def forget_gone(self) -> int:
        """Drop what dockerd no longer has, because somebody removed it past the proxy; how many. Raises DockerError."""
        store = self._store
        known = {*store.pods, *store.containers}  # before asking: what is made meanwhile is in no older list
        gone = known - {one.id for one in await self._api.containers()}
        for one in gone:
            store.drop_container(one)
            store.drop_pod(one)
        return len(gone)

    def _sandbox(self, entry: Inspected, name: KubernetesName) -> PodInfo:
        try:
            return pod_info(name, entry.config.labels or {}, _host(entry), self.driver)
        except Undecodable as error:
            raise DockerError(f"GET /containers/{entry.id}/json: {error}") from error

    def _container(self, entry: Inspected, name: KubernetesName, pod_id: str, pod: PodInfo) -> ContainerInfo:
        envs = env_map(entry.config.env or [])
        try:
            host = _host(entry)
            return container_info(name, entry.config.labels or {}, envs, host, self.driver, pod_id, pod, entry.id)
        except Undecodable as error:
            raise DockerError(f"GET /containers/{entry.id}/json: {error}") from error


def _host(entry: Inspected) -> Members:
    """Raises Undecodable."""
    return Members(bytes(entry.host_config), f"{entry.name}: HostConfig")


def _is_container(labels: dict[str, str] | None) -> bool:
    return (labels or {}).get(names.TYPE_LABEL) != names.SANDBOX_TYPE


async def _logged(completing: Awaitable[object]) -> None:
    try:
        await completing
    except DockerError as error:
        log.warning("A container cannot be completed", err=error)
