"""Metrics of quotas, with Koordinator's names (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import ParamSpec, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from control.quota.amounts import Amounts, from_list
from control.quota.figures import QuotaFigures
from control.quota.forest import QuotaForest
from control.scheduler.framework.timing import SecondsHistogram
from koordlet.api import names
from koordlet.app.metrics import MetricSet, ScrapedMetrics, histogram

P = ParamSpec("P")
R = TypeVar("R")

_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")


class QuotaMetrics(MetricSet):
    """Durations."""

    status_seconds = histogram(
        "scheduler_update_elastic_quota_status_duration_seconds",
        "Duration of writing the status of one quota.",
        buckets=[0.001 * 2**n for n in range(15)],
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.process = SecondsHistogram(
            registry,
            "scheduler_elastic_quota_process_latency",
            "Duration of an operation on the figures of quotas.",
            ("operation",),
            tuple(1e-5 * 2**n for n in range(24)),
        )
        self.hooks = SecondsHistogram(
            registry,
            "scheduler_elastic_quota_hook_plugin_latency",
            "Duration of a call of a hook of ElasticQuota.",
            ("plugin", "operation"),
            tuple(1e-6 * 2**n for n in range(24)),
        )

    def call(self, operation: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function and observe its duration (a `control.quota.calls.Call`)."""
        begun = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.process.observe((operation,), perf_counter() - begun)


class QuotaGauges(ScrapedMetrics[QuotaForest]):
    """The figures of every quota, read when metrics are collected. A deleted quota has no series."""

    def collect(self) -> Iterator[Metric]:
        status = GaugeMetricFamily(
            "scheduler_elastic_quota_status", "Figures of quotas; cpu in milli-cores.", labels=_LABELS
        )
        spec = GaugeMetricFamily(
            "scheduler_elastic_quota_spec", "Limits of quotas; cpu in milli-cores.", labels=_LABELS
        )
        for tree_id, tree in self.source.trees().items():
            for quota in tree.quotas.values():
                limits = {"min": quota.min, "max": quota.max, "sharedWeight": quota.weight}
                figures = {
                    "runtime": tree.runtimes(quota),
                    "request": quota.request,
                    "child-request": quota.child_request,
                    "guaranteed": quota.guaranteed if tree.rules.guarantee else {},
                    "allocated": quota.allocated if tree.rules.guarantee else {},
                    "non-preemptible-request": quota.np_request,
                    "non-preemptible-used": quota.np_used,
                    "used": quota.used,
                }
                if quota.info.is_tree_root:
                    figures["unschedulable-resource"] = from_list(quota.info.unschedulable)
                _add(status, quota, tree_id, {**figures, **limits})
                _add(spec, quota, tree_id, limits)
        yield status
        yield spec


def _add(family: GaugeMetricFamily, quota: QuotaFigures, tree: str, fields: dict[str, Amounts]) -> None:
    parent = quota.info.parent or names.ROOT_QUOTA
    for field, amounts in fields.items():
        for resource, amount in amounts.items():
            family.add_metric(
                [quota.name, resource, tree, str(quota.info.is_parent).lower(), parent, field], float(amount)
            )
