"""How hard a culprit is held back: one small state machine for every resource. Pure, no clock of its own.

    level 100 --hurt: a step down every `interval`--> ... --> floor
    level 100 <--calm: a step up every `release`, then forgotten-- ...

`level` is percent of `base`, what the culprit had when it began. It falls only while somebody is hurt and rises only
while nobody is; between the two (an alarm that is ending) it stays. A culprit that hurts again soon after a step up is
given back more slowly: `patience` doubles, eight times the release period at most, until it is free. Between two steps
there are never fewer than `interval` seconds down and `release` seconds up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

MOST_PATIENCE = 8
FREE = 100


class Blame(Enum):
    """What is said of a culprit in one round."""

    HURTS = "hurts"
    EASING = "easing"
    """The alarm is still on, and the trouble is below its threshold."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Pace:
    """Percent of the base, and seconds."""

    step: int
    floor: int
    interval: float
    release: float
    evict_after: float = 0.0
    """0: never."""


@dataclass(frozen=True, slots=True)
class Squeeze:
    """One culprit, one resource."""

    base: int
    """What 100 % is: milli-cores, bytes, a weight."""
    level: int
    began: float
    stepped: float
    """When the level last changed."""
    blamed: float
    """When somebody was last hurt, or about to be."""
    at_floor: float | None = None
    """Since when there is nothing more to take; None above the floor."""
    patience: int = 1
    rising: bool = False
    """Whether the last step was up."""

    @property
    def value(self) -> int:
        """What is left of the base, rounded down."""
        return self.base * self.level // FREE


def advance(held: Squeeze | None, blame: Blame, pace: Pace, now: float, base: int) -> Squeeze | None:
    """The state of the next round; None for a culprit that is free. `base` counts where it begins."""
    if held is None:
        return _begin(pace, now, base) if blame is Blame.HURTS and base > 0 and pace.floor < FREE else None
    if now < held.stepped:  # a clock that ran back: count from here
        at_floor = None if held.at_floor is None else now
        held = replace(held, stepped=now, blamed=now, began=min(held.began, now), at_floor=at_floor)
    if held.level < pace.floor:  # the floor was raised
        held = replace(held, level=pace.floor, stepped=now)
    if held.level >= FREE:
        return None
    if blame is Blame.HURTS:
        return _tighten(held, pace, now)
    if blame is Blame.EASING:
        return replace(held, blamed=now)
    return _release(held, pace, now)


def evict_now(held: Squeeze, blame: Blame, pace: Pace, now: float) -> bool:
    """Whether holding it back did not help for long enough."""
    long = held.at_floor is not None and now - held.at_floor >= pace.evict_after
    return pace.evict_after > 0 and blame is Blame.HURTS and long


def _begin(pace: Pace, now: float, base: int) -> Squeeze:
    level = max(FREE - pace.step, pace.floor)
    return Squeeze(base, level, now, now, now, at_floor=now if level == pace.floor else None)


def _tighten(held: Squeeze, pace: Pace, now: float) -> Squeeze:
    held = replace(held, blamed=now)
    if held.rising:
        held = replace(held, rising=False, patience=min(held.patience * 2, MOST_PATIENCE))
    if held.level <= pace.floor:
        return held if held.at_floor is not None else replace(held, at_floor=now)
    if now - held.stepped < pace.interval:
        return held
    level = max(held.level - pace.step, pace.floor)
    return replace(held, level=level, stepped=now, at_floor=now if level == pace.floor else None)


def _release(held: Squeeze, pace: Pace, now: float) -> Squeeze | None:
    wait = pace.release * held.patience
    if now - held.blamed < wait or now - held.stepped < wait:
        return held
    level = held.level + pace.step
    return None if level >= FREE else replace(held, level=level, stepped=now, at_floor=None, rising=True)
