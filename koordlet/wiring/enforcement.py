"""Enforcement: strategies decide from a view of the node, the executor writes settings, the evictor evicts pods.

Changed settings are restored at an orderly stop; after a kill the next start restores them from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from koordlet.api.encoding.wire import encode
from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.interference.service import Interference
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.qosmanager.engine.equivalents import equivalents
from koordlet.qosmanager.engine.evictor import EvictionMethod, EvictionRequests, PodEvictor
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.notices import NoticePublisher
from koordlet.qosmanager.engine.pages import attach_enforcement, state_page, throttled_about, throttled_page
from koordlet.qosmanager.engine.view import InterferenceView, NodeView
from koordlet.qosmanager.engine.viewbuilder import RoundInputs, ViewBuilder, ViewSources, averages, memory_reader
from koordlet.qosmanager.rules.cpu import NodeRules
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.statesinformer.callbacks import StateType
from koordlet.system.cgroup.naming import kubepods_dir
from koordlet.wiring.collectors import Collectors
from koordlet.wiring.context import WiringContext
from koordlet.wiring.hooks import announced_pods, runtime_hooks
from koordlet.wiring.kernelsettings import SettingWriters, build_setting_writers
from koordlet.wiring.levers import levers
from koordlet.wiring.ownerrules import RULES
from koordlet.wiring.states import Cluster
from koordlet.wiring.strategies import ROUND_PERIOD_S, StrategyInputs, build_strategies

log = get_logger(__name__)


def enforcement(context: WiringContext, cluster: Cluster, collectors: Collectors, interference: Interference) -> None:
    """Build the parts that the gates enable, connect them, and add them to the runner."""
    throttling = ThrottleCulprits(context.supports, levers(context), suppress=context.gates.enabled("BECPUSuppress"))
    strategies = build_strategies(StrategyInputs(context, cluster, throttling))
    periodic = [built for built in strategies if built.period > 0]
    writers = build_setting_writers(context, cluster.states, periodic)
    announced = announced_pods(cluster.states)
    views = _NodeViews(
        cluster, collectors.advisor, interference, announced, _view_builder(context, cluster, collectors, writers)
    )
    manager = QoSManager(
        [(built.strategy, built.period) for built in periodic],
        views.full,
        writers.executor,
        PodEvictor(_eviction_method(context, cluster), cluster.events, context.auditor, context.registries, boot_clock),
        context.registries,
        NoticePublisher(cluster.events, context.auditor, context.registries),
        writers.actor,
        outline=views.outline,
    )
    attach_enforcement(context.registries, writers.executor)
    interference.views.show_throttling(lambda uid: throttled_about(throttling.throttled, uid, _boot_to_wall()))
    _serve_state(context, cluster, manager, writers, throttling)
    context.runner.add_stop("settings", lambda: _restore(manager))
    registration = runtime_hooks(
        context,
        cluster.states,
        [built.strategy for built in strategies],
        manager,
        announced,
        views.outline,
        writers.executor.current,
    )
    if periodic:
        rounds = context.periodic("qos", ROUND_PERIOD_S, manager.round)
        context.runner.add(rounds)
        interference.on_suspicion = lambda: _at_once(throttling, rounds)
    context.runner.add(registration)
    names = ",".join(built.strategy.name for built in periodic)
    log.info("Enforcement is set up", strategies=names, gates=str(context.gates))


def _eviction_method(context: WiringContext, cluster: Cluster) -> EvictionMethod:
    if context.options.only_evict_by_api:
        return EvictionRequests(cluster.client)
    from koordlet.qosmanager.engine.containerstop import ContainerStopper  # protobuf costs memory

    stopper = ContainerStopper(context.host.roots.var_run, context.options.containerd_endpoint)
    if stopper.problem:
        log.warning("Pods cannot be evicted through CRI", reason=stopper.problem)
    return stopper


@dataclass(frozen=True, slots=True)
class _NodeViews:
    """The node's views for strategies; None until the kubelet has answered, so that no setting is restored because the
    kubelet is unreachable."""

    cluster: Cluster
    advisor: MetricsAdvisor
    interference: Interference
    announced: AnnouncedPods
    builder: ViewBuilder

    def full(self) -> NodeView | None:
        if not self.cluster.pods.answered:
            return None
        advisor = self.advisor
        detected = _interference_view(self.interference)
        return self.builder.full(
            RoundInputs(
                boot_clock(), advisor.use.snapshot, advisor.node_info.topology, detected, self.announced.current()
            )
        )

    def outline(self) -> NodeView | None:
        """Without figures."""
        if not self.cluster.pods.answered:
            return None
        return self.builder.outline(self.advisor.node_info.topology, boot_clock())


def _view_builder(
    context: WiringContext, cluster: Cluster, collectors: Collectors, writers: SettingWriters
) -> ViewBuilder:
    rules = NodeRules()
    callbacks = cluster.states.callbacks
    callbacks.register(StateType.NODE_TOPOLOGY, "cpu-rules", rules.topology)
    callbacks.register(StateType.NODE_METADATA, "cpu-rules", rules.node)
    sources = ViewSources(
        average=averages(context.cache, boot_clock),
        memory_now=memory_reader(context.files),
        io_now=collectors.advisor.block_io.bytes_per_second,
        supports=context.supports,
        collect_interval=context.options.collect_res_used_interval,
    )
    normalized = context.gates.enabled("CPUNormalization")
    return ViewBuilder(cluster.states, rules, sources, writers.executor.current, normalized=normalized)


def _interference_view(interference: Interference) -> InterferenceView:
    evaluator = interference.evaluator
    evidence = evaluator.evidence
    return InterferenceView(
        tuple(evaluator.active),
        evaluator.strategies.current(),
        None if evidence is None else evidence.at,
        interference.suspicions,
        interference.recent_cores,
    )


def _serve_state(
    context: WiringContext,
    cluster: Cluster,
    manager: QoSManager,
    writers: SettingWriters,
    throttling: ThrottleCulprits,
) -> None:
    async def page(_: web.Request) -> web.Response:
        state = state_page(manager, writers.executor, RULES)
        state.node_slo = cluster.slo_condition.problems
        state.equivalents = equivalents(context.supports, kubepods_dir(cluster.states.driver))
        state.held_back = throttled_page(throttling.throttled, _boot_to_wall())
        return web.Response(body=encode(state), content_type="application/json")

    context.routes.append(web.get("/enforcement", page))


def _boot_to_wall() -> float:
    """Seconds to add to a time of the boot clock for wall time."""
    return SYSTEM_CLOCK.now() - boot_clock()


def _at_once(throttling: ThrottleCulprits, rounds: Periodic) -> None:
    throttling.suspect()
    rounds.trigger()


async def _restore(manager: QoSManager) -> None:
    for setting, cause in manager.restore().problems.items():
        log.warning("Setting could not be restored", setting=setting.label, cause=cause)
