"""The prediction service: trains once a minute, writes checkpoints, predicts for the NodeMetric reporter (spec 02 §8).

The daemon runs `train`, `collect_garbage` and `checkpoint` as periodic tasks; `forecast` is called for each report.
Windows and ages are on the metric cache's clock, which never steps; histograms and files have Unix time. A full disk or
an unreadable directory affects only the checkpoints: training and predictions continue.
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
from koordlet.prediction.models import CLASS_KEYS, NODE, SYSTEM, PredictionModels
from koordlet.prediction.predictors import Prediction, PredictionError, allocatable, forecast, pod_demand, predict
from koordlet.prediction.training import TRAINED_KINDS, TrainingSamples, collect_samples
from koordlet.prediction.validation import Validation
from koordlet.prometheus import Registries
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.pods.model import PodMeta, Workloads

log = get_logger(__name__)

UPKEEP_SECONDS = 60.0
"""Between two checks for expired models, and between two checkpoint steps."""
SETTLE_TICKS = 5
"""Number of readings after which every pod that was known before has figures."""


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """koordlet's flags; seconds and percent."""

    training_interval: float = 60.0
    cold_start: float = 24 * 3600.0
    margin: int = 10
    expiration: float = 30 * 60.0
    checkpoint_interval: float = 600.0
    checkpoints_per_step: int = 12
    settle: float = 0.0
    """between the first list of pods and the first training step: without figures of pods, their use would count as the
    system's"""


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """Functions that return the node's current objects."""

    workloads: Callable[[], Workloads | None]
    """None while pods are not known: their use would count as the system's"""
    node: Callable[[], Node | None]
    memory_policy: Callable[[], str]


class PredictionService:
    """Owns the models of this node."""

    def __init__(
        self,
        cache: MetricCache,
        objects: NodeObjects,
        models: PredictionModels,
        directory: CheckpointDirectory,
        settings: PredictionSettings,
        registries: Registries,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._objects = objects
        self._directory = directory
        self._settings = settings
        self._registries = registries
        self._clock = clock
        self._wall = wall
        self.models = models
        self.validation = Validation()
        self.trained = False
        """Whether a training step has added samples since the start."""
        self.predictions: Mapping[str, Prediction] = {}
        """By predictor, from the last forecast; empty if it failed."""
        self._known_at: float | None = None
        for kind in TRAINED_KINDS:
            cache.retain(kind, settings.training_interval)
        registries.view("node_predicted_resource_reclaimable", lambda: self._rows("reclaimable"))
        registries.view("node_predicted_resource_peak", lambda: self._rows("peak"))
        registries.view("prediction_models", lambda: [((), float(len(self.models.stamps)))])
        registries.view("prediction_peak_error_ratio", self.validation.errors.items)
        registries.view("prediction_peak_exceeded_total", self.validation.exceeded.items)

    def train(self) -> None:
        """One training step; does nothing while the node's pods are not known or nothing was measured."""
        workloads = self._objects.workloads()
        if workloads is None:
            return
        now = self._clock()
        if self._known_at is None:
            self._known_at = now
            self._restore(workloads.pods)
        if now < self._known_at + self._settings.settle:
            return
        start = now - self._settings.training_interval
        samples = collect_samples(self._cache, workloads.pods, self._objects.memory_policy(), start, now)
        if samples is None:
            return
        self._validate(samples, now)
        self.models.train(samples.keys, samples.cores, samples.memory, self._wall(), now)
        self.trained = True
        self._registries.count("prediction_training_steps_total")

    def _validate(self, samples: TrainingSamples, now: float) -> None:
        if NODE in samples.keys:
            row = samples.keys.index(NODE)
            used = Amount(int(samples.cores[row] * 1000), int(samples.memory[row]))
            self.validation.observe(self.models, used, now)

    def _restore(self, pods: Iterable[str]) -> None:
        expected = {*pods, *CLASS_KEYS, SYSTEM}
        if self._objects.node() is not None:
            expected.add(NODE)

        offset = self._wall() - self._clock()
        try:
            result = self._directory.restore(self.models, expected.__contains__, unix_offset=offset)
        except OSError as error:
            log.warning("Cannot restore prediction checkpoints; predictions start empty", error=str(error))
            return
        log.info("Restored predictions", models=result.models, removed_of_gone_pods=result.gone)
        if result.problems:
            file, reason = next(iter(result.problems.items()))
            log.warning("Prediction checkpoints not used", count=len(result.problems), first=file, reason=reason)

    def collect_garbage(self) -> None:
        """Remove models that were not trained for the expiration time, and their files. Raises OSError."""
        if not self.trained:
            return
        oldest = self._clock() - self._settings.expiration
        expired = [key for key, stamps in self.models.stamps.items() if stamps.updated < oldest]
        for key in expired:
            self.models.drop(key)
        for key in expired:
            self._directory.remove(key)

    async def checkpoint(self) -> None:
        """Write the models that are due, longest unwritten first, up to `checkpoints_per_step`. Raises the first
        error."""
        if self.trained:
            due = self._clock() - self._settings.checkpoint_interval
            keys = [key for key in self._by_age() if self.models.stamps[key].checkpointed <= due]
            await self._write(keys[: self._settings.checkpoints_per_step])

    async def checkpoint_all(self) -> None:
        """Write every model that was trained after its last checkpoint: at the end of the process."""
        if self.trained:
            stamps = self.models.stamps
            await self._write([key for key in self._by_age() if stamps[key].checkpointed < stamps[key].updated])

    def _by_age(self) -> list[str]:
        return sorted(self.models.stamps, key=lambda key: self.models.stamps[key].checkpointed)

    async def _write(self, keys: Sequence[str]) -> None:
        first_error: Exception | None = None
        for key in keys:
            try:
                self._directory.write(self.models, key, self._wall())
                self.models.stamps[key].checkpointed = self._clock()
            except (OSError, CheckpointError) as error:
                first_error = first_error or error
            await asyncio.sleep(0)  # fsync takes milliseconds; let other tasks run in between
        if first_error is not None:
            raise first_error

    def forecast(self, pods: Sequence[PodMeta], cold_start: int | None) -> Forecast:
        """The forecast for these pods, which have figures; `cold_start` (seconds) from NodeMetric's spec overrides the
        flag."""
        now, node = self._wall(), self._objects.node()
        try:
            if node is None:
                raise PredictionError("the Node is not known yet")
            demands = [
                pod_demand(meta.uid, meta.priority_class, meta.pod, now) for meta in pods if meta.pod is not None
            ]
            self.predictions = predict(
                demands,
                self.models.peaks([*(demand.uid for demand in demands), *CLASS_KEYS, SYSTEM]),
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
