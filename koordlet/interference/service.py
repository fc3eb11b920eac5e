"""Puts interference detection together for koordlet's wiring: a periodic step, alarms, metrics and pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from koordlet.api.crs.slo import NodeSLO
from koordlet.api.sloconfig.interferenceactions import REPORT, enabled
from koordlet.audit import Auditor
from koordlet.interference.alarms import AlarmEventRecorder, AlarmPublisher
from koordlet.interference.cadence import NOTICEABLE_RATIO, Cadence
from koordlet.interference.cpusource import CpuSource
from koordlet.interference.detector import Detector
from koordlet.interference.evaluator import InterferenceEvaluator
from koordlet.interference.evidence import EvidenceCollector, EvidenceSource
from koordlet.interference.model import AlarmState, Verdict, WaitResource
from koordlet.interference.shortevidence import CpuUsage, ShortCpuEvidence
from koordlet.interference.sources import CacheSource, IoSource, MemorySource, NetworkSource
from koordlet.interference.strategy import StrategySource
from koordlet.interference.suspicions import Suspicions
from koordlet.interference.views import InterferenceViews
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.periodic.cpi import CpiCollector
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.prometheus import Registries

BPF = "bpf"
SUSPICION_SECONDS = 3.0
"""A suspicion without newer evidence does not count longer than this."""
SUSPECTED_SECONDS = 1.0
"""Time for which the detector has to suspect other resources than the CPU, so that one evaluation is not enough."""
QUICK_RESOURCES = (WaitResource.IO, WaitResource.NETWORK)
"""Resources other than the CPU with reversible actions; lowering a memory limit reclaims pages."""


@dataclass(frozen=True, slots=True)
class StallCollectors:
    """Collectors other than the advisor that evidence is taken from."""

    memory: MemStallCollector
    block_io: BlockIOCollector
    network: NetStallCollector
    cpi: CpiCollector | None
    """None where cycles per instruction are not collected."""

    def sources(self, cpu: CpuSource) -> Sequence[EvidenceSource]:
        """All evidence sources; a collector that has read nothing yet gives no evidence."""
        memory, block_io, network, cpi = self.memory, self.block_io, self.network, self.cpi
        return (
            cpu,
            MemorySource(
                lambda: None if memory.latest is None else memory.figures,
                lambda: "" if memory.latest is None else memory.latest.source,
            ),
            IoSource(lambda: block_io.figures if block_io.source == BPF else None),
            NetworkSource(
                lambda: network.figures if network.source == BPF else None,
                lambda: network.deferred,
                lambda: cpu.behind_ksoftirqd,
            ),
            CacheSource(lambda: {} if cpi is None else cpi.window),
        )


class Interference:
    """`step` is to be run every `cadence.ROUND_SECONDS` and `look` every `cadence.LOOK_SECONDS`; `views` has metrics
    and pages. `recorder`: None without an API server; `node_slo` returns None without a NodeSLO; `cpu_usage` reads a
    cgroup."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        registries: Registries,
        collectors: StallCollectors,
        *,
        node_slo: Callable[[], NodeSLO | None],
        auditor: Auditor,
        recorder: AlarmEventRecorder | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
        cpu_usage: CpuUsage,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        def extensions() -> Mapping[str, object] | None:
            slo = node_slo()
            return None if slo is None else slo.spec.extensions

        self._advisor = advisor
        self._cadence = Cadence(cpu_clock)
        detector = Detector()
        cpu = CpuSource(advisor, self._cadence, detector.alarm_threshold, lambda: collectors.network.deferred.seconds)
        self.evaluator = InterferenceEvaluator(
            EvidenceCollector(advisor, collectors.sources(cpu)),
            detector,
            StrategySource(extensions),
            [AlarmPublisher(auditor, recorder, clock=clock)],
            clock=clock,
        )
        self._quick_collectors = (
            (WaitResource.IO, collectors.block_io),
            (WaitResource.NETWORK, collectors.network),
        )
        """Collectors that are read in every round only while their figures approach an alarm."""
        self._clock = clock
        self._short = ShortCpuEvidence(advisor, cpu, detector.alarm_threshold, cpu_usage, cpu_clock)
        self._suspicions = Suspicions()
        self.on_suspicion: Callable[[], None] = lambda: None
        """Called when a container begins to be suspected."""
        self.views = InterferenceViews(self.evaluator, registries, lambda: advisor.workloads, clock=clock, wall=wall)

    def step(self) -> None:
        """Evaluate, unless `cadence` skips this round; the advisor reads schedule latency at the same pace."""
        if self._cadence.skips(self._advisor.sched_latency.latest):
            return
        with self._cadence.judging(lambda: self.evaluator.near_alarm(NOTICEABLE_RATIO)):
            self.evaluator.step()
        self._advisor.sched_latency.relax(self._cadence.relaxed)
        for resource, collector in self._quick_collectors:
            collector.relax(not self.evaluator.is_rising(resource, NOTICEABLE_RATIO))

    def look(self) -> None:
        """Look at the short evidence, if culprits of CPU interference are throttled."""
        strategy, now = self.evaluator.strategies.current(), self._clock()
        action = enabled(strategy.actions).get(WaitResource.CPU.value)
        if strategy.enable is False or action is None or action.policy == REPORT:
            self._short.forget()
            self._suspicions.clear()
            return
        evidence = self._short.look(strategy, now)
        if self._short.noticed:
            self._cadence.hurry()
            self._advisor.sched_latency.relax(self._cadence.relaxed)
        if evidence is not None and self._suspicions.update(evidence, (strategy.leave_percent or 100) / 100, now):
            self.on_suspicion()

    @property
    def suspicions(self) -> tuple[Verdict, ...]:
        """What short evidence is enough for: light, reversible actions."""
        now = self._clock()
        by_detector = (
            verdict
            for verdicts in self.evaluator.verdicts.values()
            for verdict in verdicts
            if verdict.state is AlarmState.SUSPECTED
            and verdict.resource in QUICK_RESOURCES
            and verdict.score >= 1.0
            and verdict.at - verdict.began >= SUSPECTED_SECONDS
        )
        quick = (*self._suspicions.verdicts, *by_detector)
        return tuple(verdict for verdict in quick if now - verdict.at <= SUSPICION_SECONDS)

    @property
    def recent_cores(self) -> Mapping[str, float]:
        """Pod UID -> cores used in the last half second, for best-effort pods; only while something is suspected."""
        return self._short.cores
