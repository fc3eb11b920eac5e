"""Sets of metrics bound to a registry once.

A component declares its metrics in a `MetricSet` and calls `MySet.of(registry)`. The same registry always returns the
same set, so that ten informers share one family and tests with their own registries do not conflict.

    class QueueMetrics(MetricSet):
        depth = gauge("koord_workqueue_depth", "Items ready to be processed.", "queue")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

disable_created_metrics()  # type: ignore[no-untyped-call]  # an additional gauge per counter, which nothing uses

_S = TypeVar("_S", bound="MetricSet")
_Source = TypeVar("_Source")


@dataclass(frozen=True)
class MetricDeclaration:
    """A metric of a `MetricSet` before it has a registry."""

    type: type
    name: str
    text: str
    labels: Sequence[str]
    options: Mapping[str, Any]


class MetricSet:
    """Base class: a subclass declares its metrics as class attributes; each is created when the set is."""

    _sets: ClassVar[WeakKeyDictionary[CollectorRegistry, dict[type, MetricSet]]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry) -> None:
        for attribute, metric in vars(type(self)).items():
            if isinstance(metric, MetricDeclaration):
                kind, options = metric.type, metric.options
                setattr(self, attribute, kind(metric.name, metric.text, metric.labels, registry=registry, **options))

    @classmethod
    def of(cls: type[_S], registry: CollectorRegistry | None = None) -> _S:
        """The set of this class on `registry` (None: the default registry)."""
        sets = MetricSet._sets.setdefault(registry or REGISTRY, {})
        existing = sets.get(cls)
        if not isinstance(existing, cls):
            existing = sets[cls] = cls(registry or REGISTRY)
        return existing


class ScrapedMetrics(Collector, Generic[_Source]):
    """Base class of families that `collect` computes from `source` at each scrape."""

    _once: ClassVar[WeakKeyDictionary[CollectorRegistry, set[type]]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry, source: _Source) -> None:
        self.source = source
        registry.register(self)

    @classmethod
    def once(cls, registry: CollectorRegistry | None, source: _Source) -> None:
        """Unless there is one of this class on `registry`: where several profiles have the same source."""
        if registry is not None and cls not in (known := ScrapedMetrics._once.setdefault(registry, set())):
            known.add(cls)
            cls(registry, source)

    def describe(self) -> Iterator[Metric]:
        return iter(())


class UnsuffixedCounter(Counter):
    """A counter whose name in Koordinator lacks `_total`, which the client library would append. Shown as untyped."""

    _type = "unknown"

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("", {}, self._value.get(), None, None),)


def counter(name: str, text: str, *labels: str) -> Counter:
    """Declares a counter in a `MetricSet`."""
    return cast(Counter, MetricDeclaration(Counter, name, text, labels, {}))


def unsuffixed_counter(name: str, text: str, *labels: str) -> UnsuffixedCounter:
    """Declares an `UnsuffixedCounter` in a `MetricSet`."""
    return cast(UnsuffixedCounter, MetricDeclaration(UnsuffixedCounter, name, text, labels, {}))


def gauge(name: str, text: str, *labels: str) -> Gauge:
    """Declares a gauge in a `MetricSet`."""
    return cast(Gauge, MetricDeclaration(Gauge, name, text, labels, {}))


def histogram(name: str, text: str, *labels: str, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS) -> Histogram:
    """Declares a histogram in a `MetricSet`."""
    return cast(Histogram, MetricDeclaration(Histogram, name, text, labels, {"buckets": buckets}))
