"""What the proxy must know of sandboxes and containers that it did not see being made (spec 08 §11.5).

Two lists fill the store before the proxy serves, which is quick on a full node; cgroup parents, resources and variables
need a verbose status of each object, and follow behind the calls that are served meanwhile. A call that needs an object
whose details have not come yet asks for just these.
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
from runtimeproxy.store import ContainerInfo, PodInfo, Store

log = get_logger(__name__)

TIDY_SECONDS = 600.0
"""What was removed past the proxy stays in memory for so long: some hundred bytes each."""
AT_ONCE = 4
"""Verbose statuses asked for at a time: each is work for the runtime, which is in use."""
_M = TypeVar("_M", bound=Message)


class BackendError(Exception):
    """The runtime did not answer; the message has the call, the status and its text."""


class Backend(Protocol):
    """Calls of the proxy's own to the runtime behind it."""

    async def call(self, method: str, request: bytes) -> bytes:
        """One unary call of CRI's RuntimeService (`ListPodSandbox`) in the version that the runtime has. Raises
        BackendError, in bounded time."""
        ...


class Recovery:
    """Fills a store from the runtime. Errors are logged and leave it as it is."""

    def __init__(self, store: Store, backend: Backend, metrics: ProxyMetrics | None = None) -> None:
        self._store, self._backend, self._metrics = store, backend, metrics or ProxyMetrics.of()

    async def lists(self) -> bool:
        """Everything the runtime has, without details; what the store has already stays. False: it could not be told,
        and the objects will be unknown."""
        try:
            pods = await self._ask("ListPodSandbox", ListPodSandboxRequest(), ListPodSandboxResponse)
            containers = await self._ask("ListContainers", ListContainersRequest(), ListContainersResponse)
        except BackendError as error:
            log.warning("Store is not rebuilt: calls for what runs already pass without hooks", err=error)
            return False
        for pod in pods.items:
            if pod.id and pod.id not in self._store.pods:
                self._store.put_pod(pod.id, _pod(pod))
                self._metrics.recoveries.labels("sandbox").inc()
        for one in containers.containers:
            known = self._store.pods.get(one.pod_sandbox_id)
            if known is None:
                log.warning("Container of an unknown sandbox passes without hooks", id=one.id, pod=one.pod_sandbox_id)
            elif one.id and one.id not in self._store.containers:
                self._store.put_container(
                    ContainerInfo(
                        pod=known,
                        pod_id=one.pod_sandbox_id,
                        name=one.metadata.name,
                        attempt=one.metadata.attempt,
                        id=one.id,
                        annotations=dict(one.annotations),
                        complete=False,
                    )
                )
                self._metrics.recoveries.labels("container").inc()
        log.info("Store rebuilt", sandboxes=len(self._store.pods), containers=len(self._store.containers))
        return True

    async def forget_gone(self) -> int:
        """Drop what the runtime no longer has, because somebody removed it past the proxy; how many."""
        known_pods, known_containers = set(self._store.pods), set(self._store.containers)
        # Known before asking: what is made meanwhile is in no older list.
        try:
            pods = await self._ask("ListPodSandbox", ListPodSandboxRequest(), ListPodSandboxResponse)
            containers = await self._ask("ListContainers", ListContainersRequest(), ListContainersResponse)
        except BackendError as error:
            log.warning("Can't see which sandboxes and containers are gone", err=error)
            return 0
        gone_pods = known_pods - {pod.id for pod in pods.items}
        gone_containers = known_containers - {one.id for one in containers.containers}
        for pod_id in gone_pods:
            self._store.drop_pod(pod_id)
        for container_id in gone_containers:
            self._store.drop_container(container_id)
        return len(gone_pods) + len(gone_containers)

    async def details(self) -> None:
        """Complete everything that is not; sandboxes first, as containers are told with theirs."""
        await few(self.pod, [one for one, pod in self._store.pods.items() if not pod.complete])
        await few(self.container, [one for one, known in self._store.containers.items() if not known.complete])

    async def pod(self, pod_id: str) -> PodInfo | None:
        """A sandbox with its details, from the runtime when the store does not know it or not all of it. None when the
        runtime does not know it either."""
        known = self._store.pods.get(pod_id)
        if known is not None and known.complete:
            return known
        request = PodSandboxStatusRequest(pod_sandbox_id=pod_id, verbose=True)
        try:
            response = await self._ask("PodSandboxStatus", request, PodSandboxStatusResponse)
        except BackendError as error:
            log.warning("Sandbox cannot be completed", id=pod_id, err=error)
            return self._store.pods.get(pod_id)
        now = self._store.pods.get(pod_id)
        if now is not None and now.complete:  # by another call
            return now
        if now is None and known is not None:  # stopped meanwhile
            return None
        made = replace(_pod(response.status), cgroup_parent=sandbox_parent(response.info), complete=True)
        self._store.put_pod(pod_id, made)
        return made

    async def container(self, container_id: str) -> ContainerInfo | None:
        """A container with its details; None when the store does not know it."""
        known = self._store.containers.get(container_id)
        if known is None or known.complete:
            return known
        pod = await self.pod(known.pod_id) or known.pod
        request = ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            response = await self._ask("ContainerStatus", request, ContainerStatusResponse)
        except BackendError as error:
            log.warning("Container cannot be completed", id=container_id, err=error)
            now = self._store.containers.get(container_id)
            return now if now is None else replace(now, pod=pod)
        now = self._store.containers.get(container_id)
        if now is None or now.complete:
            return now
        found = container_details(response)
        made = replace(
            now,
            pod=pod,
            resources=plain(found.resources) if found.resources is not None else now.resources,
            envs=found.envs if found.envs is not None else now.envs,
            complete=True,
        )
        self._store.put_container(made)
        return made

    async def _ask(self, method: str, request: Message, answer: type[_M]) -> _M:
        """Raises BackendError."""
        try:
            return answer.FromString(await self._backend.call(method, request.SerializeToString()))
        except DecodeError as error:
            raise BackendError(f"{method}: the answer cannot be parsed: {error}") from error


def _pod(pod: PodSandbox | PodSandboxStatus) -> PodInfo:
    return PodInfo(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=pod.metadata.uid,
        attempt=pod.metadata.attempt,
        runtime_handler=pod.runtime_handler,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        complete=False,
    )


async def few(work: Callable[[str], Awaitable[object]], ids: list[str]) -> None:
    """Do the work for every id, AT_ONCE at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(object_id: str) -> None:
        async with turns:
            await work(object_id)

    await asyncio.gather(*map(one, ids))
