"""Connection to one hook server: plain-text gRPC over its unix socket (spec 08 §9).

A client belongs to one socket file. Its owner calls `connect` for a new client when another file is at the path or a
call raises `HookServerUnreachable`.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from koordlet.api.hooks import SERVICE
from koordlet.app.http2.client import ConnectionLost, GrpcCallError, UnaryClient
from runtimeproxy import USER_AGENT


class HookEndpointError(Exception):
    """The endpoint is unusable; the message has the reason."""


class HookCallError(Exception):
    """The call failed; the message has the gRPC status and its text."""


class HookServerUnreachable(HookCallError):
    """The server could not be reached, or not in time; the connection must not be used again."""


class HookClient(Protocol):
    """Connection to one server."""

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        """Serialised response of `rpc` (the bare name) within `seconds`. Raises HookCallError."""
        ...

    async def close(self, grace: float) -> None:
        """Close after running calls have ended, at most after `grace` seconds."""
        ...


class GrpcClient:
    """A `HookClient` over gRPC."""

    def __init__(self, client: UnaryClient) -> None:
        self._client = client

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        try:
            return await self._client.call(f"/{SERVICE}/{rpc}", request, seconds)
        except ConnectionLost as error:
            raise HookServerUnreachable(str(error)) from error
        except GrpcCallError as error:
            raise HookCallError(str(error)) from error

    async def close(self, grace: float) -> None:
        await self._client.close(grace)


async def connect(endpoint: str) -> HookClient:
    """A client for the socket at `endpoint`. Raises HookEndpointError when it is not a socket, HookServerUnreachable
    when no process listens on it."""
    try:
        if not _is_socket(endpoint):
            raise HookEndpointError(f"{endpoint}: is not a socket")
        return GrpcClient(await UnaryClient.connect(endpoint, USER_AGENT))
    except OSError as error:
        raise HookServerUnreachable(f"UNAVAILABLE: {error.strerror or error}") from error


def _is_socket(endpoint: str) -> bool:
    return stat.S_ISSOCK(Path(endpoint).stat().st_mode)
