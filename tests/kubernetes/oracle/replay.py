"""The product's scheduler over a world, without an API server: stores, cache, plugins, queue, loop and reporter.

Objects come from the API server that kube-scheduler uses. Nothing is bound or evicted: the results are recorded, and
the world then continues with what kube-scheduler decided.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from control.component.informers import CachedKind
from control.scheduler.config.load import SchedulerSettings, load
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.loop import Loop
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.observer import CycleObserver
from control.scheduler.cycle.placement import Placement
from control.scheduler.cycle.podsubject import PodSubject
from control.scheduler.cycle.reporter import UserReporter
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.runtime import NoEvictor
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.process.profiles import KNOWN_PLUGINS, build_frameworks, implements, queue_profiles
from control.scheduler.queue import SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.columns import RowArray
from control.scheduler.state.eventhandlers import ClusterEventHandlers
from control.scheduler.state.objects import kept_kinds
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.subjects import Subjects
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from koordlet.api.gates import SCHEDULER
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.storedobjects import StoredObjects

PROFILE = "default-scheduler"
REPORT_TIMEOUT_S = 5.0


@dataclass
class OurAttempt:
    """One attempt of the product."""

    node: str = ""
    feasible: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)
    """node -> plugin -> weighted score; empty if at most one node was feasible."""
    event: tuple[str, str, str] = ("", "", "")
    """(type, reason, message)"""
    status: dict[str, Any] = field(default_factory=dict)
    """The patch of the pod's status."""
    nominated: str | None = None
    victims: dict[str, tuple[tuple[Any, ...], list[str]]] = field(default_factory=dict)
    """Candidate node of a preemption -> (rank, victims)."""


class _Events:
    """The `EventRecorder` of the reporter: keeps the last event."""

    def __init__(self) -> None:
        self.last = ("", "", "")

    def warning(self, about: Any, reason: str, message: str, action: str) -> None:
        self.last = ("Warning", reason, message)

    def normal(self, about: Any, reason: str, message: str, action: str) -> None:
        self.last = ("Normal", reason, message)


class _Client:
    """The `Client` of the reporter: keeps the last patch."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self.patched = asyncio.Event()

    async def patch(self, *_: Any, body: dict[str, Any], **__: Any) -> None:
        self.body = body["status"]
        self.patched.set()


class _Binder:
    """Keeps the placement instead of binding it."""

    def __init__(self) -> None:
        self.placement: Placement | None = None

    def start(self, placement: Placement) -> None:
        self.placement = placement


class _Scores(CycleObserver):
    """Records feasible nodes with the scores of each plugin, and the candidates of preemptions."""

    def __init__(self) -> None:
        self.attempt = OurAttempt()

    def on_scored(self, cycle: Cycle, state: CycleState, pod: PodInfo, feasible: RowArray) -> None:
        names = [cycle.table.names[row] for row in feasible.tolist()]
        self.attempt.feasible = names
        for scorer in cycle.framework.scorers:
            plugin = scorer.plugin
            if plugin.name in state.skip_score:
                continue
            scores = plugin.score(state, pod, feasible)
            if scorer.normalizes:
                scores = plugin.normalize(state, pod, feasible, scores)
            for name, score in zip(names, (scores * scorer.weight).tolist(), strict=True):
                self.attempt.scores.setdefault(name, {})[plugin.name] = score

    def on_unschedulable(self, cycle: Cycle, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        plugin = cycle.framework.plugins["DefaultPreemption"]
        assert isinstance(plugin, DefaultPreemption)
        self.attempt.nominated = failure.nominated
        self.attempt.victims = {
            cycle.table.names[displaced.row]: (displaced.rank, sorted(victim.key for victim in displaced.pods))
            for displaced in plugin.would_displace(state, pod, failure)
        }


class OurScheduler:
    """The product over one world; `async with`. `attempt(pod)` runs one cycle."""

    def __init__(self) -> None:
        settings = default_settings()
        self.objects = StoredObjects()
        table, shapes = NodeTable(), Shapes()
        cache = Cache(table, shapes)
        waiting = WaitingPods(SYSTEM_CLOCK)
        handlers = ClusterEventHandlers(self.objects, cache)  # type: ignore[arg-type]
        gates = FeatureGates(SCHEDULER)
        self._kinds = kept_kinds(gates)
        handle = Handle(
            table, shapes, PodCounters(table), profile=PROFILE, gates=gates, objects=self.objects, waiting=waiting
        )
        frameworks = build_frameworks(settings, lambda _: handle)
        self.queue = SchedulingQueue(queue_profiles(frameworks, with_extenders=False), SYSTEM_CLOCK.monotonic)
        self._observer, self._binder = _Scores(), _Binder()
        self._client, self._events = _Client(), _Events()
        self._cycle = Cycle(
            frameworks[PROFILE], cache, waiting, queue=self.queue, evictor=NoEvictor(), observers=[self._observer]
        )
        pods = self.objects.informer(Pod)
        subjects = Subjects(PodSubject(self._client, SYSTEM_CLOCK, pods.get))  # type: ignore[arg-type]
        self._reporter = UserReporter(
            subjects,
            self._events,  # type: ignore[arg-type]
            SchedulerMetrics.of(CollectorRegistry()),
            AttemptMonitor(SYSTEM_CLOCK.monotonic, lambda _: None),
            SYSTEM_CLOCK,
        )
        self._loop = Loop({PROFILE: self._cycle}, cache, self.queue, reporter=self._reporter, current=subjects.current)
        self._loop.binders[PROFILE] = self._binder  # type: ignore[assignment]
        handlers.route(self.queue, frameworks, lambda _: None)

    async def __aenter__(self) -> OurScheduler:
        await self._reporter.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reporter.stop()

    def set(self, body: dict[str, Any]) -> None:
        """An object of the API server, new or changed. Kinds that no plugin reads are dropped."""
        kind = next((kind for kind in self.objects.kinds if kind.__name__ == body["kind"]), None)
        if kind is None:
            return
        kept = self._kinds.get(kind, CachedKind())
        self.objects.informer(kind).set(kept.trim(wire.convert(body, kept.decoded or kind)))

    def gated(self, key: str) -> bool:
        """Whether PreEnqueue keeps the pod out of the queue."""
        info = self.queue.pending(key)
        return info is not None and any(not plugin.pre_enqueue(info).ok for plugin in self._cycle.framework.pre_enqueue)

    async def attempt(self, key: str) -> OurAttempt:
        """One attempt for a pod in the queue. Nothing stays claimed."""
        info = self.queue.pending(key)
        assert info is not None, f"{key} is not in the queue"
        attempt = self._observer.attempt = OurAttempt()
        self._client.patched.clear()
        self._client.body = {}
        self.queue.take(info)
        placement = self._loop.schedule(info)
        if placement is not None:
            self._cycle.release(placement)
            attempt.node = placement.node
            attempt.feasible = attempt.feasible or [placement.node]
            self.queue.requeue(info)
            return attempt
        async with asyncio.timeout(REPORT_TIMEOUT_S):
            await self._client.patched.wait()
        attempt.event, attempt.status = self._events.last, copy.deepcopy(self._client.body)
        return attempt


def default_settings() -> SchedulerSettings:
    """kube-scheduler's default profile."""
    settings = load("", PLUGINS, implements, KNOWN_PLUGINS)
    msgspec.to_builtins(settings.configuration, enc_hook=wire.enc_hook)
    return settings
