"""From what a container used to what it should ask for, between which bounds, and why (spec 04 §9.3). Pure.

    cpu    = ceil(max(p95 x 1.1, 25m)) milli-cores
    memory = ceil(max(p98 x 1.1, 10Mi, what saves a container that was killed)) bytes

The bounds say when a pod that runs with another request is worth replacing: below the median, or above the 99th
percentile, each with the margin, and each the wider the shorter the history is; and never within a tenth of the target,
since the status, which pods are given, may lag 5 % behind. `lower <= target <= upper` always.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from control.manager.recommender.model import ContainerModel
from control.manager.recommender.settings import MIB, Settings
from koordlet.api.crs.analysis import ContainerExplanation, RecommendedContainerStatus
from koordlet.api.encoding.quantity import BINARY_SI, Quantity

LOWER_SHARE, UPPER_SHARE = 0.5, 0.99
SLACK = 0.1
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Milli-cores or bytes."""

    lower: int
    target: int
    upper: int

    def outside(self, request: int) -> bool:
        """Whether a request is far off."""
        return not self.lower <= request <= self.upper


@dataclass(frozen=True, slots=True)
class Estimate:
    """One container. `confidence` is the history there is over the history asked for, at most 1."""

    container: str
    cpu: Bounds
    memory: Bounds
    confidence: float
    samples: int
    message: str

    def status(self) -> RecommendedContainerStatus:
        """The recommendation on the wire."""
        return RecommendedContainerStatus(
            container_name=self.container, resources=_resources(self.cpu.target, self.memory.target)
        )

    def explanation(self) -> ContainerExplanation:
        """How it came about, on the wire."""
        return ContainerExplanation(
            container_name=self.container,
            samples=self.samples,
            confidence_percent=int(self.confidence * 100),
            lower_bound=_resources(self.cpu.lower, self.memory.lower),
            upper_bound=_resources(self.cpu.upper, self.memory.upper),
            message=self.message,
        )


def estimate(container: str, model: ContainerModel, settings: Settings, now: float) -> Estimate | None:
    """What is to be said of a container at `now`; None while there is no sample."""
    if not model.samples:
        return None
    history, margin = model.history(), 1 + settings.margin
    (low_cpu, peak_cpu, high_cpu), (low_memory, peak_memory, high_memory) = model.percentiles(
        (LOWER_SHARE, settings.cpu_share, UPPER_SHARE), (LOWER_SHARE, settings.memory_share, UPPER_SHARE)
    )
    spread = 1 + DAY / max(history, 60.0)
    saved = model.oom_floor(now)
    cpu = _bounds(low_cpu * 1000, peak_cpu * 1000, high_cpu * 1000, margin, spread, settings.cpu_floor * 1000)
    memory = _bounds(low_memory, peak_memory, high_memory, margin, spread, max(settings.memory_floor, saved))
    if saved:
        memory = Bounds(max(memory.lower, int(saved * (1 - SLACK))), memory.target, memory.upper)
    confidence = 1.0 if settings.minimum_history <= 0 else min(history / settings.minimum_history, 1.0)
    message = (
        f"cpu {cpu.target}m = {_words(settings.cpu_share, f'{peak_cpu * 1000:.0f}m', margin)}"
        f"{_raised(peak_cpu * 1000 * margin, settings.cpu_floor * 1000, f'{settings.cpu_floor * 1000:.0f}m')}; "
        f"memory {_mib(memory.target)} = {_words(settings.memory_share, _mib(peak_memory), margin)}"
        f"{_raised(peak_memory * margin, settings.memory_floor, _mib(settings.memory_floor))}"
        f"{_saved(peak_memory * margin, saved)}; {model.samples} samples over {history / 3600:.1f} h, "
        f"{int(confidence * 100)} % of the {settings.minimum_history / 3600:g} h asked for"
    )
    return Estimate(container, cpu, memory, confidence, model.samples, message)


def moved(old: RecommendedContainerStatus, new: RecommendedContainerStatus, percent: int = 5) -> bool:
    """Whether an amount differs from what was told by more than so much of that."""
    for name in new.resources.keys() | old.resources.keys():
        before, after = old.resources.get(name), new.resources.get(name)
        if before is None or after is None or 100 * abs(after.nano - before.nano) > percent * before.nano:
            return True
    return False


def _bounds(low: float, peak: float, high: float, margin: float, spread: float, floor: float) -> Bounds:
    target = _ceil(max(peak * margin, floor))
    lower = min(low * margin / spread, target * (1 - SLACK))
    upper = max(high * margin * spread, target * (1 + SLACK))
    return Bounds(int(lower), target, _ceil(upper))


def _ceil(value: float) -> int:
    """Up to a whole number, but not for what binary fractions left behind the ninth digit."""
    return math.ceil(value * (1 - 1e-12))


def _resources(milli: int, memory: int) -> dict[str, Quantity]:
    return {"cpu": Quantity.milli(milli), "memory": Quantity.of(memory, BINARY_SI)}


def _mib(value: float) -> str:
    return f"{value / MIB:.0f}Mi"


def _words(share: float, peak: str, margin: float) -> str:
    return f"p{share * 100:g} {peak} x {margin:g}"


def _raised(value: float, floor: float, text: str) -> str:
    return f", raised to the floor of {text}" if value < floor else ""


def _saved(value: float, saved: float) -> str:
    return f", raised to {_mib(saved)} because a container was killed for lack of memory" if value < saved else ""
