"""Puts interference detection together for koordlet's wiring: a periodic step, alarms, metrics and pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from koordlet.api.crs.slo import NodeSLO
from koordlet.audit import Auditor
from koordlet.interference.alarms import AlarmEventRecorder, AlarmPublisher
from koordlet.interference.cadence import NOTICEABLE_RATIO, Cadence
from koordlet.interference.cpusource import CpuSource
from koordlet.interference.detector import Detector
from koordlet.interference.evaluator import InterferenceEvaluator
from koordlet.interference.evidence import EvidenceCollector, EvidenceSource
from koordlet.interference.sources import CacheSource, IoSource, MemorySource, NetworkSource
from koordlet.interference.strategy import StrategySource
from koordlet.interference.views import InterferenceViews
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.periodic.cpi import CpiCollector
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.prometheus import Registries

BPF = "bpf"


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
    """`step` is to be run every `cadence.ROUND_SECONDS`; `views` has metrics and pages. `recorder`: None without an API
    server; `node_slo` returns None without a NodeSLO."""

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
        self.views = InterferenceViews(self.evaluator, registries, lambda: advisor.workloads, clock=clock, wall=wall)

    def step(self) -> None:
        """Evaluate, unless `cadence` skips this round; the advisor reads schedule latency at the same pace."""
        if self._cadence.skips(self._advisor.sched_latency.latest):
            return
        with self._cadence.judging(lambda: self.evaluator.near_alarm(NOTICEABLE_RATIO)):
            self.evaluator.step()
        self._advisor.sched_latency.relax(self._cadence.relaxed)
