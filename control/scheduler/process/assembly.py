"""One scheduler put together: profiles from settings, over one table, one cache and one queue (spec 05 §1.3).

scheduler = Assembly(settings, ...)      # plugins exist, informers are asked for
await scheduler.objects.start(); await scheduler.objects.synced()
await scheduler.schedule()               # while leading; ends by cancellation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

from control.scheduler.audit.auditor import Auditor
from control.scheduler.audit.workload import AuditMetrics, Limits
from control.scheduler.config.args import ARGS
from control.scheduler.config.load import Settings
from control.scheduler.config.plugins import DEFAULT_PLUGINS
from control.scheduler.cycle.batch import BatchMetrics, InlineBatch
from control.scheduler.cycle.cycle import Cycle, Placement
from control.scheduler.cycle.extenders import PLUGIN as EXTENDER
from control.scheduler.cycle.extenders import Extenders
from control.scheduler.cycle.loop import Loop
from control.scheduler.cycle.monitor import Monitor
from control.scheduler.cycle.reporter import UserReporter
from control.scheduler.cycle.victimdeletion import BackgroundEvictor
from control.scheduler.explain.controller import Explanations
from control.scheduler.explain.debugflags import Debug, TalkingCycle
from control.scheduler.explain.diagnosis import Diagnoses
from control.scheduler.explain.podreport import explain
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import Interest, Plugin
from control.scheduler.framework.profile import POINTS, Framework
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.process.metrics import BindingTimes, SchedulerMetrics, StateGauges
from control.scheduler.process.options import Options, enabled
from control.scheduler.queue import Feed, QueueProfile, SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.eventhandlers import Watching
from control.scheduler.state.objects import StoreObjects
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from koordlet.api.names import LABEL_QUESTIONED_OBJECT_KEY
from koordlet.api.pages.placement import PodPlacement
from koordlet.app.gates import FeatureGates
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.kube import Client, EventRecorder

log = get_logger(__name__)

PROMISED: Final = frozenset((*ARGS, *DEFAULT_PLUGINS))
"""Names that are no mistake in a configuration, built or not."""

SHAPES_SECONDS: Final = 300.0
"""How often shapes without pods are forgotten: every ReplicaSet and Job has its own."""


def implements(plugin: str, point: str) -> bool:
    """Whether a plugin of this build does anything at an extension point."""
    kind = PLUGINS[plugin]
    return any(getattr(kind, method) is not getattr(Plugin, method) for method in POINTS[point])


class WatchedLoop(Loop):
    """The loop, with every attempt told to the monitor."""

    monitor: Monitor

    def schedule(self, pod: PodInfo) -> Placement | None:
        self.monitor.taken(pod)
        self.monitor.started(pod)
        placement = super().schedule(pod)
        if placement is None:
            self.monitor.complete(pod)
        return placement


class Assembly:
    """See the module text."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        gates: FeatureGates,
        client: Client,
        events: EventRecorder,
        registry: CollectorRegistry,
    ) -> None:
        self.settings, self.options = settings, options
        self._client, self._clock, self._registry = client, client.clock, registry
        self.table, self.shapes = NodeTable(), Shapes()
        self.counters = PodCounters(self.table)
        self.cache = Cache(self.table, self.shapes)
        self.waiting = WaitingPods(self._clock)
        self.objects = StoreObjects(client, gates)
        self._pods = self.objects.informer(Pod)
        self.metrics = SchedulerMetrics.of(registry)
        self.watching = Watching(self.objects, self.cache, self.metrics.handled.observe)
        self.auditor: Auditor | None = None
        self.evictor = BackgroundEvictor(
            client, events, self._clock, self.metrics.eviction_failures, self._evicted, self._evicting
        )
        self.frameworks: dict[str, Framework] = {}
        for profile in settings.profiles:
            handle = Handle(
                self.table, self.shapes, self.counters, profile=profile.name, clock=self._clock, gates=gates,
                client=client, events=events, objects=self.objects, waiting=self.waiting, evictor=self.evictor,
                preempting=self.metrics.preempting,
            )  # fmt: skip
            self.frameworks[profile.name] = Framework(
                handle, profile.enabled.points, PLUGINS, args=profile.args, weights=profile.enabled.weights,
                percentage=profile.percentage,
            )  # fmt: skip
            for name in profile.left_out:
                log.warning("Profile enables a plugin that this build lacks", profile=profile.name, plugin=name)
        given = settings.configuration
        extended = bool(given.extenders)
        self.queue = SchedulingQueue(
            {name: _queue_profile(framework, extended=extended) for name, framework in self.frameworks.items()},
            self._clock.monotonic,
            initial_backoff=given.pod_initial_backoff_seconds,
            max_backoff=given.pod_max_backoff_seconds,
            leftover_seconds=options.pod_max_in_unschedulable_pods_duration,
            incoming=lambda queue, event: self.metrics.incoming.labels(queue, event).inc(),
            hint_timed=self.metrics.hints.observe,
        )
        for framework in self.frameworks.values():
            framework.handle.queue = self.queue
        self.monitor = Monitor(
            self._clock.monotonic,
            lambda profile: self.metrics.timeouts.labels(profile).inc(),
            timeout=options.scheduling_timeout,
            unhandled=options.scheduling_drop_unhandled_timeout,
        )
        self.reporter = UserReporter(
            client, events, self.metrics, self.monitor, self._clock, self._pods.get, log_failures=options.debug_filters
        )
        self.diagnoses = Diagnoses(
            self._clock, on=options.debug_diagnosis, blocking=options.debug_diagnosis_blocking,
            limit=options.debug_diagnosis_queue_size, workers=options.debug_diagnosis_worker_count,
        )  # fmt: skip
        self.debug = Debug(self.diagnoses, options.debug_scores)
        cycles = {
            name: TalkingCycle(framework, self.cache, self.waiting) for name, framework in self.frameworks.items()
        }
        for cycle in cycles.values():
            cycle.debug = self.debug
            cycle.probe = self.metrics.probe(cycle.framework)
            if gates.enabled("EnableInlineBatchSchedule"):
                cycle.batch = InlineBatch(cycle, BatchMetrics.of(registry))
            self.metrics.evaluations.add(cycle.framework, cycle.evaluations)
        self.loop = WatchedLoop(
            cycles, self.cache, self.queue, clock=self._clock, reporter=self.reporter, current=self._pods.get
        )
        self.loop.monitor = self.monitor
        self.extenders = Extenders(given.extenders, registry) if extended else None
        self.loop.extenders = self.extenders
        for name, binder in self.loop.binders.items():
            self.metrics.timeouts.labels(name)  # from 0 on, so that the first one is an increase
            binder.timings = BindingTimes(self.metrics, name)
            binder.extenders = self.extenders
        self._audit(options)
        self.feed = Feed(self.queue, clock=self._clock, registry=registry)
        self.watching.route(self.queue, self.frameworks, lambda uid: self.waiting.reject(uid, "", "removed"))
        self._gauges()

    @cached_property
    def plugins(self) -> Mapping[str, Plugin]:
        """Each plugin once, the first profile's where several have it."""
        found: dict[str, Plugin] = {}
        for framework in self.frameworks.values():
            for name, plugin in framework.plugins.items():
                found.setdefault(name, plugin)
        return found

    def explain(self, namespace: str, pod: str) -> PodPlacement:
        """Why a pod is, or would be, where it is. Raises LookupError for one that is neither queued nor counted."""
        key = f"{namespace}/{pod}"
        info, state = self.queue.pending(key), "placed"
        record = self.queue.record(info.uid) if info is not None else None
        if info is not None and record is not None:
            state = "gated" if record.gated_by else record.place.value
        else:
            info = self._known(key)
        cycle = self.loop.cycles.get(info.shape.scheduler) if info is not None else None
        if info is None or cycle is None:
            raise LookupError(f"no pod {key} is scheduled here")
        found = explain(cycle, info, "assumed" if info.assumed else state)
        if record is not None:
            found.gated_by, found.rejected_by = record.gated_by, sorted(record.rejected_by)
        return found

    def asked_about(self, key: str) -> tuple[Cycle, list[PodInfo]] | None:
        """The pods that a ScheduleExplanation asks about: one pod, a gang or group of gangs, or a job."""
        keys = [key]
        for plugin in (framework.plugins.get(Coscheduling.name) for framework in self.frameworks.values()):
            if isinstance(plugin, Coscheduling):
                keys += plugin.members(key)
        pods = [info for one in dict.fromkeys(keys) if (info := self._known(one)) is not None]
        if not pods:  # a job is known by what its pods say
            pods = [pod for pod in self.queue.pods() if pod.shape.labels.get(LABEL_QUESTIONED_OBJECT_KEY) == key]
        cycle = self.loop.cycles.get(pods[0].shape.scheduler) if pods else None
        return None if cycle is None else (cycle, pods)

    def _known(self, key: str) -> PodInfo | None:
        """A pod that is queued or counted, by `namespace/name`."""
        pod = self._pods.get(key)
        if pod is None:
            return None
        record = self.queue.record(pod.metadata.uid)
        return record.pod if record is not None else self.cache.pods.get(pod.metadata.uid)

    async def schedule(self) -> None:
        """Run controllers of plugins and the loop; everything is stopped again at the end."""
        sweep = Periodic(
            "scheduler-monitor", self.options.scheduler_monitor_period, self.monitor.sweep, immediate=False,
            clock=self._clock, registry=self._registry,
        )  # fmt: skip
        controllers = [p for name, p in self.plugins.items() if enabled(name, self.options.controller_plugins)]
        shapes = Periodic(
            "scheduler-shapes", SHAPES_SECONDS, self.forget_shapes, immediate=False, clock=self._clock,
            registry=self._registry,
        )  # fmt: skip
        explanations = Explanations(self._client, self.asked_about)
        services: list[_Startable] = [
            *([self.extenders] if self.extenders is not None else []),
            self.reporter, self.diagnoses, self.feed, sweep, shapes, explanations, *controllers,
        ]  # fmt: skip
        log.info("Scheduling begins", nodes=self.table.nodes_alive, pods=len(self.cache.pods), **self.queue.counts())
        try:
            for service in services:
                await service.start()
            await self.loop.run(self.feed)
        finally:
            for binder in self.loop.binders.values():
                await binder.stop()
            await self.evictor.stop()
            for service in reversed(services):
                await service.stop()

    def forget_shapes(self) -> None:
        """Forget what was compiled, and is counted, for pods that are gone; due every few minutes."""
        used = {pod.shape.id for pod in self.cache.pods.values()}
        used.update(pod.shape.id for pod in self.queue.pods())
        self.shapes.keep(used)
        self.counters.drop_unused()

    def _audit(self, options: Options) -> None:
        """Follow workloads, if told to; the families are there all the same."""
        labels = [one.strip() for one in options.workload_auditor_metric_labels.split(",") if one.strip()]
        metrics = AuditMetrics(self._registry, labels)
        if not options.enable_workload_auditor:
            return
        limits = Limits(
            options.workload_auditor_victim_reschedule_duration,
            options.workload_auditor_victim_deletion_duration,
            options.workload_auditor_victim_deleting_retries,
            options.workload_auditor_scheduling_event_interval,
        )
        auditor = Auditor(self._clock, metrics, self.frameworks, self._group_of, limits=limits, labels=labels)
        self.auditor = self.reporter.auditor = auditor
        for cycle in self.loop.cycles.values():
            cycle.framework.handle.auditor = auditor
            if isinstance(cycle, TalkingCycle):
                cycle.auditor = auditor
        self._pods.add_handler(auditor.pod_added, auditor.pod_updated, auditor.pod_deleted)

    def _group_of(self, pod: Pod) -> tuple[str, bool] | None:
        framework = self.frameworks.get(pod.spec.scheduler_name)
        plugin = framework.plugins.get(Coscheduling.name) if framework is not None else None
        return plugin.group_of(pod) if isinstance(plugin, Coscheduling) else None

    def _evicting(self, by: PodInfo, victims: Sequence[PodInfo]) -> None:
        if self.auditor is not None:
            self.auditor.evicting(by, victims)

    def _evicted(self, uid: str) -> None:
        """All deletions for a preemptor are through: it may be tried again."""
        record = self.queue.record(uid)
        if record is not None:
            self.queue.activate([record.pod.key])

    def _gauges(self) -> None:
        gauges = StateGauges(self._registry)
        gauges.add("pending_pods", "Pods in the queue.", ("queue",), lambda: _by_one(self.queue.counts()))
        gauges.add(
            "unschedulable_pods", "Waiting pods that a plugin rejected.", ("plugin", "profile"),
            lambda: dict(self.queue.rejected_counts()),
        )  # fmt: skip
        gauges.add("cache_size", "Objects in the cache.", ("type",), lambda: _by_one(self._cached()))
        gauges.add(
            "goroutines", "Tasks of the scheduler.", ("operation",),
            lambda: {("binding",): sum(len(binder) for binder in self.loop.binders.values())},
        )  # fmt: skip
        gauges.add("inflight_events", "Events kept for attempts.", (), lambda: {(): self.queue.inflight_events})

    def _cached(self) -> dict[str, int]:
        return {
            "nodes": self.table.nodes_alive,
            "pods": len(self.cache.pods),
            "assumed_pods": len(self.cache.assumed),
            "shapes": len(self.shapes),
            "counters": len(self.counters),
        }


class _Startable(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _queue_profile(framework: Framework, *, extended: bool) -> QueueProfile:
    if framework.sort is None:
        raise ValueError(f"profile {framework.name} has no queueSort plugin")
    made = QueueProfile.of(framework.sort, framework.pre_enqueue, framework.plugins.values())
    if extended:  # they name no events: any may have changed their minds
        made = replace(made, interests={**made.interests, EXTENDER: [Interest("*")]})
    return made


def _by_one(values: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}
