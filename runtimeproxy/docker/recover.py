"""Completes the store from dockerd, for containers created before or beside the proxy (spec 08 §12).

One list fills the store before the proxy serves, which takes dockerd some milliseconds on a full node. Resources,
cgroup parents and variables need an inspect of each container, and are fetched in the background: an inspect waits
while dockerd starts that container. A call that needs a container without details fetches them itself.

The meaning of cgroup parents depends on dockerd's cgroup driver, which may change when dockerd restarts. After a
restart the driver is queried before its next use, and if it changed, all containers are inspected again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from koordlet.app.logging import get_logger
from runtimeproxy.cri.recover import for_each_bounded
from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerApi, DockerError, InspectedContainer, ListedContainer, NoSuchContainer
from runtimeproxy.docker.bodies import InvalidBody, JsonObject, env_map
from runtimeproxy.docker.infos import container_info, pod_info
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredContainer, StoredPod

log = get_logger(__name__)


class DockerRecovery:
    """Fills a store from dockerd. `driver`: dockerd's cgroup driver at the last query, `cgroupfs` or `systemd`; empty
    before the first."""

    def __init__(self, store: ProxyStore, api: DockerApi, metrics: ProxyMetrics) -> None:
        self._store = store
        self._api = api
        self._metrics = metrics
        self._driver_lock = asyncio.Lock()
        self.driver = ""

    @property
    def current(self) -> bool:
        """Whether `driver` is that of the running dockerd."""
        return not self._api.restarted

    async def refresh_driver(self) -> None:
        """Query the driver if it is not `current`. Raises DockerError."""
        async with self._driver_lock:
            if self.current:
                return
            driver = (await self._api.info()).cgroup_driver
            if driver == self.driver:
                return
            store, before = self._store, self.driver
            self.driver = driver
            log.info(
                "Docker's cgroup driver has changed" if before else "Connected to Docker", driver=driver, before=before
            )
            for pod_id, pod in store.pods.items():
                store.put_pod(pod_id, replace(pod, complete=False))
            for container in store.containers.values():
                store.put_container(replace(container, complete=False))

    async def lists(self) -> None:
        """Add all Kubernetes containers, without details; existing entries stay. Raises DockerError."""
        listed = await self._api.containers()
        for container in sorted(listed, key=lambda container: _is_container(container.labels)):  # sandboxes first
            name = next(filter(None, map(names.parse_name, container.names or ())), None)
            if name is not None:
                self._add_listed(container, name)
        log.info("Store rebuilt", sandboxes=len(self._store.pods), containers=len(self._store.containers))

    def _add_listed(self, listed: ListedContainer, name: KubernetesName) -> None:
        store, labels = self._store, listed.labels or {}
        if not _is_container(labels):
            if listed.id not in store.pods:
                store.put_pod(listed.id, pod_info(name, labels, None, self.driver))
                self._metrics.recoveries.labels("sandbox").inc()
            return
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        pod = store.pods.get(pod_id)
        if pod is None:
            log.warning("Container without its sandbox gets no hooks", container=listed.id, sandbox=pod_id)
        elif listed.id not in store.containers:
            store.put_container(container_info(name, labels, {}, None, self.driver, pod_id, pod, listed.id))
            self._metrics.recoveries.labels("container").inc()

    async def details(self) -> None:
        """Complete all incomplete entries; sandboxes first, as hook requests of containers contain their sandbox.
        Details that dockerd does not return now are fetched by the call that needs them."""
        store = self._store
        async with self._api.pooled():
            await for_each_bounded(
                lambda pod_id: _logged(self.pod(pod_id)),
                [pod_id for pod_id, pod in store.pods.items() if not pod.complete],
            )
            incomplete = [
                container_id for container_id, container in store.containers.items() if not container.complete
            ]
            await for_each_bounded(lambda container_id: _logged(self.container(container_id)), incomplete)

    async def pod(self, pod_id: str) -> StoredPod | None:
        """A sandbox with its details, from dockerd when the store lacks it or its details. None when dockerd has no
        such sandbox. Raises DockerError."""
        await self.refresh_driver()
        known = self._store.pods.get(pod_id)
        if known is not None and known.complete:
            return known
        try:
            entry = await self._api.inspect(pod_id)
        except NoSuchContainer:
            return None
        now = self._store.pods.get(pod_id)
        if now is not None and now.complete:  # completed by another call
            return now
        name = names.parse_name(entry.name)
        if name is None or _is_container(entry.config.labels):
            return None
        completed = self._sandbox(entry, name)
        if now is not None or known is None:  # else it was stopped meanwhile
            self._store.put_pod(entry.id, completed)
        return completed

    async def container(self, container_id: str) -> StoredContainer | None:
        """A container with its details; None when the store does not know it. Raises DockerError."""
        await self.refresh_driver()
        known = self._store.containers.get(container_id)
        if known is None or known.complete:
            return known
        pod = await self.pod(known.pod_id) or known.pod
        entry = await self._api.inspect(container_id)
        now = self._store.containers.get(container_id)
        name = names.parse_name(entry.name)
        if now is None or now.complete or name is None:
            return now
        completed = self._container(entry, name, known.pod_id, pod)
        self._store.put_container(completed)
        return completed

    async def find(self, reference: str) -> str | None:
        """Add a Kubernetes container that the store lacks, by id or name; returns its id. It was created beside the
        proxy, or by a call through the previous proxy process after this one had read the list. Raises DockerError."""
        await self.refresh_driver()
        try:
            entry = await self._api.inspect(reference)
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
            log.warning("Container without its sandbox gets no hooks", container=entry.name, sandbox=pod_id)
            return None
        self._store.put_container(self._container(entry, name, pod_id, pod))
        return entry.id

    async def forget_gone(self) -> int:
        """Drop entries of containers that dockerd no longer has, as they were removed beside the proxy; returns how
        many. Raises DockerError."""
        store = self._store
        known = {
            *store.pods,
            *store.containers,
        }  # collected before the list: a container created meanwhile may be missing in it
        gone = known - {container.id for container in await self._api.containers()}
        for object_id in gone:
            store.drop_container(object_id)
            store.drop_pod(object_id)
        return len(gone)

    def _sandbox(self, entry: InspectedContainer, name: KubernetesName) -> StoredPod:
        try:
            return pod_info(name, entry.config.labels or {}, _host(entry), self.driver)
        except InvalidBody as error:
            raise DockerError(f"GET /containers/{entry.id}/json: {error}") from error

    def _container(
        self, entry: InspectedContainer, name: KubernetesName, pod_id: str, pod: StoredPod
    ) -> StoredContainer:
        envs = env_map(entry.config.env or [])
        try:
            host = _host(entry)
            return container_info(name, entry.config.labels or {}, envs, host, self.driver, pod_id, pod, entry.id)
        except InvalidBody as error:
            raise DockerError(f"GET /containers/{entry.id}/json: {error}") from error


def _host(entry: InspectedContainer) -> JsonObject:
    """Raises InvalidBody."""
    return JsonObject(bytes(entry.host_config), f"{entry.name}: HostConfig")


def _is_container(labels: dict[str, str] | None) -> bool:
    return (labels or {}).get(names.TYPE_LABEL) != names.SANDBOX_TYPE


async def _logged(query: Awaitable[object]) -> None:
    try:
        await query
    except DockerError as error:
        log.warning("Cannot get details of a container", err=error)
