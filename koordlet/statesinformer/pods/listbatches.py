"""Cuts the JSON of a long list of pods into shorter lists while it arrives. Pure.

Tenants choose the size of the kubelet's answer: a pod may have 1.5 MiB at the API server, and up to six times that as
JSON of the kubelet, which escapes `<`. The whole answer is therefore never held. A cut is made between two pods,
without a walk through the JSON: there the kubelet writes `},{"metadata":`. A string cannot contain this text, because
its quotes are escaped. Where the text is at a deeper level of an object, the shorter list is invalid JSON, which
its decoder reports.
"""

from __future__ import annotations

from typing import Final

BATCH_BYTES: Final = 4 << 20
"""A list up to this length is not cut: ordinary nodes have one batch."""
MAX_BATCH_BYTES: Final = 64 << 20
"""Without a place to cut. The largest pod has about 9 MiB."""
_BETWEEN: Final = b'},{"metadata":'
_FIRST: Final = b'{"items":['
_LAST: Final = b"]}"
Batch = bytes | bytearray


class BatchTooLongError(ValueError):
    """There is no place to cut within MAX_BATCH_BYTES."""


class ListBatches:
    """Collects the parts of one answer: `add` each of them, then take the `rest`."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        """No cut begins before this index."""

    def add(self, part: bytes) -> Batch | None:
        """A list of the pods that are complete, once there are enough of them. Raises BatchTooLongError."""
        self._held += part
        if len(self._held) < BATCH_BYTES:
            return None
        cut = self._held.rfind(_BETWEEN, self._searched)
        if cut < 0:
            if len(self._held) > MAX_BATCH_BYTES:
                raise BatchTooLongError(f"no end of a pod within {MAX_BATCH_BYTES} bytes")
            self._searched = max(len(self._held) - len(_BETWEEN), 0)
            return None
        batch = b"".join((memoryview(self._held)[: cut + 1], _LAST))
        self._held[: cut + 2] = _FIRST
        self._searched = 0
        return batch

    def rest(self) -> Batch:
        """The list of the pods that `add` has not returned; the whole answer if it was short. It is not copied: its
        pages would cost more than its decoding. `add` may not be called any more."""
        return self._held
