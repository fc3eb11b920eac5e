"""One gRPC call of the proxy's own: a connection, a request, an answer.

With the splice's frames and without gRPC's library, whose import alone would be a quarter of the proxy's start. Not for
the path of calls: each has a connection of its own, which a runtime on the same machine makes in half a millisecond.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast
from urllib.parse import unquote_to_bytes

from hpack import Decoder, Encoder, HPACKError

from runtimeproxy.http2 import frames as h2
from runtimeproxy.http2.frames import Frame, FrameError, Splitter
from runtimeproxy.http2.grpc import PREFIX_BYTES, pack, prefix
from runtimeproxy.http2.windows import Chunk, Sender

UNIMPLEMENTED = 12
_MOST = (1 << 31) - 1
_HEADERS = (
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "koord-runtime-proxy"),
)


class CallError(Exception):
    """The call did not end with status OK. `code`: gRPC's, None when there was no answer of the server's."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


async def call(socket: Path, method: str, request: bytes, seconds: float) -> bytes:
    """The answer's message to `/service/method`. CallError, within `seconds`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            made = await loop.create_unix_connection(lambda: _Call(method, request), str(socket))
            transport, protocol = made
            try:
                return await protocol.answer
            finally:
                transport.abort()
    except TimeoutError as error:
        raise CallError(f"no answer within {seconds:g} s") from error
    except OSError as error:
        raise CallError(error.strerror or str(error)) from error


class _Call(asyncio.Protocol):
    def __init__(self, method: str, request: bytes) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._method, self._request = method, request
        self._splitter, self._decoder = Splitter(), Decoder(1 << 20)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None
        self._sender = Sender(self._write, lambda stream, size: None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        headers = [(":method", "POST"), (":scheme", "http"), (":path", self._method), *_HEADERS]
        block = Encoder().encode(headers)
        self._write(h2.PREFACE + h2.settings((h2.INITIAL_WINDOW_SIZE, _MOST)) + h2.window_update(0, _MOST - 65535))
        self._write(h2.head(len(block), h2.HEADERS, h2.END_HEADERS, 1) + block)
        body = memoryview(pack(self._request, compressed=False))
        self._sender.follow(1)
        self._sender.put(1, Chunk(body, len(body), end=True, owed=False))

    def data_received(self, data: bytes) -> None:
        try:
            data, units = self._splitter.feed(data)
            for frame in units:
                self._take(data, frame)
        except (FrameError, HPACKError) as error:
            self._fail(CallError(f"the answer can't be read: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(CallError(f"the connection was lost: {exc}" if exc else "the connection was closed"))

    def _take(self, data: bytes, frame: Frame) -> None:
        match frame.kind:
            case h2.SETTINGS if not frame.flags & h2.ACK:
                for name, value in h2.settings_in(data, frame):
                    if name == h2.INITIAL_WINDOW_SIZE:
                        self._sender.set_initial(value)
                self._write(h2.settings(ack=True))
            case h2.PING if not frame.flags & h2.ACK:
                self._write(h2.head(8, h2.PING, h2.ACK, 0) + data[frame.end - 8 : frame.end])
            case h2.WINDOW_UPDATE:
                self._sender.credit(frame.stream, h2.number(data, frame))
            case h2.RST_STREAM:
                self._fail(CallError(f"the call was reset with code {h2.number(data, frame)}"))
            case h2.GOAWAY:
                self._fail(CallError("the server goes away"))
            case h2.DATA:
                start, end = h2.payload(data, frame)
                self._body += data[start:end]
            case h2.HEADERS:
                self._headers |= dict(self._decoder.decode(h2.header_block(data, frame), raw=True))
        if frame.kind in (h2.DATA, h2.HEADERS) and frame.flags & h2.END_STREAM:
            self._ended()

    def _ended(self) -> None:
        status = self._headers.get(b"grpc-status", b"")
        if status != b"0":
            text = unquote_to_bytes(self._headers.get(b"grpc-message", b"")).decode(errors="replace")
            self._fail(CallError(f"status {status.decode(errors='replace')}: {text}", int(status or b"2")))
        elif len(self._body) < PREFIX_BYTES or prefix(self._body) != (False, len(self._body) - PREFIX_BYTES):
            self._fail(CallError("the answer is not one message"))
        elif not self.answer.done():
            self.answer.set_result(bytes(self._body[PREFIX_BYTES:]))

    def _fail(self, error: CallError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
