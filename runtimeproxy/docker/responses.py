"""Splits the bytes that dockerd sends on one connection into responses."""

from __future__ import annotations

import enum

from runtimeproxy.docker import http1
from runtimeproxy.docker.http1 import HttpResponse

MAX_RESPONSE_BYTES = 1 << 20
"""Kept bytes of a response body for the handler; responses to held calls have some 100 bytes."""


class Progress(enum.Enum):
    """What one `ResponseParser.read` has consumed."""

    PARTIAL_HEAD = enum.auto()
    """The rest of the data, which is the beginning of a head and is kept."""
    INTERIM = enum.auto()
    """The head of an interim response (status 1xx)."""
    INCOMPLETE = enum.auto()
    """A head, or a piece of a body."""
    COMPLETE = enum.auto()
    """The last piece of a response."""
    UNFRAMED = enum.auto()
    """The head of a response that lasts until the connection ends: an upgrade, or one without a length."""


class ResponseParser:
    """One connection. `head` and `body` describe the current response."""

    def __init__(self) -> None:
        self.partial_head = bytearray()
        self.head: HttpResponse | None = None
        self.body = bytearray()
        self._framing: http1.HttpBody | None = None

    def read(self, data: bytes, at: int, method: bytes | None, *, keep_body: bool) -> tuple[int, Progress]:
        """Parse `data` from `at` on; returns the index after the consumed bytes. `method`: of the request that is
        answered; `keep_body`: collect the body. Raises NotHttp1."""
        if self._framing is not None:
            end = self._framing.take(data, at)
            return end, self._body_progress(self._framing)
        rest = data[at:] if at else data
        size = http1.split_head(rest)
        if not size:
            self.partial_head += rest
            return len(data), Progress.PARTIAL_HEAD
        head = http1.parse_response(rest[:size])
        if head.interim:
            self.head = head
            return at + size, Progress.INTERIM
        framing = http1.response_body(head, method, self._keep if keep_body else None)
        self.head = head
        self.body = bytearray()
        if framing is None:
            return at + size, Progress.UNFRAMED
        self._framing = framing
        return at + size, self._body_progress(framing)

    def take_partial_head(self) -> bytes:
        partial, self.partial_head = self.partial_head, bytearray()
        return bytes(partial)

    def _body_progress(self, framing: http1.HttpBody) -> Progress:
        if not framing.done:
            return Progress.INCOMPLETE
        self._framing = None
        return Progress.COMPLETE

    def _keep(self, piece: bytes) -> None:
        if len(self.body) < MAX_RESPONSE_BYTES:
            self.body += piece
