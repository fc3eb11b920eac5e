"""What the controller shows on the internal registry (spec 04 §19, and ours).

Series of single nodes are made when somebody scrapes, from a dictionary of tuples: 5,000 nodes times four resources as
client objects would cost more memory than the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from koordlet.api import names
from koordlet.api.pages.overcommit import LENDING_REASONS
from koordlet.app.clock import Clock
from koordlet.app.exposition import Table
from koordlet.app.metrics import MetricSet

EXPIRES: Final = 300.0
"""Seconds after its last calculation that a node is still shown."""


class Told(NamedTuple):
    """The last result of a node."""

    at: float
    """monotonic"""
    reason: str
    percent: tuple[int, int]
    rows: tuple[tuple[tuple[str, str, str], float], ...]
    """as they are exported: batch and mid, before normalization and third parties; none: nothing is lent"""


def rows(node: str, batch: Sequence[int], mid: Sequence[int]) -> tuple[tuple[tuple[str, str, str], float], ...]:
    """Labels and values of amounts in milli-cores and bytes. Made when a node is worked out, a few at a time, so that a
    page of metrics does not hold up the loop for all of them."""
    return tuple(
        row
        for (cpu, memory), lent in ((_BATCH, batch), (_MID, mid))
        for row in (((node, cpu, "integer"), lent[0] / 1000), ((node, memory, "byte"), float(lent[1])))
    )


class NodeResourceMetrics(MetricSet):
    """Passes and writes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "koord_manager_lending_pass_seconds", "Time to work out what the nodes of one pass lend.",
            buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5), registry=registry,
        )  # fmt: skip
        self.nodes = Counter("koord_manager_lending_nodes_worked_out_total", "Nodes worked out.", registry=registry)
        self.writes = Counter(
            "koord_manager_lending_writes_total", "Writes, by what: status, metadata, zones.", ["what"],
            registry=registry,
        )  # fmt: skip


class LendingCollector(Collector):
    """Per-node and by-reason families; `told` is the controller's own dictionary."""

    def __init__(self, told: Mapping[str, Told], clock: Clock) -> None:
        self._told, self._clock = told, clock

    def describe(self) -> list[Metric]:
        return list(self._families())

    def collect(self) -> Iterator[Metric]:
        empty, nodes, percent, degraded = self._families()
        amounts: list[tuple[tuple[str, str, str], float]] = []
        fresh = self._clock.monotonic() - EXPIRES
        counts: dict[str, int] = {}
        for name, told in self._told.items():
            if told.at < fresh:
                continue
            counts[told.reason] = counts.get(told.reason, 0) + 1
            if told.reason not in LENDING_REASONS:
                degraded.add_metric([name, told.reason], 1.0)
            amounts += told.rows
            if told.percent == _ALL:
                continue
            for resource, left in zip(("cpu", "memory"), told.percent, strict=True):
                if left < 100:
                    percent.add_metric([name, resource], left)
        for reason, count in sorted(counts.items()):
            nodes.add_metric([reason], count)
        yield from (Table(empty, _AMOUNT_LABELS, amounts, shared=1), nodes, percent, degraded)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "slo_controller_node_extended_resource_allocatable_internal",
                "Calculated batch and mid resources before they are filtered: cores and bytes.",
                labels=_AMOUNT_LABELS,
            ),
            GaugeMetricFamily(
                "koord_manager_lending_nodes", "Nodes by why they lend what they lend.", labels=["reason"]
            ),
            GaugeMetricFamily(
                "koord_manager_lending_percent",
                "What interference leaves of a node's calculated amount, where it takes any.",
                labels=["node", "resource"],
            ),
            GaugeMetricFamily(
                "koord_manager_lending_degraded", "1 for a node that lends nothing, and why.", labels=["node", "reason"]
            ),
        )


_ALL: Final = (100, 100)
_AMOUNT_LABELS: Final = ("node", "resource", "unit")
_BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
_MID: Final = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)
