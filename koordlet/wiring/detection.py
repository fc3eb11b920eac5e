"""Who hurts whom: the interference layer over the collectors, and where it says so."""

from __future__ import annotations

from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.interference.cadence import ROUND_SECONDS
from koordlet.interference.service import Interference, StallCollectors
from koordlet.statesinformer.nodemetric.reporter import NodeMetricReporter
from koordlet.statesinformer.nodemetric.status import Extensions
from koordlet.wiring.collectors import Collectors
from koordlet.wiring.context import Context
from koordlet.wiring.states import Cluster


def detection(
    context: Context, collectors: Collectors, cluster: Cluster | None, reporter: NodeMetricReporter | None
) -> Interference:
    """`cluster` and `reporter`: None where there is no API server, or nothing is reported."""
    advisor = collectors.advisor
    made = Interference(
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
        reporter.extend(Extensions(of_pod=made.views.pod_extension, of_node=made.views.node_extension))
    context.routes += made.views.routes()
    context.runner.add(context.periodic("interference", ROUND_SECONDS, made.step))
    return made
