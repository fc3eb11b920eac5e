"""Interference detection on the collectors' figures, and the outputs of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.app.logging import get_logger
from koordlet.interference.cadence import LOOK_SECONDS, ROUND_SECONDS
from koordlet.interference.service import Interference, StallCollectors
from koordlet.statesinformer.nodemetric.reporter import NodeMetricReporter
from koordlet.statesinformer.nodemetric.status import Extensions
from koordlet.system.errors import KernelFileError
from koordlet.wiring.collectors import Collectors
from koordlet.wiring.context import WiringContext
from koordlet.wiring.states import Cluster

log = get_logger(__name__)

PodExtension = Callable[[str], dict[str, Any] | None]


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
        cpu_usage=lambda directory: _cpu_usage(context, directory),
    )
    external: Callable[[str], Mapping[str, float]] | None = None
    if context.options.external_advisors:
        from koordlet.wiring.external import external_advisors

        external = external_advisors(context, lambda: advisor.workloads, collectors.optional.conditions).of_container
    if reporter is not None:
        views = interference.views
        of_pod: PodExtension = views.pod_extension
        if context.gates.enabled("PeerComparison"):
            of_pod = _merged(of_pod, _performance(context, collectors, interference, external))
        reporter.extend(Extensions(of_pod=of_pod, of_node=views.node_extension))
    context.routes += interference.views.routes()
    context.runner.add(context.periodic("interference", ROUND_SECONDS, interference.step))
    context.runner.add(context.periodic("interference-look", LOOK_SECONDS, interference.look))
    return interference


def _cpu_usage(context: WiringContext, directory: str) -> int | None:
    try:
        return context.files.cpu_usage(directory)
    except KernelFileError as error:
        log.once(f"cpu:{type(error).__name__}", "Cannot read the CPU use of a cgroup", cause=str(error))
        return None


def _performance(
    context: WiringContext,
    collectors: Collectors,
    interference: Interference,
    external: Callable[[str], Mapping[str, float]] | None,
) -> PodExtension:
    """Gate PeerComparison: each container's performance, for koord-manager."""
    from koordlet.interference.performance import SAMPLE_SECONDS, PerformanceFigures

    cpi = collectors.optional.cpi
    performance = PerformanceFigures(
        interference.evaluator,
        lambda: collectors.advisor.workloads,
        lambda: {} if cpi is None else cpi.window,
        external,
    )
    context.runner.add(context.periodic("sample-performance", SAMPLE_SECONDS, performance.sample))
    return performance.pod_extension


def _merged(first: PodExtension, second: PodExtension) -> PodExtension:
    def of_pod(uid: str) -> dict[str, Any] | None:
        return {**(first(uid) or {}), **(second(uid) or {})} or None

    return of_pod
