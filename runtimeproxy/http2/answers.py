"""The one message of an answer, read in passing."""

from __future__ import annotations

from koordlet.app.http2.grpc import PREFIX_BYTES, BodyError, prefix, unpack
from runtimeproxy.http2.exchange import MAX_ANSWER


class Answer:
    """Collects DATA of an answer until its first message is whole."""

    __slots__ = ("_data", "over")

    def __init__(self) -> None:
        self._data = bytearray()
        self.over = False
        """The message was given out, or will not be."""

    def feed(self, piece: memoryview) -> bytes | None:
        """The message, once. BodyError when it can't be read: too large or unknown compression."""
        if self.over:
            return None
        self._data += piece
        if len(self._data) < PREFIX_BYTES:
            return None
        _, size = prefix(self._data)
        if size > MAX_ANSWER:
            self._end()
            raise BodyError(f"an answer of {size} bytes")
        if len(self._data) < PREFIX_BYTES + size:
            return None
        message = bytes(self._data)
        self._end()
        return unpack(message, None, MAX_ANSWER)

    def _end(self) -> None:
        self.over = True
        self._data = bytearray()
