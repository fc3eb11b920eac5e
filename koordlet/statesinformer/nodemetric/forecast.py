"""The prediction that the NodeMetric reporter writes; computed by `koordlet.prediction`, in a layer above."""

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
        """self - other, with a minimum of zero."""
        return Amount(max(self.cpu - other.cpu, 0), max(self.memory - other.memory, 0))

    def least(self, other: Amount) -> Amount:
        """The minimum per resource."""
        return Amount(min(self.cpu, other.cpu), min(self.memory, other.memory))

    def most(self, other: Amount) -> Amount:
        """The maximum per resource."""
        return Amount(max(self.cpu, other.cpu), max(self.memory, other.memory))

    def with_margin(self, percent: int) -> Amount:
        """Increased by `percent`, truncated."""
        return Amount(self.cpu * (100 + percent) // 100, self.memory * (100 + percent) // 100)


MIN_CHANGE = Amount(50, 32 << 20)
"""A smaller change is never reported early, whatever percentage of a small amount it is."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """For Prod pods: how much of their requests can be overcommitted, and their peak use including the system's."""

    reclaimable: Amount | None = None
    peak: Amount | None = None
    problem: str = ""
    """Why one of them is None; empty when both are known."""

    @classmethod
    def none(cls, problem: str) -> Self:
        """A forecast with neither amount."""
        return cls(problem=problem)

    def changed(self, earlier: Forecast, percent: float) -> bool:
        """Whether an amount was added or removed, or differs from `earlier` by more than `percent` of it and by more
        than `MIN_CHANGE`."""
        return any(
            _changed(new, old, percent)
            for new, old in ((self.reclaimable, earlier.reclaimable), (self.peak, earlier.peak))
        )


def _changed(new: Amount | None, old: Amount | None, percent: float) -> bool:
    if new is None or old is None:
        return new is not old
    pairs = ((new.cpu, old.cpu, MIN_CHANGE.cpu), (new.memory, old.memory, MIN_CHANGE.memory))
    return any(abs(now - before) > max(percent * before / 100, least) for now, before, least in pairs)


Forecaster = Callable[[Sequence[PodMeta], int | None], Forecast]
"""(pods with samples, cold start in seconds from NodeMetric's spec) -> forecast."""
