"""One watch connection as a stream of typed events.

The body is split into lines here and not by aiohttp's stream reader, whose limit on the length of a line is too small
for Kubernetes objects. A kube-apiserver sends nothing, not even a bookmark, for a resource without events, so silence
proves nothing: TCP keep-alive detects a dead peer (koordlet.kube.transport), and a server that is alive ends the stream
after `timeoutSeconds`. Only the loop's clock is used; wall-clock jumps have no effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

import aiohttp
import msgspec

from koordlet.api.encoding import wire
from koordlet.api.encoding.nesting import decode_any_depth
from koordlet.api.meta import ObjectMeta, Status
from koordlet.api.registry import ApiResource
from koordlet.kube.client import Client
from koordlet.kube.decode import KubeObject, ObjectDecoder, decode_meta
from koordlet.kube.errors import ConnectionFailed, KubeError, from_status
from koordlet.kube.selectors import Selector, field_query, label_query

T = TypeVar("T", bound=KubeObject)

OVERDUE_S = 30.0
"""A stream without data for this long after its `timeoutSeconds` is considered dead."""
MAX_LINE_BYTES = 64 << 20
"""Forty times the size limit of an object in etcd."""


class MalformedStream(KubeError):
    """The server sent data that is not a watch event."""


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


_FRAMES = msgspec.json.Decoder(_Frame)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """ADDED, MODIFIED, DELETED or BOOKMARK.

    `object` is None for bookmarks and for an object that cannot be decoded, which has an `error`.
    """

    type: str
    meta: ObjectMeta
    object: T | None
    error: wire.WireError | None = None


class LineSplitter:
    """Splits a byte stream into lines in linear time, independent of the sizes of lines and pieces."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without line ends and without blank lines."""
        head, *more = data.split(b"\n")
        lines: list[bytes] = []
        for piece in more:
            self._parts.append(head)
            line = b"".join(self._parts)
            if line.strip():
                lines.append(line)
            self._parts = []
            self._size = 0
            head = piece
        if head:
            self._parts.append(head)
            self._size += len(head)
            if self._size > MAX_LINE_BYTES:
                raise MalformedStream(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines

    @property
    def pending(self) -> bool:
        """Whether there is an incomplete line."""
        return self._size > 0


async def watch(
    client: Client,
    type: type[T],
    resource: ApiResource,
    namespace: str | None = None,
    *,
    resource_version: str,
    label_selector: Selector = None,
    field_selector: str | Mapping[str, str] | None = None,
    server_seconds: int = 300,
    on_open: Callable[[], object] = lambda: None,
) -> AsyncGenerator[WatchEvent[T], None]:
    """Events after `resource_version`, until the server ends the stream (about `server_seconds`).

    `on_open` is called once the server has accepted the watch, which may be long before the first event. Close the
    generator (`contextlib.aclosing`) when leaving early. Raises Gone if the version is too old, other ApiErrors,
    ConnectionFailed if the connection breaks or a silent stream outlasts `server_seconds`, MalformedStream.
    """
    params = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(server_seconds),
    }
    if labels := label_query(label_selector):
        params["labelSelector"] = labels
    if fields := field_query(field_selector):
        params["fieldSelector"] = fields
    path = resource.path(namespace)
    decoder: ObjectDecoder[T] = ObjectDecoder(type, resource)
    async with (
        client.transport.stream(path, params) as reader,
        aclosing(_lines(client, reader, server_seconds + OVERDUE_S, path)) as lines,
    ):
        on_open()
        async for line in lines:
            yield _event(line, decoder, path)


async def _lines(
    client: Client, reader: aiohttp.StreamReader, silence_limit_s: float, path: str
) -> AsyncGenerator[bytes, None]:
    lines = LineSplitter()
    while True:
        try:
            async with client.clock.timeout(silence_limit_s):
                data = await reader.readany()
        except TimeoutError as error:
            raise ConnectionFailed(
                f"WATCH {path}: no data for {silence_limit_s:g}s, although the server should have ended the watch"
            ) from error
        if not data:
            break
        for line in lines.feed(data):
            yield line
    if lines.pending:
        raise ConnectionFailed(f"WATCH {path}: the stream ended within an event")


def _event(line: bytes, decoder: ObjectDecoder[T], path: str) -> WatchEvent[T]:
    try:
        frame = decode_any_depth(_FRAMES, line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedStream(f"WATCH {path}: not a watch event: {error}") from error
    if frame.type == "ERROR":
        status: Status = wire.decode(bytes(frame.object), Status, where="watch error")
        raise from_status(status, request=f"WATCH {path}")
    meta = decode_meta(frame.object) if frame.type == "BOOKMARK" else None
    if meta is not None:
        return WatchEvent("BOOKMARK", meta, None)
    if frame.type not in ("ADDED", "MODIFIED", "DELETED"):
        raise MalformedStream(f"WATCH {path}: unknown event type {frame.type!r}")
    try:
        obj = decoder.decode(frame.object)
    except wire.WireError as error:
        meta = decode_meta(frame.object)
        if meta is None:
            raise MalformedStream(f"WATCH {path}: {error}") from error
        return WatchEvent(frame.type, meta, None, error)
    return WatchEvent(frame.type, obj.metadata, obj)
