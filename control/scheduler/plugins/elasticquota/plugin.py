"""The plugin: admission at PreFilter, preemption inside a quota, wake-ups, pages and controllers (spec 06 §5.8, §5.9).

What a pod uses is counted by the table (`book`), from the moment it is assumed until it is forgotten or deleted, so the
plugin needs neither Reserve nor Unreserve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from control.quota.admission import AdmissionRules, refusal
from control.quota.calls import plain_call
from control.quota.figures import RuntimeRules
from control.quota.forest import ForestRules
from control.quota.tree import MAX_DEPTH
from control.scheduler.config.args import ElasticQuotaArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PostFilterResult, PreFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable, unschedulable
from control.scheduler.plugins.defaultpreemption.preemption import Preemption
from control.scheduler.plugins.elasticquota import pages
from control.scheduler.plugins.elasticquota.book import PodRules, QuotaBook
from control.scheduler.plugins.elasticquota.controllers import OveruseRevoker, QuotaStatusWriter, create_built_in
from control.scheduler.plugins.elasticquota.hooks import QuotaHooks
from control.scheduler.plugins.elasticquota.metrics import QuotaGauges, QuotaMetrics
from control.scheduler.plugins.elasticquota.victims import QuotaVictims
from control.scheduler.plugins.results import PASS_ALL, SKIP_FILTER
from control.scheduler.state.pods import PodInfo
from koordlet.api.annotations.scheduling import quota_preemptible
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.gates import FeatureGates
from koordlet.app.periodic import Periodic

SYNC_PERIOD_S: Final = 1.0
NOTHING_TO_ADD: Final = PostFilterResult(unschedulable())


class ElasticQuotaPlugin(Plugin):
    """See the module text."""

    name: ClassVar[str] = "ElasticQuota"
    makes_room_itself = True

    def __init__(self, args: ElasticQuotaArgs | None, handle: Handle) -> None:
        super().__init__(args or ElasticQuotaArgs(), handle)
        self.args: ElasticQuotaArgs
        self._rules = AdmissionRules(self.args.enable_runtime_quota, self.args.enable_check_parent_quota)
        metrics = None if handle.client is None else QuotaMetrics.of(handle.client.registry)
        self.hooks = QuotaHooks(self.args.hook_plugins, handle, None if metrics is None else metrics.hooks.observe)
        self.book = QuotaBook(
            handle,
            *book_rules(self.args, handle.gates),
            hooks=self.hooks,
            call=plain_call if metrics is None else metrics.call,
        )
        policy = QuotaVictims(self.book, self.admits, spare_default=self.args.disable_default_quota_preemption)
        self._preemption = Preemption(handle, self.name, policy)
        self._informer = None if handle.objects is None else handle.objects.informer(ElasticQuota)
        self._tasks: list[Periodic] = []
        self._waiting: dict[str, PodInfo] = {}
        """By uid: pods that their quota did not admit."""
        if handle.client is not None:
            QuotaGauges.once(handle.client.registry, self.book.forest)

    def connect(self, runtime: PluginRuntime) -> None:
        super().connect(runtime)
        self._preemption.connect(runtime)

    # The cycle

    def interests(self) -> Sequence[EventInterest]:
        def may_help(pod: PodInfo, old: Any, new: Any) -> bool:
            return self.admits(pod).ok

        def quota_may_help(pod: PodInfo, old: Any, new: Any) -> bool:
            # A status is written every second, and each write is an event for every group of waiting pods.
            return (new is None or new is not self.book.output_change) and self.admits(pod).ok

        return (
            EventInterest("AssignedPod", frozenset({"Delete", "ScaleDown", "Label", "Update"}), may_help),
            EventInterest("UnscheduledPod", frozenset({"Label", "ScaleDown"}), may_help),
            EventInterest("ElasticQuota", hint=quota_may_help),
            EventInterest("Node", frozenset({"Add", "Delete", "Allocatable"}), may_help),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        status = self.admits(pod)
        if status.ok:
            self._waiting.pop(pod.uid, None)
            return SKIP_FILTER if self.book.quota_of(pod) is None else PASS_ALL
        if not state.trial:
            self._waiting[pod.uid] = pod
        return PreFilterResult(status)

    def admits(self, pod: PodInfo) -> PluginStatus:
        """Whether the pod's quota admits it beside the pods that the table counts now."""
        book = self.book
        quota = book.quota_of(pod)
        if quota is None:
            return SUCCESS
        tree = book.forest.tree(quota)
        if not quota.attached:
            return unresolvable(
                f"Could not find the parents of ElasticQuota {quota.name}: parent {quota.info.parent} does not exist, "
                f"or is one of its descendants, or there are more than {MAX_DEPTH} levels"
            )
        reason = refusal(
            tree,
            quota,
            book.request_of(pod.shape),
            self._rules,
            non_preemptible=not quota_preemptible(pod.shape.labels),
            further=lambda: self.hooks.refusal(quota.name, pod.pod),
        )
        return unschedulable(reason) if reason else SUCCESS

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        refused = failure.pre_filter is not None and failure.pre_filter.plugin == self.name
        if not refused and not self._preemption.policy.rows(pod):
            return NOTHING_TO_ADD  # no node fits, and evicting pods of the quota would not help
        return self._preemption.post_filter(state, pod, failure)

    # Controllers

    async def start(self) -> None:
        client, informer, args, clock = self.handle.client, self._informer, self.args, self.handle.clock
        if client is None or informer is None:
            return
        await create_built_in(client, informer, args)
        writer = QuotaStatusWriter(client, informer, self.book, QuotaMetrics.of(client.registry), self.hooks)
        registry = client.registry
        self._tasks = [
            Periodic("elasticquota-pods", SYNC_PERIOD_S, self.catch_up, clock=clock, registry=registry),
            Periodic("elasticquota-status", SYNC_PERIOD_S, writer.sync, clock=clock, registry=registry),
        ]
        if args.monitor_all_quotas and args.enable_runtime_quota:
            revoker = OveruseRevoker(client, self.book, args, clock)
            period = args.revoke_pod_interval.seconds or SYNC_PERIOD_S
            self._tasks.append(Periodic("elasticquota-revoke", period, revoker.revoke, clock=clock, registry=registry))
        for task in self._tasks:
            await task.start()

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await task.stop()

    def catch_up(self) -> None:
        """Handle what no event announces: terminating pods that have passed their deadline, and changed or deleted pods
        without nodes, after which others may be admitted."""
        self.book.drop_expired()
        waiting = {uid: pod for uid, pod in self._waiting.items() if self.runtime.queue.pending(pod.key) is not None}
        self._waiting = waiting
        if not self.book.requests_dropped:
            return
        self.book.requests_dropped = False
        admitted: dict[int, bool] = {}
        for pod in waiting.values():
            number = pod.shape.id
            if number not in admitted:
                admitted[number] = self.admits(pod).ok
        self.runtime.queue.activate([pod.key for pod in waiting.values() if admitted[pod.shape.id]])

    # Pages

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"quotas": self.quotas_page, "quotas/{name}": self.quota_page}

    def quota_page(self, name: str, **query: str) -> dict[str, Any]:
        """Raises LookupError for an unknown quota."""
        forest = self.book.forest
        quota = forest.get(name)
        if quota is None:
            raise LookupError(f"cannot find quota {name}")
        return pages.page(forest.tree(quota), quota, forest.version, pods=query.get("includePods") == "true")

    def quotas_page(self, **query: str) -> dict[str, Any]:
        return pages.pages(self.book.forest, query.get("tree", ""), pods=query.get("includePods") == "true")


def book_rules(args: ElasticQuotaArgs, gates: FeatureGates | None) -> tuple[ForestRules, PodRules]:
    """How pods and quotas are counted, from arguments and feature gates."""

    def on(gate: str) -> bool:
        return gates is not None and gates.enabled(gate)

    forest = ForestRules(
        RuntimeRules(args.enable_min_quota_scale, on("ElasticQuotaGuaranteeUsage")),
        multiple_trees=on("MultiQuotaTree"),
        default_disabled=on("DisableDefaultQuota"),
    )
    pods = PodRules(
        ignore_overhead=on("ElasticQuotaIgnorePodOverhead"),
        ignore_terminating=on("ElasticQuotaIgnoreTerminatingPod"),
        ignore_terminating_at_once=on("ElasticQuotaImmediateIgnoreTerminatingPod"),
    )
    return forest, pods
