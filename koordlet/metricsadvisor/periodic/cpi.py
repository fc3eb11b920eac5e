"""Cycles and instructions of every running container, counted for a window now and then (spec 02 §5.12).

Counting costs at every switch between cgroups, so counters are open for `window` seconds (10) of each round (60) only.
They are opened on all online CPUs of that moment, whatever their numbers; a container that does not run or leaves is
passed over, and whatever was opened is closed however the round ends. The loop gets a turn between containers.
Bounded by running containers x online CPUs x 2 descriptors, held during the window.

CPI, cycles per instruction, rises when a neighbour takes cache or memory bandwidth. A container that hardly ran says
nothing by it and is left out of `window`. Machines without hardware counters, as most virtual ones are: a condition.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.views import container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cpu.perf import CPI_EVENTS, CgroupCounters, PerfError, PerfEvent, PerfUnavailable
from koordlet.system.kernel import Feature

log = get_logger(__name__)

NAME = "cpi"
MIN_CYCLES_PER_SECOND = 1e7
"""A hundredth of a slow core: below it a CPI is that of wake-ups and idle loops."""


@dataclass(frozen=True, slots=True)
class CpiFigure:
    """Counts of one window, scaled to the whole of it where the kernel had to take turns with the counters."""

    subject: Subject
    cycles: float
    instructions: float
    seconds: float

    @property
    def cpi(self) -> float | None:
        """None for a container that ran too little to tell."""
        if self.instructions <= 0 or self.cycles < MIN_CYCLES_PER_SECOND * self.seconds:
            return None
        return self.cycles / self.instructions


class CpiCollector:
    """`read` is one round and takes `seconds`.

    `perf_dir` gives the directory of a cgroup that perf wants, `cpus` the CPUs that are online now, `feature` whether
    the machine can count; `events` are the two to count, called cycles and instructions.
    """

    def __init__(
        self,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: Conditions,
        *,
        perf_dir: Callable[[str], str],
        cpus: Callable[[], Iterable[int]],
        feature: Feature,
        seconds: float = 10.0,
        events: tuple[PerfEvent, ...] = CPI_EVENTS,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._workloads, self._cache, self._registries, self._conditions = workloads, cache, registries, conditions
        self._perf_dir, self._cpus, self._feature = perf_dir, cpus, feature
        self._seconds, self._events, self._clock, self._sleep = seconds, events, clock, sleep
        self.figures: Mapping[str, CpiFigure] = {}
        """Container key -> counts of the last window; replaced as a whole, so that who is gone is gone."""
        self.window: Mapping[str, float] = {}
        """Container key -> cycles per instruction, of those that ran enough to tell."""
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
        try:
            self._cache.commit(self._batch())
        except SeriesError as error:
            self._fail("series", str(error))

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
                if error.errno != errno.ENOENT:  # the container left
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

    def _fail(self, cause: str, text: str) -> None:
        self._registries.count("collector_failures_total", NAME, cause)
        log.once(f"cpi:{cause}", "a container's cycles were not counted", cause=cause, error=text)
