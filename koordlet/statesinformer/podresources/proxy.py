"""The kubelet's pod-resources API on koordlet's own socket, with the scheduler's devices added (spec 08 §6).

Monitors and network plugins query the kubelet for the devices of a container. The kubelet does not know the devices
that koord-scheduler allocates, so these clients query this socket instead: `List` and `Get` return the kubelet's answer
with these devices added, `GetAllocatableResources` returns its answer unchanged. A failed call has the kubelet's gRPC
status.

Pods and their annotations are those that koordlet already has. The kubelet's /pods is queried only if an answer names a
pod that koordlet does not have yet, or whose last known version was being deleted (another pod may have its name by
now). koordlet runs without the kubelet's socket and without its own; `maintain` retries both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from koordlet.api.encoding.wire import WireError
from koordlet.api.podresources import SERVICE
from koordlet.api.podresources.api_pb2 import GetPodResourcesResponse, ListPodResourcesResponse, PodResources
from koordlet.app.http2.client import ConnectionLost, GrpcCallError, UnaryClient
from koordlet.app.http2.grpc import GrpcStatus
from koordlet.app.http2.server import CallRefused, GrpcServer, ServerLimits, inode, remove_socket
from koordlet.app.logging import get_logger
from koordlet.statesinformer.podresources.merge import Accelerators, add, devices_of
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

SOCKET = "kubelet.sock"
DEFAULT_TIMEOUT_S = 10.0
"""Time limit of a call without a deadline."""
STOP_GRACE_S = 1.0
MAX_CONCURRENT_CALLS = 128
DIRECTORY_MODE = 0o750
UPSTREAM_TIMEOUT_S = 3600.0
"""Practically none: `_answer` applies the call's own time limit, and a cancelled call is cancelled upstream."""

Method = Callable[[bytes], Awaitable[bytes]]


class Upstream:
    """Client of the kubelet's socket. One connection, opened on demand and reopened when it was lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why the last connection attempt failed; empty if it succeeded."""
        self._client: UnaryClient | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Raises GrpcCallError. If the connection was lost, for example because the kubelet restarted, retries once."""
        client = await self.connect()
        try:
            return await client.call(f"/{SERVICE}/{method}", request, seconds)
        except ConnectionLost:
            if not client.closed:  # no answer in time
                raise
        return await (await self.connect()).call(f"/{SERVICE}/{method}", request, seconds)

    async def connect(self) -> UnaryClient:
        """Raises GrpcCallError."""
        async with self._connecting:
            if self._client is None or self._client.closed:
                try:
                    self._client = await UnaryClient.connect(str(self.path), "koordlet")
                except OSError as error:
                    self.problem = f"{self.path}: {error.strerror or error}"
                    raise GrpcCallError(f"UNAVAILABLE: {self.problem}", GrpcStatus.UNAVAILABLE, self.problem) from error
                self.problem = ""
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close(0.0)


class SharedRefresh:
    """Concurrent callers of `refresh` share one run of `run`: each gets one that began after its call."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._lock = asyncio.Lock()
        self._begun = 0
        self._failure: KubeletError | None = None

    async def refresh(self) -> None:
        """Raises the KubeletError of the shared run."""
        seen = self._begun
        async with self._lock:
            if self._begun <= seen:
                self._begun += 1
                self._failure = None
                try:
                    await self._run()
                except KubeletError as error:
                    self._failure = error
                except BaseException:  # this caller was cancelled; the next waiting caller starts a run
                    self._begun -= 1
                    raise
            if self._failure is not None:
                raise KubeletError(str(self._failure)) from self._failure


