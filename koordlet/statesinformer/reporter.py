"""Writes NodeMetric.status (spec 02 §7.2).

The manager creates the object and writes its spec; without an object nothing is reported. The status goes out as one
merge patch that names every field of ours, so nothing of another writer is lost and there is nothing to conflict with.
A failed write is counted and tried again with fresh figures after the next interval.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.api.nodemetric import NodeMetric, NodeMetricStatus
from koordlet.api.wire import Time
from koordlet.app.logging import get_logger
from koordlet.kube import Client, NotFound
from koordlet.metriccache import MetricCache
from koordlet.metrics import Registries
from koordlet.statesinformer.nodemetric import build_status, status_patch
from koordlet.statesinformer.states import KubeStates

log = get_logger(__name__)


class NodeMetricReporter:
    """`report` is one round."""

    def __init__(
        self,
        client: Client,
        states: KubeStates,
        cache: MetricCache,
        registries: Registries,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._client, self._states, self._cache, self._registries = client, states, cache, registries
        self._clock, self._wall = clock, wall
        self.last: NodeMetricStatus | None = None
        registries.view("node_metric_node_usage", lambda: self._usage("node_usage"))
        registries.view("node_metric_system_usage", lambda: self._usage("system_usage"))

    async def report(self) -> None:
        """Build and write; raises what the API server said, after counting it."""
        if self._states.node_metric.object is None:
            log.once(
                "no NodeMetric", "NodeMetric is not reported: the object does not exist", node=self._states.node_name
            )
            self._registries.count("node_metric_reports_total", "skipped")
            return
        status = build_status(
            self._cache,
            self._states.workloads,
            self._states.policy,
            now=self._clock(),
            update_time=Time.from_unix(self._wall()),
        )
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
        self.last = status
        self._registries.count("node_metric_reports_total", "succeeded")

    def _usage(self, member: str) -> list[tuple[tuple[str, str], float]]:
        if self.last is None or self.last.node_metric is None:
            return []
        resources = getattr(self.last.node_metric, member).resources
        units = {"cpu": "core", "memory": "byte"}
        return [((name, units[name]), float(amount)) for name, amount in resources.items() if name in units]
