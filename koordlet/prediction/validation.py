"""Predictions held against what came, for every way of computing a peak: which one suits this node? Pure.

At the beginning of an hour each model says the node's peak; at its end the greatest sample that came is known. A
positive error is room that was kept for nothing, a negative one (an hour "exceeded") a peak that was not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.prediction.models import NODE, Models, PeakModel
from koordlet.statesinformer.nodemetric.forecast import Amount

VALIDATION_SECONDS = 3600.0
RESOURCES = ("cpu", "memory")


@dataclass(slots=True)
class Validation:
    """Watches one node; `observe` every training step, before the models learn of it."""

    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    """(model, resource) -> predicted over observed, less one, of the last whole hour"""
    exceeded: dict[tuple[str, str], float] = field(default_factory=dict)
    """(model, resource) -> hours in which more was used than predicted"""
    _begun: float | None = None
    _promised: dict[PeakModel, Amount] = field(default_factory=dict)
    _observed: Amount = field(default_factory=Amount)

    def observe(self, models: Models, used: Amount, seen: float) -> None:
        """A sample of the node at `seen` (a clock that never steps)."""
        if self._begun is not None and seen >= self._begun + VALIDATION_SECONDS:
            self._close()
            self._begun = None
        if self._begun is None:
            promised = {peak: models.peaks([NODE], peak).get(NODE) for peak in PeakModel}
            self._promised = {peak: amount for peak, amount in promised.items() if amount is not None}
            self._begun, self._observed = seen if self._promised else None, Amount()
        self._observed = self._observed.most(used)

    def _close(self) -> None:
        for peak, promised in self._promised.items():
            for resource in RESOURCES:
                told, came = getattr(promised, resource), getattr(self._observed, resource)
                key = (peak.value, resource)
                self.exceeded[key] = self.exceeded.get(key, 0.0) + (came > told)
                if came > 0:
                    self.errors[key] = told / came - 1
