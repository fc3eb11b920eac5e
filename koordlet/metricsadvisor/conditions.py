"""The state of each optional collector: its source, or why it has none.

A collector that cannot work on this machine is a condition, logged once and shown for as long as it lasts as
`koordlet_collector_up{collector, source, reason}`. It never stops another collector. Bounded by the number of
collectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CollectorCondition:
    """`source`: where figures come from; `reason`: why there are none."""

    up: bool
    source: str = ""
    reason: str = ""


class CollectorConditions:
    """The conditions of one koordlet's collectors, by collector."""

    def __init__(self, registries: Registries) -> None:
        self.states: dict[str, CollectorCondition] = {}
        """The latest condition of every collector that reported one."""
        registries.view("collector_up", self._rows)

    def up(self, collector: str, source: str) -> None:
        """The collector works, with figures from `source`."""
        self.states[collector] = CollectorCondition(True, source)

    def down(self, collector: str, reason: str, source: str = "") -> None:
        """The collector has no figures; each reason is logged once."""
        self.waiting(collector, reason, source)
        log.once(f"condition:{collector}:{reason}", "A collector gives no figures", collector=collector, reason=reason)

    def waiting(self, collector: str, reason: str, source: str = "") -> None:
        """No figures yet, as expected."""
        self.states[collector] = CollectorCondition(False, source, reason)

    def _rows(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, condition in self.states.items():
            yield (name, condition.source, condition.reason), float(condition.up)
