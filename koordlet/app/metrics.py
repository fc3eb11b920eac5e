"""Sets of metrics bound to a registry once.

A component declares its metrics in a `MetricSet` and calls `MySet.of(registry)`. The same registry always returns the
same set, so that ten informers share one family and tests with their own registries do not conflict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.samples import Sample

disable_created_metrics()  # type: ignore[no-untyped-call]  # an additional gauge per counter, which nothing uses

_S = TypeVar("_S", bound="MetricSet")


class MetricSet:
    """Base class: a subclass creates its metrics in `__init__(self, registry)`."""

    _sets: ClassVar[WeakKeyDictionary[CollectorRegistry, dict[type, MetricSet]]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls: type[_S], registry: CollectorRegistry | None = None) -> _S:
        """The set of this class on `registry` (None: the default registry)."""
        sets = MetricSet._sets.setdefault(registry or REGISTRY, {})
        existing = sets.get(cls)
        if not isinstance(existing, cls):
            existing = sets[cls] = cls(registry or REGISTRY)
        return existing


class UnsuffixedCounter(Counter):
    """A counter whose name in Koordinator lacks `_total`, which the client library would append. Shown as untyped."""

    _type = "unknown"

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("", {}, self._value.get(), None, None),)
