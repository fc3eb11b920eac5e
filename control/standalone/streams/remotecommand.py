"""Translates exec and attach: WebSocket `v5.channel.k8s.io` at the client, SPDY/3.1 `v4.channel.k8s.io` at the kubelet.

Binary WebSocket messages begin with a channel number: 0 stdin, 1 stdout, 2 stderr, 3 error, 4 resize, and 255 closes
the channel that its second byte names. Over SPDY each channel is a stream of its own. The error channel gets one Status
at the end. Container runtimes don't know version 5, and version 4 has no end of stdin over WebSocket.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import WSMsgType, web

from control.standalone.streams import spdy
from control.standalone.streams.relay import IdleLimit, until_one_ends
from control.standalone.streams.upgrade import Upgraded

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_STREAM_TYPES: Final = {ERROR: "error", STDIN: "stdin", STDOUT: "stdout", STDERR: "stderr", RESIZE: "resize"}
"""In the order in which the streams are opened."""
STATUS_LIMIT_BYTES: Final = 64 * 1024
MESSAGE_LIMIT_BYTES: Final = 1024 * 1024
"""Of a WebSocket message from a client; kubectl sends 32 KiB."""
CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class CommandStreams:
    """The streams that a client requests."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False

    @property
    def channels(self) -> tuple[int, ...]:
        """All channels that both sides open. A terminal has no stderr, and a size."""
        opened = {
            ERROR: True,
            STDIN: self.stdin,
            STDOUT: self.stdout,
            STDERR: self.stderr and not self.tty,
            RESIZE: self.tty,
        }
        return tuple(channel for channel in _STREAM_TYPES if opened[channel])


def websocket() -> web.WebSocketResponse:
    """The response to a client of version 5; its `prepare` answers the handshake."""
    return web.WebSocketResponse(
        protocols=(V5,), max_msg_size=MESSAGE_LIMIT_BYTES, timeout=CLOSE_SECONDS, compress=False
    )


def failure(message: str) -> bytes:
    """An InternalError for the error channel."""
    status = {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {message}",
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }
    return msgspec.json.encode(status)


async def finish(client: web.WebSocketResponse, status: bytes) -> None:
    """Send the Status and close. The client may be gone."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.send_bytes(bytes((ERROR,)) + status)
            await client.close()
    except (OSError, TimeoutError):
        return


class CommandTranslator:
    """One session; `run` returns the Status for the error channel, or None if the client has gone."""

    def __init__(self, client: web.WebSocketResponse, server: Upgraded, streams: CommandStreams) -> None:
        self._client = client
        self._server = server
        self._ids = {channel: 2 * i + 1 for i, channel in enumerate(streams.channels)}
        self._channels = {stream: channel for channel, stream in self._ids.items()}
        self._stdin_open = STDIN in self._ids
        self._status = b""
        self._ended = False

    async def run(self) -> bytes | None:
        try:
            await self._open()
            async with IdleLimit() as idle:
                await until_one_ends(self._to_server(idle), self._to_client(idle))
        except TimeoutError:
            return failure("nothing was sent for too long")
        except OSError as error:
            return self._status or failure(f"the connection to the kubelet broke: {error}")
        if not self._ended:
            return None
        return self._status or failure("the kubelet ended the stream without a status")

    async def _open(self) -> None:
        """Open all streams: the server waits for them. An empty message is the signal for the client to begin."""
        encoder = spdy.FrameEncoder()
        for channel, stream in self._ids.items():
            await self._server.write(encoder.syn_stream(stream, {"streamtype": _STREAM_TYPES[channel]}))
        first = next(channel for channel in (STDOUT, STDERR, ERROR) if channel in self._ids)
        await self._client.send_bytes(bytes((first,)))

    async def _to_server(self, idle: IdleLimit) -> None:
        """Until the client closes its connection."""
        async for message in self._client:
            idle.moved()
            if message.type is WSMsgType.BINARY:
                await self._message(message.data)
            elif message.type is WSMsgType.TEXT:
                await self._message(message.data.encode())

    async def _message(self, data: bytes) -> None:
        """A message for another channel than these, or for one that was not asked for, has no effect."""
        if not data:
            return
        channel = data[0]
        if channel == CLOSE and data[1:2] == bytes((STDIN,)) and self._stdin_open:
            self._stdin_open = False
            await self._server.write(spdy.data_frame(self._ids[STDIN], b"", fin=True))
        elif len(data) > 1 and ((channel == STDIN and self._stdin_open) or (channel == RESIZE and RESIZE in self._ids)):
            await self._server.write(spdy.data_frame(self._ids[channel], data[1:]))

    async def _to_client(self, idle: IdleLimit) -> None:
        """Until the server ends the session."""
        decoder = spdy.FrameDecoder()
        while data := await self._server.read():
            idle.moved()
            for frame in decoder.feed(data):
                if isinstance(frame, spdy.DataPiece):
                    await self._output(frame)
                elif frame.type == spdy.PING and not frame.number % 2:
                    await self._server.write(spdy.ping(frame.number))
                elif frame.type == spdy.GOAWAY:
                    self._ended = True
                    return
        self._ended = True

    async def _output(self, piece: spdy.DataPiece) -> None:
        channel = self._channels.get(piece.stream)
        if channel == ERROR:
            self._status += piece.data
            if len(self._status) > STATUS_LIMIT_BYTES:
                raise spdy.SpdyError(f"a status of more than {STATUS_LIMIT_BYTES} bytes")
        elif channel in (STDOUT, STDERR) and piece.data:
            await self._client.send_bytes(bytes((channel,)) + piece.data)


class TunnelClient:
    """A WebSocket whose binary messages are the bytes of a SPDY connection, as a `relay.ByteStream`."""

    def __init__(self, client: web.WebSocketResponse) -> None:
        self._client = client

    async def read(self) -> bytes:
        """Text, an error and the end of the connection all end it."""
        while True:
            message: Any = await self._client.receive()
            if message.type is not WSMsgType.BINARY:
                return b""
            if message.data:
                return bytes(message.data)

    async def write(self, data: bytes) -> None:
        await self._client.send_bytes(data)
