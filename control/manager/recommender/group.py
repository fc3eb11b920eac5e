"""The models of one Recommendation, a container each, and what they learn from a pass. No I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from control.manager.recommender.groups import measured_container
from control.manager.recommender.model import ContainerModel
from control.manager.recommender.requests import memory_limit
from control.manager.recommender.settings import Settings
from control.manager.recommender.usage import Report
from koordlet.api.core import ContainerStatus, Pod
from koordlet.api.crs.analysis import ContainerCheckpoint
from koordlet.app.histogram import CheckpointError

OOM_KILLED = "OOMKilled"


class Group:
    """`learn` in every pass; `models` by container name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.models: dict[str, ContainerModel] = {}
        self.evicted_at = math.inf
        """Unix time of the last eviction; inf: none by this process"""
        self._since = -math.inf
        """reports up to here are in the checkpoint"""
        self._kills_since: dict[str, float] = {}
        self._killed: set[tuple[str, str, float]] = set()

    @classmethod
    def restore(cls, stored: Iterable[ContainerCheckpoint], settings: Settings) -> tuple[Group, list[str]]:
        """A group that goes on from a checkpoint; what of it could not be used, and why."""
        made, problems = cls(settings), []
        for each in stored:
            try:
                model = ContainerModel.restore(each, settings)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            made.models[each.container_name] = model
            made._since = max(made._since, model.last)
            made._kills_since[each.container_name] = model.oom_time
        return made, problems

    def learn(self, pods: Sequence[Pod], reports: Mapping[str, Report], now: float) -> tuple[int, int]:
        """Samples and kills taken in. `reports` are those that no pass before this one has used."""
        taken = self._use(pods, reports)
        kills = self._kills(pods)
        self._forget(pods, now)
        return taken, kills

    def _use(self, pods: Sequence[Pod], reports: Mapping[str, Report]) -> int:
        lessons: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for pod in pods:
            report, started = reports.get(pod.spec.node_name), pod.status.start_time
            if report is None or started is None or pod.status.phase != "Running":
                continue
            # a pod of the same name may have been there before
            if report.at > self._since and report.at > started.unix:
                for name, used in _told(pod, report):
                    lessons[name].append((*used, report.at))
        for container_name, lesson in lessons.items():
            cores, memory, at = np.array(lesson).T
            self._model(container_name).add(cores, memory, at)
        return sum(len(lesson) for lesson in lessons.values())

    def _kills(self, pods: Sequence[Pod]) -> int:
        seen: set[tuple[str, str, float]] = set()
        count = 0
        for pod in pods:
            limits = {container.name: memory_limit(container) for container in pod.spec.containers}
            for status in pod.status.container_statuses:
                for at in _killed_at(status):
                    kill = (pod.metadata.uid, status.name, at)
                    seen.add(kill)
                    known = kill in self._killed or at <= self._kills_since.get(status.name, -math.inf)
                    if not known and limits.get(status.name):
                        self._model(status.name).killed(limits[status.name], at)
                        count += 1
        self._killed = seen
        return count

    def _forget(self, pods: Sequence[Pod], now: float) -> None:
        """Drop containers that no pod has any more and that were not measured for a half-life."""
        there = {container.name for pod in pods for container in pod.spec.containers}
        if there:
            kept = self._settings.memory_half_life
            self.models = {
                name: model for name, model in self.models.items() if name in there or now - model.last < kept
            }

    def _model(self, container: str) -> ContainerModel:
        found = self.models.get(container)
        if found is None:
            found = self.models[container] = ContainerModel(self._settings)
        return found


def _told(pod: Pod, report: Report) -> Iterator[tuple[str, tuple[float, float]]]:
    """Containers of the pod that the report speaks of, and what they use; sidecars are not ours to size."""
    only = measured_container(pod)
    if only is not None:
        used = report.pods.get(pod.metadata.key)
        if used is not None:
            yield only.name, used
        return
    apart = report.containers.get(pod.metadata.key, {})
    yield from ((one.name, apart[one.name]) for one in pod.spec.containers if one.name in apart)


def _killed_at(status: ContainerStatus) -> list[float]:
    return [
        state.terminated.finished_at.unix
        for state in (status.last_state, status.state)
        if state.terminated is not None
        and state.terminated.reason == OOM_KILLED
        and state.terminated.finished_at is not None
    ]
