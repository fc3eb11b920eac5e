"""Cuts the JSON of a long list of pods into shorter lists while it arrives. Pure.

Tenants choose the size of the kubelet's answer: a pod may have 1.5 MiB at the API server, and up to six times that as
JSON of the kubelet, which escapes `<`. The whole answer is therefore never held. A cut is made between two pods,
without a walk through the JSON: there the kubelet writes `},{"metadata":`. A string cannot contain this text, because
its quotes are escaped. Where the text is at a deeper level of an object, the shorter list is invalid JSON, which
its decoder reports.

A pod that is longer than a batch need not be held at all: the caller may have no use for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BATCH_BYTES: Final = 1 << 20
"""A list up to this length is not cut: ordinary nodes have one batch or two."""
MAX_BATCH_BYTES: Final = 64 << 20
"""Without a place to cut. The largest pod has about 9 MiB."""
_BETWEEN: Final = b'},{"metadata":'
_SEAM_BYTES: Final = len(_BETWEEN) - 1
"""Of a place to cut that may have arrived without its end."""
_FIRST: Final = b'{"items":['
_LAST: Final = b"]}"
_ITEMS: Final = b'"items":['
_HEAD_BYTES: Final = 1 << 10
"""The kind and the metadata of a list are shorter."""
Batch = bytes | bytearray


class BatchTooLongError(ValueError):
    """There is no place to cut within MAX_BATCH_BYTES."""


def _hold_all(pod: memoryview) -> bool:
    return False


class ListBatches:
    """Collects the parts of one answer: `add` each of them, then take the `rest`."""

    def __init__(self, left_out: Callable[[memoryview], bool] = _hold_all) -> None:
        """`left_out` gets the first BATCH_BYTES of a pod that has more, and returns whether the lists shall not contain
        it."""
        self._left_out = left_out
        self._held = bytearray()
        self._searched = 0
        """No cut begins before this index."""
        self._is_asked = False
        """Whether the first pod that is held is known to be wanted."""
        self._is_leaving_out = False
        """Whether what is held is the end of what arrived of a pod that is left out."""
        self.bytes = 0
        """That were added."""

    def add(self, part: bytes) -> bytes | None:
        """A list of the pods that are complete, once there are enough of them; an empty one at the end of a pod that is
        left out, so that the caller sees progress. Raises BatchTooLongError."""
        self.bytes += len(part)
        if self._is_leaving_out:
            return _FIRST + _LAST if self._leave_out(part) else None
        self._held += part
        if len(self._held) < BATCH_BYTES:
            return None
        cut = self._held.rfind(_BETWEEN, self._searched)
        if cut < 0:
            if len(self._held) > MAX_BATCH_BYTES:
                raise BatchTooLongError(f"no end of a pod within {MAX_BATCH_BYTES} bytes")
            self._searched = max(len(self._held) - len(_BETWEEN), 0)
            self._ask()
            return None
        batch = b"".join((memoryview(self._held)[: cut + 1], _LAST))
        self._begin(cut)
        return batch

    def rest(self) -> Batch:
        """The list of the pods that `add` has not returned; the whole answer if it was short. It is not copied: its
        pages would cost more than its decoding. `add` may not be called any more."""
        if self._is_leaving_out and self._held.rstrip().endswith(b"}"):  # otherwise the answer is not complete
            return _FIRST + _LAST
        return self._held

    def _begin(self, cut: int) -> None:
        """Hold what follows a pod whose end is at `cut`."""
        self._held[: cut + 2] = _FIRST
        self._searched = 0
        self._is_asked = self._is_leaving_out = False

    def _ask(self) -> None:
        """Whether to leave out the pod that is held, of which the end has not arrived."""
        start = self._held.find(_ITEMS, 0, _HEAD_BYTES)
        if self._is_asked or start < 0:
            return
        self._is_asked = True
        with memoryview(self._held) as held, held[start + len(_ITEMS) :] as pod:
            self._is_leaving_out = self._left_out(pod)
        if self._is_leaving_out:
            del self._held[:-_SEAM_BYTES]

    def _leave_out(self, part: bytes) -> bool:
        """Whether the pod ends here; what follows it is then held, otherwise the end of what arrived of it. A search
        from the end takes less than half of the time, and most parts have nothing to find."""
        seam = bytes(self._held) + part[:_SEAM_BYTES]
        if _BETWEEN not in seam and part.rfind(_BETWEEN) < 0:
            self._held[:] = (part if len(part) >= _SEAM_BYTES else seam)[-_SEAM_BYTES:]
            return False
        self._held += part
        self._begin(self._held.find(_BETWEEN))
        return True
