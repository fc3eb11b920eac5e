"""Output of every benchmark: `name value unit budget ok|over|unclear`, and the same as JSON under build/bench/."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figure:
    """One measured value. `budget`: an upper bound (a lower one with `at_least`), None without one. `spread`: the
    difference of two equal measurements in this run; a value closer to the budget than that is `unclear`."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    at_least: bool = False
    spread: float = 0.0

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return "ok"
        room = self.value - self.budget if self.at_least else self.budget - self.value
        return "ok" if room >= self.spread else "over" if room < -self.spread else "unclear"

    @property
    def ok(self) -> bool:
        """Whether the budget is kept beyond doubt."""
        return self.verdict == "ok"

    def __str__(self) -> str:
        budget = "-" if self.budget is None else f"{self.budget:g}"
        return f"{self.name} {self.value:.4g} {self.unit.replace(' ', '_')} {budget} {self.verdict}"


def report(benchmark: str, figures: Iterable[Figure]) -> int:
    """Print and write the figures; returns the exit status: 1 if a budget is exceeded or unclear, else 0."""
    rows = list(figures)
    for figure in rows:
        print(figure, flush=True)
    target = ROOT / "build/bench" / f"{benchmark}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=1) + "\n")
    return 0 if all(row.ok for row in rows) else 1


def calibration() -> float:
    """Milliseconds of CPU time of a fixed loop: the machine's present speed."""
    begun = time.thread_time()
    table: dict[str, int] = {}
    for i in range(20_000):
        table[str(i)] = i * 3
    return 1000 * (time.thread_time() - begun)
