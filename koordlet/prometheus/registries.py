"""The internal and the external registry with the families of the catalogue (spec 02 §10).

Families with a `node` label are omitted until the node's name is known; `koordlet_start_time` sets the label itself. If
a provider fails, its family is omitted and the failure counted; the other families are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from koordlet.app.exposition import MetricTable, Tails
from koordlet.app.logging import get_logger
from koordlet.prometheus.catalogue import CATALOGUE
from koordlet.prometheus.family import EXTERNAL, Family

log = get_logger(__name__)

Rows = Iterable[tuple[Sequence[str], float]]
"""Label values (without `node`) and the value."""
Groups = Iterable[tuple[Sequence[str], Tails, Sequence[float]]]
"""Values of the first labels, values of the last labels per metric value, metric values (NaN: absent)."""
Counts = Iterable[tuple[Sequence[str], Sequence[int], float]]
"""Label values, cumulative counts at the upper bounds, sum."""


class Registries:
    """`internal` and `external`; `view` attaches a provider to a family of the catalogue."""

    def __init__(self) -> None:
        self.internal = CollectorRegistry()
        self.external = CollectorRegistry()
        self.node = ""
        """Name of the Node object; empty until it is known."""
        self._counts: dict[str, dict[tuple[str, ...], float]] = {}
        for collector in (ProcessCollector, PlatformCollector, GCCollector):  # koordlet's own resource use
            collector(registry=self.internal)
        self._provider_failures = Counter(
            "koordlet_metric_provider_failures_total",
            "Scrapes without a family because its provider failed.",
            ["family"],
            registry=self.internal,
        )

    def view(
        self,
        name: str,
        provider: Callable[[], Rows] | Callable[[], Groups] | Callable[[], Counts],
        bounds: Sequence[str] = (),
        *,
        grouped: int = 0,
    ) -> None:
        """Export the family `name` with the rows that `provider` returns at each scrape. `bounds`: upper bounds of a
        histogram's buckets, ending with +Inf. `grouped`: number of last labels that distinguish the values of a row."""
        family = CATALOGUE[name]
        self._registry(family).register(_View(self, family, provider, bounds, grouped))

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Increase a counter of the catalogue. `labels`: label values without `node`."""
        rows = self._counts.get(name)
        if rows is None:
            rows = self._counts[name] = {}
            self.view(name, rows.items)
        rows[labels] = rows.get(labels, 0.0) + by

    def histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        """A histogram that keeps its observations."""
        family = CATALOGUE[name]
        registry = self._registry(family)
        return Histogram(family.full_name, family.help, family.all_labels, buckets=buckets, registry=registry)

    def failed(self, family: Family, error: Exception) -> None:
        """Count and log a provider that raised."""
        self._provider_failures.labels(family.name).inc()
        log.warning("Metric family omitted from a scrape", family=family.name, error=repr(error))

    def _registry(self, family: Family) -> CollectorRegistry:
        return self.external if family.side == EXTERNAL else self.internal


class _View(Collector):
    def __init__(
        self,
        owner: Registries,
        family: Family,
        provider: Callable[[], Rows] | Callable[[], Groups] | Callable[[], Counts],
        bounds: Sequence[str],
        grouped: int,
    ) -> None:
        self._owner = owner
        self._family = family
        self._provider = provider
        self._bounds = bounds
        self._grouped = grouped

    def describe(self) -> Iterator[Metric]:
        yield self._empty()  # lets the registry detect duplicate names

    def collect(self) -> Iterator[Metric]:
        if self._family.node_label and not self._owner.node:
            return
        prefix = [self._owner.node] if self._family.node_label else []
        try:
            family = self._family
            table = MetricTable(
                self._empty(),
                family.all_labels,
                self._provider(),
                fixed=prefix,
                shared=family.shared,
                grouped=self._grouped,
                bounds=self._bounds,
            )
        except Exception as error:  # noqa: BLE001 - the other families must be served; counted and logged
            self._owner.failed(self._family, error)
            return
        yield table

    def _empty(self) -> Metric:
        family = self._family
        arguments = (family.full_name, family.help)
        if family.type == "histogram":
            return HistogramMetricFamily(*arguments, labels=family.all_labels)
        if family.type == "gauge":
            return GaugeMetricFamily(*arguments, labels=family.all_labels)
        if family.name.endswith("_total"):
            return CounterMetricFamily(*arguments, labels=family.all_labels)
        # Some of Koordinator's counters have no `_total`, which the exposition format requires.
        return UnknownMetricFamily(*arguments, labels=family.all_labels)
