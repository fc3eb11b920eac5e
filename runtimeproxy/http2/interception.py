"""Interface between the splice and the code that handles intercepted gRPC calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_MESSAGE_BYTES = (16 << 20) + 4096
"""Largest request message that is held: kubelet and runtimes allow 16 MiB."""
MAX_HELD_BYTES = 64 << 20
"""Most request bytes that a process holds at a time."""
MAX_RESPONSE_BYTES = 1 << 20
"""Largest response message that is read. Responses of intercepted calls contain only ids."""


class InterceptionRefused(Exception):
    """The call must not reach the runtime; the client gets status UNKNOWN with this text."""


class GrpcCallHandler(Protocol):
    """Handles one intercepted call: `request` at most once, then `answered` exactly once, however the call ended."""

    async def request(self, body: bytes) -> bytes:
        """Message to send instead of `body`: the same object when nothing changes. Raises InterceptionRefused."""
        ...

    def answered(self, body: bytes | None) -> None:
        """The response is being forwarded. `body`: its message, None when the call failed, was refused or cancelled."""
        ...

    def passed(self, reason: str) -> None:
        """The request is forwarded without `request`: it is too large, incomplete or in an unknown encoding."""
        ...


class GrpcHandlerSelector(Protocol):
    """Selects the calls to intercept."""

    def __call__(self, path: bytes, timeout: float | None) -> GrpcCallHandler | None:
        """Handler of the gRPC call at `path`; None: forward it. `timeout`: the client's, in seconds."""
        ...


@dataclass(slots=True)
class HoldBudget:
    """Bytes of held requests, over all connections of a process."""

    limit: int = MAX_HELD_BYTES
    held: int = 0

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; False, and nothing reserved, when the limit would be exceeded."""
        if self.held + size > self.limit:
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        self.held -= size
