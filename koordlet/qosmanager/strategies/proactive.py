"""How much memory to reclaim from a cgroup before it reaches its limit: watermarks over its use, bounded by its stalls.

Vendor kernels start background reclaim once use is above `wmark_ratio` of the limit and stop it `wmark_scale_factor`
below. Here, a little is reclaimed from a cgroup between these marks in each round, as long as its tasks hardly stall:

    step = use above the low mark, at most a fraction of the limit per second, and less the more the cgroup stalls

Reclaim stops when stalls are above the bound, when they rise, or when the kernel found too few pages; each stop doubles
the pause before the next try. A cgroup that is new, or has no figures, is only measured. Pure: the state of a cgroup is
an argument and a result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

PAGE = os.sysconf("SC_PAGE_SIZE")
STALL_BOUND = 0.005
"""Fraction of time with a task stalled for memory that counts as unnoticeable; adjusted by `wmark_min_adj` percent."""
STALL_RISE = 0.0005
"""A fraction this much above the previous one counts as rising."""
RECLAIM_PER_SECOND = 0.01
"""Fraction of the limit."""
MIN_STEP_BYTES, MAX_STEP_BYTES = 1 << 20, 8 << 20
"""Smaller steps are not worth a call; larger ones would block the event loop for too long."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 2.0, 64.0
STALE_SECONDS = 10.0
"""Between two readings; a rate over a longer time does not describe the present."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Bytes: reclaim begins above `high` and ends at `low`. `bound`: acceptable fraction of time stalled."""

    limit: int
    high: int
    low: int
    bound: float


@dataclass(frozen=True, slots=True)
class GroupState:
    """The last reading of one cgroup."""

    stalled: float
    """Cumulative seconds."""
    at: float
    active: bool = False
    """Whether it was above the high mark and has not reached the low mark since."""
    share: float | None = None
    """Fraction of time stalled before the reading."""
    pause: float = 0.0
    """Seconds."""
    paused_until: float = 0.0
    reason: str = ""
    """Result of the last step, in words."""


def watermarks(limit: int, ratio: int, scale_permill: int, adjust: int) -> Watermarks | None:
    """None without a limit or with the ratio switched off (0)."""
    if limit <= 0 or ratio <= 0:
        return None
    high = limit * ratio // 100
    return Watermarks(limit, high, max(high - limit * scale_permill // 1000, 0), STALL_BOUND * (100 + adjust) / 100)


def step(
    state: GroupState | None, used: int, stalled: float | None, now: float, marks: Watermarks
) -> tuple[GroupState, int]:
    """The new state, and bytes to reclaim: 0, or MIN_STEP_BYTES..MAX_STEP_BYTES in whole pages. `stalled` is None
    without a figure."""
    if state is None or stalled is None or not 0 < now - state.at <= STALE_SECONDS or stalled < state.stalled:
        kept = state or GroupState(0.0, now)
        return replace(kept, stalled=stalled or 0.0, at=now, share=None, reason="measured"), 0
    share, share_before = (stalled - state.stalled) / (now - state.at), state.share
    active = used > marks.low if state.active else used > marks.high
    read = replace(state, stalled=stalled, at=now, active=active, share=share)
    if not active:
        return replace(read, pause=0.0, paused_until=0.0, reason="below its marks"), 0
    if share > marks.bound:
        return backed_off(read, now, "stalls above the bound"), 0
    if share_before is None or share > share_before + STALL_RISE:
        return replace(read, reason="stalls rise" if share_before is not None else "measured"), 0
    if now < read.paused_until:
        return replace(read, reason="paused"), 0
    slack = 1.0 - share / marks.bound
    rate_limit = int(marks.limit * RECLAIM_PER_SECOND * (now - state.at) * slack)
    amount = min(used - marks.low, rate_limit, MAX_STEP_BYTES)
    if amount < MIN_STEP_BYTES:
        amount = MIN_STEP_BYTES if used - marks.low >= MIN_STEP_BYTES and slack > 0 else 0
    return replace(read, reason="reclaimed" if amount else "almost at the low mark"), amount // PAGE * PAGE


def backed_off(state: GroupState, now: float, reason: str) -> GroupState:
    """After a step that was too much, or that found nothing to reclaim."""
    pause = min(max(state.pause * 2, FIRST_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
    return replace(state, pause=pause, paused_until=now + pause, reason=reason)


def reclaimed(state: GroupState) -> GroupState:
    """After a step that the kernel completed: the next stop begins with the shortest pause."""
    return replace(state, pause=0.0)
