"""How much memory to take from a group before it runs into its limit: watermarks over use, reined in by its own stalls.

Vendor kernels reclaim in the background once use is above `wmark_ratio` of the limit and stop `wmark_scale_factor`
below. Here a group between these marks gives up a little each round, as long as it does not feel it:

    step = what is above the low mark, a share of the limit a second at most, less the more it stalls

Stalls above the bound, stalls that rise, or pages that the kernel could not find stop it, and each such stop doubles
the pause before the next try. One that begins, and one whose figures are missing, is only looked at. Pure: what is
known of a group comes in and goes out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

PAGE = os.sysconf("SC_PAGE_SIZE")
BOUND = 0.005
"""Share of time with a task stalled for memory that is taken for unnoticeable; `wmark_min_adj` percent more or less."""
RISE = 0.0005
"""A share this much above the last one counts as rising."""
RATE = 0.01
"""Of the limit, a second."""
LEAST, MOST = 1 << 20, 8 << 20
"""Bytes of one step: fewer are not worth a call, more would hold up the loop."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 64.0
STALE_SECONDS = 10.0
"""Between two looks; a rate over more says nothing about now."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Bytes: reclaim begins above `high` and ends at `low`. `bound`: share of time stalled that may be felt."""

    limit: int
    high: int
    low: int
    bound: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of one group."""

    stalled: float
    """Cumulative seconds, at the last look."""
    at: float
    active: bool = False
    """Above the high mark, and not yet at the low one."""
    share: float | None = None
    """Of the time before the last look."""
    pause: float = 0.0
    until: float = 0.0
    why: str = ""


def marks(limit: int, ratio: int, scale_permill: int, adjust: int) -> Marks | None:
    """None without a limit or with the ratio switched off (0)."""
    if limit <= 0 or ratio <= 0:
        return None
    high = limit * ratio // 100
    return Marks(limit, high, max(high - limit * scale_permill // 1000, 0), BOUND * (100 + adjust) / 100)


def step(known: Watched | None, used: int, stalled: float | None, now: float, given: Marks) -> tuple[Watched, int]:
    """What is known from now on, and bytes to reclaim: 0, or LEAST..MOST in whole pages. `stalled` None: no figure."""
    if known is None or stalled is None or not 0 < now - known.at <= STALE_SECONDS or stalled < known.stalled:
        kept = known or Watched(0.0, now)
        return replace(kept, stalled=stalled or 0.0, at=now, share=None, why="looked at"), 0
    share, before = (stalled - known.stalled) / (now - known.at), known.share
    active = used > given.low if known.active else used > given.high
    seen = replace(known, stalled=stalled, at=now, active=active, share=share)
    if not active:
        return replace(seen, pause=0.0, until=0.0, why="below its marks"), 0
    if share > given.bound:
        return backed_off(seen, now, "it feels it"), 0
    if before is None or share > before + RISE:
        return replace(seen, why="its stalls rise" if before is not None else "looked at"), 0
    if now < seen.until:
        return replace(seen, why="paused"), 0
    room = 1.0 - share / given.bound
    wanted = min(used - given.low, int(given.limit * RATE * (now - known.at) * room), MOST)
    if wanted < LEAST:
        wanted = LEAST if used - given.low >= LEAST and room > 0 else 0
    return replace(seen, why="reclaimed" if wanted else "nearly there"), wanted // PAGE * PAGE


def backed_off(known: Watched, now: float, why: str) -> Watched:
    """After a round that was too much, or that found nothing to take."""
    pause = min(max(known.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
    return replace(known, pause=pause, until=now + pause, why=why)


def went_well(known: Watched) -> Watched:
    """After a step that the kernel did: the next trouble begins with a short pause again."""
    return replace(known, pause=0.0)
