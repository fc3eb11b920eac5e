"""How long plugins take, in every tenth cycle (spec 05 §16.2); the other nine pay one comparison.

For a measured cycle the plugins of a profile get their methods wrapped, on the instances, and lose the wrappers when it
ends: nothing that runs otherwise knows of it. An extension point's time is that of its plugins in the cycle. What a
plugin calls of others (preemption filters again and again) counts as its own time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.cycle.cycle import SCORED, Cycle, Placement
from control.scheduler.framework.plugin import Plugin, overrides
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import Status
from control.scheduler.state.pods import PodInfo

Counts = Mapping[tuple[frozenset[str], frozenset[str], int], int]
"""(skipped at filters, skipped at scores, how far it came) -> cycles."""

EVERY: Final = 10
"""One cycle of so many is measured."""

METHODS: Final[Mapping[str, str]] = {
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
    "resize_pod": "ResizePod",
    "reserve": "Reserve",
    "unreserve": "Unreserve",
    "permit": "Permit",
}
"""Method of a plugin -> value of `extension_point`."""
_SILENT: Final = frozenset(("PreferNodesPlugin", "AfterPostFilter", "Score", "ScoreExtensionNormalize", "Unreserve"))
"""Points whose answers are no status."""
_ROWS: Final = {"filter": "filter_row", "score": "score_row"}


class SecondsHistogram(Collector):
    """A histogram for one thread: an observation costs well below a microsecond."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = buckets
        self._names = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def observe(self, values: tuple[str, ...], seconds: float) -> None:
        """`values`: of the labels, in their order."""
        counts = self._counts.get(values)
        if counts is None:
            counts = self._counts[values] = [0] * len(self._names)
            self._sums[values] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[values] += seconds

    def count(self, values: tuple[str, ...]) -> int:
        """Observations so far."""
        return sum(self._counts.get(values, ()))

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, counts in sorted(self._counts.items()):
            summed = np.cumsum(counts).tolist()
            family.add_metric(
                list(values), [*zip(self._names, map(float, summed), strict=True)], sum_value=self._sums[values]
            )
        yield family


class Probe:
    """A context in which the plugins of a profile are timed. Not to be entered twice."""

    def __init__(
        self,
        framework: Framework,
        plugins: SecondsHistogram,
        points: SecondsHistogram,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        """`plugins` has labels plugin, extension_point, status; `points` has extension_point, status, profile."""
        self._profile, self._points, self._of_plugins, self._now = framework.name, points, plugins, now
        self._inside = False
        self._took: dict[str, float] = {}
        self._status: dict[str, str] = {}
        self._wrapped: list[tuple[Plugin, dict[str, Callable[..., Any]]]] = []
        for plugin in framework.plugins.values():
            methods = {
                method: self._timed(plugin, point, getattr(plugin, method))
                for method, point in METHODS.items()
                if overrides(plugin, method) or (method in _ROWS and overrides(plugin, _ROWS[method]))
            }
            if methods:
                self._wrapped.append((plugin, methods))

    def __enter__(self) -> None:
        for plugin, methods in self._wrapped:
            vars(plugin).update(methods)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for plugin, methods in self._wrapped:
            own = vars(plugin)
            for method in methods:
                del own[method]
        for point, seconds in self._took.items():
            self._points.observe((point, self._status.get(point, "Success"), self._profile), seconds)
        self._took.clear()
        self._status.clear()

    def _timed(self, plugin: Plugin, point: str, method: Callable[..., Any]) -> Callable[..., Any]:
        now, observe, took, name = self._now, self._of_plugins.observe, self._took, plugin.name
        silent = point in _SILENT

        def timed(*args: Any) -> Any:
            if self._inside:
                return method(*args)
            self._inside = True
            begun = now()
            try:
                answer = method(*args)
            finally:
                self._inside = False
            seconds = now() - begun
            status = "Success" if silent else _status(plugin, point, answer)
            observe((name, point, status), seconds)
            took[point] = took.get(point, 0.0) + seconds
            if status not in ("Success", "Skip"):
                self._status.setdefault(point, status)
            return answer

        return timed


def _status(plugin: Plugin, point: str, answer: Any) -> str:
    """The value of `status`. A filter that rejects every row that it was asked about says its first row's."""
    if point == "Filter":
        if not len(answer) or not answer.item(0) or not answer.all():
            return "Success"
        return plugin.reasons.status(int(answer[0])).code_name
    if point == "FindOneNodePlugin":
        answer = answer[0]
    found = answer if isinstance(answer, Status) else getattr(answer, "status", None)
    return found.code_name if isinstance(found, Status) else "Success"


class MeasuredCycle(Cycle):
    """A cycle that every tenth time is timed by `probe`; bindings of those are told to be timed, too."""

    probe: Probe | None = None
    _number = 0

    def place(self, pod: PodInfo) -> Placement:
        self._number += 1
        if self._number % EVERY or self.probe is None:
            return super().place(pod)
        with self.probe:
            placement = super().place(pod)
        placement.state.measured = True
        return placement


class Evaluations(Collector):
    """For how many attempts each plugin was asked at PreFilter, Filter, PreScore and Score.

    A cycle adds one to its `counts`; who that is, is worked out when somebody looks. How far a cycle came: to so many
    PreFilter plugins until one rejected the pod, or `cycle.FILTERED`, or `cycle.SCORED`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._frameworks: list[tuple[Framework, Counts]] = []
        registry.register(self)

    def add(self, framework: Framework, counts: Counts) -> None:
        self._frameworks.append((framework, counts))

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Attempts for which a plugin was asked at an extension point.",
            labels=("plugin", "extension_point", "profile"),
        )
        for framework, counts in self._frameworks:
            for (plugin, point), number in sorted(evaluated(framework, counts).items()):
                family.add_metric([plugin, point, framework.name], number)
        yield family


def evaluated(framework: Framework, counts: Counts) -> dict[tuple[str, str], int]:
    """(plugin, extension point) -> attempts."""
    found: dict[tuple[str, str], int] = {}

    def add(point: str, names: Iterator[str], skipped: frozenset[str], number: int) -> None:
        for name in names:
            if name not in skipped:
                found[name, point] = found.get((name, point), 0) + number

    for (no_filter, no_score, reached), number in counts.items():
        asked = framework.pre_filter if reached < 0 else framework.pre_filter[:reached]
        add("PreFilter", (plugin.name for plugin in asked), no_filter, number)
        if reached < 0:
            add("Filter", (one.plugin.name for one in framework.filters), no_filter, number)
        if reached == SCORED:
            add("PreScore", (plugin.name for plugin in framework.pre_score), no_score, number)
            add("Score", (one.plugin.name for one in framework.scorers), no_score, number)
    return found
