"""Compares predictions with the use that followed, for every peak method, to show which one suits this node. Pure.

At the beginning of an hour each method predicts the node's peak; at its end the largest sample is known. A positive
error is capacity that was kept free without need; a negative one (an "exceeded" hour) is a peak above the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.prediction.models import NODE, PeakMethod, PredictionModels
from koordlet.statesinformer.nodemetric.forecast import Amount

VALIDATION_SECONDS = 3600.0
RESOURCES = ("cpu", "memory")


@dataclass(slots=True)
class Validation:
    """Validates the predictions of one node; call `observe` at every training step, before the models are trained."""

    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    """(method, resource) -> predicted / observed - 1, for the last whole hour"""
    exceeded: dict[tuple[str, str], float] = field(default_factory=dict)
    """(method, resource) -> number of hours in which more was used than predicted"""
    _begun: float | None = None
    _predicted: dict[PeakMethod, Amount] = field(default_factory=dict)
    _observed: Amount = field(default_factory=Amount)

    def observe(self, models: PredictionModels, used: Amount, seen: float) -> None:
        """A sample of the node at `seen` (a clock that never steps)."""
        if self._begun is not None and seen >= self._begun + VALIDATION_SECONDS:
            self._close()
            self._begun = None
        if self._begun is None:
            predicted = {peak: models.peaks([NODE], peak).get(NODE) for peak in PeakMethod}
            self._predicted = {peak: amount for peak, amount in predicted.items() if amount is not None}
            self._begun = seen if self._predicted else None
            self._observed = Amount()
        self._observed = self._observed.most(used)

    def _close(self) -> None:
        for peak, predicted in self._predicted.items():
            for resource in RESOURCES:
                expected, observed = getattr(predicted, resource), getattr(self._observed, resource)
                key = (peak.value, resource)
                self.exceeded[key] = self.exceeded.get(key, 0.0) + (observed > expected)
                if observed > 0:
                    self.errors[key] = expected / observed - 1
