"""The runtime's side of NRI, as strict as containerd: it refuses the same input with the same message and the same
consequence, mostly a closed connection. The framing is an independent implementation of the protocol's description,
and reads like Go's buffered reader on a multiplexed connection."""

from __future__ import annotations

import asyncio
import re
import struct
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from koordlet.api.nri import PLUGIN, RUNTIME
from koordlet.api.nri import api_pb2 as pb
from koordlet.api.nri import ttrpc_pb2 as rpc
from koordlet.app.tasks import end_tasks

BUFFER = 4096
LARGEST = 4 << 20
VALID_EVENTS = (1 << 12) - 1


class Refusal(Exception):
    """An error after which the runtime disconnects the plugin."""


class Connection:
    """A logical connection: received frames, read through a buffer that each frame must fit into."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._buffer = b""
        self._more = asyncio.Event()

    def feed(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._more.set()

    async def exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            missing = count - len(content)
            if not self._buffer:
                frame = await self._frame(max(missing, BUFFER))  # a large rest is read directly
                if missing >= BUFFER:
                    content += frame
                    continue
                self._buffer = frame
            content += self._buffer[:missing]
            self._buffer = self._buffer[missing:]
        return content

    async def _frame(self, room: int) -> bytes:
        while not self._frames:
            self._more.clear()
            await self._more.wait()
        frame = self._frames.popleft()
        if len(frame) > room:
            raise Refusal(f"cannot allocate memory: a frame of {len(frame)} into {room}")
        return frame

    async def message(self) -> tuple[int, int, bytes]:
        """(stream id, type, data)."""
        length, stream, kind, flags = struct.unpack(">IIBB", await self.exactly(10))
        assert flags == 0, "a unary call has no flags"
        if length > LARGEST:
            raise Refusal("message length exceeds maximum")
        return stream, kind, await self.exactly(length)


class Runtime:
    """Listens like a runtime. `plugins` are those that are registered and configured, newest last."""

    def __init__(self, path: Path, *, config: str = "", registration: float = 60.0, silent: bool = False) -> None:
        """`silent`: never responds; `registration`: timeout of a plugin's registration in seconds."""
        self.path, self.config, self._registration, self._silent = path, config, registration, silent
        self.plugins: list[Plugin] = []
        self.refused: list[str] = []
        self.connections = 0
        self._sessions: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._ended = False
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Runtime:
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._ended = True
        await end_tasks(*self._sessions)
        for writer in self._writers:  # also those of sessions that were cancelled before they started
            writer.transport.abort()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ended:
            writer.close()
            return
        self._writers.append(writer)
        self.connections += 1
        session = asyncio.ensure_future(self._session(Plugin(self, reader, writer)))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)

    async def _session(self, plugin: Plugin) -> None:
        reading = asyncio.ensure_future(plugin.read())
        try:
            if self._silent:
                await reading
                return
            async with asyncio.timeout(self._registration):
                await plugin.registered(reading)
            await plugin.configure()
            self.plugins.append(plugin)
            await reading
        except TimeoutError:
            self.refused.append("plugin registration timed out")
        except (Refusal, ConnectionError) as error:
            self.refused.append(str(error))
        finally:
            await end_tasks(reading)
            plugin.writer.close()
            plugin.closed.set()


class Plugin:
    """A plugin as the runtime sees it."""

    def __init__(self, runtime: Runtime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.runtime, self.reader, self.writer = runtime, reader, writer
        self.connections = {1: Connection(), 2: Connection()}
        self.name = self.index = ""
        self.events = 0
        self.closed = asyncio.Event()
        self._stream = -1
        self._answers = asyncio.Lock()

    async def read(self) -> None:
        while True:
            try:
                connection, length = struct.unpack(">II", await self.reader.readexactly(8))
                self.connections[connection].feed(await self.reader.readexactly(length))
            except asyncio.IncompleteReadError:
                return

    async def registered(self, reading: asyncio.Future[None]) -> None:
        """The first request on the runtime's own connection, which must be the registration."""
        waiting = asyncio.ensure_future(self.connections[2].message())
        await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if not waiting.done():
            waiting.cancel()
            raise Refusal("failed to register plugin, connection closed")
        stream, kind, data = waiting.result()
        request = rpc.Request.FromString(data)
        if kind != 1 or stream % 2 != 1:
            raise Refusal("StreamID must be odd for client initiated streams")
        if (request.service, request.method) != (RUNTIME, "RegisterPlugin"):
            raise Refusal(f"unimplemented {request.service}/{request.method}")
        registration = pb.RegisterPluginRequest.FromString(request.payload)
        problem = ""
        if not registration.plugin_name:
            problem = "invalid plugin name: empty"
        elif not re.fullmatch("[0-9][0-9]", registration.plugin_idx):
            problem = f"invalid plugin index {registration.plugin_idx}: must be two digits"
        status = rpc.Status(code=2, message=problem) if problem else rpc.Status()
        await self.send(2, stream, 2, rpc.Response(status=status).SerializeToString())
        if problem:
            raise Refusal(problem)
        self.name = registration.plugin_name
        self.index = registration.plugin_idx

    async def configure(self) -> None:
        request = pb.ConfigureRequest(config=self.runtime.config, runtime_name="fake", runtime_version="1")
        try:
            self.events = pb.ConfigureResponse.FromString(await self.call("Configure", request)).events
        except RuntimeError as error:
            raise Refusal(f"failed to configure plugin: {error}") from error
        if self.events & ~VALID_EVENTS:
            raise Refusal(f"invalid plugin events: {self.events:#x}")
        sent = pb.SynchronizeRequest(more=True)
        if not pb.SynchronizeResponse.FromString(await self.call("Synchronize", sent)).more:
            raise Refusal("plugin does not handle split sync requests")
        await self.call("Synchronize", pb.SynchronizeRequest())

    async def call(self, method: str, request: Any, seconds: float = 60.0, service: str = PLUGIN) -> bytes:
        """The response's payload; RuntimeError with the status of a refusal."""
        async with self._answers:  # one at a time, so that responses arrive in order
            self._stream += 2
            envelope = rpc.Request(
                service=service, method=method, payload=request.SerializeToString(), timeout_nano=int(seconds * 1e9)
            )
            await self.send(1, self._stream, 1, envelope.SerializeToString())
            stream, kind, data = await self.connections[1].message()
            assert (stream, kind) == (self._stream, 2)
        response = rpc.Response.FromString(data)
        if response.status.code:
            raise RuntimeError(f"{response.status.code}: {response.status.message}")
        return response.payload

    async def send(self, connection: int, stream: int, kind: int, data: bytes) -> None:
        """Like Go's buffered writer: a first piece that fills the buffer, then the rest."""
        message = struct.pack(">IIBB", len(data), stream, kind, 0) + data
        pieces = [message[:BUFFER], message[BUFFER:]]
        for piece in filter(None, pieces):
            self.writer.write(struct.pack(">II", connection, len(piece)) + piece)
        await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.close()
