"""The layer in one piece, for koordlet's wiring: collectors in, a task to run and pages to serve out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordlet.api.slo import NodeSLO
from koordlet.audit import Auditor, NullAuditor
from koordlet.interference import sources
from koordlet.interference.announce import Announcer, Recorder
from koordlet.interference.gather import Gatherer, Source
from koordlet.interference.model import Resource
from koordlet.interference.policy import Policy
from koordlet.interference.views import InterferenceViews
from koordlet.interference.watch import Watch
from koordlet.metrics import Registries
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.blockio import BlockIOCollector
from koordlet.metricsadvisor.cpi import CpiCollector
from koordlet.metricsadvisor.memstall import MemStallCollector, SubjectMemStall
from koordlet.metricsadvisor.netstall import NetStallCollector

SECONDS = 1.0
"""Between two evaluations."""
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
            lambda: net_stall.window if net_stall is not None and net_stall.source == BPF else None
        ),
        Resource.CACHE: sources.cache(lambda: {} if cpi is None else cpi.window),
    }


class Interference:
    """`watch.step` is to be run every `SECONDS`; `views` has what is served."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        registries: Registries,
        *,
        node_slo: Callable[[], NodeSLO | None] = lambda: None,
        evidence: Mapping[Resource, Source],
        auditor: Auditor | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        def extensions() -> Mapping[str, Any] | None:
            found = node_slo()
            return None if found is None else found.spec.extensions

        self.watch = Watch(Gatherer(advisor, evidence), Policy(extensions), clock=clock)
        self.watch.listen(Announcer(auditor or NullAuditor(), recorder, clock=clock))
        self.views = InterferenceViews(self.watch, registries, lambda: advisor.workloads, clock=clock, wall=wall)
