"""Verdicts as Prometheus rows, as pages of koordlet's HTTP server, and in NodeMetric's and `/top`'s short form."""

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
    ChangeSaid,
    ContainerExplained,
    HeldBack,
    NodeExplained,
    NodeInterference,
    PodExplained,
    SeriesSaid,
)
from koordlet.interference import say
from koordlet.interference.model import CAUSES, RESOURCES, Resource, State
from koordlet.interference.watch import Watch
from koordlet.metricsadvisor.views import Row, container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, Workloads

BRIEFS = 16
"""Verdicts of one pod in NodeMetric at most."""
MISSING = {
    "cpu": "no schedule-latency source",
    "memory": "no memory-stall source",
    "io": "no block-I/O source",
    "network": "no network-stall source",
    "cache": "no hardware counters",
}


class InterferenceViews:
    """Attaches the watch's figures to the registries; answers `/interference`."""

    def __init__(
        self,
        watch: Watch,
        registries: Registries,
        workloads: Callable[[], Workloads],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._watch, self._registries, self._workloads = watch, registries, workloads
        self._clock, self._wall = clock, wall
        self.held_back: Callable[[str], tuple[list[HeldBack], list[HeldBack]]] = lambda uid: ([], [])
        """Pod UID -> how it is held back, and who is held back for it; set by whoever acts on verdicts."""
        views: dict[str, Callable[[], Any]] = {
            "interference_state": lambda: self._tracks(watch.detector.states()),
            "interference_score": lambda: self._tracks(watch.detector.scores),
            "interference_lost_ratio": lambda: self._tracks(watch.detector.symptoms),
            "interference_culprit_share": self._shares,
            "interference_detections_total": lambda: watch.detections.items(),
            "interference_seconds_total": lambda: watch.alarm_seconds.items(),
            "interference_containers": self._containers,
            "interference_strategy_error": lambda: [((), float(bool(watch.policy.error)))],
        }
        for name, provider in views.items():
            registries.view(name, provider)

    # --- Prometheus

    def _tracks(self, figures: NDArray[np.generic]) -> Iterator[Row]:
        """Of `Watch.judged`; what is 0, on a calm node nearly all of it, has no series."""
        if self._watch.evidence is None:
            return
        subjects = self._watch.evidence.subjects
        for row, resource, cause, value in self._watch.judged(figures):
            yield (*container_labels(subjects[row]), resource.value, cause.value), value

    def _shares(self) -> Iterator[Row]:
        for verdict in self._watch.active:
            labels = (*container_labels(verdict.victim), verdict.resource.value)
            seen = set()
            for culprit in verdict.culprits:
                owner = culprit.owner
                names = (owner.kind, owner.namespace, owner.pod, owner.name)
                if names not in seen:
                    seen.add(names)
                    yield (*labels, *names), culprit.share

    def _containers(self) -> list[Row]:
        trouble = (State.SUSPECTED, State.INTERFERED, State.RECOVERING)
        counts = {(r.value, c.value, state.word): 0.0 for r in RESOURCES for c in CAUSES for state in trouble}
        for found in self._watch.verdicts.values():
            for verdict in found:
                counts[verdict.resource.value, verdict.cause.value, verdict.state.word] += 1
        return list(counts.items())

    # --- short forms

    def briefs(self, key: str) -> list[Brief]:
        """What is wrong with a container now, the worst first; suspicions left out."""
        found = [verdict for verdict in self._watch.verdicts.get(key, ()) if verdict.on]
        return [say.brief(verdict) for verdict in sorted(found, key=lambda one: -one.score)]

    def node(self) -> NodeInterference:
        """The node in short."""
        return say.summary(self._watch.active)

    def pod_extension(self, pod_uid: str) -> dict[str, Any] | None:
        """`{"interference": [...]}` for NodeMetric's entry of a pod; None when nothing is wrong with it."""
        if self._watch.policy.current().node_metric is False:
            return None
        pod = self._workloads().pods.get(pod_uid)
        if pod is None:
            return None
        briefs = [one for container in pod.containers for one in self.briefs(container.id)]
        return {EXTENSION_KEY: [to_builtins(one) for one in briefs[:BRIEFS]]} if briefs else None

    def node_extension(self) -> dict[str, Any]:
        """The node's summary for NodeMetric, with every count in it: it goes out as a merge patch, which removes only
        what it names."""
        if self._watch.policy.current().node_metric is False:
            return {EXTENSION_KEY: None}
        said = self.node()
        zero = {resource.value: 0 for resource in RESOURCES}
        return {
            EXTENSION_KEY: {
                "interfered": {**zero, **said.interfered},
                "selfInflicted": {**zero, **said.self_inflicted},
                "worstCulprits": [to_builtins(one) for one in said.worst_culprits],
            }
        }

    # --- pages

    def routes(self) -> list[web.RouteDef]:
        """`/interference` and `/interference?pod=namespace/name`."""
        return [web.get("/interference", self._page)]

    async def _page(self, request: web.Request) -> web.Response:
        wanted = request.query.get("pod")
        found: NodeExplained | PodExplained
        if wanted is None:
            found = self.node_explained()
        else:
            namespace, _, name = wanted.rpartition("/")
            pod = self.pod_explained(namespace, name)
            if pod is None:
                raise web.HTTPNotFound(text=f"no pod {wanted} on this node\n")
            found = pod
        return web.Response(body=encode(found), content_type="application/json")

    def node_explained(self) -> NodeExplained:
        """All containers with something wrong."""
        verdicts: dict[str, list[Brief]] = {}
        for verdict in self._watch.active:
            victim = verdict.victim
            where = f"{victim.namespace}/{victim.pod_name}" if victim.pod_uid else victim.key
            verdicts.setdefault(where, []).append(say.brief(verdict))
        return NodeExplained(
            node=self._registries.node,
            at=self._wall(),
            enabled=self._watch.policy.current().enable is not False,
            summary=self.node(),
            verdicts=verdicts,
        )

    def pod_explained(self, namespace: str, name: str) -> PodExplained | None:
        """One pod with its history; None when it is not here."""
        pod = next(
            (one for one in self._workloads().pods.values() if (one.namespace, one.name) == (namespace, name)), None
        )
        if pod is None:
            return None
        strategy, evidence = self._watch.policy.current(), self._watch.evidence
        unix = self._wall() - self._clock()
        sources = {} if evidence is None else {r.value: found.source for r, found in evidence.resources.items()}
        held_back, held_back_for = self.held_back(pod.uid)
        return PodExplained(
            namespace=namespace,
            pod=name,
            uid=pod.uid,
            qos=pod.qos,
            judged=pod.qos in strategy.victim_qos_classes,
            enabled=strategy.enable is not False,
            node=self._registries.node,
            at=(0.0 if evidence is None else evidence.at) + unix,
            step=self._watch.history.step,
            sources=sources,
            missing={
                resource.value: MISSING[resource.value] for resource in RESOURCES if resource.value not in sources
            },
            containers=[self._container(one.id, one.name, unix) for one in pod.containers],
            held_back=held_back,
            held_back_for=held_back_for,
        )

    def _container(self, key: str, name: str, unix: float) -> ContainerExplained:
        history = self._watch.history
        series = history.series(key)
        subjects = () if self._watch.evidence is None else self._watch.evidence.subjects
        row = _row(subjects, key)
        usual, states = self._watch.detector.usual(), self._watch.detector.states()
        said = []
        for r, resource in enumerate(RESOURCES):
            for c, cause in enumerate(CAUSES):
                values = series[:, r, c]
                if not (values == values).any():
                    continue
                first = int((values == values).argmax())
                seen = None if row is None or c else usual[row, r]
                said.append(
                    SeriesSaid(
                        resource=resource.value,
                        cause=cause.value,
                        usual=None if seen is None or seen != seen else round(float(seen), 4),
                        state="" if row is None else State(int(states[row, r, c])).word,
                        values=[round(v, 4) if v == v else -1.0 for v in values[first:].tolist()],
                    )
                )
        return ContainerExplained(
            name=name,
            id=key,
            series=said,
            verdicts=[say.whole(verdict, unix) for verdict in self._watch.verdicts.get(key, ())],
            changes=[
                ChangeSaid(
                    at=change.verdict.at + unix, before=change.before.word, verdict=say.whole(change.verdict, unix)
                )
                for change in history.changes(key)
            ],
            hypervisor=0.0 if row is None else self._lost_to_hypervisor(row),
        )

    def _lost_to_hypervisor(self, row: int) -> float:
        evidence = self._watch.evidence
        found = None if evidence is None else evidence.resources.get(Resource.CPU)
        return 0.0 if found is None or found.hypervisor is None else round(float(found.hypervisor[row]), 4)


def _row(subjects: tuple[Subject, ...], key: str) -> int | None:
    return next((row for row, subject in enumerate(subjects) if subject.key == key), None)
