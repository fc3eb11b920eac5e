"""The controller `recommender` (feature gate Recommender): processes all Recommendations once per interval.

One pass: the pods of every namespace with a Recommendation are grouped by target. The models of each group learn from
the NodeMetrics that are new since the last pass and from OOM kills in the pods' statuses. Changed statuses are written,
and in update mode Auto pods with requests out of bounds are evicted. A report counts once, by its own time, however
often passes run. A failed write is retried in the next pass; a failing Recommendation does not stop the others.

A new leader continues from the checkpoint in each status; what was learned after the last write, at most
`--recommender-status-interval` (ten minutes), is lost. Memory: one model (two histograms, 3 kB) per container of a
Recommendation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.recommender.estimate import Estimate, estimate
from control.manager.recommender.eviction import choose
from control.manager.recommender.group import Group
from control.manager.recommender.lineage import Lineage
from control.manager.recommender.metrics import RecommenderMetrics
from control.manager.recommender.settings import ANNOTATION_MODE, GATE, Mode, RecommenderSettings, mode_of
from control.manager.recommender.status import Finding, compose, confident, due
from control.manager.recommender.targets import (
    PodIndex,
    UnsupportedTarget,
    controller,
    measured_container,
    target_of,
)
from control.manager.recommender.usage import UsageReport, read_report
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import to_builtins
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.kube import Conflict, KubeError, NotFound, TooManyRequests, merge_diff

log = get_logger(__name__)

PASS = "pass"
CHANGE_DELAY_S = 1.0
"""Delay between a change of a Recommendation and the pass, so that several changes cause one pass."""
YIELD_PODS = 100
"""Pods that are grouped before yielding to other tasks."""


class RecommenderController(ManagerController):
    """See the module docstring."""

    name = "recommender"

    def __init__(self, context: ManagerContext) -> None:
        super().__init__(context)
        self._enabled = context.gates.enabled(GATE)
        self._settings = RecommenderSettings.of(context.options)
        self._counters = RecommenderMetrics.of(context.internal)
        self._groups: dict[str, Group] = {}
        """by UID of the Recommendation"""
        self._seen: dict[str, float] = {}
        """node -> time of its last processed report"""
        if self._enabled:
            self._recommendations = context.caches.informer(Recommendation)
            self._pods = context.caches.informer(Pod)
            self._reports = context.caches.informer(NodeMetric)
            self._lineage = Lineage(context)

    def watch(self) -> None:
        if self._enabled:
            self._recommendations.add_handler(
                on_add=lambda _: self._soon(),
                on_update=lambda old, new: self._soon() if _user_fields(old) != _user_fields(new) else None,
                on_delete=lambda _: self._soon(),
            )
            self.queue.add(PASS)

    def _soon(self) -> None:
        self.queue.add_after(PASS, min(CHANGE_DELAY_S, self._settings.interval))

    async def reconcile(self, key: str) -> float | None:
        recommendations = [each for each in self._recommendations.list() if each.metadata.deletion_timestamp is None]
        self._count(recommendations)
        uids = {recommendation.metadata.uid for recommendation in recommendations}
        self._groups = {uid: group for uid, group in self._groups.items() if uid in uids}
        members = await self._members({recommendation.metadata.namespace for recommendation in recommendations})
        now = self.context.clock.now()
        reports = await self._new_reports(
            {pod.spec.node_name for pods in members.by_namespace.values() for pod in pods if pod.spec.node_name}, now
        )
        for recommendation in recommendations:
            try:
                await self._process(recommendation, members, reports, now)
            except KubeError as error:
                log.warning("Cannot update a Recommendation", name=recommendation.metadata.key, err=error)
            await yield_to_loop()
        self._counters.models.set(sum(len(group.models) for group in self._groups.values()))
        return self._settings.interval

    def _count(self, recommendations: Iterable[Recommendation]) -> None:
        counts = dict.fromkeys((*Mode, "Unsupported"), 0)
        for recommendation in recommendations:
            counts[mode_of(recommendation) or "Unsupported"] += 1
        for mode, count in counts.items():
            self._counters.recommendations.labels(str(mode)).set(count)

    async def _members(self, namespaces: set[str]) -> PodIndex:
        """The pods of these namespaces that have not terminated."""
        members = PodIndex()
        if not namespaces:
            return members
        for number, pod in enumerate(self._pods.list()):
            if number % YIELD_PODS == YIELD_PODS - 1:
                await yield_to_loop()
            namespace = pod.metadata.namespace
            if namespace in namespaces and pod.status.phase not in ("Succeeded", "Failed"):
                members.add(pod, self._lineage.of(namespace, pod.metadata))
        return members

    async def _new_reports(self, nodes: set[str], now: float) -> dict[str, UsageReport]:
        """The reports of these nodes that no earlier pass has processed, without stale ones and ones from the future,
        which are counted."""
        self._seen = {node: at for node, at in self._seen.items() if node in nodes}
        reports: dict[str, UsageReport] = {}
        for node in nodes:
            await yield_to_loop()
            metric = self._reports.get(node)
            updated = metric.status.update_time if metric is not None else None
            if metric is None or updated is None or updated.unix <= self._seen.get(node, float("-inf")):
                continue
            report, refused = read_report(metric, now)
            if report is None:
                self._counters.reports.labels(refused).inc()
                continue
            reports[node] = report
            self._seen[node] = report.at
        return reports

    async def _process(
        self,
        recommendation: Recommendation,
        members: PodIndex,
        reports: Mapping[str, UsageReport],
        now: float,
    ) -> None:
        mode, unsupported = mode_of(recommendation), ""
        if mode is None:
            value = recommendation.metadata.annotations[ANNOTATION_MODE]
            unsupported = f"metadata.annotations[{ANNOTATION_MODE}]: {value!r} is not one of {', '.join(Mode)}"
        pods: Sequence[Pod] = ()
        try:
            pods = members.of(recommendation.metadata.namespace, target_of(recommendation))
        except UnsupportedTarget as error:
            unsupported = str(error)
        group = self._group(recommendation)
        samples, kills = group.learn(pods, reports, now)
        self._counters.samples.inc(samples)
        self._counters.kills.inc(kills)
        results = [estimate(container, model, self._settings, now) for container, model in sorted(group.models.items())]
        estimates = [result for result in results if result is not None]
        finding = Finding(
            unsupported=unsupported,
            pods=len(pods),
            has_single_container=any(measured_container(pod) is not None for pod in pods),
            estimates=estimates,
            checkpoint=[model.checkpoint(container) for container, model in sorted(group.models.items())],
        )
        await self._write(recommendation, finding, now)
        if mode is Mode.AUTO and not unsupported:
            await self._replace(recommendation, group, pods, estimates, now)

    def _group(self, recommendation: Recommendation) -> Group:
        group = self._groups.get(recommendation.metadata.uid)
        if group is None:
            group, problems = Group.restore(recommendation.status.checkpoint, self._settings)
            self._groups[recommendation.metadata.uid] = group
            for problem in problems:
                self._counters.checkpoints.inc()
                log.warning("Ignoring an invalid checkpoint", name=recommendation.metadata.key, err=problem)
                text = f"{problem}; the model starts without history"
                self.context.events.warning(recommendation, "InvalidCheckpoint", text)
        return group

    async def _write(self, recommendation: Recommendation, finding: Finding, now: float) -> None:
        """Write the status if it is due. Raises KubeError, except for a conflict, which the next pass resolves."""
        meta, old = recommendation.metadata, recommendation.status
        new = compose(old, finding, self._settings, now, generation=meta.generation)
        if not due(old, new, self._settings, now):
            return
        result = "failed"
        try:
            await self.context.client.update_status(
                Recommendation,
                meta.name,
                meta.namespace,
                status=merge_diff(to_builtins(old), to_builtins(new)),
                resource_version=meta.resource_version,
            )
            result = "written"
        except (Conflict, NotFound):
            result = "conflict"  # the cached object is outdated; its watch event causes another pass
        finally:
            self._counters.writes.labels(result).inc()

    async def _replace(
        self,
        recommendation: Recommendation,
        group: Group,
        pods: Sequence[Pod],
        estimates: Sequence[Estimate],
        now: float,
    ) -> None:
        """Update mode Auto: evict pods whose requests are out of bounds. Only if admission would apply the new
        requests: the pod webhook is on, and the written status is confident already."""
        gates = self.context.gates
        if not (gates.enabled("WebhookFramework") and gates.enabled("PodMutatingWebhook")):
            return
        confidence = min((estimate.confidence for estimate in estimates), default=0.0)
        if confidence < 1 or not confident(recommendation.status):
            return
        by_controller: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            owner = controller(pod.metadata)
            if owner is not None:
                by_controller[owner.uid].append(pod)
        by_container = {estimate.container: estimate for estimate in estimates}
        for siblings in by_controller.values():
            choice = choose(siblings, by_container, self._settings, now, evicted_at=group.evicted_at)
            if choice.blocked:
                self.context.events.warning(recommendation, "NotApplied", choice.blocked)
            for pod in choice.pods:
                if not await self._evict(recommendation, group, pod):
                    break

    async def _evict(self, recommendation: Recommendation, group: Group, pod: Pod) -> bool:
        """Evict a pod. Whether to continue with the next pod of the same controller. Raises KubeError."""
        meta, result = pod.metadata, "failed"
        try:
            await self.context.client.evict(meta.name, meta.namespace, uid=meta.uid)
            result = "evicted"
        except TooManyRequests:
            result = "refused"
            name = recommendation.metadata.name
            log.info("A disruption budget prevents the eviction of a pod", pod=meta.key, recommendation=name)
            return False
        except (NotFound, Conflict):
            result = "gone"
            return True
        finally:
            self._counters.evictions.labels(result).inc()
        group.evicted_at = self.context.clock.now()
        log.info(
            "Evicted a pod to apply its recommended requests",
            pod=meta.key,
            recommendation=recommendation.metadata.name,
        )
        self.context.events.normal(
            recommendation, "PodEvicted", f"pod {meta.name} was evicted: its requests are outside of the bounds"
        )
        return True


def _user_fields(recommendation: Recommendation) -> tuple[int, str | None]:
    """The fields that users change: generation of the spec, update mode."""
    meta = recommendation.metadata
    return meta.generation, meta.annotations.get(ANNOTATION_MODE)
