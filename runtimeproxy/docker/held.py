"""What a connection and the calls on it know of each other: the seam between `link` and `calls`."""

from __future__ import annotations

from typing import Protocol

from runtimeproxy.docker.http1 import Request


class Refused(Exception):
    """The call must not reach dockerd; str() is what the client is told, with status 500."""


class Exchange(Protocol):
    """What happens around one held request."""

    async def before(self, body: bytes) -> bytes:
        """The body to send on: the same object to send the request's own bytes. Raises Refused."""

    def answered(self, status: int, body: bytes) -> None:
        """dockerd's answer has come completely; its last bytes go to the client after this."""

    def lost(self) -> None:
        """There will be no answer: a side went away, or the call was refused."""


class Calls(Protocol):
    def exchange(self, request: Request) -> Exchange | None:
        """Who wants this request held; None for nobody."""

    def unhooked(self, reason: str) -> None:
        """A request that should have been held passes untouched."""
