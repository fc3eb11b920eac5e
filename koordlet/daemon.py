"""koordlet, wired: what is made of what, in which order it starts, and what a failure of it means.

    kernel files, BPF tables -> TickReader, ProbeSet -> collectors -> MetricCache -> NodeMetric, predictions
    API server, kubelet      -> KubeStates (or LocalStates) --^  '-> Interference, Views: Prometheus, /top

Nothing waits for an optional part: a kernel without a feature, a missing NodeSLO or a kubelet that is away are
conditions (/readyz, metrics, /top), and the rest goes on (spec 02 §1.2). Stop order is the reverse of start order.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from koordlet.app.heap import trim_heap, unmap_files
from koordlet.app.logging import get_logger
from koordlet.app.startup import loaded
from koordlet.metricsadvisor.facts.capacity import attach_capacity
from koordlet.metricsadvisor.views import Views
from koordlet.options import KoordletOptions
from koordlet.probes.openprobes import ProbeSet
from koordlet.statesinformer.states import States
from koordlet.version import VERSION
from koordlet.wiring import serving
from koordlet.wiring.collectors import all_groups, collectors
from koordlet.wiring.context import Context
from koordlet.wiring.probes import STOP_SIGNALS, begin
from koordlet.wiring.states import Cluster, cluster, local

if TYPE_CHECKING:
    from koordlet.statesinformer.nodemetric.reporter import NodeMetricReporter

log = get_logger(__name__)

TRIM_SECONDS = 10.0
UNMAP_SECONDS = 300.0


class Daemon:
    """One koordlet. `run` returns the process's exit status."""

    def __init__(self, options: KoordletOptions) -> None:
        self.context = Context(options)

    async def run(self) -> int:
        """Start everything, serve until a signal, stop everything."""
        context, options = self.context, self.context.options
        serving.audit(context)
        found = None if options.standalone else cluster(context)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a stop in between would leave a mount behind
        probes = begin(context)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            await self._wire(found, probes)
            loaded()
            log.info("koordlet starts", version=VERSION, node=context.node_name)
            return await context.runner.run()
        finally:
            probes.close(keep=options.keep_pins)

    async def _wire(self, found: Cluster | None, probes: ProbeSet) -> None:
        """What is read first is wired first: a rate takes two readings, and all else is loaded between them."""
        context = self.context
        groups = all_groups(context, probes)
        states: States = local(context, groups) if found is None else found.states
        made = collectors(context, states, probes, groups)
        await made.use.run_once()
        from koordlet.wiring.detection import detection

        reporter = None if found is None else self._report(found)
        interference = detection(context, made, found, reporter)
        if found is not None:
            from koordlet.wiring.enforcement import enforcement  # nothing to load for --standalone

            enforcement(context, found, made.advisor, interference)
            if context.gates.enabled("PodResourcesProxy"):
                from koordlet.wiring.podresources import pod_resources

                pod_resources(context, found)
        views = Views(
            made.advisor,
            context.cache,
            context.registries,
            probes,
            context.host.facts,
            open_files=lambda: context.files.cache.stats.open_fds,
            verdicts=interference.views.briefs,
        )
        attach_capacity(context.registries, made.advisor)
        context.pleg.attach(context.registries)
        context.runner.add(context.pleg)
        serving.serve(context, views)
        serving.snapshots(context)
        context.runner.add(context.periodic("trim-heap", TRIM_SECONDS, trim_heap, immediate=False))
        context.runner.add(context.periodic("unmap-files", UNMAP_SECONDS, unmap_files))

    def _report(self, found: Cluster) -> NodeMetricReporter | None:
        from koordlet.wiring import devices, reports

        context, options = self.context, self.context.options
        reporter = reports.node_metric(context, found) if options.enable_node_metric_report else None
        if options.node_topology_sync_interval > 0:
            reports.node_topology(context, found)
            devices.report(context, found)
        return reporter
