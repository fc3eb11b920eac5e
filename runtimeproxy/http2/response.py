"""Reads the message of a unary gRPC response while its DATA frames are forwarded."""

from __future__ import annotations

from koordlet.app.http2.grpc import PREFIX_BYTES, BodyError, prefix, unpack
from runtimeproxy.http2.interception import MAX_RESPONSE_BYTES


class ResponseReader:
    """Collects the DATA of a response until its first message is complete."""

    __slots__ = ("_data", "done")

    def __init__(self) -> None:
        self._data = bytearray()
        self.done = False
        """The message has been returned, or never will be."""

    def feed(self, piece: memoryview) -> bytes | None:
        """The message, once, when `piece` completes it. Raises BodyError when it is too large or its compression is
        unknown."""
        if self.done:
            return None
        self._data += piece
        if len(self._data) < PREFIX_BYTES:
            return None
        _, size = prefix(self._data)
        if size > MAX_RESPONSE_BYTES:
            self._finish()
            raise BodyError(f"a response of {size} bytes")
        if len(self._data) < PREFIX_BYTES + size:
            return None
        message = bytes(self._data)
        self._finish()
        return unpack(message, None, MAX_RESPONSE_BYTES)

    def _finish(self) -> None:
        self.done = True
        self._data = bytearray()
