"""What a prediction tells the NodeMetric reporter; made by `koordlet.prediction`, which sits above this layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from koordlet.statesinformer.pods.model import PodMeta


@dataclass(frozen=True, slots=True)
class Amount:
    """CPU in milli-cores, memory in bytes."""

    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cpu + other.cpu, self.memory + other.memory)

    def less(self, other: Amount) -> Amount:
        """What is left when `other` is taken, never below zero."""
        return Amount(max(self.cpu - other.cpu, 0), max(self.memory - other.memory, 0))

    def least(self, other: Amount) -> Amount:
        """The smaller of each."""
        return Amount(min(self.cpu, other.cpu), min(self.memory, other.memory))

    def most(self, other: Amount) -> Amount:
        """The greater of each."""
        return Amount(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def with_margin(self, percent: int) -> Amount:
        """This much and `percent` more, truncated."""
        return Amount(self.cpu * (100 + percent) // 100, self.memory * (100 + percent) // 100)


TRIFLE = Amount(50, 32 << 20)
"""A move of so little is no news, whatever share of next to nothing it is."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """For Prod pods: how much of what they requested can be lent, and their peak with the system's."""

    reclaimable: Amount | None = None
    peak: Amount | None = None
    problem: str = ""
    """Why one of them is None; empty when both are known."""

    @classmethod
    def none(cls, problem: str) -> Self:
        """Nothing can be told."""
        return cls(problem=problem)

    def moved(self, earlier: Forecast, percent: float) -> bool:
        """Whether any amount differs from `earlier` by more than `percent` of it and by more than a trifle, or came or
        went."""
        return any(
            _moved(new, old, percent)
            for new, old in ((self.reclaimable, earlier.reclaimable), (self.peak, earlier.peak))
        )


def _moved(new: Amount | None, old: Amount | None, percent: float) -> bool:
    if new is None or old is None:
        return new is not old
    pairs = ((new.cpu, old.cpu, TRIFLE.cpu), (new.memory, old.memory, TRIFLE.memory))
    return any(abs(now - before) > max(percent * before / 100, least) for now, before, least in pairs)


Forecaster = Callable[[Sequence[PodMeta], int | None], Forecast]
"""(pods with samples, cold start in seconds as NodeMetric's spec has it) -> forecast."""
