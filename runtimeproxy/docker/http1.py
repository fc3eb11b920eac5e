"""As much of HTTP/1.1 as a proxy must know that passes the bytes on as they are: where a head and a body end.

Heads are read, never written anew, so that whatever a client or dockerd says reaches the other side as it was
said. What this module can't read (`NotHttp`) is no error of the connection: the caller then relays blindly, and
the other side answers as it would without us. Line ends may be CRLF or LF alone, as Go's net/http takes them.
Bounds: a head has at most `MAX_HEAD` bytes, a chunk-size or trailer line `MAX_LINE`. Framing after RFC 9112 §6.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import msgspec

MAX_HEAD = 1 << 20
"""Bytes of a head; Go's net/http takes as many by default."""
MAX_LINE = 8192
_HEAD_END = re.compile(rb"\n\r?\n")
_HEAD = re.compile(rb"[\r\n]*([^\n]*)\n(?:[^ \t:\n]+(?:[ \t]+[^ \t:\n]+)*:[^\n]*\n)*\r?\n")
"""A start line, fields that are neither folded nor damaged, a blank line."""
_FRAMING = re.compile(rb"\n(content-length|transfer-encoding):([^\n]*)", re.IGNORECASE)
_SIZE, _LENGTH = re.compile(rb"[0-9a-fA-F]{1,16}"), re.compile(rb"[0-9]{1,18}")
BROKEN, UNAVAILABLE = b"HTTP/1.1 500 Internal Server Error", b"HTTP/1.1 503 Service Unavailable"
_SWITCHING, _NO_CONTENT, _NOT_MODIFIED = 101, 204, 304

Sink = Callable[[bytes], object]
"""Takes the payload of a body, piece by piece, without chunk framing."""


class NotHttp(ValueError):
    """Bytes that aren't HTTP/1 as this module knows it; the message says what was seen."""


class Head(msgspec.Struct, frozen=True):
    """A start line and fields as they came; `raw` holds every byte to the closing blank line."""

    raw: bytes
    line: bytes
    first: int
    """Where the fields begin."""

    def values(self, name: bytes) -> list[bytes]:
        """Of the field `name`, without outer blanks, in their order."""
        return [_plain(value) for value in _field(name).findall(self.raw, self.first - 1)]

    def tokens(self, name: bytes) -> set[bytes]:
        """The comma-separated words of a field, in lower case (`Connection: Upgrade, close`)."""
        return {word.strip().lower() for value in self.values(name) for word in value.split(b",")}


class Request(Head, frozen=True):
    method: bytes
    target: bytes
    version: bytes
    """`HTTP/1.0` or `HTTP/1.1`."""

    @property
    def last(self) -> bool:
        """The client wants no second answer on this connection."""
        return b"close" in self.tokens(b"connection") or (
            self.version == b"HTTP/1.0" and b"keep-alive" not in self.tokens(b"connection")
        )

    @property
    def waits_for_continue(self) -> bool:
        return b"100-continue" in self.tokens(b"expect")


class Response(Head, frozen=True):
    status: int

    @property
    def interim(self) -> bool:
        """Another head follows for the same request."""
        return 100 <= self.status < 200 and self.status != _SWITCHING


def split_head(data: bytes | bytearray, seen: int = 0) -> int:
    """Index one past the head that `data` starts with, 0 while it isn't complete. `seen`: bytes looked at before.

    Empty lines before the start line belong to the head. NotHttp when it grows over MAX_HEAD.
    """
    start = 0
    while start < len(data) and data[start] in b"\r\n":
        start += 1
    found = _HEAD_END.search(data, max(start, seen - 2))
    end = found.end() if found else 0
    if max(end, 0 if found else len(data)) > MAX_HEAD:
        raise NotHttp(f"a head of more than {MAX_HEAD} bytes")
    return end


def parse_request(raw: bytes) -> Request:
    line, first = _start(raw)
    words = line.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[0] or not words[1]:
        raise NotHttp(f"no request line: {line[:80]!r}")
    return Request(raw, line, first, *words)


