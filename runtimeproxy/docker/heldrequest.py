"""A request that is held until its handler has decided."""

from __future__ import annotations

from runtimeproxy.http2.interception import HoldBudget

MAX_HELD_BODY_BYTES = 16 << 20
"""As for CRI messages; larger bodies are forwarded without hooks."""


class HeldRequest:
    """The bytes of one request, counted against the process's budget, and its body without chunk framing."""

    def __init__(self, budget: HoldBudget) -> None:
        self._budget = budget
        self._raw = bytearray()
        self._counted = 0
        self.body = bytearray()
        """Filled by the body parser."""

    def add(self, data: bytes) -> bool:
        """Hold `data`; False when the budget is exceeded."""
        self._raw += data
        if not self._budget.take(len(data)):
            return False
        self._counted += len(data)
        return True

    @property
    def too_large(self) -> bool:
        return len(self._raw) > MAX_HELD_BODY_BYTES

    def release(self) -> bytearray:
        """The bytes, which are no longer held."""
        raw, self._raw = self._raw, bytearray()
        self.body = bytearray()
        self._budget.release(self._counted)
        self._counted = 0
        return raw
