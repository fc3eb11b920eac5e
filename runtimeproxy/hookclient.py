"""A connection to one hook server: plain-text gRPC over its unix socket (spec 08 §9).

gRPC is imported with the first client: a proxy without hook servers starts sooner and stays smaller without it. A
client belongs to one socket file; whoever holds it asks `connect` for a new one when another file has taken the path or
a call says `Lost`, because a new client connects at once, where an old one would first sit out its back-off.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import quote

MAX_ANSWER = 16 << 20
"""Bytes, as kubelet and runtimes allow each other."""


class HookCallError(Exception):
    """A hook server did not answer; the message has the status and its text."""


class ClientError(Exception):
    """There can be no client for an endpoint; the message says why."""


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
    """A HookClient over grpc.aio."""

    def __init__(self, endpoint: str) -> None:
        import grpc.aio

        from koordlet.api.hooks import SERVICE

        self._grpc, self._service = grpc, SERVICE
        self._channel = grpc.aio.insecure_channel(
            f"unix:{quote(endpoint)}",
            options=[
                ("grpc.default_authority", "localhost"),  # a socket's path is none, and strict servers say so
                ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the old one's back-off
                ("grpc.max_receive_message_length", MAX_ANSWER),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.enable_retries", 0),
            ],
        )
        self._methods: dict[str, Any] = {}

    async def call(self, rpc: str, request: bytes, seconds: float) -> bytes:
        method = self._methods.get(rpc)
        if method is None:
            method = self._methods[rpc] = self._channel.unary_unary(f"/{self._service}/{rpc}")
        try:
            answer = await method(request, timeout=seconds)
        except self._grpc.aio.AioRpcError as error:
            code = error.code()
            lost = code in (self._grpc.StatusCode.UNAVAILABLE, self._grpc.StatusCode.DEADLINE_EXCEEDED)
            kind = Lost if lost else HookCallError
            raise kind(f"{code.name}: {error.details()}") from error
        except self._grpc.aio.UsageError as error:  # the channel was closed under the call
            raise Lost(str(error)) from error
        return bytes(answer)

    async def close(self, grace: float) -> None:
        await self._channel.close(grace)


async def connect(endpoint: str) -> HookClient:
    """A client of the socket at `endpoint`; it connects with its first call. Raises ClientError."""
    try:
        if "grpc.aio" not in sys.modules:
            await asyncio.to_thread(import_module, "grpc.aio")  # a tenth of a second, in which others are served
        return GrpcClient(endpoint)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ClientError(f"{endpoint}: {error}") from error
