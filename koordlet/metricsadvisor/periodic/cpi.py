"""Cycles and instructions of every running container, counted for a window of each round (spec 02 §5.12).

Counting costs time at every switch between cgroups, so counters are open only for `window` seconds (10) of each round
(60). They are opened on all CPUs that are online at that moment, whatever their numbers. A container that does not run
or is removed is skipped, and all counters are closed however the round ends. Other work on the event loop runs between
containers. Bounded by running containers x online CPUs x 2 descriptors, held during the window.

CPI, cycles per instruction, rises when other workloads take cache or memory bandwidth. The CPI of a container that
hardly ran is meaningless and left out of `window`. A machine without hardware counters (most virtual ones) is a
condition.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from koordlet.app.clock import boot_clock
from koordlet.metriccache import Batch, MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.labels import container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cpu.perf import CPI_EVENTS, CgroupCounters, PerfError, PerfEvent, PerfUnavailable
from koordlet.system.kernel import Feature

NAME = "cpi"
MIN_CYCLES_PER_SECOND = 1e7
"""A hundredth of a slow core: below it the CPI is that of wake-ups and idle loops."""


@dataclass(frozen=True, slots=True)
class CpiFigure:
    """Counts of one window, scaled to the whole window where the kernel multiplexed the counters."""

    subject: Subject
    cycles: float
    instructions: float
    seconds: float

    @property
    def cpi(self) -> float | None:
        """None for a container that ran too little."""
        if self.instructions <= 0 or self.cycles < MIN_CYCLES_PER_SECOND * self.seconds:
            return None
        return self.cycles / self.instructions


class CpiCollector:
    """`read` is one round and takes `seconds`.

    `perf_dir` returns the directory of a cgroup for perf, `cpus` the CPUs that are online now; `feature`: whether the
    machine can count; `events`: the two events that count as cycles and instructions.
    """

    def __init__(
        self,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        perf_dir: Callable[[str], str],
        cpus: Callable[[], Iterable[int]],
        feature: Feature,
        seconds: float = 10.0,
        events: tuple[PerfEvent, ...] = CPI_EVENTS,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._workloads = workloads
        self._conditions = conditions
        self._perf_dir = perf_dir
        self._cpus = cpus
        self._feature = feature
        self._seconds = seconds
        self._events = events
        self._clock = clock
        self._sleep = sleep
        self._output = CollectorOutput(NAME, cache, registries, "The cycles of a container were not counted")
        self.figures: Mapping[str, CpiFigure] = {}
        """Container key -> counts of the last window; replaced as a whole."""
        self.window: Mapping[str, float] = {}
        """Container key -> cycles per instruction, of those that ran enough."""
        registries.view("container_cpi", self._rows)

    async def read(self) -> None:
        """Open, wait, read, close."""
        if not self._feature:
            self._conditions.down(NAME, self._feature.reason, "perf_event")
            return
        with ExitStack() as stack:
            opened = await self._open(stack)
            if opened:
                await self._sleep(self._seconds)
            figures = await self._collect(opened)
        self.figures = {figure.subject.key: figure for figure in figures}
        self.window = {key: cpi for key, figure in self.figures.items() if (cpi := figure.cpi) is not None}
        self._conditions.up(NAME, "perf_event")
        self._output.commit(self._batch())

    async def _open(self, stack: ExitStack) -> list[tuple[Subject, CgroupCounters, float]]:
        cpus = tuple(self._cpus())
        running = [s for s in self._workloads().subjects if s.kind is SubjectKind.CONTAINER and s.running]
        opened: list[tuple[Subject, CgroupCounters, float]] = []
        for subject in running:
            await asyncio.sleep(0)  # the kernel may take milliseconds to open and to close a group
            try:
                counters = CgroupCounters(self._perf_dir(subject.cgroup_dir), cpus, self._events)
            except PerfUnavailable as error:
                self._fail("unavailable", str(error))
            except PerfError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._fail("descriptors", f"{len(opened)} of {len(running)} containers counted: {error}")
                    break
                if error.errno != errno.ENOENT:  # the container was removed
                    self._fail("perf", str(error))
            else:
                stack.callback(counters.close)
                opened.append((subject, counters, self._clock()))
        return opened

    async def _collect(self, opened: Iterable[tuple[Subject, CgroupCounters, float]]) -> list[CpiFigure]:
        figures = []
        for subject, counters, since in opened:
            try:
                counts = counters.read()
                seconds = self._clock() - since
            except OSError as error:
                self._fail("perf", str(error))
                continue
            finally:
                counters.close()
            cycles, instructions = (counts[event.name] for event in self._events)
            figures.append(CpiFigure(subject, cycles, instructions, seconds))
            await asyncio.sleep(0)
        return figures

    def _batch(self) -> Batch:
        batch = Batch(self._clock())
        for key, figure in self.figures.items():
            batch.add("container_cpi", figure.cycles, figure.subject.pod_uid, key, "cycle")
            batch.add("container_cpi", figure.instructions, figure.subject.pod_uid, key, "instruction")
        return batch

    def _rows(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for figure in self.figures.values():
            labels = container_labels(figure.subject)
            yield (*labels, "cycles"), figure.cycles
            yield (*labels, "instructions"), figure.instructions

    def _fail(self, cause: str, error: str) -> None:
        self._output.fail(cause, error, log_key=cause)  # one line per cause: an error names its container
