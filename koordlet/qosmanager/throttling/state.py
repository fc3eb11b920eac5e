"""How far a culprit is throttled: one small state machine for every resource. Pure, without a clock of its own.

                  interferes              a step down every `interval`
    (not throttled) ------> TIGHTENING -----------------------------> AT_FLOOR
          ^                     ^   |                                    |
          |          interferes |   |  quiet for `release`: a step up    |
          |                     |   v                                    |
          +----- 100 % ------ RELEASING <--------------------------------+
                              a step up every `release`

The level is a percentage of `base`, the culprit's use when throttling began. It falls only while the culprit interferes
and rises only while it is quiet; while its alarm is ending (RECOVERING) the level stays. A culprit that interferes
again after a step up is released more slowly: the release time doubles, up to eight times, until the culprit is no
longer throttled. Between two steps there are at least `interval` seconds down and `release` seconds up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

MAX_RELEASE_FACTOR = 8
FULL = 100


class CulpritStatus(Enum):
    """What the verdicts of one round mean for a culprit."""

    INTERFERES = "interferes"
    RECOVERING = "recovering"
    """The alarm is still active, but its score is below the threshold."""
    QUIET = "quiet"


class Phase(Enum):
    """Phase of a throttled culprit."""

    TIGHTENING = "tightening"
    AT_FLOOR = "at floor"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class ThrottlePace:
    """Percentages of the base, and seconds."""

    step: int
    floor: int
    interval: float
    release: float
    evict_after: float = 0.0
    """0: never."""


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """One culprit, one resource."""

    base: int
    """100 %, in milli-cores, bytes or percent."""
    level: int
    began: float
    stepped: float
    """Time of the last change of the level."""
    interfered: float
    """Time of the last round with an active alarm."""
    at_floor_since: float | None = None
    """Time since which the level cannot fall further; None above the floor."""
    release_factor: int = 1
    releasing: bool = False
    """Whether the last step was up."""

    @property
    def phase(self) -> Phase:
        if self.at_floor_since is not None:
            return Phase.AT_FLOOR
        return Phase.RELEASING if self.releasing else Phase.TIGHTENING

    @property
    def value(self) -> int:
        """What remains of the base, rounded down."""
        return self.base * self.level // FULL


def advance(
    state: ThrottleState | None, status: CulpritStatus, pace: ThrottlePace, now: float, base: int
) -> ThrottleState | None:
    """The state of the next round; None for a culprit that is not throttled. `base` counts when throttling begins."""
    if state is None:
        begins = status is CulpritStatus.INTERFERES and base > 0 and pace.floor < FULL
        return _begin(pace, now, base) if begins else None
    if now < state.stepped:  # the clock ran back: count from here
        at_floor_since = None if state.at_floor_since is None else now
        began = min(state.began, now)
        state = replace(state, stepped=now, interfered=now, began=began, at_floor_since=at_floor_since)
    if state.level < pace.floor:  # the floor was raised
        state = replace(state, level=pace.floor, stepped=now)
    if state.level >= FULL:
        return None
    match status:
        case CulpritStatus.INTERFERES:
            return _tighten(state, pace, now)
        case CulpritStatus.RECOVERING:
            return replace(state, interfered=now)
        case CulpritStatus.QUIET:
            return _release(state, pace, now)


def eviction_due(state: ThrottleState, status: CulpritStatus, pace: ThrottlePace, now: float) -> bool:
    """Whether the culprit still interferes after enough time at the floor."""
    if pace.evict_after <= 0 or status is not CulpritStatus.INTERFERES or state.at_floor_since is None:
        return False
    return now - state.at_floor_since >= pace.evict_after


def _begin(pace: ThrottlePace, now: float, base: int) -> ThrottleState:
    level = max(FULL - pace.step, pace.floor)
    return ThrottleState(base, level, now, now, now, at_floor_since=now if level == pace.floor else None)


def _tighten(state: ThrottleState, pace: ThrottlePace, now: float) -> ThrottleState:
    state = replace(state, interfered=now)
    if state.phase is Phase.RELEASING:
        state = replace(state, releasing=False, release_factor=min(state.release_factor * 2, MAX_RELEASE_FACTOR))
    if state.level <= pace.floor:
        return state if state.phase is Phase.AT_FLOOR else replace(state, at_floor_since=now)
    if now - state.stepped < pace.interval:
        return state
    level = max(state.level - pace.step, pace.floor)
    return replace(state, level=level, stepped=now, at_floor_since=now if level == pace.floor else None)


def _release(state: ThrottleState, pace: ThrottlePace, now: float) -> ThrottleState | None:
    wait = pace.release * state.release_factor
    if now - state.interfered < wait or now - state.stepped < wait:
        return state
    level = state.level + pace.step
    return None if level >= FULL else replace(state, level=level, stepped=now, at_floor_since=None, releasing=True)
