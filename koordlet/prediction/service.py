"""The prediction service: learns each minute, keeps checkpoints, answers the NodeMetric reporter (spec 02 §8).

The daemon runs `train`, `collect_garbage` and `checkpoint` as periodic tasks; `forecast` is called for each report.
Windows and ages are on the metric cache's clock, which never steps; histograms and files carry Unix time. A disk that
is full or a directory that cannot be read costs the checkpoints only: learning and answering go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koordlet.api.core import Node
from koordlet.app.histogram import CheckpointError
from koordlet.app.logging import get_logger
from koordlet.metriccache import MetricCache
from koordlet.prediction.checkpoints import CheckpointDirectory
from koordlet.prediction.models import CLASS_KEYS, NODE, SYSTEM, Models
from koordlet.prediction.predictors import Prediction, PredictionError, allocatable, forecast, predict, view
from koordlet.prediction.training import LEARNED, Lesson, lesson
from koordlet.prediction.validation import Validation
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.pods.model import PodMeta, Workloads

log = get_logger(__name__)

UPKEEP_SECONDS = 60.0
"""How often models expire and are written."""
SETTLE_TICKS = 5
"""Readings after which every pod that was known before them has figures."""


@dataclass(frozen=True, slots=True)
class Settings:
    """koordlet's flags; seconds and percent."""

    training_interval: float = 60.0
    cold_start: float = 24 * 3600.0
    margin: int = 10
    expiration: float = 30 * 60.0
    checkpoint_interval: float = 600.0
    checkpoints_per_step: int = 12
    settle: float = 0.0
    """from when pods are known to the first step: without figures of pods, all use would be called the system's"""


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node's objects as they are at the moment, each behind a call."""

    workloads: Callable[[], Workloads | None]
    """None while pods are not known: learning without them would call their use the system's"""
    node: Callable[[], Node | None]
    memory_policy: Callable[[], str]


class PredictionService:
    """Owns the models of this node."""

    def __init__(
        self,
        cache: MetricCache,
        what: NodeView,
        models: Models,
        directory: CheckpointDirectory,
        settings: Settings,
        registries: Registries,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._cache, self._what, self._directory, self._settings = cache, what, directory, settings
        self._registries, self._clock, self._wall = registries, clock, wall
        self.models, self.validation = models, Validation()
        self.trained = False
        """Whether a training step has learned something since the start."""
        self.predictions: Mapping[str, Prediction] = {}
        """By predictor, of the last forecast; empty if it failed."""
        self._known_at: float | None = None
        for kind in LEARNED:
            cache.retain(kind, settings.training_interval)
        registries.view("node_predicted_resource_reclaimable", lambda: self._rows("reclaimable"))
        registries.view("node_predicted_resource_peak", lambda: self._rows("peak"))
        registries.view("prediction_models", lambda: [((), float(len(self.models.stamps)))])
        registries.view("prediction_peak_error_ratio", self.validation.errors.items)
        registries.view("prediction_peak_exceeded_total", self.validation.exceeded.items)

    # --- learning

    def train(self) -> None:
        """One step; nothing while the pods of the node are not known or nothing was measured."""
        workloads = self._what.workloads()
        if workloads is None:
            return
        now = self._clock()
        if self._known_at is None:
            self._known_at = now
            self._restore(workloads.pods)
        if now < self._known_at + self._settings.settle:
            return
        start = now - self._settings.training_interval
        found = lesson(self._cache, workloads.pods, self._what.memory_policy(), start, now)
        if found is None:
            return
        self._validate(found, now)
        self.models.train(found.keys, found.cores, found.memory, self._wall(), now)
        self.trained = True
        self._registries.count("prediction_training_steps_total")

    def _validate(self, found: Lesson, now: float) -> None:
        if NODE in found.keys:
            row = found.keys.index(NODE)
            used = Amount(int(found.cores[row] * 1000), int(found.memory[row]))
            self.validation.observe(self.models, used, now)

    def _restore(self, pods: Iterable[str]) -> None:
        wanted = {*pods, *CLASS_KEYS, SYSTEM}
        if self._what.node() is not None:
            wanted.add(NODE)

        def note(path: str, problem: str) -> None:
            log.warning("prediction checkpoint not used", file=path, reason=problem)

        try:
            count = self._directory.restore(self.models, wanted.__contains__, note, ahead=self._wall() - self._clock())
        except OSError as error:
            log.warning("predictions start from nothing", error=str(error))
            return
        log.info("predictions restored", models=count)

    def collect_garbage(self) -> None:
        """Forget models that were not trained for the expiration time, and their files. Raises OSError."""
        if not self.trained:
            return
        oldest = self._clock() - self._settings.expiration
        expired = [key for key, stamps in self.models.stamps.items() if stamps.updated < oldest]
        for key in expired:
            self.models.drop(key)
        for key in expired:
            self._directory.remove(key)

    # --- the disk

    async def checkpoint(self) -> None:
        """Write the models that are due, longest unwritten first, so many a step. Raises what failed first."""
        if self.trained:
            due = self._clock() - self._settings.checkpoint_interval
            keys = [key for key in self._by_age() if self.models.stamps[key].checkpointed <= due]
            await self._write(keys[: self._settings.checkpoints_per_step])

    async def checkpoint_all(self) -> None:
        """Write every model that has learned since it was written last: at the end of the process."""
        if self.trained:
            stamps = self.models.stamps
            await self._write([k for k in self._by_age() if stamps[k].checkpointed < stamps[k].updated])

    def _by_age(self) -> list[str]:
        return sorted(self.models.stamps, key=lambda key: self.models.stamps[key].checkpointed)

    async def _write(self, keys: Sequence[str]) -> None:
        failed: Exception | None = None
        for key in keys:
            try:
                self._directory.write(self.models, key, self._wall())
                self.models.stamps[key].checkpointed = self._clock()
            except (OSError, CheckpointError) as error:
                failed = failed or error
            await asyncio.sleep(0)  # a sync takes milliseconds; let others run in between
        if failed is not None:
            raise failed

    # --- answering

    def forecast(self, pods: Sequence[PodMeta], cold_start: int | None) -> Forecast:
        """For these pods, which have figures; `cold_start` (seconds) from NodeMetric's spec comes before the flag."""
        now, node = self._wall(), self._what.node()
        try:
            if node is None:
                raise PredictionError("the Node is not known yet")
            views = [view(meta.uid, meta.priority_class, meta.pod, now) for meta in pods if meta.pod is not None]
            self.predictions = predict(
                views,
                self.models.peaks([*(pod.uid for pod in views), *CLASS_KEYS, SYSTEM]),
                self.models.only_zeros(CLASS_KEYS),
                allocatable(node),
                margin=self._settings.margin,
                cold_start=self._settings.cold_start if cold_start is None else cold_start,
            )
        except PredictionError as error:
            self.predictions = {}
            return Forecast.none(str(error))
        return forecast(self.predictions)

    def _rows(self, member: str) -> list[tuple[tuple[str, str, str], float]]:
        rows = []
        for predictor, prediction in self.predictions.items():
            amount: Amount = getattr(prediction, member)
            rows.append(((predictor, "cpu", "core"), amount.cpu / 1000))
            rows.append(((predictor, "memory", "byte"), float(amount.memory)))
        return rows
