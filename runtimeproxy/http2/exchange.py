"""What the splice asks of whoever looks into calls: which ones, what to send instead, and that the answer has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_MESSAGE = (16 << 20) + 4096
"""A held message's most: kubelet and runtimes allow 16 MiB."""
MAX_HELD = 64 << 20
"""All that a process holds of requests at a time."""
MAX_ANSWER = 1 << 20
"""The most of an answer that is looked into; those of intercepted calls are ids."""


class Refused(Exception):
    """The call must not reach the runtime; the client gets status UNKNOWN with this text."""


class Exchange(Protocol):
    """One intercepted call. `request` at most once, then `answered` once, whatever became of the call."""

    async def request(self, body: bytes) -> bytes:
        """What to send instead of `body`: the same object when nothing changes. Refused: see there."""
        ...

    def answered(self, body: bytes | None) -> None:
        """The answer passes: its message, None when there is none (the call failed, was refused or was given up)."""
        ...

    def passed(self, reason: str) -> None:
        """The request goes on without having been looked into: too large, cut off, an unknown encoding."""
        ...


class Interest(Protocol):
    """Says which calls are intercepted."""

    def __call__(self, path: bytes, timeout: float | None) -> Exchange | None:
        """An exchange for this call of gRPC; None: it is passed through. `timeout`: seconds the caller gives it."""
        ...


@dataclass(slots=True)
class Holding:
    """Bytes that a process holds, for all its connections."""

    limit: int = MAX_HELD
    held: int = 0

    def take(self, size: int) -> bool:
        """Whether that many more may be held; they are counted then."""
        if self.held + size > self.limit:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        self.held -= size
