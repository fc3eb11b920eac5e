"""Sets of metrics bound to a registry once.

A component declares its metrics in a `MetricSet` and calls `MySet.of(registry)`; the same registry always gives
the same set, so that ten informers share one family and tests with a registry of their own do not collide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.samples import Sample

disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge beside every counter, which nobody asks for

_S = TypeVar("_S", bound="MetricSet")


class MetricSet:
    """Base: a subclass makes its metrics in `__init__(self, registry)`."""

    _made: ClassVar[WeakKeyDictionary[CollectorRegistry, dict[type, MetricSet]]] = WeakKeyDictionary()

    def __init__(self, registry: CollectorRegistry) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls: type[_S], registry: CollectorRegistry | None = None) -> _S:
        """The set of this class on `registry` (the process's default one when None)."""
        sets = MetricSet._made.setdefault(registry or REGISTRY, {})
        found = sets.get(cls)
        if not isinstance(found, cls):
            found = sets[cls] = cls(registry or REGISTRY)
        return found


class UnsuffixedCounter(Counter):
    """A counter whose name Koordinator chose without `_total`, which the client would add. Shown as untyped."""

    _type = "unknown"

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("", {}, self._value.get(), None, None),)