class PodResourcesProxy:
    """A service for `Runner`; call `maintain` periodically. `problem`: why calls would fail; empty if there is none."""

    name = "pod-resources"

    def __init__(
        self,
        directory: Path,
        upstream: Upstream,
        pods: Callable[[], Mapping[str, PodMeta]],
        refresh: Callable[[], Awaitable[None]],
        accelerators: Callable[[], Accelerators],
        count: Callable[[str, str], None] = lambda method, code: None,
    ) -> None:
        """`pods`: the known pods by UID. `refresh` queries the kubelet for them (KubeletError). `count` is called with
        method and status of each call."""
        self.path = directory / SOCKET
        self._upstream = upstream
        self._pods = pods
        self._pods_refresh = SharedRefresh(refresh)
        self._accelerators = accelerators
        self._count = count
        self._server: GrpcServer | None = None
        self._inode: tuple[int, int] | None = None
        self._serve_problem = "not started"

    @property
    def problem(self) -> str:
        return self._serve_problem or self._upstream.problem

    async def start(self) -> None:
        await self.maintain()

    async def maintain(self) -> None:
        """Open the socket if it is not open or was removed or replaced; connect to the kubelet."""
        if self._server is None or inode(self.path) != self._inode:
            await self._close_server()
            await self._open_server()
        try:
            await self._upstream.connect()
        except GrpcCallError as error:
            log.once(f"upstream:{error}", "Cannot connect to the kubelet's pod-resources socket", error=str(error))

    async def stop(self) -> None:
        await self._close_server()
        self._serve_problem = "stopped"
        await self._upstream.close()

    async def _open_server(self) -> None:
        methods: dict[str, Method] = {
            "List": self._list,
            "Get": self._get,
            "GetAllocatableResources": partial(self._forward, "GetAllocatableResources"),
        }
        server = GrpcServer(
            {f"/{SERVICE}/{name}": partial(self._answer, name, method) for name, method in methods.items()},
            ServerLimits(calls=MAX_CONCURRENT_CALLS),
        )
        try:
            _prepare(self.path, self._upstream.path)
            await server.start(self.path)
        except OSError as error:
            self._serve_problem = f"{self.path}: {error}"
            log.once(f"serve:{error}", "Pod resources are not served", address=str(self.path), error=str(error))
            return
        self._server = server
        self._inode = inode(self.path)
        self._serve_problem = ""

    async def _close_server(self) -> None:
        server = self._server
        self._server = None
        if server is not None:
            await server.stop(STOP_GRACE_S)
            if inode(self.path) == self._inode:  # not the socket of a process that replaced it
                self.path.unlink()

    async def _answer(self, name: str, method: Method, request: bytes, deadline_s: float | None) -> bytes:
        """A method of the server. An upstream error keeps its gRPC status."""
        timeout_s = DEFAULT_TIMEOUT_S if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await method(request)
        except GrpcCallError as error:
            status = error.status or GrpcStatus.UNAVAILABLE
            refused = CallRefused(error.detail if error.status is not None else str(error), status)
        except KubeletError as error:
            refused = CallRefused(str(error), GrpcStatus.UNAVAILABLE)
        except DecodeError as error:
            refused = CallRefused(f"the kubelet's answer cannot be decoded: {error}", GrpcStatus.INTERNAL)
        except TimeoutError:
            refused = CallRefused(f"the kubelet did not answer within {timeout_s:.3g} s", GrpcStatus.DEADLINE_EXCEEDED)
        else:
            self._count(name, GrpcStatus.OK.name)
            return answer
        self._count(name, refused.status.name)
        raise refused

    async def _forward(self, method: str, request: bytes) -> bytes:
        return await self._upstream.call(method, request, UPSTREAM_TIMEOUT_S)

    async def _list(self, request: bytes) -> bytes:
        answer = await self._forward("List", request)
        message = ListPodResourcesResponse.FromString(answer)
        return message.SerializeToString() if await self._add_devices(message.pod_resources) else answer

    async def _get(self, request: bytes) -> bytes:
        answer = await self._forward("Get", request)
        message = GetPodResourcesResponse.FromString(answer)
        resources = [message.pod_resources] if message.HasField("pod_resources") else []
        return message.SerializeToString() if await self._add_devices(resources) else answer

    async def _add_devices(self, pod_resources: Iterable[PodResources]) -> bool:
        """Whether anything was added."""
        pod_resources = list(pod_resources)
        metas = _by_name(self._pods().values())
        if not all((resources.namespace, resources.name) in metas for resources in pod_resources):
            await self._pods_refresh.refresh()
            metas = _by_name(self._pods().values(), terminating=True)
        accelerators = self._accelerators()
        added = False
        for resources in pod_resources:
            meta = metas.get((resources.namespace, resources.name))
            if meta is None or meta.pod is None:
                continue
            if meta.device_allocation.refused or meta.device_allocation.error:
                continue
            try:
                added |= add(resources, devices_of(meta.pod, accelerators))
            except WireError as error:
                pod = f"{resources.namespace}/{resources.name}"
                log.once(f"{pod}:{error}", "Devices of a pod left out", pod=pod, error=str(error))
        return added


def _by_name(pods: Iterable[PodMeta], *, terminating: bool = False) -> dict[tuple[str, str], PodMeta]:
    """Pods by (namespace, name). `terminating`: include pods that are being deleted; another pod of the same name has
    precedence."""
    by_name: dict[tuple[str, str], PodMeta] = {}
    for meta in pods:
        if meta.pod is None or meta.pod.metadata.deletion_timestamp is None:
            by_name[meta.namespace, meta.name] = meta
        elif terminating:
            by_name.setdefault((meta.namespace, meta.name), meta)
    return by_name


def _prepare(path: Path, upstream: Path) -> None:
    """Create the directory, remove an old socket. Raises OSError if no socket can be created."""
    directory = path.parent
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(DIRECTORY_MODE)  # independent of the umask
    if upstream.parent.exists() and directory.samefile(upstream.parent):
        raise FileExistsError("this is the directory of the kubelet's own socket")
    remove_socket(path)
