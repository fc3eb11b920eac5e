"""State of the stream of an intercepted call: the held part of its request, and how far the call has come."""

from __future__ import annotations

import asyncio
from enum import Enum

from koordlet.app.http2.frames import END_STREAM, Frame, payload
from koordlet.app.http2.grpc import PREFIX_BYTES, pack, prefix
from koordlet.app.http2.windows import Chunk
from runtimeproxy.http2.interception import GrpcCallHandler
from runtimeproxy.http2.response import ResponseReader


class HoldStage(Enum):
    """COLLECTING: the request message is incomplete. DECIDING: the handler runs. OPEN: everything is forwarded.
    REFUSING: the runtime was sent RST_STREAM, and its acknowledgement is outstanding."""

    COLLECTING = 0
    DECIDING = 1
    OPEN = 2
    REFUSING = 3


def chunk_of(data: bytes, frame: Frame, *, held: bool) -> Chunk:
    """A DATA frame as a chunk with its own copy of the bytes, so that the socket read `data` is not kept alive."""
    start, end = payload(data, frame)
    own = data[frame.start : frame.end]
    view = memoryview(own)[start - frame.start : end - frame.start]
    return Chunk(view, frame.length, bool(frame.flags & END_STREAM), held, own)


class HeldStream:
    """One intercepted stream. `chunks`: DATA not handed to the sender yet; `held`: bytes of it that count against the
    budget."""

    __slots__ = (
        "_message_size",
        "_received",
        "chunks",
        "client_ended",
        "encoding",
        "handler",
        "held",
        "response",
        "response_begun",
        "stage",
        "stream",
        "task",
    )

    def __init__(self, stream: int, handler: GrpcCallHandler, encoding: bytes | None) -> None:
        self.stream = stream
        self.handler = handler
        self.encoding = encoding
        self.stage = HoldStage.COLLECTING
        self.chunks: list[Chunk] = []
        self.held = 0
        self.client_ended = False
        self.response_begun = False
        self.task: asyncio.Task[None] | None = None
        self.response = ResponseReader()
        self._received = 0
        self._message_size: int | None = None

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self._received += len(chunk.payload)
        if self._message_size is None and self._received >= PREFIX_BYTES:
            self._message_size = PREFIX_BYTES + prefix(self._joined(PREFIX_BYTES))[1]

    @property
    def message_size(self) -> int:
        """Bytes of the message with its prefix; 0 until the prefix has arrived."""
        return self._message_size or 0

    @property
    def missing(self) -> int:
        """Bytes of the message that have not arrived, at least."""
        return max(self.message_size, PREFIX_BYTES) - self._received

    @property
    def complete(self) -> bool:
        return self._message_size is not None and self._received >= self._message_size

    def message(self) -> bytes:
        """The first message with its prefix; only when `complete`."""
        return self._joined(self.message_size)

    def replace(self, body: bytes, *, compressed: bool) -> None:
        """Replace the first message; DATA behind it stays behind it."""
        held = [chunk for chunk in self.chunks if chunk.held]
        later = [chunk for chunk in self.chunks if not chunk.held]
        rest = b"".join(chunk.payload for chunk in held)[self.message_size :]
        data = memoryview(pack(body, compressed=compressed) + rest)
        self.chunks = [Chunk(data, len(data), any(chunk.end for chunk in held), held=True), *later]

    def _joined(self, size: int) -> bytes:
        if len(self.chunks) == 1:
            return bytes(self.chunks[0].payload[:size])
        pieces, missing = [], size
        for chunk in self.chunks:
            pieces.append(chunk.payload[:missing])
            missing -= len(pieces[-1])
            if not missing:
                break
        return b"".join(pieces)
