"""What is known of one container of a workload: two decayed histograms and its kills for lack of memory. No I/O.

Samples are cores and bytes, each with the moment it was measured; that none comes twice is the caller's care. A kill
is a sample of what would have saved the container and, because one sample among thousands moves no percentile, a floor
under the estimate for one half-life of memory; by then the container has shown what it uses when it is let.
"""

from __future__ import annotations

import math

import numpy as np

from control.manager.recommender.settings import MIB, Settings
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
OOM_FACTOR, OOM_STEP = 1.2, 100 * MIB
"""A container killed at its limit would have needed a fifth more than that, and this much at least."""


class ContainerModel:
    """`add` and `killed` teach, `percentiles` asks; `checkpoint` and `restore` keep it beyond this process."""

    def __init__(self, settings: Settings) -> None:
        self.cpu = Histograms(CPU_BUCKETS, settings.cpu_half_life, rows=1)
        self.memory = Histograms(MEMORY_BUCKETS, settings.memory_half_life, rows=1)
        self.samples = 0
        self.first: float | None = None
        self.last = -math.inf
        self.oom_kills = 0
        self.oom_memory = 0.0
        self.oom_time = -math.inf

    def add(self, cores: Floats, memory: Floats, at: Floats) -> None:
        """Samples, one an element, measured at `at` (Unix seconds)."""
        if not len(at):
            return
        self.cpu.add_all(0, cores, at)
        self.memory.add_all(0, memory, at)
        self.samples += len(at)
        first = float(at.min())
        self.first = first if self.first is None else min(self.first, first)
        self.last = max(self.last, float(at.max()))

    def killed(self, limit: float, at: float) -> None:
        """A container was killed for lack of memory at `at` with `limit` bytes to use."""
        needed = max(limit * OOM_FACTOR, limit + OOM_STEP)
        self.memory.add_all(0, np.array([needed]), np.array([at]))
        self.oom_kills += 1
        self.oom_memory = max(needed, self.oom_floor(at))
        self.oom_time = max(self.oom_time, at)

    def oom_floor(self, now: float) -> float:
        """Bytes under which the estimate must not be because of a kill; 0 when none was lately."""
        return self.oom_memory if now - self.oom_time < self.memory.half_life else 0.0

    def history(self) -> float:
        """Seconds from the first sample to the last."""
        return 0.0 if self.first is None else max(self.last - self.first, 0.0)

    def percentiles(self, cpu: tuple[float, ...], memory: tuple[float, ...]) -> tuple[list[float], list[float]]:
        """Cores at each of `cpu` shares, bytes at each of `memory` shares; 0 when nothing was learned."""
        return (
            self.cpu.percentiles(_ROW, cpu)[0].tolist(),
            self.memory.percentiles(_ROW, memory)[0].tolist(),
        )

    def checkpoint(self, container: str) -> ContainerCheckpoint:
        """As it is kept in the status."""
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
    def restore(cls, stored: ContainerCheckpoint, settings: Settings) -> ContainerModel:
        """The model that was kept. Raises CheckpointError naming the container and what is wrong with it."""
        made = cls(settings)
        for name, part, histograms in (("cpu", stored.cpu, made.cpu), ("memory", stored.memory, made.memory)):
            try:
                unpack(part, histograms, 0)
            except CheckpointError as error:
                raise CheckpointError(f"container {stored.container_name}: {name}: {error}") from error
        made.samples = stored.samples
        if stored.first_sample_time is not None and stored.last_sample_time is not None:
            made.first, made.last = stored.first_sample_time.unix, stored.last_sample_time.unix
        if stored.oom_memory is not None and stored.oom_time is not None:
            made.oom_kills, made.oom_time = stored.oom_kills, stored.oom_time.unix
            made.oom_memory = float(stored.oom_memory.value())
        return made
