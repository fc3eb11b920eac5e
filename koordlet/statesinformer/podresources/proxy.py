"""The kubelet's pod-resources API on a socket of koordlet's, with the scheduler's devices in it (spec 08 §6).

Monitors and network plugins ask the kubelet which devices a container has. What koord-scheduler allocates the kubelet
does not know, so they ask here instead: `List` and `Get` are the kubelet's answers with these devices added,
`GetAllocatableResources` is its answer. The kubelet's status is the call's.

Pods and their annotations are those that koordlet knows; the kubelet's /pods is asked only when an answer names a pod
that koordlet has not seen yet or that was being deleted when it was seen last (its name may be somebody else's by now).
Neither the kubelet's socket nor ours is needed for koordlet to run: `look` tries again.
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
from koordlet.app.http2.client import CallError, Client, ConnectionLost
from koordlet.app.http2.grpc import Status
from koordlet.app.http2.server import CallRefused, Limits, Server, remove_socket
from koordlet.app.logging import get_logger
from koordlet.statesinformer.podresources.merge import Accelerators, add, devices_of
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

SOCKET = "kubelet.sock"
CALL_SECONDS = 10.0
"""A call whose caller names no deadline gets this long."""
GRACE_SECONDS = 1.0
CALLS_AT_ONCE = 128
DIRECTORY_MODE = 0o750
_NO_LIMIT = 3600.0
"""Seconds; a call's own time limit is around all that it does, and a call that is given up is cancelled upstream."""

Method = Callable[[bytes], Awaitable[bytes]]


class Upstream:
    """The kubelet's own socket. One connection, made when it is needed and again when it was lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why it could not be reached the last time."""
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Raises CallError. A connection that turns out to be an earlier kubelet's is made anew, once."""
        client = await self.connect()
        try:
            return await client.call(f"/{SERVICE}/{method}", request, seconds)
        except ConnectionLost:
            if not client.gone:  # no answer in time
                raise
        return await (await self.connect()).call(f"/{SERVICE}/{method}", request, seconds)

    async def connect(self) -> Client:
        """Raises CallError."""
        async with self._connecting:
            if self._client is None or self._client.gone:
                try:
                    self._client = await Client.connect(str(self.path), "koordlet")
                except OSError as error:
                    self.problem = f"{self.path}: {error.strerror or error}"
                    raise CallError(f"UNAVAILABLE: {self.problem}", Status.UNAVAILABLE, self.problem) from error
                self.problem = ""
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close(0.0)


class Rounds:
    """`ask` ends when a round has that began after it was called; those who wait for one share it."""

    def __init__(self, round_: Callable[[], Awaitable[None]]) -> None:
        self._round, self._lock, self._begun = round_, asyncio.Lock(), 0
        self._failed: KubeletError | None = None

    async def ask(self) -> None:
        """Raises KubeletError, the round's."""
        seen = self._begun
        async with self._lock:
            if self._begun <= seen:
                self._begun += 1
                self._failed = None
                try:
                    await self._round()
                except KubeletError as error:
                    self._failed = error
                except BaseException:  # it was given up, not the others who wait
                    self._begun -= 1
                    raise
            if self._failed is not None:
                raise KubeletError(str(self._failed)) from self._failed


