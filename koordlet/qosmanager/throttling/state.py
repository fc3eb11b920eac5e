"""How far a culprit is throttled: one small state machine for every resource. Pure, without a clock of its own.

                  interferes              a step down every `interval`
    (not throttled) ------> TIGHTENING -----------------------------> AT_FLOOR
       |  ^                     ^   |                                    |
       |  |          interferes |   |  quiet for `release`: a step up    |
       |  |                     |   v                                    |
       |  +----- 100 % ------ RELEASING <--------------------------------+
       |  |                   a step up every `release`
       |  +---- quiet for `QUICK_RELEASE_SECONDS` ----+
       |                                              |
       +-- suspected, by short evidence: one step --> PROVISIONAL -- interferes --> TIGHTENING

The level is a percentage of `base`, the culprit's use when throttling began. It falls only while the culprit interferes
and rises only while it is quiet; while its alarm is ending (RECOVERING) the level stays. Between two steps there are at
least `interval` seconds down and `release` seconds up.

Short evidence without an alarm (SUSPECTED) allows one step, which is released soon, and undoes a step up. It never
lowers the level further.

A culprit that interferes again after a step up is released more slowly: the release time doubles, up to eight times.
After a provisional step it grows by `RELAPSE_FACTOR` each time, up to eight times `release`, so that a culprit that
comes and goes is not throttled and released in turn. A released culprit is remembered for `MEMORY_SECONDS` (level
100 %, nothing is set).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

MAX_RELEASE_FACTOR = 8
QUICK_RELEASE_SECONDS = 2.0
"""Without evidence, before a provisional step is released for the first time."""
RELAPSE_FACTOR = 4
MAX_RELAPSE_FACTOR = 4**6
MEMORY_SECONDS = 60.0
"""For this long after its release, a culprit that interferes again counts as one that does so repeatedly."""
FULL = 100


class CulpritStatus(Enum):
    """What the verdicts of one round mean for a culprit."""

    INTERFERES = "interferes"
    SUSPECTED = "suspected"
    """There is short evidence that it interferes, and no alarm above its threshold."""
    RECOVERING = "recovering"
    """The alarm is still active, but its score is below the threshold."""
    QUIET = "quiet"


class Phase(Enum):
    """Phase of a throttled culprit."""

    PROVISIONAL = "provisional"
    """By short evidence alone."""
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
    confirmed: bool = True
    """Whether there was an alarm; False while short evidence is the only reason."""

    @property
    def phase(self) -> Phase:
        if not self.confirmed:
            return Phase.PROVISIONAL
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
    """The state of the next round; None for a culprit that is not throttled and not remembered. `base` counts when
    throttling begins."""
    if pace.floor >= FULL:
        return None
    if state is None:
        return _begin(pace, now, base, status) if base > 0 else None
    if now < state.stepped:  # the clock went back: count from here
        at_floor_since = None if state.at_floor_since is None else now
        began = min(state.began, now)
        state = replace(state, stepped=now, interfered=now, began=began, at_floor_since=at_floor_since)
    if state.level < pace.floor:  # the floor was raised
        state = replace(state, level=pace.floor, stepped=now)
    if state.level >= FULL:
        return _remembered(state, status, pace, now, base)
    match status:
        case CulpritStatus.INTERFERES:
            return _tighten(state, pace, now)
        case CulpritStatus.SUSPECTED:
            return _undo_release(state, pace, now) if state.releasing else replace(state, interfered=now)
        case CulpritStatus.RECOVERING:
            return replace(state, interfered=now, confirmed=True)
        case CulpritStatus.QUIET:
            return _release(state, pace, now)


def eviction_due(state: ThrottleState, status: CulpritStatus, pace: ThrottlePace, now: float) -> bool:
    """Whether the culprit still interferes after enough time at the floor."""
    if pace.evict_after <= 0 or status is not CulpritStatus.INTERFERES or state.at_floor_since is None:
        return False
    return now - state.at_floor_since >= pace.evict_after


def _begin(pace: ThrottlePace, now: float, base: int, status: CulpritStatus) -> ThrottleState | None:
    if status not in (CulpritStatus.INTERFERES, CulpritStatus.SUSPECTED):
        return None
    level = max(FULL - pace.step, pace.floor)
    at_floor_since = now if level == pace.floor else None
    confirmed = status is CulpritStatus.INTERFERES
    return ThrottleState(base, level, now, now, now, at_floor_since=at_floor_since, confirmed=confirmed)


def _remembered(
    state: ThrottleState, status: CulpritStatus, pace: ThrottlePace, now: float, base: int
) -> ThrottleState | None:
    again = _begin(pace, now, base, status) if base > 0 else None
    if again is not None:
        return replace(again, release_factor=_slower(state))
    return None if now - state.stepped >= MEMORY_SECONDS else state


def _slower(state: ThrottleState) -> int:
    """The release factor of a culprit that interferes again."""
    if state.confirmed:
        return min(state.release_factor * 2, MAX_RELEASE_FACTOR)
    return min(state.release_factor * RELAPSE_FACTOR, MAX_RELAPSE_FACTOR)


def _release_wait(state: ThrottleState, pace: ThrottlePace) -> float:
    if state.confirmed:
        return pace.release * min(state.release_factor, MAX_RELEASE_FACTOR)
    return min(QUICK_RELEASE_SECONDS * state.release_factor, pace.release * MAX_RELEASE_FACTOR)


def _undo_release(state: ThrottleState, pace: ThrottlePace, now: float) -> ThrottleState:
    level = max(state.level - pace.step, pace.floor)
    return replace(
        state,
        level=level,
        stepped=now,
        interfered=now,
        releasing=False,
        release_factor=_slower(state),
        at_floor_since=now if level == pace.floor else None,
    )


def _tighten(state: ThrottleState, pace: ThrottlePace, now: float) -> ThrottleState:
    state = replace(state, interfered=now, confirmed=True)
    if state.phase is Phase.RELEASING:
        state = replace(state, releasing=False, release_factor=_slower(state))
    if state.level <= pace.floor:
        return state if state.phase is Phase.AT_FLOOR else replace(state, at_floor_since=now)
    if now - state.stepped < pace.interval:
        return state
    level = max(state.level - pace.step, pace.floor)
    return replace(state, level=level, stepped=now, at_floor_since=now if level == pace.floor else None)


def _release(state: ThrottleState, pace: ThrottlePace, now: float) -> ThrottleState:
    wait = _release_wait(state, pace)
    if now - state.interfered < wait or now - state.stepped < wait:
        return state
    level = min(state.level + pace.step, FULL) if state.confirmed else FULL
    return replace(state, level=level, stepped=now, at_floor_since=None, releasing=True)
