"""From a container's past usage to its recommended requests, their bounds and an explanation (spec 04 §9.3). Pure.

    cpu    = ceil(max(p95 x 1.1, 25m)) milli-cores
    memory = ceil(max(p98 x 1.1, 10Mi, floor after an OOM kill)) bytes

A pod whose request is outside of the bounds is worth replacing. The lower bound derives from the median, the upper from
the 99th percentile, each with the margin, and each is wider the shorter the history is. A bound is at least 10 % away
from the target, because the status, which determines the requests of new pods, may lag by 5 %.
`lower <= target <= upper` always holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from control.manager.recommender.model import ContainerModel
from control.manager.recommender.settings import MIB, RecommenderSettings
from koordlet.api.crs.analysis import ContainerExplanation, RecommendedContainerStatus
from koordlet.api.encoding.quantity import BINARY_SI, Quantity

LOWER_SHARE = 0.5
UPPER_SHARE = 0.99
MIN_BOUND_DISTANCE = 0.1
MIN_CHANGE_PERCENT = 5
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Milli-cores or bytes."""

    lower: int
    target: int
    upper: int

    def outside(self, request: int) -> bool:
        """Whether a request is outside of the bounds."""
        return not self.lower <= request <= self.upper


@dataclass(frozen=True, slots=True)
class Estimate:
    """One container. `confidence` is the length of the history divided by the required one, at most 1."""

    container: str
    cpu: Bounds
    memory: Bounds
    confidence: float
    samples: int
    message: str

    def status(self) -> RecommendedContainerStatus:
        """The recommendation in the status."""
        return RecommendedContainerStatus(
            container_name=self.container, resources=_resources(self.cpu.target, self.memory.target)
        )

    def explanation(self) -> ContainerExplanation:
        """The explanation in the status."""
        return ContainerExplanation(
            container_name=self.container,
            samples=self.samples,
            confidence_percent=int(self.confidence * 100),
            lower_bound=_resources(self.cpu.lower, self.memory.lower),
            upper_bound=_resources(self.cpu.upper, self.memory.upper),
            message=self.message,
        )


def estimate(container: str, model: ContainerModel, settings: RecommenderSettings, now: float) -> Estimate | None:
    """The estimate for a container at `now`; None without samples."""
    if not model.samples:
        return None
    history, margin = model.history(), 1 + settings.margin
    (low_cpu, peak_cpu, high_cpu), (low_memory, peak_memory, high_memory) = model.percentiles(
        (LOWER_SHARE, settings.cpu_share, UPPER_SHARE), (LOWER_SHARE, settings.memory_share, UPPER_SHARE)
    )
    spread = 1 + DAY_S / max(history, 60.0)
    oom_floor = model.oom_floor(now)
    cpu = _bounds(low_cpu * 1000, peak_cpu * 1000, high_cpu * 1000, margin, spread, settings.cpu_floor * 1000)
    memory = _bounds(low_memory, peak_memory, high_memory, margin, spread, max(settings.memory_floor, oom_floor))
    if oom_floor:
        lower = max(memory.lower, int(oom_floor * (1 - MIN_BOUND_DISTANCE)))
        memory = Bounds(lower, memory.target, memory.upper)
    confidence = 1.0 if settings.minimum_history <= 0 else min(history / settings.minimum_history, 1.0)
    message = (
        f"cpu {cpu.target}m = {_formula(settings.cpu_share, f'{peak_cpu * 1000:.0f}m', margin)}"
        f"{_floor_text(peak_cpu * 1000 * margin, settings.cpu_floor * 1000, f'{settings.cpu_floor * 1000:.0f}m')}; "
        f"memory {_mib(memory.target)} = {_formula(settings.memory_share, _mib(peak_memory), margin)}"
        f"{_floor_text(peak_memory * margin, settings.memory_floor, _mib(settings.memory_floor))}"
        f"{_oom_text(peak_memory * margin, oom_floor)}; {model.samples} samples over {history / 3600:.1f} h, "
        f"{int(confidence * 100)} % of the required {settings.minimum_history / 3600:g} h"
    )
    return Estimate(container, cpu, memory, confidence, model.samples, message)


def differs(old: RecommendedContainerStatus, new: RecommendedContainerStatus) -> bool:
    """Whether an amount differs from the old one by more than `MIN_CHANGE_PERCENT` of it."""
    for name in new.resources.keys() | old.resources.keys():
        before, after = old.resources.get(name), new.resources.get(name)
        if before is None or after is None or 100 * abs(after.nano - before.nano) > MIN_CHANGE_PERCENT * before.nano:
            return True
    return False


def _bounds(low: float, peak: float, high: float, margin: float, spread: float, floor: float) -> Bounds:
    target = _ceil(max(peak * margin, floor))
    lower = min(low * margin / spread, target * (1 - MIN_BOUND_DISTANCE))
    upper = max(high * margin * spread, target * (1 + MIN_BOUND_DISTANCE))
    return Bounds(int(lower), target, _ceil(upper))


def _ceil(value: float) -> int:
    """Rounded up, ignoring rounding errors of binary fractions (relative 1e-12)."""
    return math.ceil(value * (1 - 1e-12))


def _resources(milli: int, memory: int) -> dict[str, Quantity]:
    return {"cpu": Quantity.milli(milli), "memory": Quantity.of(memory, BINARY_SI)}


def _mib(value: float) -> str:
    return f"{value / MIB:.0f}Mi"


def _formula(share: float, peak: str, margin: float) -> str:
    return f"p{share * 100:g} {peak} x {margin:g}"


def _floor_text(value: float, floor: float, text: str) -> str:
    return f", raised to the floor of {text}" if value < floor else ""


def _oom_text(value: float, oom_floor: float) -> str:
    return f", raised to {_mib(oom_floor)} because a container was OOM-killed" if value < oom_floor else ""
