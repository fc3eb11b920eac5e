"""Words for failed HTTP requests. Pure."""

from __future__ import annotations

import os

import aiohttp


def describe(error: Exception, url: str) -> str:
    """Why a request to `url` failed."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number else str(error.os_error)
    if isinstance(error, aiohttp.ClientPayloadError):
        return str(error)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientResponseError) and url.startswith("http://"):
        return "the server closed the connection without an HTTP response: it may serve HTTPS, so try an https:// URL"
    return str(error) or type(error).__name__
