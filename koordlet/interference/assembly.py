"""The layer in one piece, for koordlet's wiring: collectors in, a task to run and pages to serve out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from koordlet.api.crs.slo import NodeSLO
from koordlet.audit import Auditor, NullAuditor
from koordlet.interference import sources
from koordlet.interference.announce import Announcer, Recorder
from koordlet.interference.gather import NOTICED, Gatherer, Source
from koordlet.interference.model import Resource
from koordlet.interference.policy import Policy
from koordlet.interference.views import InterferenceViews
from koordlet.interference.watch import Watch
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.periodic.cpi import CpiCollector
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector, SubjectMemStall
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot
from koordlet.prometheus import Registries

SECONDS = 1.0
"""Between two evaluations."""
DEAR = 0.005
"""CPU seconds of an evaluation from which on it comes less often: half a percent of a core."""
BPF = "bpf"


def evidence_from(
    *,
    mem_stall: MemStallCollector | None = None,
    block_io: BlockIOCollector | None = None,
    net_stall: NetStallCollector | None = None,
    cpi: CpiCollector | None = None,
) -> dict[Resource, Source]:
    """Evidence of the collectors that there are; one that reads nothing gives none."""

    def stalls() -> Mapping[str, SubjectMemStall] | None:
        return None if mem_stall is None or mem_stall.latest is None else mem_stall.window

    def stalls_from() -> str:
        return "" if mem_stall is None or mem_stall.latest is None else mem_stall.latest.source

    return {
        Resource.MEMORY: sources.memory(stalls, stalls_from),
        Resource.IO: sources.io(lambda: block_io.window if block_io is not None and block_io.source == BPF else None),
        Resource.NETWORK: sources.network(
            lambda: net_stall.window if net_stall is not None and net_stall.source == BPF else None,
            lambda: sources.NONE_PUT_OFF if net_stall is None else net_stall.put_off,
        ),
        Resource.CACHE: sources.cache(lambda: {} if cpi is None else cpi.window),
    }


class Interference:
    """`step` is to be run every `SECONDS`; `views` has what is served."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        registries: Registries,
        *,
        node_slo: Callable[[], NodeSLO | None] = lambda: None,
        evidence: Mapping[Resource, Source],
        auditor: Auditor | None = None,
        recorder: Recorder | None = None,
        put_off: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float],
        wall: Callable[[], float],
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        def extensions() -> Mapping[str, Any] | None:
            found = node_slo()
            return None if found is None else found.spec.extensions

        self._advisor, self._gatherer = advisor, Gatherer(advisor, evidence)
        self._judged: SchedLatencySnapshot | None = None
        self._rested, self._cpu_clock = False, cpu_clock
        self._gatherer.put_off = put_off
        self.watch = Watch(self._gatherer, Policy(extensions), clock=clock)
        self._gatherer.alarm_at = lambda subjects, strategy: self.watch.detector.alarm_at(
            subjects, Resource.CPU, strategy
        )
        self.watch.listen(Announcer(auditor or NullAuditor(), recorder, clock=clock))
        self.views = InterferenceViews(self.watch, registries, lambda: advisor.workloads, clock=clock, wall=wall)

    def step(self) -> None:
        """Judge what there is. While nobody is anywhere near trouble that is every other time only, and schedule
        latency is read as seldom; the first figure that comes half way to trouble ends that. It is so, too, while
        hundreds are in trouble at once, as on a node whose CPUs are short: judging is dear then, and must not add to
        it."""
        latest = self._advisor.latency_window.latest
        self._rested = self._advisor.unhurried and not self._rested and latest is self._judged
        if self._rested:
            return
        self._judged, used = latest, self._cpu_clock()
        self.watch.step()
        dear = self._cpu_clock() - used > DEAR
        near = bool((self.watch.detector.scores >= NOTICED).any())
        self._advisor.unhurried = dear or not (near or self.watch.verdicts or self._gatherer.noticed)
