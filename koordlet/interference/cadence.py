"""How often interference is judged, and how often the culprit matrix is read: the only place that decides this.

Judging runs every second. Every other round is skipped while no figure is halfway to an alarm, and while judging itself
is expensive because hundreds of containers are delayed at once, as on a node with too few CPUs: judging must not
add to that. Schedule latency is read at the same pace. A new snapshot is never left unjudged.

The culprit matrix is read in each of the first rounds in which others may delay a container noticeably, then twice per
window, once per window while judging is expensive as well, and otherwise every 15 seconds.

Where culprits are throttled, the waiting times alone are read twice a second; while they show a noticeable delay, every
round is judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy, InterferenceThresholds
from koordlet.interference.cpu import lost_share
from koordlet.interference.model import Floats

ROUND_SECONDS = 1.0
"""Between two rounds."""
LOOK_SECONDS = 0.5
"""Between two evaluations of the short evidence (`shortevidence`), where culprits are throttled."""
EXPENSIVE_CPU_SECONDS = 0.005
"""CPU time of one evaluation from which on every other round is skipped: half a percent of a core."""
NOTICEABLE_RATIO = 0.5
"""Fraction of an alarm's threshold from which on a figure is evaluated in every round."""
MATRIX_READINGS_PER_WINDOW = 2
"""While others may delay a container noticeably."""
FIRST_ROUNDS = 6
"""Rounds after others began to delay a container noticeably in each of which the matrix is read: until then its shares
are those of up to `IDLE_MATRIX_SECONDS` before."""
IDLE_MATRIX_SECONDS = 15.0
"""Between two readings of the matrix otherwise: the shares of culprits change slowly then."""


def noticeable_cpu_loss(strategy: InterferenceStrategy) -> float:
    """Share of time lost from which on the matrix is read often; 0 means always, as any loss can be an alarm."""
    cpu = strategy.cpu or InterferenceThresholds()
    return NOTICEABLE_RATIO * min(cpu.lost_percent or 100, cpu.min_lost_percent or 0) / 100


def noticeably_behind_packets(
    waited: Floats, ran: Floats, packet_seconds: float, strategy: InterferenceStrategy
) -> NDArray[np.bool_]:
    """[containers], true where ksoftirqd, which processed packets for `packet_seconds` per second, may have kept the
    container waiting for a noticeable share of its time."""
    network = strategy.network or InterferenceThresholds()
    threshold = NOTICEABLE_RATIO * min(network.lost_percent or 100, network.min_lost_percent or 0) / 100
    loss = lost_share(np.minimum(waited, packet_seconds), ran)
    noticeable: NDArray[np.bool_] = (packet_seconds > 0) & (loss >= threshold)
    return noticeable


class Cadence:
    """`cpu_clock` is the CPU time of the judging thread, in seconds."""

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._cpu_clock = cpu_clock
        self._skipped = False
        self._snapshot: object = None
        """Latest schedule-latency snapshot at the last evaluation."""
        self.relaxed = False
        """Whether every other reading and evaluation is enough."""
        self._expensive = False
        """Whether the last evaluation was expensive."""
        self._suspicious_rounds = 0
        """Rounds in a row in which, by the evidence, others may have delayed a container noticeably."""

    def skips(self, snapshot: object) -> bool:
        """Whether this round is skipped; `snapshot` is the latest schedule-latency snapshot."""
        self._skipped = self.relaxed and not self._skipped and snapshot is self._snapshot
        if not self._skipped:
            self._snapshot = snapshot
        return self._skipped

    def suspect(self, suspicious: bool) -> None:
        """Whether, by this round's evidence, others may have delayed a container noticeably."""
        self._suspicious_rounds = self._suspicious_rounds + 1 if suspicious else 0

    def hurry(self) -> None:
        """Do not skip the next round: short evidence shows that a container may be delayed."""
        self.relaxed = self._expensive

    @contextmanager
    def judging(self, near_alarm: Callable[[], bool]) -> Iterator[None]:
        """Around one evaluation. Its CPU time, and `near_alarm` after it, set the pace."""
        start = self._cpu_clock()
        yield
        self._expensive = self._cpu_clock() - start > EXPENSIVE_CPU_SECONDS
        self.relaxed = self._expensive or not (self._suspicious_rounds or near_alarm())

    def matrix_interval(self, window_seconds: float) -> float:
        """Seconds between two readings of the culprit matrix."""
        if not self._suspicious_rounds:
            return IDLE_MATRIX_SECONDS
        if self._expensive:
            return window_seconds
        return 0.0 if self._suspicious_rounds <= FIRST_ROUNDS else window_seconds / MATRIX_READINGS_PER_WINDOW
