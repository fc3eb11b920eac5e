"""Notices jumps of the wall clock, so that Reservations do not expire because of one."""

from __future__ import annotations

from typing import Final

from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

JUMP_S: Final = 5.0
"""A larger difference between wall clock and monotonic clock is a jump."""
HOLD_S: Final = 60.0
"""How long after a jump the wall clock is not trusted: it may be corrected."""


class ClockJumps:
    """Compares the two clocks each time that it is called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.monotonic()
        self._trusted_from = clock.monotonic()

    def trusted(self) -> bool:
        """Whether the wall clock has not jumped forward for a minute."""
        monotonic = self._clock.monotonic()
        offset = self._clock.now() - monotonic
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > JUMP_S:
            log.warning("The clock jumped; Reservations expire later", seconds=round(jump, 1), later=HOLD_S)
            self._trusted_from = monotonic + HOLD_S
        return monotonic >= self._trusted_from
