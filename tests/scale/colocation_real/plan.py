"""The phases, and the order of readings in a round. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.scale.colocation_real.batch import CLASSES

ALONE, ORDINARY, BEST_EFFORT = "alone", "ordinary", "best effort"
DEFAULTS, RECOMMENDED, BATCH_ONLY = "defaults", "recommended", "batch only"
PHASES = (ALONE, ORDINARY, BEST_EFFORT, DEFAULTS, RECOMMENDED, BATCH_ONLY)
ENFORCED = (DEFAULTS, RECOMMENDED)
"""Phases with a koordlet."""
ROOMY, SHORT = "memory free", "memory short"
"""The services alone are measured once for each amount of memory."""


@dataclass(frozen=True)
class PlannedReading:
    """`batch` is a class of batch work, or the amount of memory in phase `alone`."""

    batch: str
    phase: str

    @property
    def short_of_memory(self) -> bool:
        return self.batch == SHORT or (self.batch in CLASSES and CLASSES[self.batch].short_of_memory)


def alone(batch: str) -> PlannedReading:
    """The reading that one with this class is compared with."""
    return PlannedReading(SHORT if CLASSES[batch].short_of_memory else ROOMY, ALONE)


def readings(classes: Sequence[str]) -> list[PlannedReading]:
    """All readings of a round, without order."""
    ordered = list(dict.fromkeys(alone(batch) for batch in classes))
    for phase in PHASES[1:]:
        ordered += [PlannedReading(batch, phase) for batch in classes]
    return ordered


def round_blocks(classes: Sequence[str], turn: int) -> Iterator[tuple[str | None, list[PlannedReading]]]:
    """(phase whose koordlet runs, or None; its readings). Odd rounds are in reverse order, so that a drift of the
    machine favours no phase."""
    planned = readings(classes)
    blocks: list[tuple[str | None, list[PlannedReading]]] = [
        (None, [reading for reading in planned if reading.phase not in ENFORCED]),
        *((phase, [reading for reading in planned if reading.phase == phase]) for phase in ENFORCED),
    ]
    for enforced, block in reversed(blocks) if turn % 2 else blocks:
        yield enforced, block[::-1] if turn % 2 else block
