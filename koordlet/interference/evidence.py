"""Collects the evidence of all containers and host applications: one `Evidence` per evaluation.

Evidence sources read only what collectors already hold, and now and then the schedule-latency probe's culprit matrix
(`cadence`). Every resource is optional: a source without a collector, or without figures yet, leaves its resource out,
and the other resources are judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.interference.model import Evidence, Floats, ResourceEvidence, WaitResource
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.metricsadvisor.usage.snapshot import UsageSnapshot
from koordlet.statesinformer.pods.cgroupindex import owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

KINDS = (SubjectKind.CONTAINER, SubjectKind.HOST_APP)
GUESSED_CULPRITS = 5
"""Containers named by CPU use where no probe measures culprits."""
Stalls = Mapping[tuple[str, str], Mapping[str, float]]
"""(resource, PSI degree) -> subject key -> fraction of time stalled."""


class ContainerWindow:
    """The containers at one moment, and their figures over the window that ends then."""

    def __init__(
        self,
        picture: UsageSnapshot,
        stalls: Stalls,
        strategy: InterferenceStrategy,
        now: float,
        previous: ContainerWindow | None,
    ) -> None:
        self.picture = picture
        self.strategy = strategy
        self.now = now
        self.seconds = float(strategy.window_seconds or 1)
        self._all_subjects = picture.workloads.subjects
        recent_cores: Iterable[Floats] = ()
        if previous is not None and previous._all_subjects is self._all_subjects:
            self._index: NDArray[np.intp] = previous._index
            self.subjects: tuple[Subject, ...] = previous.subjects
            self.keys: tuple[str, ...] = previous.keys
            self.row_of: Mapping[str, int] = previous.row_of
            recent_cores = previous._recent_cores
        else:
            rows = [row for row, subject in enumerate(self._all_subjects) if subject.kind in KINDS]
            self._index = np.array(rows, dtype=np.intp)
            self.subjects = tuple(self._all_subjects[row] for row in rows)
            self.keys = tuple(subject.key for subject in self.subjects)
            self.row_of = {key: row for row, key in enumerate(self.keys)}
        self._recent_cores: deque[Floats] = deque(recent_cores, maxlen=max(round(self.seconds), 1))
        if previous is None or previous.picture is not picture:
            self._recent_cores.append(picture.use.cores[self._index])
        self._stalls = stalls
        if previous is not None and previous._stalls is stalls and previous.keys is self.keys:
            self.pressure: Mapping[str, Floats] = previous.pressure
            """Fraction of time stalled (PSI some) by resource: cpu, memory, io; empty without PSI."""
        else:
            self.pressure = {
                resource: self._by_key(stalled)
                for resource in ("cpu", "memory", "io")
                if (stalled := stalls.get((resource, "some")))
            }

    @cached_property
    def ran(self) -> Floats:
        """Cores used, mean of the window."""
        ticks = np.array(self._recent_cores)
        known = ~np.isnan(ticks)
        mean: Floats = np.where(known, ticks, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return mean

    @property
    def throttled_periods(self) -> Floats:
        """Fraction of quota periods with throttling."""
        return self.picture.use.throttled[self._index]

    @property
    def memory_usage_ratio(self) -> Floats:
        """Memory with page cache as a fraction of the container's limit; NaN without a limit."""
        used = self.picture.use.memory_with_page_cache[self._index]
        limits = np.array([_memory_limit(self.picture.workloads, subject) for subject in self.subjects])
        used_ratio: Floats = used / limits
        return used_ratio

    def largest_users(self, row: int) -> list[CulpritTime]:
        """The other containers by CPU use: a guess at the culprits where nothing measures them."""
        ran = self.ran
        order = np.argsort(-ran, kind="stable")[: GUESSED_CULPRITS + 1].tolist()
        return [CulpritTime(owner_of(self.subjects[i]), float(ran[i]), 0) for i in order if i != row and ran[i] > 0]

    def _by_key(self, values: Mapping[str, float]) -> Floats:
        return np.array([values.get(key, np.nan) for key in self.keys])


class EvidenceSource(Protocol):
    """Evidence about one resource."""

    resource: WaitResource

    def evidence(self, window: ContainerWindow) -> ResourceEvidence | None:
        """Evidence for the window's containers; None while there is none."""
        ...


class EvidenceCollector:
    """Collects from `sources`, in their order."""

    def __init__(self, advisor: MetricsAdvisor, sources: Sequence[EvidenceSource]) -> None:
        self._advisor = advisor
        self._sources = sources
        self._window: ContainerWindow | None = None

    def collect(self, now: float, strategy: InterferenceStrategy) -> Evidence | None:
        """Evidence over the strategy's window that ends now; None before the advisor has figures."""
        usage, pressure = self._advisor.use.snapshot, self._advisor.pressure
        if usage is None:
            return None
        stalls = {} if pressure is None else pressure.stalls
        window = self._window = ContainerWindow(usage, stalls, strategy, now, self._window)
        resources = {
            source.resource: evidence for source in self._sources if (evidence := source.evidence(window)) is not None
        }
        return Evidence(window.subjects, window.seconds, resources, now)


def _memory_limit(workloads: Workloads, subject: Subject) -> float:
    """Bytes; NaN where the pod has no limit."""
    meta = workloads.pods.get(subject.pod_uid)
    if meta is None or meta.pod is None:
        return np.nan
    for container in (*meta.pod.spec.containers, *meta.pod.spec.init_containers):
        if container.name == subject.name:
            limit = container.resources.limits.get("memory")
            return np.nan if limit is None else float(limit)
    return np.nan
