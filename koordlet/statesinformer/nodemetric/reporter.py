"""Writes NodeMetric.status (spec 02 §7.2, §11.4).

The manager creates the object and writes its spec; without an object nothing is reported. The status is written as one
merge patch that names each field koordlet owns, so fields of other writers are kept and no conflict can occur. A failed
write is counted and retried with new figures after the next interval.

Between reports `check` compares the prediction with the reported one and reports at once if it changed by more than the
threshold. No report is omitted because little changed. However long the interval is, a report is written before
consumers consider the last one stale, which they do after 180 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from koordlet.api.crs.nodemetric import NodeMetric, NodeMetricStatus
from koordlet.api.encoding.wire import Time
from koordlet.api.priority import PROD
from koordlet.app.logging import get_logger
from koordlet.kube import Client, NotFound
from koordlet.metriccache import MetricCache
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast, Forecaster
from koordlet.statesinformer.nodemetric.status import (
    Extensions,
    ReportPolicy,
    build_status,
    measured_pods,
    retain,
    status_patch,
)
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.statesinformer.states import KubeStates

log = get_logger(__name__)

CHECK_PERIOD_S = 20.0
MAX_REPORT_AGE_S = 150.0
"""An older report is renewed whatever the interval; consumers consider a report stale after 180 s."""
RESOURCE_UNITS = {"cpu": "core", "memory": "byte"}


class NodeMetricReporter:
    """`report` builds and writes one status; `check` does so only if a report is due before the next interval."""

    def __init__(
        self,
        client: Client,
        states: KubeStates,
        cache: MetricCache,
        registries: Registries,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        forecast: Forecaster,
        mirror: bool = False,
    ) -> None:
        """`mirror`: also export the reported usage as gauges (gate NodeMetricPromMetrics)."""
        self._client = client
        self._states = states
        self._cache = cache
        self._registries = registries
        self._clock = clock
        self._wall = wall
        self._forecaster = forecast
        self._extensions = Extensions()
        self.last: NodeMetricStatus | None = None
        """The status that was written last."""
        self._write_lock = asyncio.Lock()
        self._forecast: Forecast | None = None
        self._reported_forecast: Forecast | None = None
        self._attempted_at = clock()
        self._retained_policy: ReportPolicy | None = None
        if mirror:
            for member in ("node_usage", "system_usage"):
                registries.view(f"node_metric_{member}", lambda member=member: self._usage(member))
                registries.view(f"node_metric_numa_{member}", lambda member=member: self._numa(member))
        if forecast is not None:
            registries.view("node_priority_resource_reclaimable", self._reclaimable)
            registries.view("node_resource_priority_reclaimable_status", self._reclaimable_status)

    def extend(self, extensions: Extensions) -> None:
        """Add these extensions to each report from now on."""
        self._extensions = extensions

    async def report(self) -> None:
        """Build and write a status; raises KubeError after counting it."""
        async with self._write_lock:
            await self._report()

    async def check(self) -> None:
        """Report now if the prediction changed by more than the policy's threshold, or the last report is old."""
        if self._write_lock.locked() or self._states.node_metric.object is None or self.last is None:
            return
        now = self._clock()
        if now - self._attempted_at >= MAX_REPORT_AGE_S:
            reason = "age"
        elif self._reported_forecast is not None and self._predict_now(now).changed(
            self._reported_forecast, self._states.policy.diff_percent
        ):
            reason = "prediction"
        else:
            return
        self._registries.count("node_metric_early_reports_total", reason)
        await self.report()

    async def _report(self) -> None:
        if self._states.node_metric.object is None:
            log.once(
                "no NodeMetric",
                "NodeMetric is not reported because the object does not exist",
                node=self._states.node_name,
            )
            self._registries.count("node_metric_reports_total", "skipped")
            return
        policy = self._states.policy
        self._retain(policy)
        status = build_status(
            self._cache,
            self._states.workloads,
            policy,
            now=self._clock(),
            update_time=Time.from_unix(self._wall()),
            forecast=self._predict,
            extensions=self._extensions,
        )
        self._attempted_at = self._clock()
        self._reported_forecast = None
        try:
            await self._client.patch(
                NodeMetric,
                self._states.node_name,
                body=status_patch(status),
                subresource="status",
                field_manager="koordlet",
            )
        except NotFound:
            self._registries.count("node_metric_reports_total", "skipped")  # deleted since the last watch event
            return
        except Exception:
            self._registries.count("node_metric_reports_total", "failed")
            raise
        self.last = status
        self._reported_forecast = self._forecast
        self._registries.count("node_metric_reports_total", "succeeded")

    def _retain(self, policy: ReportPolicy) -> None:
        if policy == self._retained_policy:
            return
        self._retained_policy = policy
        seconds = retain(self._cache, policy)
        if seconds < policy.longest_window:
            log.warning(
                "The metric cache keeps less history than NodeMetric's longest window",
                window_seconds=policy.longest_window,
                kept_seconds=seconds,
            )

    def _predict(self, pods: Sequence[PodMeta], cold_start: int | None) -> Forecast:
        forecast = self._forecaster(pods, cold_start)
        if forecast.problem:
            log.once(f"forecast:{forecast.problem}", "No prediction for Prod", reason=forecast.problem)
        self._forecast = forecast
        return forecast

    def _predict_now(self, now: float) -> Forecast:
        policy = self._states.policy
        measured = measured_pods(self._cache, self._states.workloads.pods, policy, now - policy.aggregate_seconds, now)
        return self._predict([pod for pod, _ in measured], policy.cold_start_seconds)

    def _reclaimable(self) -> list[tuple[tuple[str, str, str], float]]:
        if self._forecast is None:
            return []
        amount = self._forecast.reclaimable or Amount()
        return [((PROD, "cpu", "core"), amount.cpu / 1000), ((PROD, "memory", "byte"), float(amount.memory))]

    def _reclaimable_status(self) -> list[tuple[tuple[str], float]]:
        if self._forecast is None:  # no prediction was requested yet, which is not a failure
            return []
        return [((PROD,), 0.0 if self._forecast.reclaimable is not None else 1.0)]

    def _usage(self, member: str) -> list[tuple[tuple[str, str], float]]:
        if self.last is None or self.last.node_metric is None:
            return []
        resources = getattr(self.last.node_metric, member).resources
        return [
            ((name, RESOURCE_UNITS[name]), float(amount))
            for name, amount in resources.items()
            if name in RESOURCE_UNITS
        ]

    def _numa(self, member: str) -> list[tuple[tuple[str, str, str], float]]:
        if self.last is None or self.last.node_metric is None:
            return []
        return [
            ((str(node.numa_node_id), name, RESOURCE_UNITS[name]), float(amount))
            for node in self.last.node_metric.numa_usages
            for name, amount in getattr(node, member).resources.items()
            if name in RESOURCE_UNITS
        ]
