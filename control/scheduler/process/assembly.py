"""Builds one scheduler: the profiles of the settings over one table, one cache and one queue (spec 05 §1.3).

    scheduler = Assembly(settings, ...)      # plugins exist, informers are created
    await scheduler.objects.start(); await scheduler.objects.synced()
    await scheduler.schedule()               # while leading; ends by cancellation

The order of construction follows the dependencies: state, plugins, queue, then cycles, which connect the plugins to
the queue, then the loop. Every part receives its collaborators when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry

from control.scheduler.config.args import ReservationArgs
from control.scheduler.config.load import SchedulerSettings
from control.scheduler.cycle.batch import BatchMetrics, InlineBatch
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.extenders import Extenders
from control.scheduler.cycle.loop import Loop
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.podsubject import PodSubject
from control.scheduler.cycle.reporter import UserReporter
from control.scheduler.cycle.victimdeletion import BackgroundEvictor
from control.scheduler.explain.controller import ExplanationController
from control.scheduler.explain.debugging import DebugOutput
from control.scheduler.explain.diagnosis import Diagnoses
from control.scheduler.explain.lookup import PodLookup
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.timing import sampled
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.plugins.coscheduling.topologystatus import TopologyStatusWriter
from control.scheduler.plugins.deviceshare import DeviceShare
from control.scheduler.process.auditing import build_auditor
from control.scheduler.process.metrics import BindingTimes, SchedulerMetrics, StateGauges
from control.scheduler.process.options import SchedulerOptions, enabled
from control.scheduler.process.profiles import build_frameworks, plugins_once, queue_profiles
from control.scheduler.queue import Feed, SchedulingQueue
from control.scheduler.reservationcontrol import ReservationController
from control.scheduler.state.cache import Cache
from control.scheduler.state.eventhandlers import ClusterEventHandlers
from control.scheduler.state.foreignnominations import ForeignNominations
from control.scheduler.state.objects import TEMPLATES_CONFIG, ClusterObjects
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.subjects import Subjects
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Node, Pod
from koordlet.api.crs.networktopology import ClusterNetworkTopology
from koordlet.api.crs.reservation import Reservation
from koordlet.app.gates import FeatureGates
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.kube import Client, EventRecorder

log = get_logger(__name__)

SHAPES_PERIOD_S = 300.0


def _templates_config(settings: SchedulerSettings) -> str:
    """The name of the ConfigMap with templates of shared GPUs: that of the first profile with DeviceShare."""
    configured = [profile.args[DeviceShare.name] for profile in settings.profiles if DeviceShare.name in profile.args]
    return configured[0].gpu_shared_resource_templates_config.config_map_name if configured else TEMPLATES_CONFIG


"""How often shapes without pods are dropped: every ReplicaSet and Job has its own shape."""


class Assembly:
    """See the module text."""

    def __init__(
        self,
        settings: SchedulerSettings,
        options: SchedulerOptions,
        gates: FeatureGates,
        client: Client,
        events: EventRecorder,
        registry: CollectorRegistry,
    ) -> None:
        self.settings = settings
        self.options = options
        self._client = client
        self._clock = client.clock
        self._registry = registry
        self.metrics = SchedulerMetrics.of(registry)

        # State
        self.table = NodeTable()
        self.shapes = Shapes()
        self.counters = PodCounters(self.table)
        self.cache = Cache(self.table, self.shapes)
        self.waiting = WaitingPods(self._clock)
        self.foreign = ForeignNominations()
        self.objects = ClusterObjects(client, gates, _templates_config(settings))
        pods = self.objects.informer(Pod)
        pod_subject = PodSubject(client, self._clock, pods.get)
        self.subjects = Subjects(pod_subject)
        handlers = ClusterEventHandlers(self.objects, self.cache, self.metrics.handled.observe)

        # Plugins and queue
        self.frameworks = build_frameworks(
            settings,
            lambda profile: Handle(
                self.table,
                self.shapes,
                self.counters,
                profile=profile,
                clock=self._clock,
                gates=gates,
                client=client,
                objects=self.objects,
                subjects=self.subjects,
                follow=handlers.follow,
                foreign=self.foreign,
                waiting=self.waiting,
                observe_preemption=self.metrics.observe_preemption,
            ),
        )
        self.plugins = plugins_once(self.frameworks)
        self.reservations = self._reservation_controller(gates)
        self.topology_status = self._topology_status()
        configuration = settings.configuration
        self.extenders = Extenders(configuration.extenders, registry) if configuration.extenders else None
        self.queue = SchedulingQueue(
            queue_profiles(
                self.frameworks, with_extenders=self.extenders is not None, timed=sampled(self.metrics.plugins.observe)
            ),
            self._clock.monotonic,
            initial_backoff=configuration.pod_initial_backoff_seconds,
            max_backoff=configuration.pod_max_backoff_seconds,
            leftover_seconds=options.pod_max_in_unschedulable_pods_duration,
            incoming=lambda queue, event: self.metrics.incoming.labels(queue, event).inc(),
            hint_timed=self.metrics.hints.observe,
        )
        self.feed = Feed(self.queue, clock=self._clock, registry=registry)

        # Observers, cycles and loop
        self.auditor = build_auditor(options, self.frameworks, self._clock, registry)
        self.evictor = BackgroundEvictor(
            client,
            events,
            self._clock,
            self.metrics.eviction_failures,
            finished=self._victims_deleted,
            on_evict=self.auditor.evicting if self.auditor is not None else None,
        )
        self.monitor = AttemptMonitor(
            self._clock.monotonic,
            lambda profile: self.metrics.timeouts.labels(profile).inc(),
            timeout=options.scheduling_timeout,
        )
        self.reporter = UserReporter(
            self.subjects,
            events,
            self.metrics,
            self.monitor,
            self._clock,
            auditor=self.auditor,
            log_failures=options.debug_filters,
        )
        self.diagnoses = Diagnoses(
            self._clock,
            on=options.debug_diagnosis,
            blocking=options.debug_diagnosis_blocking,
            limit=options.debug_diagnosis_queue_size,
            workers=options.debug_diagnosis_worker_count,
        )
        self.debug = DebugOutput(self.diagnoses, options.debug_scores)
        batch = InlineBatch(BatchMetrics.of(registry)) if gates.enabled("EnableInlineBatchSchedule") else None
        self.loop = Loop(
            {name: self._cycle(framework, batch) for name, framework in self.frameworks.items()},
            self.cache,
            self.queue,
            clock=self._clock,
            reporter=self.reporter,
            current=self.subjects.current,
            extenders=self.extenders,
            timings={name: BindingTimes(self.metrics, name) for name in self.frameworks},
            taken=lambda seconds: self.metrics.next_pod.observe((), seconds),
            expect=pod_subject.expect,
            timed=sampled(self.metrics.plugins.observe),
        )
        self.lookup = PodLookup(self.frameworks, self.queue, self.cache, pods.get)

        # Events: the auditor before the queue, so that it knows a pod before its first attempt
        if self.auditor is not None:
            pods.add_handler(self.auditor.pod_added, self.auditor.pod_updated, self.auditor.pod_deleted)
        if gates.enabled("CrossSchedulerNomination"):
            pods.add_handler(
                *self.foreign.handlers(self.frameworks.keys(), self.shapes.info, handlers.foreign_nomination_lost)
            )
        handlers.route(self.queue, self.frameworks, lambda uid: self.waiting.reject(uid, "", "removed"))
        self._add_gauges()

    def _cycle(self, framework: Framework, batch: InlineBatch | None) -> Cycle:
        cycle = Cycle(
            framework,
            self.cache,
            self.waiting,
            queue=self.queue,
            evictor=self.evictor,
            auditor=self.auditor,
            batch=batch,
            timer=self.metrics.timer(framework),
            observers=[self.auditor, self.debug] if self.auditor is not None else [self.debug],
        )
        self.metrics.evaluations.add(framework, cycle.evaluations)
        self.metrics.timeouts.labels(framework.name)  # creates the series, so that rate() sees the first timeout
        return cycle

    def _reservation_controller(self, gates: FeatureGates) -> ReservationController | None:
        """The controller of Reservations, if a profile enables their plugin."""
        plugin = self.plugins.get("Reservation")
        if plugin is None or not enabled(plugin.name, self.options.controller_plugins):
            return None
        return ReservationController(
            self._client,
            self.objects.informer(Reservation),
            self.objects.informer(Pod),
            self.objects.informer(Node),
            plugin.args if isinstance(plugin.args, ReservationArgs) else ReservationArgs(),
            clean_owners=gates.enabled("CleanExpiredReservationAllocated"),
        )

    def _topology_status(self) -> TopologyStatusWriter | None:
        if not self.options.enable_network_topology_manager:
            return None
        objects = self.objects
        return TopologyStatusWriter(self._client, objects.informer(ClusterNetworkTopology), objects.informer(Node))

    def _victims_deleted(self, pod: PodInfo, incomplete: bool) -> None:
        """All deletion calls for a preemptor have returned. It waits until a victim is gone, unless none may go any
        more, or an event came while PreEnqueue kept the pod out of the queue."""
        record = self.queue.record(pod.uid)
        if record is not None and (incomplete or record.gated_by):
            self.queue.activate([pod.key])

    async def schedule(self) -> None:
        """Run the plugins' controllers and the loop. Everything is stopped again at the end."""
        sweep = self._periodic("scheduler-monitor", self.options.scheduler_monitor_period, self.monitor.sweep)
        shapes = self._periodic("scheduler-shapes", SHAPES_PERIOD_S, self.drop_unused_shapes)
        controllers = [p for name, p in self.plugins.items() if enabled(name, self.options.controller_plugins)]
        services: list[_Service] = [
            *([self.extenders] if self.extenders is not None else []),
            self.reporter,
            self.diagnoses,
            self.feed,
            sweep,
            shapes,
            ExplanationController(self._client, self.lookup.find),
            *controllers,
            *([self.reservations] if self.reservations is not None else []),
            *([self.topology_status] if self.topology_status is not None else []),
        ]
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

    def _periodic(self, name: str, period: float, call: Callable[[], object]) -> Periodic:
        return Periodic(name, period, call, immediate=False, clock=self._clock, registry=self._registry)

    def drop_unused_shapes(self) -> None:
        """Drop shapes without pods, what plugins compiled for them, and counters that are not used any more."""
        used = {pod.shape.id for pod in self.cache.pods.values()}
        used.update(pod.shape.id for pod in self.queue.pods())
        self.shapes.keep(used)
        self.counters.drop_unused()

    def _add_gauges(self) -> None:
        gauges = StateGauges(self._registry)
        gauges.add(
            "pending_pods",
            "Pods in the scheduling queue, by part of the queue.",
            ("queue",),
            lambda: {(queue,): number for queue, number in self.queue.counts().items()},
        )
        gauges.add(
            "unschedulable_pods",
            "Unschedulable pods, by the plugin that rejected them.",
            ("plugin", "profile"),
            lambda: dict(self.queue.rejected_counts()),
        )
        gauges.add(
            "cache_size",
            "Objects in the cache, by type.",
            ("type",),
            lambda: {
                ("nodes",): self.table.nodes_alive,
                ("pods",): len(self.cache.pods),
                ("assumed_pods",): len(self.cache.assumed),
                ("shapes",): len(self.shapes),
                ("counters",): len(self.counters),
            },
        )
        gauges.add(
            "goroutines",
            "Tasks of the scheduler, by operation.",
            ("operation",),
            lambda: {("binding",): sum(len(binder) for binder in self.loop.binders.values())},
        )
        gauges.add(
            "inflight_events",
            "Cluster events kept for attempts in progress.",
            (),
            lambda: {(): self.queue.inflight_events},
        )


class _Service(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...
