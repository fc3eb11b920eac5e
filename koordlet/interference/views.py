"""Verdicts as Prometheus rows, as pages of koordlet's HTTP server, and in the short form of NodeMetric and `/top`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from koordlet.api.encoding.wire import encode, to_builtins
from koordlet.api.pages.interference import (
    EXTENSION_KEY,
    Brief,
    ContainerInterferenceReport,
    NodeInterference,
    NodeInterferenceReport,
    PodInterferenceReport,
    SeriesReport,
    StateChangeReport,
    ThrottledPodReport,
)
from koordlet.interference import wording
from koordlet.interference.evaluator import InterferenceEvaluator
from koordlet.interference.model import CAUSES, RESOURCES, AlarmState, WaitResource
from koordlet.metricsadvisor.labels import Row, container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, Workloads

MAX_BRIEFS = 16
"""Verdicts of one pod in NodeMetric."""
MISSING = {
    "cpu": "no schedule-latency source",
    "memory": "no memory-stall source",
    "io": "no block-I/O source",
    "network": "no network-stall source",
    "cache": "no hardware counters",
}


Throttled = tuple[list[ThrottledPodReport], list[ThrottledPodReport]]
"""How a pod is throttled, and the pods that are throttled because of its delays."""


class InterferenceViews:
    """Attaches the evaluator's figures to the registries; serves `/interference`."""

    def __init__(
        self,
        evaluator: InterferenceEvaluator,
        registries: Registries,
        workloads: Callable[[], Workloads],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._evaluator = evaluator
        self._registries = registries
        self._workloads = workloads
        self._clock = clock
        self._wall = wall
        self._throttled: Callable[[str], Throttled] = lambda uid: ([], [])
        detector = evaluator.detector
        views: dict[str, Callable[[], Any]] = {
            "interference_state": lambda: self._tracks(detector.states()),
            "interference_score": lambda: self._tracks(detector.scores),
            "interference_lost_ratio": lambda: self._tracks(detector.symptoms),
            "interference_culprit_share": self._shares,
            "interference_detections_total": lambda: evaluator.detections.items(),
            "interference_seconds_total": lambda: evaluator.alarm_seconds.items(),
            "interference_containers": self._containers,
            "interference_strategy_error": lambda: [((), float(bool(evaluator.strategies.error)))],
        }
        for name, provider in views.items():
            registries.view(name, provider)

    def show_throttling(self, throttled: Callable[[str], Throttled]) -> None:
        """Show how pods are throttled, by pod UID; called by the component that throttles them."""
        self._throttled = throttled

    def _tracks(self, figures: NDArray[np.generic]) -> Iterator[Row]:
        """Of `InterferenceEvaluator.nonzero`: zeros, almost all figures of a quiet node, have no series."""
        if self._evaluator.evidence is None:
            return
        subjects = self._evaluator.evidence.subjects
        for row, resource, cause, value in self._evaluator.nonzero(figures):
            yield (*container_labels(subjects[row]), resource.value, cause.value), value

    def _shares(self) -> Iterator[Row]:
        for verdict in self._evaluator.active:
            labels = (*container_labels(verdict.victim), verdict.resource.value)
            seen = set()
            for culprit in verdict.culprits:
                owner = culprit.owner
                names = (owner.kind, owner.namespace, owner.pod, owner.name)
                if names not in seen:
                    seen.add(names)
                    yield (*labels, *names), culprit.share

    def _containers(self) -> list[Row]:
        states = (AlarmState.SUSPECTED, AlarmState.INTERFERED, AlarmState.RECOVERING)
        counts = {(r.value, c.value, state.word): 0.0 for r in RESOURCES for c in CAUSES for state in states}
        for verdicts in self._evaluator.verdicts.values():
            for verdict in verdicts:
                counts[verdict.resource.value, verdict.cause.value, verdict.state.word] += 1
        return list(counts.items())

    def briefs(self, key: str) -> list[Brief]:
        """A container's active alarms, highest score first."""
        active = [verdict for verdict in self._evaluator.verdicts.get(key, ()) if verdict.on]
        return [wording.brief(verdict) for verdict in sorted(active, key=lambda verdict: -verdict.score)]

    def node(self) -> NodeInterference:
        """The node's summary."""
        return wording.node_summary(self._evaluator.active)

    def pod_extension(self, pod_uid: str) -> dict[str, Any] | None:
        """`{"interference": [...]}` for NodeMetric's entry of a pod; None without an active alarm."""
        if self._evaluator.strategies.current().node_metric is False:
            return None
        pod = self._workloads().pods.get(pod_uid)
        if pod is None:
            return None
        briefs = [brief for container in pod.containers for brief in self.briefs(container.id)]
        return {EXTENSION_KEY: [to_builtins(brief) for brief in briefs[:MAX_BRIEFS]]} if briefs else None

    def node_extension(self) -> dict[str, Any]:
        """The node's summary for NodeMetric, with all counts, zeros included: it is sent as a merge patch, which
        changes only the keys that it contains."""
        if self._evaluator.strategies.current().node_metric is False:
            return {EXTENSION_KEY: None}
        summary = self.node()
        zero = {resource.value: 0 for resource in RESOURCES}
        return {
            EXTENSION_KEY: {
                "hurtPods": summary.hurt_pods,
                "interfered": {**zero, **summary.interfered},
                "selfInflicted": {**zero, **summary.self_inflicted},
                "worstCulprits": [to_builtins(culprit) for culprit in summary.worst_culprits],
            }
        }

    def routes(self) -> list[web.RouteDef]:
        """`/interference` and `/interference?pod=namespace/name`."""
        return [web.get("/interference", self._page)]

    async def _page(self, request: web.Request) -> web.Response:
        requested = request.query.get("pod")
        page: NodeInterferenceReport | PodInterferenceReport | None
        if requested is None:
            page = self.node_explained()
        else:
            namespace, _, name = requested.rpartition("/")
            page = self.pod_explained(namespace, name)
        if page is None:
            raise web.HTTPNotFound(text=f"no pod {requested} on this node\n")
        return web.Response(body=encode(page), content_type="application/json")

    def node_explained(self) -> NodeInterferenceReport:
        """All containers with an active alarm."""
        verdicts: dict[str, list[Brief]] = {}
        for verdict in self._evaluator.active:
            victim = verdict.victim
            name = f"{victim.namespace}/{victim.pod_name}" if victim.pod_uid else victim.key
            verdicts.setdefault(name, []).append(wording.brief(verdict))
        return NodeInterferenceReport(
            node=self._registries.node,
            at=self._wall(),
            enabled=self._evaluator.strategies.current().enable is not False,
            summary=self.node(),
            verdicts=verdicts,
        )

    def pod_explained(self, namespace: str, name: str) -> PodInterferenceReport | None:
        """One pod with its history; None when it is not on this node."""
        pods = self._workloads().pods.values()
        pod = next((pod for pod in pods if (pod.namespace, pod.name) == (namespace, name)), None)
        if pod is None:
            return None
        strategy, evidence = self._evaluator.strategies.current(), self._evaluator.evidence
        unix_offset = self._wall() - self._clock()
        measured = {} if evidence is None else evidence.resources
        sources = {resource.value: measured[resource].source for resource in measured}
        held_back, held_back_for = self._throttled(pod.uid)
        return PodInterferenceReport(
            namespace=namespace,
            pod=name,
            uid=pod.uid,
            qos=pod.qos,
            judged=pod.qos in strategy.victim_qos_classes,
            enabled=strategy.enable is not False,
            node=self._registries.node,
            at=(0.0 if evidence is None else evidence.at) + unix_offset,
            step=self._evaluator.history.step,
            sources=sources,
            missing={
                resource.value: MISSING[resource.value] for resource in RESOURCES if resource.value not in sources
            },
            containers=[self._container(container.id, container.name, unix_offset) for container in pod.containers],
            held_back=held_back,
            held_back_for=held_back_for,
        )

    def _container(self, key: str, name: str, unix_offset: float) -> ContainerInterferenceReport:
        history = self._evaluator.history
        series = history.series(key)
        subjects = () if self._evaluator.evidence is None else self._evaluator.evidence.subjects
        row = _row(subjects, key)
        usual, states = self._evaluator.detector.usual(), self._evaluator.detector.states()
        pages = []
        for r, resource in enumerate(RESOURCES):
            for c, cause in enumerate(CAUSES):
                values = series[:, r, c]
                if not (values == values).any():
                    continue
                first = int((values == values).argmax())
                usual_value = None if row is None or c else float(usual[row, r])
                if usual_value is not None and usual_value != usual_value:  # NaN
                    usual_value = None
                pages.append(
                    SeriesReport(
                        resource=resource.value,
                        cause=cause.value,
                        usual=None if usual_value is None else round(usual_value, 4),
                        state="" if row is None else AlarmState(int(states[row, r, c])).word,
                        values=[round(v, 4) if v == v else -1.0 for v in values[first:].tolist()],
                    )
                )
        return ContainerInterferenceReport(
            name=name,
            id=key,
            series=pages,
            verdicts=[wording.verdict_page(verdict, unix_offset) for verdict in self._evaluator.verdicts.get(key, ())],
            changes=[
                StateChangeReport(
                    at=change.verdict.at + unix_offset,
                    before=change.before.word,
                    verdict=wording.verdict_page(change.verdict, unix_offset),
                )
                for change in history.changes(key)
            ],
            hypervisor=0.0 if row is None else self._lost_to_hypervisor(row),
        )

    def _lost_to_hypervisor(self, row: int) -> float:
        evidence = self._evaluator.evidence
        cpu = None if evidence is None else evidence.resources.get(WaitResource.CPU)
        return 0.0 if cpu is None or cpu.hypervisor is None else round(float(cpu.hypervisor[row]), 4)


def _row(subjects: tuple[Subject, ...], key: str) -> int | None:
    return next((row for row, subject in enumerate(subjects) if subject.key == key), None)
