"""A connection to one hook server: plain-text gRPC over its unix socket (spec 08 §9).

A client belongs to one socket file; whoever holds it asks `connect` for a new one when another file has taken the path
or a call says `Lost`.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from koordlet.api.hooks import SERVICE
from koordlet.app.http2.client import CallError, Client, ConnectionLost
from runtimeproxy import AGENT


class ClientError(Exception):
    """There can be no client for an endpoint; the message says why."""


class HookCallError(Exception):
    """A hook server did not answer; the message has the status and its text."""


class Lost(HookCallError):
    """It could not be reached, or not in time: what is left of the connection is not worth keeping."""


class HookClient(Protocol):
    """One server's connection."""

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        """The serialised answer of `rpc` (the bare name) within `seconds`. Raises HookCallError."""
        ...

    async def close(self, grace: float) -> None:
        """Let calls under way end for at most `grace` seconds."""
        ...


class GrpcClient:
    """A HookClient."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        try:
            return await self._client.call(f"/{SERVICE}/{rpc}", request, seconds)
        except ConnectionLost as error:
            raise Lost(str(error)) from error
        except CallError as error:
            raise HookCallError(str(error)) from error

    async def close(self, grace: float) -> None:
        await self._client.close(grace)


async def connect(endpoint: str) -> HookClient:
    """A client of the socket at `endpoint`. Raises ClientError for what is no socket, Lost when nobody listens."""
    try:
        if not _is_socket(endpoint):
            raise ClientError(f"{endpoint}: is not a socket")
        return GrpcClient(await Client.connect(endpoint, AGENT))
    except OSError as error:
        raise Lost(f"UNAVAILABLE: {error.strerror or error}") from error


def _is_socket(endpoint: str) -> bool:
    return stat.S_ISSOCK(Path(endpoint).stat().st_mode)
