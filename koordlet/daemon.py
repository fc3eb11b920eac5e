"""The koordlet process: builds the parts of `koordlet.wiring`, connects them, and runs them.

    kernel files, BPF tables -> TickReader, ProbeSet -> collectors -> MetricCache -> NodeMetric, predictions
    API server, kubelet      -> KubeStates (or LocalStates) --^  '-> Interference, Views: Prometheus, /top

Optional parts never delay others: a kernel without a feature, a missing NodeSLO or an unreachable kubelet are shown in
/readyz, metrics and /top, and everything else runs (spec 02 §1.2). Services stop in the reverse order of their start.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from koordlet.app.heap import trim_heap, unmap_files
from koordlet.app.http import ListenError, listen
from koordlet.app.logging import get_logger
from koordlet.app.startup import loaded
from koordlet.app.statelock import StateLock, StateLockError, StateLockUnavailable
from koordlet.metricsadvisor.facts.capacity import attach_capacity
from koordlet.metricsadvisor.views import Views
from koordlet.options import KoordletOptions
from koordlet.probes.openprobes import ProbeSet
from koordlet.statesinformer.states import States
from koordlet.version import VERSION
from koordlet.wiring import serving
from koordlet.wiring.collectors import all_groups, collectors
from koordlet.wiring.context import WiringContext
from koordlet.wiring.probes import STOP_SIGNALS, begin
from koordlet.wiring.states import Cluster, cluster, local

if TYPE_CHECKING:
    from koordlet.statesinformer.nodemetric.reporter import NodeMetricReporter

log = get_logger(__name__)

TRIM_PERIOD_S = 10.0
UNMAP_PERIOD_S = 300.0


class KoordletDaemon:
    """One koordlet process."""

    def __init__(self, options: KoordletOptions) -> None:
        self.context = WiringContext(options)

    async def run(self) -> int:
        """Run until a signal; returns the exit status."""
        context = self.context
        options = context.options
        lock = StateLock(Path(options.state_dir))
        try:  # before anything on the node is changed: a second koordlet must not disturb the first
            _take(lock)
            context.listener = listen(options.addr)
        except (StateLockError, ListenError) as error:
            log.error("Koordlet cannot start", error=str(error))
            lock.release()
            return 1
        serving.audit(context)
        with_api_server = None if options.standalone else cluster(context)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a stop before `try` would leave a mount behind
        probes = begin(context)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            await self._build(with_api_server, probes)
            loaded()
            log.info("koordlet starts", version=VERSION, node=context.node_name)
            return await context.runner.run()
        finally:
            probes.close(keep=options.keep_pins)
            lock.release()

    async def _build(self, with_api_server: Cluster | None, probes: ProbeSet) -> None:
        """Collectors come first: a rate takes two readings, and the other parts are built between them."""
        context = self.context
        groups = all_groups(context, probes)
        states: States = local(context, groups) if with_api_server is None else with_api_server.states
        readers = collectors(context, states, probes, groups)
        await readers.use.run_once()
        from koordlet.wiring.detection import detection

        reporter = None if with_api_server is None else self._report(with_api_server)
        interference = detection(context, readers, with_api_server, reporter)
        if with_api_server is not None:
            from koordlet.wiring.enforcement import enforcement  # not imported with --standalone

            enforcement(context, with_api_server, readers, interference)
            if context.gates.enabled("PodResourcesProxy"):
                from koordlet.wiring.podresources import pod_resources

                pod_resources(context, with_api_server)
        views = Views(
            readers.advisor,
            context.cache,
            context.registries,
            probes,
            context.host.facts,
            open_files=lambda: len(context.files.cache.paths()),
            verdicts=interference.views.briefs,
        )
        attach_capacity(context.registries, readers.advisor)
        context.pleg.attach(context.registries)
        context.runner.add(context.pleg)
        serving.serve(context, views)
        serving.snapshots(context)
        context.runner.add(context.periodic("trim-heap", TRIM_PERIOD_S, trim_heap, immediate=False))
        context.runner.add(context.periodic("unmap-files", UNMAP_PERIOD_S, unmap_files))

    def _report(self, with_api_server: Cluster) -> NodeMetricReporter | None:
        from koordlet.wiring import devices, reports

        context = self.context
        options = context.options
        reporter = reports.node_metric(context, with_api_server) if options.enable_node_metric_report else None
        if options.node_topology_sync_interval > 0:
            reports.node_topology(context, with_api_server)
            devices.report(context, with_api_server)
        return reporter


def _take(lock: StateLock) -> None:
    """A full or read-only disk does not keep koordlet from starting; the address still excludes a second one."""
    try:
        lock.acquire()
    except StateLockUnavailable as error:
        log.warning("The state directory is not locked", error=str(error))
