"""Durations of plugin calls in every tenth cycle (spec 05 §16.2). The other cycles pay one comparison.

A measured cycle calls the plugins through a view of the profile (`Framework.observed`) that times each call. The
plugins themselves are not modified. The duration of an extension point is the sum over its plugins in the cycle. Calls
that a plugin makes to other plugins (preemption runs the filters many times) count as its own time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final, cast

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.framework.plugin import Plugin, overrides
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import PluginStatus

SAMPLE_INTERVAL: Final = 10
"""One cycle out of this number is measured."""

EXTENSION_POINTS: Final[Mapping[str, str]] = {
    "before_pre_filter": "BeforePreFilter",
    "pre_filter": "PreFilter",
    "after_pre_filter": "AfterPreFilter",
    "find_one_node": "FindOneNodePlugin",
    "prefer_nodes": "PreferNodesPlugin",
    "filter": "Filter",
    "post_filter": "PostFilter",
    "after_post_filter": "AfterPostFilter",
    "pre_score": "PreScore",
    "score": "Score",
    "normalize": "ScoreExtensionNormalize",
    "nominate": "ReservationNominate",
    "resize_pod": "ResizePod",
    "reserve": "Reserve",
    "unreserve": "Unreserve",
    "permit": "Permit",
}
"""Method of a plugin -> value of the label `extension_point`."""
_WITHOUT_STATUS: Final = frozenset(
    ("PreferNodesPlugin", "AfterPostFilter", "Score", "ScoreExtensionNormalize", "Unreserve")
)
_ROW_METHODS: Final = {"filter": "filter_row", "score": "score_row"}


class SecondsHistogram(Collector):
    """A histogram for a single thread. An observation costs well below a microsecond."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = buckets
        self._bound_names = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def observe(self, values: tuple[str, ...], seconds: float) -> None:
        """`values`: of the labels, in their order."""
        counts = self._counts.get(values)
        if counts is None:
            counts = self._counts[values] = [0] * len(self._bound_names)
            self._sums[values] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[values] += seconds

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, counts in sorted(self._counts.items()):
            summed = np.cumsum(counts).tolist()
            family.add_metric(
                list(values), [*zip(self._bound_names, map(float, summed), strict=True)], sum_value=self._sums[values]
            )
        yield family


class PluginTimer:
    """Times the plugins of one profile. In a measured cycle, call the plugins through `calls`, then `finish`."""

    def __init__(
        self,
        framework: Framework,
        plugins: SecondsHistogram,
        points: SecondsHistogram,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        """`plugins` has the labels plugin, extension_point, status; `points` extension_point, status, profile."""
        self._profile = framework.name
        self._plugins = plugins
        self._points = points
        self._now = now
        self._cycles = 0
        self._in_call = False
        self._seconds: dict[str, float] = {}
        self._statuses: dict[str, str] = {}
        self.calls = framework.observed(lambda plugin: cast(Plugin, _TimedPlugin(plugin, self)))

    def due(self) -> bool:
        """Count a cycle: whether it is to be measured."""
        self._cycles += 1
        return self._cycles % SAMPLE_INTERVAL == 0

    def finish(self) -> None:
        """A measured cycle has ended: observe the duration of each extension point."""
        for point, seconds in self._seconds.items():
            self._points.observe((point, self._statuses.get(point, "Success"), self._profile), seconds)
        self._seconds.clear()
        self._statuses.clear()

    def timed(self, plugin: Plugin, point: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` of the plugin with its duration observed."""
        now, observe, name = self._now, self._plugins.observe, plugin.name
        has_status = point not in _WITHOUT_STATUS

        def call(*args: Any) -> Any:
            if self._in_call:
                return method(*args)
            self._in_call = True
            begun = now()
            try:
                result = method(*args)
            finally:
                self._in_call = False
            seconds = now() - begun
            status = _status(plugin, point, result) if has_status else "Success"
            observe((name, point, status), seconds)
            self._seconds[point] = self._seconds.get(point, 0.0) + seconds
            if status not in ("Success", "Skip"):
                self._statuses.setdefault(point, status)
            return result

        return call


def sampled(
    observe: Callable[[tuple[str, ...], float], object],
) -> Callable[[Plugin, str, Callable[..., Any]], Callable[..., Any]]:
    """For methods outside cycles (PreEnqueue, NextPod): `timed(plugin, point, method)` observes every tenth call."""

    def timed(plugin: Plugin, point: str, method: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % SAMPLE_INTERVAL:
                return method(*args)
            begun = perf_counter()
            result = method(*args)
            observe((plugin.name, point, _status(plugin, point, result)), perf_counter() - begun)
            return result

        return call

    return timed


class _TimedPlugin:
    """Replaces a plugin in a measured cycle: extension points are timed, everything else is the plugin's."""

    def __init__(self, plugin: Plugin, timer: PluginTimer) -> None:
        self._plugin = plugin
        for method, point in EXTENSION_POINTS.items():
            if overrides(plugin, method) or (method in _ROW_METHODS and overrides(plugin, _ROW_METHODS[method])):
                setattr(self, method, timer.timed(plugin, point, getattr(plugin, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)


def _status(plugin: Plugin, point: str, result: Any) -> str:
    """The value of the label `status`. A filter that rejects every row reports the reason for the first row."""
    if point == "Filter":
        if not len(result) or not result.item(0) or not result.all():
            return "Success"
        return plugin.reasons.status(int(result[0])).code_name
    if point == "FindOneNodePlugin":
        result = result[0]
    status = result if isinstance(result, PluginStatus) else getattr(result, "status", None)
    return status.code_name if isinstance(status, PluginStatus) else "Success"
