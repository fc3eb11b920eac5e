"""Interference detection on the collectors' figures, and the outputs of its results."""

from __future__ import annotations

from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.interference.cadence import ROUND_SECONDS
from koordlet.interference.service import Interference, StallCollectors
from koordlet.statesinformer.nodemetric.reporter import NodeMetricReporter
from koordlet.statesinformer.nodemetric.status import Extensions
from koordlet.wiring.collectors import Collectors
from koordlet.wiring.context import WiringContext
from koordlet.wiring.states import Cluster


def detection(
    context: WiringContext, collectors: Collectors, cluster: Cluster | None, reporter: NodeMetricReporter | None
) -> Interference:
    """`cluster`: None without an API server. `reporter`: None if NodeMetric is not reported."""
    advisor = collectors.advisor
    interference = Interference(
        advisor,
        context.registries,
        StallCollectors(advisor.mem_stall, advisor.block_io, advisor.net_stall, collectors.optional.cpi),
        node_slo=lambda: None if cluster is None else cluster.states.node_slo.object,
        auditor=context.auditor,
        recorder=None if cluster is None else cluster.events,
        clock=boot_clock,
        wall=SYSTEM_CLOCK.now,
    )
    if reporter is not None:
        views = interference.views
        reporter.extend(Extensions(of_pod=views.pod_extension, of_node=views.node_extension))
    context.routes += interference.views.routes()
    context.runner.add(context.periodic("interference", ROUND_SECONDS, interference.step))
    return interference
