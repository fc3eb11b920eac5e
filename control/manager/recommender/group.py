"""The models of one Recommendation, one per container, and their update in a pass. No I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from control.manager.recommender.model import ContainerModel
from control.manager.recommender.requests import memory_limit
from control.manager.recommender.settings import RecommenderSettings
from control.manager.recommender.targets import measured_container
from control.manager.recommender.usage import UsageReport
from koordlet.api.core import ContainerStatus, Pod
from koordlet.api.crs.analysis import ContainerCheckpoint
from koordlet.app.histogram import CheckpointError

OOM_KILLED = "OOMKilled"


class Group:
    """The models by container name; `learn` is called in every pass."""

    def __init__(self, settings: RecommenderSettings) -> None:
        self._settings = settings
        self.models: dict[str, ContainerModel] = {}
        self.evicted_at = math.inf
        """Unix time of the last eviction by this process; inf: none"""
        self._since = -math.inf
        """reports up to this time are in the checkpoint"""
        self._kills_since: dict[str, float] = {}
        self._killed: set[tuple[str, str, float]] = set()

    @classmethod
    def restore(cls, stored: Iterable[ContainerCheckpoint], settings: RecommenderSettings) -> tuple[Group, list[str]]:
        """A group that continues from a checkpoint, and the errors of its invalid parts."""
        group, problems = cls(settings), []
        for checkpoint in stored:
            try:
                model = ContainerModel.restore(checkpoint, settings)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            group.models[checkpoint.container_name] = model
            group._since = max(group._since, model.last)
            group._kills_since[checkpoint.container_name] = model.oom_time
        return group, problems

    def learn(self, pods: Sequence[Pod], reports: Mapping[str, UsageReport], now: float) -> tuple[int, int]:
        """Add samples and OOM kills to the models; returns both counts. `reports` holds only unprocessed reports."""
        samples = self._add_samples(pods, reports)
        kills = self._add_kills(pods)
        self._forget(pods, now)
        return samples, kills

    def _add_samples(self, pods: Sequence[Pod], reports: Mapping[str, UsageReport]) -> int:
        samples: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for pod in pods:
            report, started = reports.get(pod.spec.node_name), pod.status.start_time
            if report is None or started is None or pod.status.phase != "Running":
                continue
            # an older report may describe an earlier pod of the same name
            if report.at > self._since and report.at > started.unix:
                for name, usage in _container_usage(pod, report):
                    samples[name].append((*usage, report.at))
        for container_name, rows in samples.items():
            cores, memory, at = np.array(rows).T
            self._model(container_name).add(cores, memory, at)
        return sum(len(rows) for rows in samples.values())

    def _add_kills(self, pods: Sequence[Pod]) -> int:
        seen: set[tuple[str, str, float]] = set()
        count = 0
        for pod in pods:
            limits = {container.name: memory_limit(container) for container in pod.spec.containers}
            for status in pod.status.container_statuses:
                for at in _killed_at(status):
                    kill = (pod.metadata.uid, status.name, at)
                    seen.add(kill)
                    counted = kill in self._killed or at <= self._kills_since.get(status.name, -math.inf)
                    if not counted and limits.get(status.name):
                        self._model(status.name).killed(limits[status.name], at)
                        count += 1
        self._killed = seen
        return count

    def _forget(self, pods: Sequence[Pod], now: float) -> None:
        """Drop containers that no pod has any more and that were not measured for one memory half-life."""
        present = {container.name for pod in pods for container in pod.spec.containers}
        if present:
            kept_s = self._settings.memory_half_life
            self.models = {
                name: model for name, model in self.models.items() if name in present or now - model.last < kept_s
            }

    def _model(self, container: str) -> ContainerModel:
        model = self.models.get(container)
        if model is None:
            model = self.models[container] = ContainerModel(self._settings)
        return model


def _container_usage(pod: Pod, report: UsageReport) -> Iterator[tuple[str, tuple[float, float]]]:
    """(container, usage) of the pod's containers in the report; sidecars get no recommendation and are left out."""
    only = measured_container(pod)
    if only is not None:
        usage = report.pods.get(pod.metadata.key)
        if usage is not None:
            yield only.name, usage
        return
    usages = report.containers.get(pod.metadata.key, {})
    for container in pod.spec.containers:
        if container.name in usages:
            yield container.name, usages[container.name]


def _killed_at(status: ContainerStatus) -> list[float]:
    return [
        state.terminated.finished_at.unix
        for state in (status.last_state, status.state)
        if state.terminated is not None
        and state.terminated.reason == OOM_KILLED
        and state.terminated.finished_at is not None
    ]
