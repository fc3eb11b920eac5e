"""The layer in one piece, for koordlet's wiring: collectors in, a task to run and pages to serve out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordlet.api.slo import NodeSLO
from koordlet.audit import Auditor, NullAuditor
from koordlet.interference.announce import Announcer, Recorder
from koordlet.interference.gather import Gatherer, Source
from koordlet.interference.model import Resource
from koordlet.interference.policy import Policy
from koordlet.interference.views import InterferenceViews
from koordlet.interference.watch import Watch
from koordlet.metrics import Registries
from koordlet.metricsadvisor.advisor import MetricsAdvisor

SECONDS = 1.0
"""Between two evaluations."""


class Interference:
    """`watch.step` is to be run every `SECONDS`; `views` has what is served."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        registries: Registries,
        *,
        node_slo: Callable[[], NodeSLO | None] = lambda: None,
        sources: Mapping[Resource, Source] | None = None,
        auditor: Auditor | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        def extensions() -> Mapping[str, Any] | None:
            found = node_slo()
            return None if found is None else found.spec.extensions

        self.watch = Watch(Gatherer(advisor, sources), Policy(extensions), clock=clock)
        self.watch.listen(Announcer(auditor or NullAuditor(), recorder, clock=clock))
        self.views = InterferenceViews(self.watch, registries, lambda: advisor.workloads, clock=clock, wall=wall)