def parse_response(raw: bytes) -> Response:
    line, first = _start(raw)
    words = line.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (words[1].isdigit() and len(words[1]) == 3):
        raise NotHttp(f"no status line: {line[:80]!r}")
    return Response(raw, line, first, int(words[1]))


def _start(raw: bytes) -> tuple[bytes, int]:
    """The start line, and where the line behind it begins."""
    found = _HEAD.fullmatch(raw)
    if found is None:
        raise NotHttp(f"a damaged or folded header field after {raw.lstrip()[:80]!r}")
    return found[1].removesuffix(b"\r"), found.end(1) + 1


@functools.cache
def _field(name: bytes) -> re.Pattern[bytes]:
    """Finds the values of a field; few names are ever asked for."""
    return re.compile(rb"\n" + re.escape(name) + rb":([^\n]*)", re.IGNORECASE)


def _plain(value: bytes) -> bytes:
    return value.removesuffix(b"\r").strip(b" \t")


class Body:
    """The bytes after a head, up to the next one. `take` says how far a piece of the stream belongs to it."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.done = False
        self.sink = sink

    def take(self, data: bytes, at: int = 0) -> int:
        """Index one past what belongs to the body from `at` on; `done` is set when that is its end."""
        raise NotImplementedError


class LengthBody(Body):
    """Content-Length bytes."""

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


class ChunkedBody(Body):
    """Chunks up to the empty one and its trailer. NotHttp when a size line is none."""

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
            if len(line) > MAX_LINE:
                raise NotHttp("a chunk-size or trailer line without end")
            if newline >= 0:
                self._line = b""
                self._expects(line.strip())
            else:
                self._line = line
        return at

    def _size(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(digits):
            raise NotHttp(f"no chunk size: {line[:80]!r}")
        self._left = int(digits, 16)
        self._expects = self._after_chunk if self._left else self._trailer

    def _after_chunk(self, line: bytes) -> None:
        if line:
            raise NotHttp(f"a chunk longer than its size: {line[:80]!r}")
        self._expects = self._size

    def _trailer(self, line: bytes) -> None:
        self.done = not line


def request_body(head: Request, sink: Sink | None = None) -> Body:
    """The body of a request; NotHttp when its framing is ambiguous or unknown."""
    return _framed(head, sink) or LengthBody(0)


def response_body(head: Response, method: bytes | None, sink: Sink | None = None) -> Body | None:
    """The body of an answer to `method`; None: it lasts until the connection ends (or is no HTTP any more).

    dockerd's attach and exec answer 101, or 200 without framing to clients that don't ask for an upgrade.
    """
    if head.status == _SWITCHING:
        return None
    if method == b"HEAD" or head.interim or head.status in (_NO_CONTENT, _NOT_MODIFIED):
        return LengthBody(0)
    return _framed(head, sink)


def _framed(head: Head, sink: Sink | None) -> Body | None:
    fields = _FRAMING.findall(head.raw, head.first - 1)  # most requests have none, most answers one
    if not fields:
        return None
    codings = [_plain(value).lower() for name, value in fields if name[0] in b"tT"]
    if codings == [b"chunked"]:  # a Content-Length beside it does not count
        return ChunkedBody(sink)
    if codings:
        raise NotHttp(f"transfer coding {b', '.join(codings)[:80]!r}")
    lengths = {_plain(value) for _, value in fields}
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise NotHttp(f"content length {length[:80]!r}")
    return LengthBody(int(length), sink)


def with_body(head: Request, body: bytes) -> bytes:
    """The request anew with another body: framing fields give way to a Content-Length, all else stays as it came."""
    kept = [head.line]
    for line in head.raw.lstrip(b"\r\n").replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")[1:]:
        if line.partition(b":")[0].lower() not in (b"content-length", b"transfer-encoding", b"trailer"):
            kept.append(line)
    kept.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*kept, b"", body])


def error_answer(message: str, *, method: bytes, last: bool, line: bytes = BROKEN) -> bytes:
    """As dockerd words its own: a JSON object with `message`, which every Docker client shows."""
    body = msgspec.json.encode({"message": message}) + b"\n"
    lines = [line, b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(body), *([b"Connection: close"] if last else [])]
    return b"\r\n".join([*lines, b"", b"" if method == b"HEAD" else body])
