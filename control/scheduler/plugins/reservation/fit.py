"""Whether a pod fits on a row with one reservation, and what is short (spec 06 §4.5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from control.reservation.amounts import Shortage


@dataclass(slots=True)
class Fit:
    """The result for one reservation, or for the node without one. Empty: it fits."""

    by_node: list[str] = field(default_factory=list)
    """Resources of which the node has too little, sorted; `pods` if it has too many."""
    in_room: list[Shortage] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.by_node and not self.in_room