class PodResourcesProxy:
    """A service for `Runner`; call `look` now and then. `problem` says why calls would fail, "" when they would not."""

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
        """`pods` by UID, as known; `refresh` asks the kubelet for them (KubeletError). `count`: method and status of
        each call."""
        self.path, self._upstream = directory / SOCKET, upstream
        self._pods, self._rounds, self._accelerators, self._count = pods, Rounds(refresh), accelerators, count
        self._server: Server | None = None
        self._inode: tuple[int, int] | None = None
        self._unserved = "not started"

    @property
    def problem(self) -> str:
        return self._unserved or self._upstream.problem

    async def start(self) -> None:
        await self.look()

    async def look(self) -> None:
        """Serve, if that has not been possible or somebody took the socket away; connect to the kubelet."""
        if self._server is None or _inode(self.path) != self._inode:
            await self._unserve()
            await self._serve()
        try:
            await self._upstream.connect()
        except CallError as error:
            log.once(f"upstream:{error}", "the kubelet's pod-resources socket can't be reached", error=str(error))

    async def stop(self) -> None:
        await self._unserve()
        self._unserved = "stopped"
        await self._upstream.close()

    async def _serve(self) -> None:
        methods: dict[str, Method] = {
            "List": self._list,
            "Get": self._get,
            "GetAllocatableResources": partial(self._ask, "GetAllocatableResources"),
        }
        server = Server(
            {f"/{SERVICE}/{name}": partial(self._answer, name, method) for name, method in methods.items()},
            Limits(calls=CALLS_AT_ONCE),
        )
        try:
            _make_room(self.path, self._upstream.path)
            await server.start(self.path)
        except OSError as error:
            self._unserved = f"{self.path}: {error}"
            log.once(f"serve:{error}", "pod resources are not served", address=str(self.path), error=str(error))
            return
        self._server, self._inode, self._unserved = server, _inode(self.path), ""

    async def _unserve(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(GRACE_SECONDS)
            if _inode(self.path) == self._inode:  # not another's, who took over
                self.path.unlink()

    async def _answer(self, name: str, method: Method, request: bytes, left: float | None) -> bytes:
        """A Method of the server; what goes wrong upstream is told with the status that it has there."""
        seconds = CALL_SECONDS if left is None else left
        try:
            async with asyncio.timeout(seconds):
                answer = await method(request)
        except CallError as error:
            status = error.status or Status.UNAVAILABLE
            refused = CallRefused(error.detail if error.status is not None else str(error), status)
        except KubeletError as error:
            refused = CallRefused(str(error), Status.UNAVAILABLE)
        except DecodeError as error:
            refused = CallRefused(f"the kubelet's answer can't be read: {error}", Status.INTERNAL)
        except TimeoutError:
            refused = CallRefused(f"the kubelet did not answer within {seconds:.3g} s", Status.DEADLINE_EXCEEDED)
        else:
            self._count(name, Status.OK.name)
            return answer
        self._count(name, refused.status.name)
        raise refused

    async def _ask(self, method: str, request: bytes) -> bytes:
        return await self._upstream.call(method, request, _NO_LIMIT)

    async def _list(self, request: bytes) -> bytes:
        answer = await self._ask("List", request)
        message = ListPodResourcesResponse.FromString(answer)
        return message.SerializeToString() if await self._augment(message.pod_resources) else answer

    async def _get(self, request: bytes) -> bytes:
        answer = await self._ask("Get", request)
        message = GetPodResourcesResponse.FromString(answer)
        told = [message.pod_resources] if message.HasField("pod_resources") else []
        return message.SerializeToString() if await self._augment(told) else answer

    async def _augment(self, told: Iterable[PodResources]) -> bool:
        """Whether anything was added."""
        told = list(told)
        known = _by_name(self._pods().values())
        if not all((one.namespace, one.name) in known for one in told):
            await self._rounds.ask()
            known = _by_name(self._pods().values(), leaving=True)
        accelerators = self._accelerators()
        added = False
        for one in told:
            meta = known.get((one.namespace, one.name))
            if meta is None or meta.pod is None:
                continue
            try:
                added |= add(one, devices_of(meta.pod, accelerators))
            except WireError as error:
                where = f"{one.namespace}/{one.name}"
                log.once(f"{where}:{error}", "a pod's devices are left out", pod=where, error=str(error))
        return added


def _by_name(pods: Iterable[PodMeta], *, leaving: bool = False) -> dict[tuple[str, str], PodMeta]:
    """`leaving`: those being deleted as well; one that is not has the name."""
    found: dict[tuple[str, str], PodMeta] = {}
    for meta in pods:
        goes = meta.pod is not None and meta.pod.metadata.deletion_timestamp is not None
        if not goes:
            found[meta.namespace, meta.name] = meta
        elif leaving:
            found.setdefault((meta.namespace, meta.name), meta)
    return found


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:  # whatever keeps us from it: it is not the socket that we serve
        return None
    return found.st_dev, found.st_ino


def _make_room(path: Path, upstream: Path) -> None:
    """Make the directory, remove an old socket. Raises OSError when there can be no new one."""
    directory = path.parent
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(DIRECTORY_MODE)  # whatever the umask
    if upstream.parent.exists() and directory.samefile(upstream.parent):
        raise FileExistsError("this is the directory of the kubelet's own socket")
    remove_socket(path)
