"""Metrics of reservations, with Koordinator's names (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.plugins.reservation.book import ReservationBook
from koordlet.api.crs.reservation import AVAILABLE, FAILED, PENDING, SUCCEEDED

PHASES: Final = (PENDING, AVAILABLE, SUCCEEDED, FAILED)
_GIB: Final = 1 << 30


class ReservationGauges(Collector):
    """Phase and amounts of every reservation, read when metrics are collected. A deleted one has no series."""

    _of: ClassVar[WeakKeyDictionary[CollectorRegistry, ReservationGauges]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry, book: ReservationBook) -> None:
        self._book = book
        registry.register(self)

    @classmethod
    def once(cls, registry: CollectorRegistry | None, book: ReservationBook) -> None:
        """Register it at the first call for a registry."""
        if registry is not None and registry not in cls._of:
            cls._of[registry] = cls(registry, book)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily(
            "scheduler_reservation_status_phase", "1 for the phase of a reservation.", labels=("name", "phase")
        )
        amounts = GaugeMetricFamily(
            "scheduler_reservation_resource",
            "What a reservation offers, what its owners use, and the ratio of the two.",
            labels=("type", "name", "resource", "unit"),
        )
        for room in self._book.known():
            model = room.model
            if model is None:
                continue
            for phase in PHASES:
                phases.add_metric([model.name, phase], float((model.phase or PENDING) == phase))
            for resource, capacity in model.amounts.items() if room.placed else ():
                used = room.used.get(resource, 0)
                unit, divisor = {"cpu": ("core", 1000), "memory": ("Gi", _GIB)}.get(resource, ("raw", 1))
                amounts.add_metric(["allocatable", model.name, resource, unit], capacity / divisor)
                amounts.add_metric(["allocated", model.name, resource, unit], used / divisor)
                if capacity > 0:
                    amounts.add_metric(["utilization", model.name, resource, "ratio"], used / capacity)
        yield phases
        yield amounts
