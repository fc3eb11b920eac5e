"""Who had the CPU while others waited, over the last seconds.

The matrix of a full node has fifty thousand pairs and more; what grows in seconds is a small part of it. So the whole
is kept once, and of each quarter of the window only what grew. `MetricsAdvisor` has one for `/top`, the interference
detector a shorter one.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from koordlet.probes.culprits.blame import Blames
from koordlet.probes.culprits.charges import Charges, between


class CulpritWindow:
    """As long as a `window.Window` of the same seconds, or as the time between two readings if that is more.

    Memory: one `Charges`, and what grew in each part of the window."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last: Charges | None = None
        self._grown: deque[tuple[int, Blames]] = deque()
        """What was charged from this time to the next one's, or to `_last`."""
        self._pushed: Blames | None = None

    def due(self, now_ns: int, seconds: float) -> bool:
        """Whether so much time has passed since the last reading."""
        return self._last is None or now_ns - self._last.time_ns >= seconds * 1e9

    def push(self, charges: Charges) -> None:
        """Take a reading; another source than before starts anew."""
        if self._last is None or self._last.source != charges.source:
            self._grown.clear()
        else:
            self._grown.append((self._last.time_ns, between(self._last, charges)))
        self._last, self._pushed = charges, None
        horizon = charges.time_ns - self.seconds * 1e9
        while len(self._grown) > 1 and self._grown[1][0] <= horizon:
            self._grown.popleft()

    def until(self, now: Charges) -> tuple[Blames, float] | None:
        """(what was charged from the window's start to *now*, over how many seconds); a pair may be there several
        times. None before two readings."""
        if self._last is None or self._last.source != now.source:
            return None
        begin = self._grown[0][0] if self._grown else self._last.time_ns
        if now.time_ns <= begin:
            return None
        return _together([*(grown for _, grown in self._grown), between(self._last, now)]), (now.time_ns - begin) / 1e9

    def pushed(self) -> tuple[Blames, float] | None:
        """As `until`, up to the last reading that was pushed."""
        if self._last is None or not self._grown:
            return None
        if self._pushed is None:
            self._pushed = _together([grown for _, grown in self._grown])
        return self._pushed, (self._last.time_ns - self._grown[0][0]) / 1e9


def _together(parts: list[Blames]) -> Blames:
    if len(parts) == 1:
        return parts[0]
    names = ("victim", "culprit", "wait_ns", "wait_count")
    return Blames(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
