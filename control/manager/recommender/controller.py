"""The controller `recommender` (gate Recommender): looks at all Recommendations once an interval, on the leader.

One pass: the pods of every namespace with a Recommendation are put into groups, each group's models learn from the
NodeMetrics that are new since the last pass and from kills in the pods' statuses, statuses that moved are written, and
for update mode Auto pods that are far off are evicted. A report counts once, by its own time, however often passes
come. What a pass can't write is tried in the next; a Recommendation that fails does not stop the others.

A new leader goes on from the checkpoint in each status: what was learned since its last write, ten minutes at most, is
learned anew from what comes. Bounds: one model (two histograms, 3 kB) a container of a Recommendation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.recommender.estimate import Estimate, estimate
from control.manager.recommender.eviction import choose
from control.manager.recommender.group import Group
from control.manager.recommender.groups import (
    Members,
    UnsupportedTarget,
    controller,
    measured_container,
    target_of,
)
from control.manager.recommender.lineage import Lineage
from control.manager.recommender.metrics import RecommenderMetrics
from control.manager.recommender.settings import ANNOTATION_MODE, GATE, Mode, Settings, mode_of
from control.manager.recommender.status import Finding, compose, confident, due
from control.manager.recommender.usage import Report, read_report
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import to_builtins
from koordlet.app.logging import get_logger
from koordlet.app.turns import give_way
from koordlet.kube import Conflict, KubeError, NotFound, TooManyRequests, merge_diff

log = get_logger(__name__)

PASS = "pass"
AGAIN_SECONDS = 1.0
"""After a Recommendation changed: several changes make one pass."""
YIELD_EVERY = 100
"""Pods put into groups before others may have their turn."""


class RecommenderController(Controller):
    """See the module text."""

    name = "recommender"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._enabled = context.gates.enabled(GATE)
        self._settings = Settings.of(context.options)
        self._counters = RecommenderMetrics.of(context.internal)
        self._groups: dict[str, Group] = {}
        """by UID of the Recommendation"""
        self._seen: dict[str, float] = {}
        """node -> time of its report that was used last"""
        if self._enabled:
            self._recommendations = context.caches.informer(Recommendation)
            self._pods = context.caches.informer(Pod)
            self._reports = context.caches.informer(NodeMetric)
            self._lineage = Lineage(context)

    def watch(self) -> None:
        if self._enabled:
            self._recommendations.add_handler(
                on_add=lambda _: self._soon(),
                on_update=lambda old, new: self._soon() if _said(old) != _said(new) else None,
                on_delete=lambda _: self._soon(),
            )
            self.queue.add(PASS)

    def _soon(self) -> None:
        self.queue.add_after(PASS, min(AGAIN_SECONDS, self._settings.interval))

    async def reconcile(self, key: str) -> float | None:
        wanted = [each for each in self._recommendations.list() if each.metadata.deletion_timestamp is None]
        self._count(wanted)
        present = {each.metadata.uid for each in wanted}
        self._groups = {uid: group for uid, group in self._groups.items() if uid in present}
        members = await self._members({each.metadata.namespace for each in wanted})
        now = self.context.clock.now()
        reports = await self._new_reports(
            {pod.spec.node_name for pods in members.by_namespace.values() for pod in pods if pod.spec.node_name}, now
        )
        for recommendation in wanted:
            try:
                await self._one(recommendation, members, reports, now)
            except KubeError as error:
                log.warning("Recommendation not brought up to date", name=recommendation.metadata.key, err=error)
            await give_way()
        self._counters.models.set(sum(len(group.models) for group in self._groups.values()))
        return self._settings.interval

    def _count(self, wanted: Iterable[Recommendation]) -> None:
        counts = dict.fromkeys((*Mode, "Unsupported"), 0)
        for each in wanted:
            counts[mode_of(each) or "Unsupported"] += 1
        for mode, count in counts.items():
            self._counters.recommendations.labels(str(mode)).set(count)

    async def _members(self, namespaces: set[str]) -> Members:
        """The pods of these namespaces that have not ended."""
        found = Members()
        if not namespaces:
            return found
        for number, pod in enumerate(self._pods.list()):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await give_way()
            namespace = pod.metadata.namespace
            if namespace in namespaces and pod.status.phase not in ("Succeeded", "Failed"):
                found.add(pod, self._lineage.of(namespace, pod.metadata))
        return found

    async def _new_reports(self, nodes: set[str], now: float) -> dict[str, Report]:
        """Of each node the report that no pass has used; what is stale or from the future is counted and left."""
        self._seen = {node: at for node, at in self._seen.items() if node in nodes}
        found: dict[str, Report] = {}
        for node in nodes:
            await give_way()
            metric = self._reports.get(node)
            updated = metric.status.update_time if metric is not None else None
            if metric is None or updated is None or updated.unix <= self._seen.get(node, float("-inf")):
                continue
            report, refused = read_report(metric, now)
            if report is None:
                self._counters.reports.labels(refused).inc()
                continue
            found[node] = report
            self._seen[node] = report.at
        return found

    async def _one(
        self,
        recommendation: Recommendation,
        members: Members,
        reports: Mapping[str, Report],
        now: float,
    ) -> None:
        mode, unsupported = mode_of(recommendation), ""
        if mode is None:
            told = recommendation.metadata.annotations[ANNOTATION_MODE]
            unsupported = f"metadata.annotations[{ANNOTATION_MODE}]: {told!r} is none of {', '.join(Mode)}"
        pods: Sequence[Pod] = ()
        try:
            pods = members.of(recommendation.metadata.namespace, target_of(recommendation))
        except UnsupportedTarget as error:
            unsupported = str(error)
        group = self._group(recommendation)
        taken, kills = group.learn(pods, reports, now)
        self._counters.samples.inc(taken)
        self._counters.kills.inc(kills)
        estimates = [
            found
            for container, model in sorted(group.models.items())
            if (found := estimate(container, model, self._settings, now)) is not None
        ]
        finding = Finding(
            unsupported=unsupported,
            pods=len(pods),
            apart=any(measured_container(pod) is not None for pod in pods),
            estimates=estimates,
            checkpoint=[model.checkpoint(container) for container, model in sorted(group.models.items())],
        )
        await self._write(recommendation, finding, now)
        if mode is Mode.AUTO and not unsupported:
            await self._replace(recommendation, group, pods, estimates, now)

    def _group(self, recommendation: Recommendation) -> Group:
        found = self._groups.get(recommendation.metadata.uid)
        if found is None:
            found, problems = Group.restore(recommendation.status.checkpoint, self._settings)
            self._groups[recommendation.metadata.uid] = found
            for problem in problems:
                self._counters.checkpoints.inc()
                log.warning("Checkpoint not used", name=recommendation.metadata.key, err=problem)
                self.context.events.warning(recommendation, "InvalidCheckpoint", f"{problem}; it is learned anew")
        return found

    async def _write(self, recommendation: Recommendation, finding: Finding, now: float) -> None:
        """Write the status where that is due. Raises KubeError but for what the next pass sets right."""
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
            result = "conflict"  # changed or gone since the cache heard of it, which brings us back
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
        """Update mode Auto. Only what the status says already and admission would give: no evictions ahead of it."""
        gates = self.context.gates
        if not (gates.enabled("WebhookFramework") and gates.enabled("PodMutatingWebhook")):
            return
        if not estimates or min(each.confidence for each in estimates) < 1 or not confident(recommendation.status):
            return
        by_controller: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            owner = controller(pod.metadata)
            if owner is not None:
                by_controller[owner.uid].append(pod)
        known = {each.container: each for each in estimates}
        for siblings in by_controller.values():
            choice = choose(siblings, known, self._settings, now, evicted_at=group.evicted_at)
            if choice.blocked:
                self.context.events.warning(recommendation, "NotApplied", choice.blocked)
            for pod in choice.pods:
                if not await self._evict(recommendation, group, pod):
                    break

    async def _evict(self, recommendation: Recommendation, group: Group, pod: Pod) -> bool:
        """Whether to go on with the next pod of the same controller. Raises KubeError."""
        meta, result = pod.metadata, "failed"
        try:
            await self.context.client.evict(meta.name, meta.namespace, uid=meta.uid)
            result = "evicted"
        except TooManyRequests:
            result = "refused"
            log.info("A disruption budget keeps a pod", pod=meta.key, recommendation=recommendation.metadata.name)
            return False
        except (NotFound, Conflict):
            result = "gone"
            return True
        finally:
            self._counters.evictions.labels(result).inc()
        group.evicted_at = self.context.clock.now()
        log.info("Pod evicted, to come back as recommended", pod=meta.key, recommendation=recommendation.metadata.name)
        self.context.events.normal(
            recommendation, "PodEvicted", f"pod {meta.name} was evicted: its requests are outside of the bounds"
        )
        return True


def _said(recommendation: Recommendation) -> tuple[int, str | None]:
    """What a person changes."""
    meta = recommendation.metadata
    return meta.generation, meta.annotations.get(ANNOTATION_MODE)
