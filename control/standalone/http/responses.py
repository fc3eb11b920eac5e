"""Builds responses: JSON bytes, Status errors, Warning headers, gzip for large bodies."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from control.standalone.errors import StatusError

JSON = "application/json"
GZIP_MIN_BYTES = 128 * 1024
"""Smaller bodies are not compressed: on a fast network it would cost more time than it saves."""
MAX_WARNING_CHARS = 4096
"""Of all warnings of a response, as in kube-apiserver: clients limit the headers of a response."""
_NOT_IN_HEADERS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and surrogates, which UTF-8 cannot encode. Warnings quote names of fields of a request's body."""

_encode = msgspec.json.Encoder().encode


def encode(obj: Any) -> bytes:
    return _encode(obj)


def json_response(
    request: web.BaseRequest,
    body: Any,
    status: int = 200,
    *,
    warnings: Iterable[str] = (),
    content_type: str = JSON,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """`body` is data to encode, or an encoded response. JSON ends with a newline, as in kube-apiserver's responses."""
    raw = body if isinstance(body, bytes) else _encode(body)
    if content_type == JSON:
        raw += b"\n"
    out = {"Content-Type": content_type, "Cache-Control": "no-cache, private"}
    if headers:
        out.update(headers)
    if len(raw) > GZIP_MIN_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        raw = gzip.compress(raw, 1)
        out["Content-Encoding"] = "gzip"
        out["Vary"] = ", ".join(filter(None, (out.get("Vary"), "Accept-Encoding")))
    response = web.Response(body=raw, status=status, headers=out)
    room = MAX_WARNING_CHARS
    for text in dict.fromkeys(warnings):
        shown = _NOT_IN_HEADERS.sub(" ", text[:room])
        room -= len(shown)
        if shown:
            quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def error_response(request: web.BaseRequest, error: StatusError) -> web.Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return json_response(request, error.to_status(), error.code, headers=headers)


def text_response(text: str, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> web.Response:
    return web.Response(
        body=text.encode(),
        status=status,
        headers={
            "Content-Type": content_type,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache, private",
        },
    )
