"""A connection to a port of a pod through the API server, as `kubectl port-forward` makes it, over WebSocket.

    async with forwarded(config, pod, tls) as path:
        aiohttp.UnixConnector(path)  # plain HTTP to the pod

The local end is a Unix socket in a folder that only this user can enter: a TCP port would be open to every process of
the machine. If the pod's port is HTTPS, TLS ends here. Its certificate is usually self-signed and is not verified; the
API server and the kubelet choose the pod. Each local connection has a WebSocket of its own, with the subprotocol
`v4.channel.k8s.io`: binary messages begin with a channel number, 0 for data and 1 for errors, and the first message of
each channel is the port (two bytes, little endian).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from control.ctl.errors import CtlError
from control.standalone.streams.relay import until_one_ends
from koordlet.app.tasks import end_tasks
from koordlet.kube import ClientConfig

SUBPROTOCOL: Final = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
CONNECT_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class PodPort:
    """A port of a pod, and whether it speaks TLS."""

    namespace: str
    pod: str
    port: int
    tls: bool

    @property
    def where(self) -> str:
        """The name in messages."""
        return f"port {self.port} of pod {self.namespace}/{self.pod}"


class Forwarder:
    """Serves the local connections. `problem` is why the last of them failed."""

    def __init__(self, config: ClientConfig, port: PodPort, session: aiohttp.ClientSession) -> None:
        self._config = config
        self._port = port
        self._session = session
        self.problem: CtlError | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one local connection until either end closes it."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                websocket = await self._connect()
            try:
                await self._forward(websocket, reader, writer)
            finally:
                await websocket.close()
        except CtlError as error:
            self.problem = error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.problem = CtlError(f"cannot reach {self._port.where}: {str(error) or type(error).__name__}")
        finally:
            writer.close()
            await _ended(writer)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        port, config = self._port, self._config
        url = f"{config.server}/api/v1/namespaces/{port.namespace}/pods/{port.pod}/portforward?ports={port.port}"
        try:
            return await self._session.ws_connect(
                url,
                protocols=(SUBPROTOCOL,),
                headers=await config.credentials.headers(),
                ssl=config.ssl or True,
                server_hostname=config.server_hostname,
                proxy=config.proxy,
            )
        except aiohttp.WSServerHandshakeError as error:
            hint = "Ask for the Role koordinator-portforward (docs/koordctl.md)." if error.status == 403 else ""
            raise CtlError(f"the API server does not forward to {port.where}: HTTP {error.status}", hint) from error

    async def _forward(
        self,
        websocket: aiohttp.ClientWebSocketResponse,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if not self._port.tls:
            await until_one_ends(_to_pod(reader, websocket), self._from_pod(websocket, writer))
            return
        near, far = socket.socketpair()
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        try:
            await until_one_ends(
                self._encrypted(near, reader, writer),
                until_one_ends(_to_pod(far_reader, websocket), self._from_pod(websocket, far_writer)),
            )
        finally:
            far_writer.transport.abort()
            await _ended(far_writer)
            near.close()

    async def _encrypted(self, near: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak TLS to the pod over the socket."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            tls_reader, tls_writer = await asyncio.open_connection(
                sock=near, ssl=_unverified(), server_hostname=self._port.pod
            )
        try:
            await until_one_ends(_copy(reader, tls_writer), _copy(tls_reader, writer))
        finally:
            tls_writer.transport.abort()
            await _ended(tls_writer)

    async def _from_pod(self, websocket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        prefixes = {DATA: 2, ERROR: 2}
        async for message in websocket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            skipped = min(prefixes.get(channel, 0), len(data))
            if skipped:
                prefixes[channel] -= skipped
                data = data[skipped:]
            if channel == ERROR and data:
                raise CtlError(f"cannot reach {self._port.where}: {data.decode(errors='replace').strip()}")
            if channel == DATA and data:
                writer.write(data)
                await writer.drain()


async def _ended(writer: asyncio.StreamWriter) -> None:
    """Wait until the connection is closed. The other end may have reset it."""
    with suppress(OSError):
        await writer.wait_closed()


async def _to_pod(reader: asyncio.StreamReader, websocket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_READ_BYTES):
        await websocket.send_bytes(bytes((DATA,)) + data)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@asynccontextmanager
async def forwarded(config: ClientConfig, port: PodPort) -> AsyncIterator[tuple[str, Forwarder]]:
    """The path of a Unix socket that leads to the port, while the context is open."""
    async with aiohttp.ClientSession() as session:
        forwarder = Forwarder(config, port, session)
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None  # a server's callback is a task
            connections.add(task)
            task.add_done_callback(connections.discard)
            await forwarder.serve(reader, writer)

        with tempfile.TemporaryDirectory(prefix="koordctl-") as folder:  # mode 0700
            path = str(Path(folder) / "pod")
            server = await asyncio.start_unix_server(accept, path)
            try:
                yield path, forwarder
            finally:
                server.close()
                await end_tasks(*connections)
