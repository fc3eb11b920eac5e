"""Writes NodeMetric.status (spec 02 §7.2, §11.4).

The manager creates the object and writes its spec; without an object nothing is reported. The status goes out as one
merge patch that names every field of ours, so nothing of another writer is lost and there is nothing to conflict with.
A failed write is counted and tried again with fresh figures after the next interval.

Between reports `check` looks at the prediction: one that moved by more than the threshold goes out at once. No report
is ever left out because little changed, and however long the interval is, one goes out before consumers take the last
for stale (they do after 180 s).
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
    Policy,
    build_status,
    measured_pods,
    retain,
    status_patch,
)
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.statesinformer.states import KubeStates

log = get_logger(__name__)

CHECK_SECONDS = 20.0
MAX_AGE_SECONDS = 150.0
"""A report older than this is renewed whatever the interval; consumers take one of 180 s for stale."""
UNITS = {"cpu": "core", "memory": "byte"}


class NodeMetricReporter:
    """`report` is one round, `check` looks whether one is due before its time."""

    def __init__(
        self,
        client: Client,
        states: KubeStates,
        cache: MetricCache,
        registries: Registries,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        forecast: Forecaster | None = None,
        extensions: Extensions | None = None,
        mirror: bool = False,
    ) -> None:
        """`mirror`: also export what was reported as gauges (gate NodeMetricPromMetrics)."""
        self._client, self._states, self._cache, self._registries = client, states, cache, registries
        self._clock, self._wall, self._forecaster = clock, wall, forecast
        self.extensions = extensions or Extensions()
        self.last: NodeMetricStatus | None = None
        """What was written last."""
        self._writing = asyncio.Lock()
        self._foreseen: Forecast | None = None
        self._written: Forecast | None = None
        self._tried_at = clock()
        self._retained: Policy | None = None
        if mirror:
            for member in ("node_usage", "system_usage"):
                registries.view(f"node_metric_{member}", lambda member=member: self._usage(member))
                registries.view(f"node_metric_numa_{member}", lambda member=member: self._numa(member))
        if forecast is not None:
            registries.view("node_priority_resource_reclaimable", self._reclaimable)
            registries.view("node_resource_priority_reclaimable_status", self._reclaimable_status)

    async def report(self) -> None:
        """Build and write; raises what the API server said, after counting it."""
        async with self._writing:
            await self._report()

    async def check(self) -> None:
        """Report now if the prediction moved by more than the policy's threshold, or the last report is old."""
        if self._writing.locked() or self._states.node_metric.object is None or self.last is None:
            return
        now = self._clock()
        if now - self._tried_at >= MAX_AGE_SECONDS:
            reason = "age"
        elif self._written is not None and self._predict_now(now).moved(
            self._written, self._states.policy.diff_percent
        ):
            reason = "prediction"
        else:
            return
        self._registries.count("node_metric_early_reports_total", reason)
        await self.report()

    async def _report(self) -> None:
        if self._states.node_metric.object is None:
            log.once(
                "no NodeMetric", "NodeMetric is not reported: the object does not exist", node=self._states.node_name
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
            forecast=self._forecast,
            extensions=self.extensions,
        )
        self._tried_at, self._written = self._clock(), None
        try:
            await self._client.patch(
                NodeMetric,
                self._states.node_name,
                body=status_patch(status),
                subresource="status",
                field_manager="koordlet",
            )
        except NotFound:
            self._registries.count("node_metric_reports_total", "skipped")  # deleted since the watch last told
            return
        except Exception:
            self._registries.count("node_metric_reports_total", "failed")
            raise
        self.last, self._written = status, self._foreseen
        self._registries.count("node_metric_reports_total", "succeeded")

    def _retain(self, policy: Policy) -> None:
        if policy == self._retained:
            return
        self._retained = policy
        seconds = retain(self._cache, policy)
        if seconds < policy.longest:
            log.warning(
                "the metric cache does not look back as far as NodeMetric wants", wanted=policy.longest, kept=seconds
            )

    def _forecast(self, pods: Sequence[PodMeta], cold_start: int | None) -> Forecast:
        if self._forecaster is None:
            return Forecast()
        self._foreseen = found = self._forecaster(pods, cold_start)
        if found.problem:
            log.once(f"forecast:{found.problem}", "no prediction for Prod", reason=found.problem)
        return found

    def _predict_now(self, now: float) -> Forecast:
        policy = self._states.policy
        measured = measured_pods(self._cache, self._states.workloads.pods, policy, now - policy.aggregate_seconds, now)
        return self._forecast([pod for pod, _ in measured], policy.cold_start_seconds)

    # --- gauges

    def _reclaimable(self) -> list[tuple[tuple[str, str, str], float]]:
        if self._foreseen is None:
            return []
        amount = self._foreseen.reclaimable or Amount()
        return [((PROD, "cpu", "core"), amount.cpu / 1000), ((PROD, "memory", "byte"), float(amount.memory))]

    def _reclaimable_status(self) -> list[tuple[tuple[str], float]]:
        if self._foreseen is None:  # nothing was asked yet, which is no failure
            return []
        return [((PROD,), 0.0 if self._foreseen.reclaimable is not None else 1.0)]

    def _usage(self, member: str) -> list[tuple[tuple[str, str], float]]:
        if self.last is None or self.last.node_metric is None:
            return []
        resources = getattr(self.last.node_metric, member).resources
        return [((name, UNITS[name]), float(amount)) for name, amount in resources.items() if name in UNITS]

    def _numa(self, member: str) -> list[tuple[tuple[str, str, str], float]]:
        if self.last is None or self.last.node_metric is None:
            return []
        return [
            ((str(node.numa_node_id), name, UNITS[name]), float(amount))
            for node in self.last.node_metric.numa_usages
            for name, amount in getattr(node, member).resources.items()
            if name in UNITS
        ]
