"""Completes the store from the runtime, for sandboxes and containers created before or beside the proxy (spec 08
§11.5).

Two lists fill the store before the proxy serves, which is quick even on a full node. Cgroup parents, resources and
variables need a verbose status of each object, and are fetched in the background. A call that needs an object without
details fetches them itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from koordlet.api.cri.api_pb2 import (
    ContainerStatusRequest,
    ContainerStatusResponse,
    ListContainersRequest,
    ListContainersResponse,
    ListPodSandboxRequest,
    ListPodSandboxResponse,
    PodSandbox,
    PodSandboxStatus,
    PodSandboxStatusRequest,
    PodSandboxStatusResponse,
)
from koordlet.app.logging import get_logger
from runtimeproxy.cri.rewrite import plain
from runtimeproxy.cri.verbose import container_details, sandbox_parent
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredContainer, StoredPod

log = get_logger(__name__)

TIDY_PERIOD_S = 600.0
"""Period of dropping entries of objects that were removed beside the proxy; an entry takes some hundred bytes."""
MAX_CONCURRENT_QUERIES = 4
"""Concurrent verbose statuses: each is work for a runtime that is in use."""
_M = TypeVar("_M", bound=Message)


class RuntimeCallError(Exception):
    """The runtime did not respond; the message has the call, the status and its text."""


class RuntimeService(Protocol):
    """The proxy's own calls to the runtime."""

    async def call(self, method: str, request: bytes) -> bytes:
        """One unary call of CRI's RuntimeService (`ListPodSandbox`) in the version that the runtime has. Raises
        RuntimeCallError within bounded time."""
        ...


class CriRecovery:
    """Fills a store from the runtime. After errors, which are logged, the store is unchanged."""

    def __init__(self, store: ProxyStore, runtime: RuntimeService, metrics: ProxyMetrics) -> None:
        self._store = store
        self._runtime = runtime
        self._metrics = metrics

    async def lists(self) -> bool:
        """Add everything that the runtime lists, without details; existing entries stay. False when the runtime did not
        respond: its objects remain unknown."""
        try:
            pods = await self._call("ListPodSandbox", ListPodSandboxRequest(), ListPodSandboxResponse)
            containers = await self._call("ListContainers", ListContainersRequest(), ListContainersResponse)
        except RuntimeCallError as error:
            log.warning("Store is not rebuilt: calls for existing objects are forwarded without hooks", err=error)
            return False
        for pod in pods.items:
            if pod.id and pod.id not in self._store.pods:
                self._store.put_pod(pod.id, _pod(pod))
                self._metrics.recoveries.labels("sandbox").inc()
        for container in containers.containers:
            known = self._store.pods.get(container.pod_sandbox_id)
            if known is None:
                log.warning(
                    "Container of an unknown sandbox gets no hooks", id=container.id, pod=container.pod_sandbox_id
                )
            elif container.id and container.id not in self._store.containers:
                self._store.put_container(
                    StoredContainer(
                        pod=known,
                        pod_id=container.pod_sandbox_id,
                        name=container.metadata.name,
                        attempt=container.metadata.attempt,
                        id=container.id,
                        annotations=dict(container.annotations),
                        complete=False,
                    )
                )
                self._metrics.recoveries.labels("container").inc()
        log.info("Store rebuilt", sandboxes=len(self._store.pods), containers=len(self._store.containers))
        return True

    async def forget_gone(self) -> int:
        """Drop entries of objects that the runtime no longer has, as they were removed beside the proxy; returns how
        many."""
        known_pods, known_containers = set(self._store.pods), set(self._store.containers)
        # Collected before the lists: an object created meanwhile may be missing in them.
        try:
            pods = await self._call("ListPodSandbox", ListPodSandboxRequest(), ListPodSandboxResponse)
            containers = await self._call("ListContainers", ListContainersRequest(), ListContainersResponse)
        except RuntimeCallError as error:
            log.warning("Cannot list sandboxes and containers to find removed ones", err=error)
            return 0
        gone_pods = known_pods - {pod.id for pod in pods.items}
        gone_containers = known_containers - {container.id for container in containers.containers}
        for pod_id in gone_pods:
            self._store.drop_pod(pod_id)
        for container_id in gone_containers:
            self._store.drop_container(container_id)
        return len(gone_pods) + len(gone_containers)

    async def details(self) -> None:
        """Complete all incomplete entries; sandboxes first, as hook requests of containers contain their sandbox."""
        pods = [pod_id for pod_id, pod in self._store.pods.items() if not pod.complete]
        await for_each_bounded(self.pod, pods)
        containers = [
            container_id for container_id, container in self._store.containers.items() if not container.complete
        ]
        await for_each_bounded(self.container, containers)

    async def pod(self, pod_id: str) -> StoredPod | None:
        """A sandbox with its details, from the runtime when the store lacks it or its details. None when the runtime
        does not know it either."""
        known = self._store.pods.get(pod_id)
        if known is not None and known.complete:
            return known
        request = PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
        try:
            response = await self._call("PodSandboxStatus", request, PodSandboxStatusResponse)
        except RuntimeCallError as error:
            log.warning("Cannot get details of a sandbox", id=pod_id, err=error)
            return self._store.pods.get(pod_id)
        now = self._store.pods.get(pod_id)
        if now is not None and now.complete:  # completed by another call
            return now
        if now is None and known is not None:  # it was stopped meanwhile
            return None
        completed = replace(_pod(response.status), cgroup_parent=sandbox_parent(response.info), complete=True)
        self._store.put_pod(pod_id, completed)
        return completed

    async def container(self, container_id: str) -> StoredContainer | None:
        """A container with its details; None when the store does not know it."""
        known = self._store.containers.get(container_id)
        if known is None or known.complete:
            return known
        pod = await self.pod(known.pod_id) or known.pod
        request = ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            response = await self._call("ContainerStatus", request, ContainerStatusResponse)
        except RuntimeCallError as error:
            log.warning("Cannot get details of a container", id=container_id, err=error)
            now = self._store.containers.get(container_id)
            return now if now is None else replace(now, pod=pod)
        now = self._store.containers.get(container_id)
        if now is None or now.complete:
            return now
        details = container_details(response)
        completed = replace(
            now,
            pod=pod,
            resources=plain(details.resources) if details.resources is not None else now.resources,
            envs=details.envs if details.envs is not None else now.envs,
            complete=True,
        )
        self._store.put_container(completed)
        return completed

    async def _call(self, method: str, request: Message, response: type[_M]) -> _M:
        """Raises BackendError."""
        try:
            return response.FromString(await self._runtime.call(method, request.SerializeToString()))
        except DecodeError as error:
            raise RuntimeCallError(f"{method}: the response cannot be parsed: {error}") from error


def _pod(pod: PodSandbox | PodSandboxStatus) -> StoredPod:
    return StoredPod(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=pod.metadata.uid,
        attempt=pod.metadata.attempt,
        runtime_handler=pod.runtime_handler,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        complete=False,
    )


async def for_each_bounded(work: Callable[[str], Awaitable[object]], ids: list[str]) -> None:
    """Call `work` for every id, at most MAX_CONCURRENT_QUERIES at a time."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def work_on(object_id: str) -> None:
        async with slots:
            await work(object_id)

    await asyncio.gather(*map(work_on, ids))
