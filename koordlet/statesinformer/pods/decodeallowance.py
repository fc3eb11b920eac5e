"""How much of each pod's changed JSON may be decoded per answer of the kubelet. Pure.

A tenant may change the annotations of a pod at any rate and up to the API server's limit of size. Each change costs
koordlet time in proportion to the pod's size: decoding, and reading its annotations. A pod that changes faster than its
allowance keeps its last known state for some answers; ordinary pods never get there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

BYTES_PER_ANSWER: Final = 8 << 10
"""Allowance per answer: a pod without unusual annotations has 5 to 20 KiB and rarely changes."""
MAX_BYTES: Final = 256 << 10
"""What a pod may save, and how much of a larger pod counts: the API server's limit for annotations."""


class DecodeAllowance:
    """Bytes by pod. `start` begins an answer, `take` is called for each pod that changed."""

    def __init__(self) -> None:
        self._answer = 0
        self._balances: dict[str, tuple[int, int]] = {}
        """By UID: the bytes after the last decoding, and the number of that answer. Missing: the whole allowance."""

    def start(self, uids: Iterable[str]) -> None:
        """The next answer. `uids`: the pods of the last one; others are forgotten."""
        self._answer += 1
        known = self._balances
        self._balances = {uid: known[uid] for uid in uids if uid in known}

    def spent(self, uid: str) -> bool:
        """Whether a change of the pod could not be decoded now."""
        return self._balance(uid) <= 0

    def _balance(self, uid: str) -> int:
        balance, answer = self._balances.get(uid, (MAX_BYTES, self._answer))
        return min(MAX_BYTES, balance + (self._answer - answer) * BYTES_PER_ANSWER)

    def take(self, uid: str, size: int) -> bool:
        """Whether a changed pod of `size` bytes may be decoded now. A pod larger than the balance may, and waits longer
        the next time."""
        balance = self._balance(uid)
        if balance <= 0:
            return False
        self._balances[uid] = (balance - min(size, MAX_BYTES), self._answer)
        return True
