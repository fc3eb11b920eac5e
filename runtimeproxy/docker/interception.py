"""Interface between `link` and the code that handles held Docker calls."""

from __future__ import annotations

from typing import Protocol

from runtimeproxy.docker.http1 import HttpRequest


class DockerCallRefused(Exception):
    """The call must not reach dockerd; the client gets status 500 with str()."""


class DockerCallHandler(Protocol):
    """Handles one held request: `before` once, then exactly one of `answered` and `lost`."""

    async def before(self, body: bytes) -> bytes:
        """The body to send; the same object to send the request's own bytes. Raises DockerCallRefused."""

    def answered(self, status: int, body: bytes) -> None:
        """dockerd's response is complete; its last bytes go to the client after this."""

    def lost(self) -> None:
        """There will be no response: a side closed, or the call was refused."""


class HandlerSelector(Protocol):
    def handler(self, request: HttpRequest) -> DockerCallHandler | None:
        """The handler for which this request is held; None: forward it."""

    def unhooked(self, reason: str) -> None:
        """Count a request that is forwarded unchanged although it should have been held."""
