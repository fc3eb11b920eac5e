"""The client side of a link without dockerd: the first request gets status 503 with the reason, then the link closes.

It closes after the rest of the request was read, since a client that writes to a closed connection may never read the
response (RFC 9112 §9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runtimeproxy.docker import http1
from runtimeproxy.docker.http1 import NotHttp1
from runtimeproxy.docker.side import DockerSide

LINGER_S = 5.0
"""Longest wait for the rest of a refused request."""


class UnavailableResponder:
    """Takes over the client side of one link."""

    def __init__(self, client: DockerSide, reason: str, close: Callable[[], None]) -> None:
        self._client = client
        self._reason = reason
        self._close = close
        self._head = bytearray()
        self._body: http1.HttpBody | None = None
        """Of the refused request, once its head is complete."""
        self._linger: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._drain(self._body, data)
            return
        self._head += data
        # A response before the request's head is complete would belong to no request.
        method, rest = b"", b""
        try:
            end = http1.split_head(self._head)
            if not end:
                return
            request = http1.parse_request(bytes(self._head[:end]))
            method, rest = request.method, bytes(self._head[end:])
            body = http1.request_body(request)
        except NotHttp1:  # refused like any other request
            body = http1.LengthBody(0)
        self._body = body
        self._client.write(http1.error_response(self._reason, method=method, last=True, line=http1.STATUS_503))
        self._head.clear()
        if not self._drain(body, rest):
            self._client.write_end()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def _drain(self, body: http1.HttpBody, data: bytes) -> bool:
        """Discard body bytes; True when the link was closed, at the body's end or if it cannot be parsed."""
        try:
            body.take(data)
        except NotHttp1:
            self._close()
            return True
        if body.done:
            self._close()
        return body.done

    def stop(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
