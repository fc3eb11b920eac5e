"""The stream of an intercepted call: what of its request is held, and how far the call has come."""

from __future__ import annotations

import asyncio
from enum import Enum

from koordlet.app.http2.frames import END_STREAM, Frame, payload
from koordlet.app.http2.grpc import PREFIX_BYTES, pack, prefix
from koordlet.app.http2.windows import Chunk
from runtimeproxy.http2.answers import Answer
from runtimeproxy.http2.exchange import Exchange


class Stage(Enum):
    """COLLECTING the message, ASKING what to send instead, OPEN: all goes on, REFUSING: the runtime is to forget."""

    COLLECTING = 0
    ASKING = 1
    OPEN = 2
    REFUSING = 3


def chunk_of(data: bytes, frame: Frame, *, held: bool) -> Chunk:
    """A DATA frame as a chunk of its own: the read that it came in is not kept."""
    start, end = payload(data, frame)
    own = data[frame.start : frame.end]
    view = memoryview(own)[start - frame.start : end - frame.start]
    return Chunk(view, frame.length, bool(frame.flags & END_STREAM), held, own)


class Held:
    """One such stream. `chunks` are those not handed to the sender; `held` their bytes that count as held."""

    __slots__ = (
        "_have", "_need", "answer", "begun", "chunks", "client_ended", "encoding", "exchange", "held", "stage",
        "stream", "task",
    )  # fmt: skip

    def __init__(self, stream: int, exchange: Exchange, encoding: bytes | None) -> None:
        self.stream, self.exchange, self.encoding = stream, exchange, encoding
        self.stage = Stage.COLLECTING
        self.chunks: list[Chunk] = []
        self.held = 0
        self.client_ended = False
        self.begun = False
        """The runtime has begun to answer."""
        self.task: asyncio.Task[None] | None = None
        self.answer = Answer()
        self._have = 0
        self._need: int | None = None

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self._have += len(chunk.payload)
        if self._need is None and self._have >= PREFIX_BYTES:
            self._need = PREFIX_BYTES + prefix(self._joined(PREFIX_BYTES))[1]

    @property
    def need(self) -> int:
        """Bytes of the message with its prefix; 0 while that is not known."""
        return self._need or 0

    @property
    def missing(self) -> int:
        """Bytes of the message that have not come, as far as is known."""
        return max(self.need, PREFIX_BYTES) - self._have

    @property
    def whole(self) -> bool:
        return self._need is not None and self._have >= self._need

    def message(self) -> bytes:
        """The first message with its prefix; there must be a whole one."""
        return self._joined(self.need)

    def replace(self, body: bytes, *, compressed: bool) -> None:
        """Put another message in the first one's place; what followed that stays behind it."""
        own = [chunk for chunk in self.chunks if chunk.held]
        later = [chunk for chunk in self.chunks if not chunk.held]
        behind = b"".join(chunk.payload for chunk in own)[self.need :]
        data = memoryview(pack(body, compressed=compressed) + behind)
        self.chunks = [Chunk(data, len(data), any(chunk.end for chunk in own), held=True), *later]

    def _joined(self, size: int) -> bytes:
        if len(self.chunks) == 1:
            return bytes(self.chunks[0].payload[:size])
        out, missing = [], size
        for chunk in self.chunks:
            out.append(chunk.payload[:missing])
            missing -= len(out[-1])
            if not missing:
                break
        return b"".join(out)
