"""The controller `peers` (feature gate PeerComparison): replicas that are slower than those on other nodes.

One pass: the performance in every NodeMetric that is new since the last pass is added to the replicas of its workload,
and each replica is compared with those on other nodes. The result is an Event on the pod when it begins and ends, a log
line and a metric. Nothing is stored in the cluster: a new leader starts empty and has results after three reports.
Memory: at most 15 reports of about 0.5 kB for each container that is reported.
"""

from __future__ import annotations

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.peers.compare import PeerOutlier, outliers
from control.manager.peers.metrics import PeerMetrics
from control.manager.peers.reports import replicas_of
from control.manager.peers.samples import GroupKey, PeerGroups
from control.manager.peers.settings import GATE, PeerSettings
from control.manager.peers.wording import ended_text, outlier_text
from control.manager.recommender.lineage import Lineage
from control.manager.recommender.targets import WorkloadOwner
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop

log = get_logger(__name__)

PASS = "pass"
BEGAN, ENDED = "SlowerThanPeers", "SlowerThanPeersEnded"
MAX_EVENTS = 20
"""Events of one pass: a slow rack must not flood the API server. The metric has all replicas."""
OutlierKey = tuple[GroupKey, str, str]
"""Group, pod UID, figure."""


class PeersController(ManagerController):
    """See the module docstring."""

    name = "peers"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._enabled = context.gates.enabled(GATE)
        self._settings = PeerSettings()
        self._groups = PeerGroups(self._settings)
        self._seen: dict[str, float] = {}
        """node -> time of its last report that was read"""
        self._active: dict[OutlierKey, PeerOutlier] = {}
        self._counters = PeerMetrics.of(context.internal)
        if self._enabled:
            self._pods = context.caches.informer(Pod)
            self._reports = context.caches.informer(NodeMetric)
            self._lineage = Lineage(context)

    def watch(self) -> None:
        if self._enabled:
            self.queue.add(PASS)

    async def reconcile(self, key: str) -> float | None:
        await self._read_reports()
        now = self.context.clock.now()
        self._groups.retain([pod.metadata.uid for pod in self._pods.list()], now)
        current: dict[OutlierKey, PeerOutlier] = {}
        for group, replicas in self._groups:
            before = [(uid, figure) for known, uid, figure in self._active if known == group] if self._active else []
            for outlier in outliers(replicas, before, self._settings):
                current[group, outlier.replica.uid, outlier.figure] = outlier
            await yield_to_loop()
        self._publish(current)
        return self.context.options.peer_comparison_interval

    async def _read_reports(self) -> None:
        """Add the NodeMetrics that are new. One from the future counts too: only the order of a node's own reports and
        their age within the window matter."""
        metrics = self._reports.list()
        present = {metric.metadata.name for metric in metrics}
        self._seen = {node: at for node, at in self._seen.items() if node in present}
        for metric in metrics:
            node, updated = metric.metadata.name, metric.status.update_time
            if updated is None or updated.unix <= self._seen.get(node, float("-inf")):
                continue
            self._seen[node] = updated.unix
            for group, replica, sample in replicas_of(metric, self._pods.get, self._workload):
                self._groups.add(group, replica, sample)
            await yield_to_loop()

    def _workload(self, pod: Pod) -> WorkloadOwner | None:
        """The topmost controller."""
        owners = self._lineage.of(pod.metadata.namespace, pod.metadata)
        return owners[-1] if owners else None

    def _publish(self, current: dict[OutlierKey, PeerOutlier]) -> None:
        began = [key for key in current if key not in self._active]
        ended = [key for key in self._active if key not in current]
        events = 0
        for key in (*began, *ended):
            is_begin = key in current
            outlier = current[key] if is_begin else self._active[key]
            text = outlier_text(key[0], outlier) if is_begin else ended_text(key[0], outlier)
            pod = self._pods.get(outlier.replica.pod)
            if is_begin:
                self._counters.begun.labels(outlier.figure).inc()
            log.info(
                "A replica is slower than its peers" if is_begin else "A replica is not slower any more", text=text
            )
            if pod is not None and pod.metadata.uid == key[1] and events < MAX_EVENTS:
                events += 1
                if is_begin:
                    self.context.events.warning(pod, BEGAN, text)
                else:
                    self.context.events.normal(pod, ENDED, text)
        self._active = current
        self._counters.replicas.set(len(self._groups))
        self._counters.slower.clear()
        for (group, _, figure), outlier in current.items():
            namespace, _, _, container = group
            labels = (namespace, outlier.replica.pod.partition("/")[2], container, outlier.replica.node, figure)
            self._counters.slower.labels(*labels).set(outlier.value / max(outlier.peers.median, 1e-6))
