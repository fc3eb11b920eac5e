"""The internal and the external registry, filled from the catalogue (spec 02 §10).

Nothing with a `node` label is shown before the node's name is known (only `koordlet_start_time` carries its own).
A provider that fails costs its own family and is counted; the scrape goes on.
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
from koordlet.prometheus.catalogue import CATALOGUE, EXTERNAL, Family

log = get_logger(__name__)

Rows = Iterable[tuple[Sequence[str], float]]
"""Label values (without `node`) and the value."""
Groups = Iterable[tuple[Sequence[str], Tails, Sequence[float]]]
"""Values of the first labels, of the last ones for each figure, and the figures: NaN where there is none."""
Counts = Iterable[tuple[Sequence[str], Sequence[int], float]]
"""Label values, cumulative count at each upper bound, sum."""


class Registries:
    """`internal` and `external`; `view` attaches a provider to a family of the catalogue."""

    def __init__(self) -> None:
        self.internal, self.external = CollectorRegistry(), CollectorRegistry()
        self.node = ""
        """Name of the Node object; empty until it was seen."""
        self._counts: dict[str, dict[tuple[str, ...], float]] = {}
        for collector in (ProcessCollector, PlatformCollector, GCCollector):  # koordlet's own cost, read at a scrape
            collector(registry=self.internal)
        self._broken = Counter(
            "koordlet_metric_provider_failures_total",
            "Scrapes in which a family could not be produced.",
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
        """Export the family `name` with the rows that `provider` gives at each scrape. *bounds*: the upper bounds of a
        histogram's buckets, which end in +Inf. *grouped*: how many of the last labels tell a row's figures apart."""
        family = CATALOGUE[name]
        self._registry(family).register(_View(self, family, provider, bounds, grouped))

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Raise a counter of the catalogue; label values without `node`."""
        rows = self._counts.get(name)
        if rows is None:
            rows = self._counts[name] = {}
            self.view(name, rows.items)
        rows[labels] = rows.get(labels, 0.0) + by

    def histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        """A histogram that koordlet observes itself."""
        family = CATALOGUE[name]
        registry = self._registry(family)
        return Histogram(family.full_name, family.help, family.all_labels, buckets=buckets, registry=registry)

    def failed(self, family: Family, error: Exception) -> None:
        """Count and log a provider that raised."""
        self._broken.labels(family.name).inc()
        log.warning("metric family left out of a scrape", family=family.name, error=repr(error))

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
        self._owner, self._family, self._provider = owner, family, provider
        self._bounds, self._grouped = bounds, grouped

    def describe(self) -> Iterator[Metric]:
        yield self._empty()  # lets the registry notice a name that is taken

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
        except Exception as error:  # noqa: BLE001 - one family's fault must not cost the others; counted and logged
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
        # Koordinator named some counters without the suffix that the exposition format wants.
        return UnknownMetricFamily(*arguments, labels=family.all_labels)
