"""What became of each optional collector: fed from where, or why not.

A collector that cannot work on this machine is a condition, said once in the log and shown for as long as it lasts as
`koordlet_collector_up{collector, source, reason}`; it never stops another. Bounded by the number of collectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Condition:
    """`source` names where figures come from; `reason` says why there are none."""

    up: bool
    source: str = ""
    reason: str = ""


class Conditions:
    """The conditions of one koordlet's collectors, by collector."""

    def __init__(self, registries: Registries) -> None:
        self._states: dict[str, Condition] = {}
        registries.view("collector_up", self._rows)

    @property
    def states(self) -> Mapping[str, Condition]:
        """The latest condition of every collector that told one."""
        return self._states

    def up(self, collector: str, source: str) -> None:
        """The collector works, fed by `source`."""
        self._states[collector] = Condition(True, source)

    def down(self, collector: str, reason: str, source: str = "") -> None:
        """The collector gives no figures; each reason is logged once."""
        self.waiting(collector, reason, source)
        log.once(f"condition:{collector}:{reason}", "a collector gives no figures", collector=collector, reason=reason)

    def waiting(self, collector: str, reason: str, source: str = "") -> None:
        """No figures yet, which is as it should be."""
        self._states[collector] = Condition(False, source, reason)

    def _rows(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, state in self._states.items():
            yield (name, state.source, state.reason), float(state.up)
