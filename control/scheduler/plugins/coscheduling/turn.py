"""One round of a group of gangs: its members follow each other without a gap (spec 05 §9.4)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.gang import GangGroup


@dataclass(eq=False)
class Turn:
    """The group whose turn it is. `first`: key of the pod that began it; `started`: monotonic seconds."""

    group: GangGroup
    first: str
    started: float
    attempted: set[str] = field(default_factory=set)
    failed: str = ""
    """Why the first member that failed did; set once."""
    root_cause: str = ""
    preemption: str = ""
    """What preemption came to, for members that fail later."""
    preempted: bool = False
    """Preemption for the whole group was tried; once a turn is enough."""
    nominations: dict[str, str] = field(default_factory=dict)
    """`namespace/name` -> node that this preemption nominates the member to; "" takes a nomination back."""
    patched: bool = False
    """Members that were never tried have been told."""
    plan: dict[str, str] = field(default_factory=dict)
    """`namespace/name` -> node, when the members were planned together."""
    suggestion: Any = None
    _order: deque[str] = field(default_factory=deque)

    def next(self, cache: GangCache) -> str | None:
        """The next member to try, which then counts as attempted; None when there is none left."""
        for last in (False, True):
            while self._order:
                key = self._order.popleft()
                if key not in self.attempted and any(key in gang.pending for gang in cache.gangs_of(self.group)):
                    self.attempted.add(key)
                    return key
            if not last:
                members = (key for gang in cache.gangs_of(self.group) for key in gang.in_order())
                self._order.extend(key for key in members if key not in self.attempted)
        return None
