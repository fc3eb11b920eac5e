"""The anomaly detector: a node's pods are evicted only after it was over its thresholds several times in a row
(spec 07 §6.6). No I/O; the time is an argument.

"In a row" means: not under its low thresholds in between, and not forgotten because it was not over them for the
time-to-live of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class AnomalyRule:
    """More than `abnormalities` marks in a row start an anomaly; it ends after `timeout_s`, or after more than
    `normalities` normal marks in a row."""

    abnormalities: int
    normalities: int
    timeout_s: float

    @property
    def immediate(self) -> bool:
        """Whether one mark is enough, so that no detector is needed."""
        return self.abnormalities == 1


class AnomalyDetector:
    """The detector of one node."""

    def __init__(self) -> None:
        self._anomaly_until: float | None = None
        """None: no anomaly."""
        self._abnormal = 0
        self._normal = 0

    @property
    def anomaly(self) -> bool:
        return self._anomaly_until is not None

    def mark(self, abnormal: bool, rule: AnomalyRule, now: float) -> bool:
        """Count one observation; returns whether the node is in an anomaly after it."""
        if self._anomaly_until is not None and self._anomaly_until < now:
            self.reset()
        if abnormal:
            self._abnormal += 1
            self._normal = 0
        else:
            self._normal += 1
            self._abnormal = 0
        if self._anomaly_until is None:
            if self._abnormal > rule.abnormalities:
                timeout_s = rule.timeout_s if rule.timeout_s > 0 else DEFAULT_TIMEOUT_S
                self._anomaly_until = now + timeout_s
                self._abnormal = self._normal = 0
        elif self._normal > rule.normalities:
            self.reset()
        return self.anomaly

    def reset(self) -> None:
        """End an anomaly; without one the counters stay."""
        if self._anomaly_until is not None:
            self._anomaly_until = None
            self._abnormal = self._normal = 0


class AnomalyDetectors:
    """Detectors by node. One that was not marked abnormal for `ttl_s` is forgotten."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._detectors: dict[str, tuple[AnomalyDetector, float]] = {}
        """Node -> (detector, when it is forgotten)."""

    def __len__(self) -> int:
        return len(self._detectors)

    def detect(self, nodes: Iterable[str], rule: AnomalyRule, now: float) -> set[str]:
        """Mark these nodes abnormal; returns those in an anomaly."""
        self._detectors = {name: entry for name, entry in self._detectors.items() if entry[1] > now}
        if rule.immediate:
            return set(nodes)
        abnormal: set[str] = set()
        for name in nodes:
            detector, _ = self._detectors.get(name) or (AnomalyDetector(), 0.0)
            self._detectors[name] = detector, now + self._ttl_s
            if detector.mark(True, rule, now):
                abnormal.add(name)
        return abnormal

    def mark_normal(self, nodes: Iterable[str], rule: AnomalyRule, now: float) -> None:
        for name in nodes:
            entry = self._detectors.get(name)
            if entry is not None:
                entry[0].mark(False, rule, now)

    def reset(self, nodes: Iterable[str]) -> None:
        for name in nodes:
            entry = self._detectors.get(name)
            if entry is not None:
                entry[0].reset()
