"""The usage model of one container of a workload: two decayed histograms and its OOM kills. No I/O.

Samples are cores and bytes with their time of measurement; the caller must not add a sample twice. An OOM kill adds a
sample of the memory that would have avoided it. Because one sample among thousands changes no percentile, that amount
is also a lower limit of the estimate for one memory half-life; by then the samples show the usage under the new limit.
"""

from __future__ import annotations

import math

import numpy as np

from control.manager.recommender.settings import MIB, RecommenderSettings
from koordlet.api.crs.analysis import ContainerCheckpoint
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import Time
from koordlet.app.histogram import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    CheckpointError,
    Floats,
    Histograms,
    pack,
    unpack,
)

_ROW = np.array([0])
OOM_FACTOR = 1.2
OOM_MIN_INCREASE = 100 * MIB
"""A container killed at its limit is assumed to need OOM_FACTOR x the limit, at least OOM_MIN_INCREASE bytes more."""


class ContainerModel:
    """`add` and `killed` update the model, `percentiles` reads it; `checkpoint` and `restore` persist it."""

    def __init__(self, settings: RecommenderSettings) -> None:
        self.cpu = Histograms(CPU_BUCKETS, settings.cpu_half_life, rows=1)
        self.memory = Histograms(MEMORY_BUCKETS, settings.memory_half_life, rows=1)
        self.samples = 0
        self.first: float | None = None
        self.last = -math.inf
        self.oom_kills = 0
        self.oom_memory = 0.0
        self.oom_time = -math.inf

    def add(self, cores: Floats, memory: Floats, at: Floats) -> None:
        """Add samples, one per array element, measured at `at` (Unix seconds)."""
        if not len(at):
            return
        self.cpu.add_all(0, cores, at)
        self.memory.add_all(0, memory, at)
        self.samples += len(at)
        first = float(at.min())
        self.first = first if self.first is None else min(self.first, first)
        self.last = max(self.last, float(at.max()))

    def killed(self, limit: float, at: float) -> None:
        """Add an OOM kill at `at` of a container with a memory limit of `limit` bytes."""
        needed = max(limit * OOM_FACTOR, limit + OOM_MIN_INCREASE)
        self.memory.add_all(0, np.array([needed]), np.array([at]))
        self.oom_kills += 1
        self.oom_memory = max(needed, self.oom_floor(at))
        self.oom_time = max(self.oom_time, at)

    def oom_floor(self, now: float) -> float:
        """Lower limit of the estimate in bytes after an OOM kill; 0 without a kill within one memory half-life."""
        return self.oom_memory if now - self.oom_time < self.memory.half_life else 0.0

    def history(self) -> float:
        """Seconds from the first sample to the last."""
        return 0.0 if self.first is None else max(self.last - self.first, 0.0)

    def percentiles(self, cpu: tuple[float, ...], memory: tuple[float, ...]) -> tuple[list[float], list[float]]:
        """(cores at each share in `cpu`, bytes at each share in `memory`); 0 without samples."""
        return (
            self.cpu.percentiles(_ROW, cpu)[0].tolist(),
            self.memory.percentiles(_ROW, memory)[0].tolist(),
        )

    def checkpoint(self, container: str) -> ContainerCheckpoint:
        """The model as stored in the status."""
        killed = self.oom_kills > 0
        return ContainerCheckpoint(
            container_name=container,
            samples=self.samples,
            first_sample_time=None if self.first is None else Time.from_unix(self.first),
            last_sample_time=None if self.last == -math.inf else Time.from_unix(self.last),
            cpu=pack(self.cpu, 0),
            memory=pack(self.memory, 0),
            oom_kills=self.oom_kills,
            oom_memory=Quantity.of(math.ceil(self.oom_memory), BINARY_SI) if killed else None,
            oom_time=Time.from_unix(self.oom_time) if killed else None,
        )

    @classmethod
    def restore(cls, stored: ContainerCheckpoint, settings: RecommenderSettings) -> ContainerModel:
        """The model from a checkpoint. Raises CheckpointError, which names the container and the error."""
        model = cls(settings)
        for name, data, histograms in (("cpu", stored.cpu, model.cpu), ("memory", stored.memory, model.memory)):
            try:
                unpack(data, histograms, 0)
            except CheckpointError as error:
                raise CheckpointError(f"container {stored.container_name}: {name}: {error}") from error
        model.samples = stored.samples
        if stored.first_sample_time is not None and stored.last_sample_time is not None:
            model.first = stored.first_sample_time.unix
            model.last = stored.last_sample_time.unix
        if stored.oom_memory is not None and stored.oom_time is not None:
            model.oom_kills = stored.oom_kills
            model.oom_time = stored.oom_time.unix
            model.oom_memory = float(stored.oom_memory.value())
        return model
