"""The performance of each container over the last minute, for the comparison with its replicas on other nodes.

All waiting counts, whatever causes it: neighbours, the container itself, and the hypervisor. A node that is slow for
all of its containers alike has no culprit among them, so nothing on the node can detect it; other nodes can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from koordlet.api.crs.performance import CPI, EXTENSION_KEY, MAX_CONTAINERS, MAX_FIGURES, WAITS, Figures
from koordlet.interference.evaluator import InterferenceEvaluator
from koordlet.interference.model import Evidence, Floats, WaitResource
from koordlet.statesinformer.pods.model import Workloads

SAMPLE_SECONDS = 5.0
SAMPLES = 12
"""One minute: the shortest usual interval of NodeMetric."""
DIGITS = 4


class PerformanceFigures:
    """`sample` is to be run every SAMPLE_SECONDS."""

    def __init__(
        self,
        evaluator: InterferenceEvaluator,
        workloads: Callable[[], Workloads],
        cpi: Callable[[], Mapping[str, float]],
        external: Callable[[str], Mapping[str, float]] | None = None,
    ) -> None:
        """`cpi`: container key -> cycles per instruction; `external`: container key -> figures of external advisors."""
        self._evaluator = evaluator
        self._workloads = workloads
        self._cpi = cpi
        self._external = external
        self._samples: deque[dict[str, Floats]] = deque(maxlen=SAMPLES)

    def sample(self) -> None:
        """Keep the waiting of all containers now."""
        evidence = self._evaluator.evidence
        waits = {} if evidence is None else waiting(evidence)
        self._samples.append(waits)

    def of_container(self, key: str) -> Figures:
        """The figures of one container; empty if nothing is known."""
        figures: Figures = {}
        rows = [waits[key] for waits in self._samples if key in waits]
        if rows:
            table = np.array(rows)
            known = ~np.isnan(table)
            means = np.where(known, table, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
            for index, name in enumerate(WAITS):
                if known[:, index].any():
                    figures[name] = round(float(means[index]), DIGITS)
        cpi = self._cpi().get(key)
        if cpi is not None:
            figures[CPI] = round(cpi, DIGITS)
        for name, value in (self._external(key) if self._external is not None else {}).items():
            if len(figures) < MAX_FIGURES:
                figures.setdefault(name, value)
        return figures

    def pod_extension(self, pod_uid: str) -> dict[str, Any] | None:
        """`{"performance": {...}}` for NodeMetric's entry of a pod; None without figures."""
        pod = self._workloads().pods.get(pod_uid)
        containers: Sequence[Any] = () if pod is None else pod.containers[:MAX_CONTAINERS]
        figures = {container.name: self.of_container(container.id) for container in containers}
        known = {name: values for name, values in figures.items() if values}
        return {EXTENSION_KEY: known} if known else None


def waiting(evidence: Evidence) -> dict[str, Floats]:
    """Container key -> fraction of its wanted time that it waited, by `WAITS`; NaN where it is not measured."""
    table = np.full((len(evidence.subjects), len(WAITS)), np.nan)
    for index, name in enumerate(WAITS):
        measured = evidence.resources.get(WaitResource(name))
        if measured is not None:
            table[:, index] = measured.others + np.nan_to_num(measured.own)
            if measured.hypervisor is not None:
                table[:, index] += np.nan_to_num(measured.hypervisor)
    return {subject.key: table[row] for row, subject in enumerate(evidence.subjects)}
