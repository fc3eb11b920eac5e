"""The part of HTTP/1.1 that a transparent proxy needs: where a head and a body end.

Heads are parsed but not rewritten, so that both sides receive each other's original bytes. What cannot be parsed here
(`NotHttp1`) is no connection error: the caller then relays blindly, and the other side responds as without a proxy.
Lines may end with CRLF or with LF alone, as Go's net/http accepts. Bounds: a head has at most `MAX_HEAD_BYTES`, a
chunk-size or trailer line `MAX_LINE_BYTES`, as have empty lines before a head. Framing follows RFC 9112 §6.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import msgspec

MAX_HEAD_BYTES = 1 << 20
"""Most bytes of a head; Go's net/http has the same default."""
MAX_LINE_BYTES = 8192
_HEAD_END = re.compile(rb"\n\r?\n")
_LEADING = re.compile(rb"[\r\n]*+")
_HEAD = re.compile(rb"[\r\n]*+([^\n]*)\n(?:[^ \t:\n]+(?:[ \t]+[^ \t:\n]+)*:[^\n]*\n)*\r?\n")
"""A start line, valid unfolded fields, a blank line."""
_FRAMING = re.compile(rb"\n(content-length|transfer-encoding):([^\n]*)", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")
STATUS_500 = b"HTTP/1.1 500 Internal Server Error"
STATUS_503 = b"HTTP/1.1 503 Service Unavailable"
_SWITCHING, _NO_CONTENT, _NOT_MODIFIED = 101, 204, 304

Sink = Callable[[bytes], object]
"""Receives the payload of a body in pieces, without chunk framing."""


class NotHttp1(ValueError):
    """The bytes are not HTTP/1 as parsed here; the message quotes them."""


class HttpHead(msgspec.Struct, frozen=True):
    """A start line and fields. `raw`: all bytes up to and including the blank line."""

    raw: bytes
    line: bytes
    first: int
    """Index of the first field."""

    def values(self, name: bytes) -> list[bytes]:
        """Values of the field `name`, stripped, in order."""
        return [_plain(value) for value in _field(name).findall(self.raw, self.first - 1)]

    def tokens(self, name: bytes) -> set[bytes]:
        """The comma-separated words of a field, in lower case (`Connection: Upgrade, close`)."""
        return {word.strip().lower() for value in self.values(name) for word in value.split(b",")}


class HttpRequest(HttpHead, frozen=True):
    method: bytes
    target: bytes
    version: bytes
    """`HTTP/1.0` or `HTTP/1.1`."""

    @property
    def last(self) -> bool:
        """The client expects no further response on this connection."""
        return b"close" in self.tokens(b"connection") or (
            self.version == b"HTTP/1.0" and b"keep-alive" not in self.tokens(b"connection")
        )

    @property
    def waits_for_continue(self) -> bool:
        return b"100-continue" in self.tokens(b"expect")


class HttpResponse(HttpHead, frozen=True):
    status: int

    @property
    def interim(self) -> bool:
        """Another head follows for the same request."""
        return 100 <= self.status < 200 and self.status != _SWITCHING


def split_head(data: bytes | bytearray, seen: int = 0) -> int:
    """Index after the head at the beginning of `data`, 0 while it is incomplete. `seen`: bytes searched before.

    Empty lines before the start line belong to the head. Raises NotHttp1 when it exceeds MAX_HEAD_BYTES, or for more
    than MAX_LINE_BYTES of empty lines, which every read scans again.
    """
    leading = _LEADING.match(data)
    start = leading.end() if leading else 0
    if start > MAX_LINE_BYTES:
        raise NotHttp1(f"more than {MAX_LINE_BYTES} bytes of empty lines")
    match = _HEAD_END.search(data, max(start, seen - 2))
    end = match.end() if match else 0
    if max(end, 0 if match else len(data)) > MAX_HEAD_BYTES:
        raise NotHttp1(f"a head of more than {MAX_HEAD_BYTES} bytes")
    return end


def parse_request(raw: bytes) -> HttpRequest:
    line, first = _start(raw)
    words = line.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[0] or not words[1]:
        raise NotHttp1(f"no request line: {line[:80]!r}")
    return HttpRequest(raw, line, first, *words)


def parse_response(raw: bytes) -> HttpResponse:
    line, first = _start(raw)
    words = line.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (words[1].isdigit() and len(words[1]) == 3):
        raise NotHttp1(f"no status line: {line[:80]!r}")
    return HttpResponse(raw, line, first, int(words[1]))


def _start(raw: bytes) -> tuple[bytes, int]:
    """The start line, and the index of the line after it."""
    match = _HEAD.fullmatch(raw)
    if match is None:
        raise NotHttp1(f"a damaged or folded header field after {raw.lstrip()[:80]!r}")
    return match[1].removesuffix(b"\r"), match.end(1) + 1


@functools.cache
def _field(name: bytes) -> re.Pattern[bytes]:
    """Pattern of a field's values; cached, as only few names are used."""
    return re.compile(rb"\n" + re.escape(name) + rb":([^\n]*)", re.IGNORECASE)


def _plain(value: bytes) -> bytes:
    return value.removesuffix(b"\r").strip(b" \t")


class HttpBody:
    """The bytes between a head and the next one. `take` finds its end."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.done = False
        self.sink = sink

    def take(self, data: bytes, at: int = 0) -> int:
        """Index after the bytes from `at` on that belong to the body; sets `done` at its end."""
        raise NotImplementedError


class LengthBody(HttpBody):
    """A body of Content-Length bytes."""

    def __init__(self, length: int, sink: Sink | None = None) -> None:
        super().__init__(sink)
        self._left = length
        self.done = length == 0

    def take(self, data: bytes, at: int = 0) -> int:
        end = min(len(data), at + self._left)
        self._left -= end - at
        self.done = self._left == 0
        if self.sink is not None and end > at:
            self.sink(data[at:end])
        return end


class ChunkedBody(HttpBody):
    """Chunks up to the empty one, and the trailer. Raises NotHttp1 for an invalid size line."""

    def __init__(self, sink: Sink | None = None) -> None:
        super().__init__(sink)
        self._left = 0
        self._line = b""
        self._expects = self._size

    def take(self, data: bytes, at: int = 0) -> int:
        while at < len(data) and not self.done:
            if self._left:
                end = min(len(data), at + self._left)
                self._left -= end - at
                if self.sink is not None:
                    self.sink(data[at:end])
                at = end
                continue
            newline = data.find(b"\n", at)
            end = newline + 1 or len(data)
            line = self._line + data[at:end]
            at = end
            if len(line) > MAX_LINE_BYTES:
                raise NotHttp1("a chunk-size or trailer line without end")
            if newline >= 0:
                self._line = b""
                self._expects(line.strip())
            else:
                self._line = line
        return at

    def _size(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(digits):
            raise NotHttp1(f"no chunk size: {line[:80]!r}")
        self._left = int(digits, 16)
        self._expects = self._after_chunk if self._left else self._trailer

    def _after_chunk(self, line: bytes) -> None:
        if line:
            raise NotHttp1(f"a chunk longer than its size: {line[:80]!r}")
        self._expects = self._size

    def _trailer(self, line: bytes) -> None:
        self.done = not line


def request_body(head: HttpRequest) -> HttpBody:
    """The body of a request; raises NotHttp1 when its framing is ambiguous or unknown."""
    return _framed(head, None) or LengthBody(0)


def response_body(head: HttpResponse, method: bytes | None, sink: Sink | None = None) -> HttpBody | None:
    """The body of a response to `method`; None: it lasts until the connection ends, or is no longer HTTP.

    dockerd's attach and exec respond with 101, or with 200 without framing to clients that do not request an upgrade.
    """
    if head.status == _SWITCHING:
        return None
    if method == b"HEAD" or head.interim or head.status in (_NO_CONTENT, _NOT_MODIFIED):
        return LengthBody(0)
    return _framed(head, sink)


def _framed(head: HttpHead, sink: Sink | None) -> HttpBody | None:
    fields = _FRAMING.findall(head.raw, head.first - 1)  # most requests have none, most responses have one
    if not fields:
        return None
    codings = [_plain(value).lower() for name, value in fields if name[0] in b"tT"]
    if codings == [b"chunked"]:  # an additional Content-Length is ignored
        return ChunkedBody(sink)
    if codings:
        raise NotHttp1(f"transfer coding {b', '.join(codings)[:80]!r}")
    lengths = {_plain(value) for _, value in fields}
    length = lengths.pop()
    if lengths or not _CONTENT_LENGTH.fullmatch(length):
        raise NotHttp1(f"content length {length[:80]!r}")
    return LengthBody(int(length), sink)


def with_body(head: HttpRequest, body: bytes) -> bytes:
    """The request with another body: Content-Length replaces the framing fields, all else stays."""
    kept = [head.line]
    for line in head.raw.lstrip(b"\r\n").replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")[1:]:
        if line.partition(b":")[0].lower() not in (b"content-length", b"transfer-encoding", b"trailer"):
            kept.append(line)
    kept.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*kept, b"", body])


def error_response(message: str, *, method: bytes, last: bool, line: bytes = STATUS_500) -> bytes:
    """An error response like dockerd's: a JSON object with `message`, which every Docker client shows."""
    body = msgspec.json.encode({"message": message}) + b"\n"
    lines = [line, b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(body), *([b"Connection: close"] if last else [])]
    return b"\r\n".join([*lines, b"", b"" if method == b"HEAD" else body])
