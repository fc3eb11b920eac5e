"""Metrics of the noderesource controller on the internal registry (spec 04 §19, and additional ones).

The series of single nodes are created at scrape time from a dictionary of tuples: 5,000 nodes x four resources as
prometheus_client objects would use more memory than the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from koordlet.api import names
from koordlet.api.pages.overcommit import OVERCOMMIT_REASONS
from koordlet.app.clock import Clock
from koordlet.app.exposition import MetricTable
from koordlet.app.metrics import MetricSet, counter, histogram

EXPIRY_S: Final = 300.0
"""A node is exported for this time after its last calculation."""


class NodeSeries(NamedTuple):
    """The exported values of the last result of a node."""

    at: float
    """monotonic"""
    reason: str
    percent: tuple[int, int]
    rows: tuple[tuple[tuple[str, str, str], float], ...]
    """(labels, value) of the batch and mid amounts before normalization and third parties; empty: no overcommit"""


def amount_rows(node: str, batch: Sequence[int], mid: Sequence[int]) -> tuple[tuple[tuple[str, str, str], float], ...]:
    """Labels and values of amounts in milli-cores and bytes.

    They are built when a node is calculated, a few nodes at a time, so that a scrape does not block the event loop for
    all nodes.
    """
    return tuple(
        row
        for (cpu, memory), amounts in ((_BATCH, batch), (_MID, mid))
        for row in (((node, cpu, "integer"), amounts[0] / 1000), ((node, memory, "byte"), float(amounts[1])))
    )


class NodeResourceMetrics(MetricSet):
    """Calculation passes and writes."""

    seconds = histogram(
        "koord_manager_lending_pass_seconds",
        "Duration of one calculation pass of batch and mid resources.",
        buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    )
    nodes = counter("koord_manager_lending_nodes_worked_out_total", "Calculations of a node's batch and mid resources.")
    writes = counter(
        "koord_manager_lending_writes_total",
        "Writes of batch and mid resources by target: status, metadata, zones.",
        "what",
    )


class OvercommitCollector(Collector):
    """Families per node and per reason; `exported` is the controller's own dictionary."""

    def __init__(self, exported: Mapping[str, NodeSeries], clock: Clock) -> None:
        self._exported = exported
        self._clock = clock

    def describe(self) -> list[Metric]:
        return list(self._families())

    def collect(self) -> Iterator[Metric]:
        empty, nodes, percent, degraded = self._families()
        amounts: list[tuple[tuple[str, str, str], float]] = []
        oldest = self._clock.monotonic() - EXPIRY_S
        counts: dict[str, int] = {}
        for name, series in self._exported.items():
            if series.at < oldest:
                continue
            counts[series.reason] = counts.get(series.reason, 0) + 1
            if series.reason not in OVERCOMMIT_REASONS:
                degraded.add_metric([name, series.reason], 1.0)
            amounts += series.rows
            if series.percent == _ALL:
                continue
            for resource, remaining in zip(("cpu", "memory"), series.percent, strict=True):
                if remaining < 100:
                    percent.add_metric([name, resource], remaining)
        for reason, count in sorted(counts.items()):
            nodes.add_metric([reason], count)
        yield from (MetricTable(empty, _AMOUNT_LABELS, amounts, shared=1), nodes, percent, degraded)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "slo_controller_node_extended_resource_allocatable_internal",
                "Calculated batch and mid resources before normalization and third parties: cores and bytes.",
                labels=_AMOUNT_LABELS,
            ),
            GaugeMetricFamily(
                "koord_manager_lending_nodes",
                "Nodes by the reason for their batch and mid resources.",
                labels=["reason"],
            ),
            GaugeMetricFamily(
                "koord_manager_lending_percent",
                "Percentage of a node's calculated amount that remains after interference, where it is reduced.",
                labels=["node", "resource"],
            ),
            GaugeMetricFamily(
                "koord_manager_lending_degraded",
                "1 for a node without batch and mid resources, by reason.",
                labels=["node", "reason"],
            ),
        )


_ALL: Final = (100, 100)
_AMOUNT_LABELS: Final = ("node", "resource", "unit")
_BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
_MID: Final = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)
