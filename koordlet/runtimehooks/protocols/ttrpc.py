"""ttrpc over NRI's multiplexed socket: several logical connections in one unix socket, each a stream of framed
messages.

    frame:    connection id (4 bytes), length (4), then that many bytes of the connection's stream
    message:  length (4), stream id (4), type (1), flags (1), then a Request or a Response; all big-endian

The runtime reads a connection through a buffer of 4096 bytes and closes the socket when a frame does not fit. So
messages are sent in frames of at most that size, and each message begins a new frame. Stream ids are odd and increase
with each request of a side. Bounds: 4 MiB per message, `CALLS_AT_ONCE` requests of the runtime.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from koordlet.api.nri import ttrpc_pb2 as pb
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

FRAME = struct.Struct(">II")
MESSAGE = struct.Struct(">IIBB")
FRAME_BYTES = 4096
MESSAGE_BYTES = 4 << 20
REQUEST = 1
RESPONSE = 2
PLUGIN_CONNECTION = 1
RUNTIME_CONNECTION = 2
"""On the first the runtime calls koordlet, on the second koordlet calls the runtime."""
CALLS_AT_ONCE = 64
UNKNOWN = 2
UNIMPLEMENTED = 12
"""Status codes of gRPC."""

Handler = Callable[[str, str, bytes, float | None], Awaitable[bytes]]
"""(service, method, request, seconds) -> response. Raises TtrpcCallError."""


class TTRPCError(Exception):
    """The socket cannot be used any longer: it is closed, or the runtime violated the protocol."""


class TtrpcCallError(Exception):
    """A call was refused; `code` is a status code of gRPC."""

    def __init__(self, message: str, code: int = UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class Trunk:
    """One socket to the runtime. `run` serves it until it closes; `call` calls the runtime."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._streams = {PLUGIN_CONNECTION: bytearray(), RUNTIME_CONNECTION: bytearray()}
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._next = 1
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the runtime closes the socket. Raises TTRPCError when it violates the protocol."""
        try:
            while True:
                connection, length = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                if length > MESSAGE.size + MESSAGE_BYTES:
                    raise TTRPCError(f"a frame of {length} bytes")
                data = await self._reader.readexactly(length)
                if connection in self._streams:  # other connections have no user
                    await self._receive(connection, data)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._end()

    async def call(self, service: str, method: str, request: bytes, seconds: float) -> bytes:
        """Raises TtrpcCallError for a refusal, TTRPCError when the socket is closed, TimeoutError."""
        stream = self._next
        self._next += 2
        future = self._pending[stream] = asyncio.get_running_loop().create_future()
        nanos = int(seconds * 1e9)
        envelope = pb.Request(service=service, method=method, payload=request, timeout_nano=nanos)
        try:
            await self._send(RUNTIME_CONNECTION, stream, REQUEST, envelope.SerializeToString())
            async with asyncio.timeout(seconds):
                answer: bytes = await future
                return answer
        except ConnectionError as error:
            raise TTRPCError(str(error)) from error
        finally:
            del self._pending[stream]

    async def close(self) -> None:
        """Close the socket and cancel running calls."""
        self._writer.close()
        tasks = tuple(self._tasks)
        await end_tasks(*tasks)
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _receive(self, connection: int, data: bytes) -> None:
        stream = self._streams[connection]
        stream += data
        while len(stream) >= MESSAGE.size:
            length, number, kind, _flags = MESSAGE.unpack_from(stream)
            if length > MESSAGE_BYTES:
                raise TTRPCError(f"a message of {length} bytes")
            if len(stream) < MESSAGE.size + length:
                return
            body = bytes(stream[MESSAGE.size : MESSAGE.size + length])
            del stream[: MESSAGE.size + length]
            if connection == RUNTIME_CONNECTION and kind == RESPONSE:
                self._complete(number, body)
            elif connection == PLUGIN_CONNECTION and kind == REQUEST:
                await self._slots.acquire()
                task = asyncio.create_task(self._serve(number, body), name="nri call")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _complete(self, number: int, body: bytes) -> None:
        future = self._pending.get(number)
        if future is None or future.done():  # the caller has timed out
            return
        response = _parsed(pb.Response, body)
        if response.status.code:
            future.set_exception(TtrpcCallError(response.status.message, response.status.code))
        else:
            future.set_result(response.payload)

    async def _serve(self, number: int, body: bytes) -> None:
        try:
            request = _parsed(pb.Request, body)
            seconds = request.timeout_nano / 1e9 if request.timeout_nano > 0 else None
            try:
                response = pb.Response(
                    payload=await self._handler(request.service, request.method, request.payload, seconds)
                )
            except TtrpcCallError as error:
                response = pb.Response(status=pb.Status(code=error.code, message=str(error)))
            await self._send(PLUGIN_CONNECTION, number, RESPONSE, response.SerializeToString())
        except (ConnectionError, TTRPCError) as error:
            log.once(f"nri:{error}", "Answer to the runtime lost", error=str(error))
        finally:
            self._slots.release()

    async def _send(self, connection: int, number: int, kind: int, body: bytes) -> None:
        if len(body) > MESSAGE_BYTES:
            raise TTRPCError(f"a message of {len(body)} bytes would be refused")
        message = MESSAGE.pack(len(body), number, kind, 0) + body
        for start in range(0, len(message), FRAME_BYTES):
            frame = message[start : start + FRAME_BYTES]
            self._writer.write(FRAME.pack(connection, len(frame)) + frame)
        await self._writer.drain()

    def _end(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(TTRPCError("the runtime closed the connection"))
        self._writer.close()


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise TTRPCError(f"malformed {kind.DESCRIPTOR.name}: {error}") from error
