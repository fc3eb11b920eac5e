"""Metrics of Reservations, with Koordinator's names (spec 06 §7). Read when metrics are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from koordlet.api.crs.reservation import AVAILABLE, FAILED, PENDING, SUCCEEDED, Reservation
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.app.metrics import ScrapedMetrics

PHASES: Final = (PENDING, AVAILABLE, SUCCEEDED, FAILED)
_GIB: Final = 1 << 30


class ReservationGauges(ScrapedMetrics[Callable[[], Iterable[Reservation]]]):
    """Phase and amounts of every Reservation. A deleted one has no series."""

    def collect(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily(
            "scheduler_reservation_status_phase",
            "1 for the phase of a Reservation, 0 for others.",
            labels=["name", "phase"],
        )
        resources = GaugeMetricFamily(
            "scheduler_reservation_resource",
            "Amounts of a Reservation; utilization is allocated divided by allocatable.",
            labels=["type", "name", "resource", "unit"],
        )
        for reservation in self.source():
            name, status = reservation.metadata.name, reservation.status
            for phase in PHASES:
                phases.add_metric([name, phase], float(phase == (status.phase or PENDING)))
            _amounts(resources, name, status.allocatable, status.allocated)
        yield phases
        yield resources


def _amounts(
    family: GaugeMetricFamily, name: str, allocatable: Mapping[str, Quantity], allocated: Mapping[str, Quantity]
) -> None:
    for resource, offered in sorted(allocatable.items()):
        unit, total = in_unit(resource, offered)
        used = in_unit(resource, allocated.get(resource, ZERO))[1]
        family.add_metric(["allocatable", name, resource, unit], total)
        family.add_metric(["allocated", name, resource, unit], used)
        if total > 0:
            family.add_metric(["utilization", name, resource, "ratio"], used / total)


def in_unit(resource: str, amount: Quantity) -> tuple[str, float]:
    """(unit, amount in it): cores, Gi of memory, otherwise as it is."""
    if resource == "cpu":
        return "core", amount.milli_value() / 1000
    if resource == "memory":
        return "Gi", amount.value() / _GIB
    return "raw", float(amount.value())
