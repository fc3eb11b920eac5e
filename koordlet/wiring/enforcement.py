"""What koordlet changes: strategies over the node's picture, the executor that writes, evictions.

Everything that was touched is given back at an orderly stop; after a kill the next start does it from the ledger.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from koordlet.api.encoding.wire import encode
from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.app.logging import get_logger
from koordlet.interference.service import Interference
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.qosmanager.engine.equivalents import equivalents
from koordlet.qosmanager.engine.evictor import PodEvictor
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.notices import NoticePublisher
from koordlet.qosmanager.engine.pages import attach_enforcement, state_page, throttled_about, throttled_page
from koordlet.qosmanager.engine.strategy import Strategy
from koordlet.qosmanager.engine.view import InterferenceView, NodeView
from koordlet.qosmanager.engine.viewbuilder import RoundInputs, ViewBuilder, ViewSources, averages, memory_reader
from koordlet.qosmanager.rules.cpu import NodeRules
from koordlet.qosmanager.strategies import cpuevict, memoryevict
from koordlet.qosmanager.strategies.cpuburst import CPUBurst
from koordlet.qosmanager.strategies.cpusuppress import CPUSuppress
from koordlet.qosmanager.strategies.memoryqos import MemoryQOSReconcile
from koordlet.qosmanager.strategies.memoryreclaim import MemoryReclaim
from koordlet.qosmanager.strategies.systemconfig import SystemConfigStrategy
from koordlet.qosmanager.throttling.iolever import IO_SETTINGS
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.resourceexecutor import Executor
from koordlet.resourceexecutor.actions import Actor
from koordlet.resourceexecutor.cookies import Cookies
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger, LedgerError
from koordlet.resourceexecutor.merge import OwnerRule
from koordlet.resourceexecutor.oomscores import OOMScoreStore
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.hooks.coresched import CoreSched, attach_cookies
from koordlet.runtimehooks.hooks.cpunormalization import CPUNormalization
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.runtimehooks.hooks.groupidentity import GroupIdentity
from koordlet.runtimehooks.hooks.oomscore import OOMScoreAdj
from koordlet.statesinformer.callbacks import StateType
from koordlet.system.cgroup.naming import kubepods_dir
from koordlet.wiring import divided
from koordlet.wiring.context import Context
from koordlet.wiring.hooks import announced_pods, runtime_hooks
from koordlet.wiring.states import Cluster

log = get_logger(__name__)

RULES = (
    OwnerRule(
        ("sched_group_identity_enabled",), ("groupidentity", "systemconfig"), "configured identities must be enabled"
    ),
    OwnerRule(
        ("cpuset.cpus",),
        ("cpusuppress", "cpusetallocator"),
        "best-effort pods must not use CPUs that services need, and no cgroup below their directory may have CPUs that "
        "the directory lacks",
    ),
    OwnerRule(
        ("cpu.cfs_quota_us",),
        ("cpusuppress", "interferenceactions", "cpusetallocator", "cpuburst", "cpunormalization", "batchresource"),
        "a bound on best effort comes first; pinned CPUs need no quota; a burst starts from the normalized quota",
    ),
    OwnerRule(
        ("memory.limit_in_bytes", "memory.high", *IO_SETTINGS),
        ("interferenceactions", "memoryqos", "batchresource", "blkio"),
        "a culprit has less than it may have, and never more",
    ),
)
LEDGER = "settings.json"
ROUND_SECONDS = 1.0
"""Strategies that are due are asked at each round."""


def enforcement(
    context: Context,
    cluster: Cluster,
    advisor: MetricsAdvisor,
    interference: Interference | None = None,
) -> None:
    """Make what the gates ask for, and run it."""
    options, gates, states = context.options, context.gates, cluster.states
    suppress = gates.enabled("BECPUSuppress")
    actions = ThrottleCulprits(context.supports, divided.levers(context), suppress=suppress)
    every = [*_strategies(context, actions), *divided.strategies(context, cluster, actions)]
    strategies = [pair for pair in every if pair[1] > 0]
    cookies = Cookies(context.files.procs, context.host.facts.features["core_sched"], boot_clock)
    attach_cookies(context.registries, cookies, lambda: states.workloads.pods.values())
    oom_scores = OOMScoreStore(context.files.procs, context.host.roots)
    files = KernelFiles(context.files, context.host.roots, [cookies, oom_scores, *divided.stores(context)])
    executor = Executor(
        files,
        _ledger(context),
        context.auditor,
        context.registries,
        rules=RULES,
        expected=[strategy.name for strategy, _ in strategies],
        reconcilers=[strategy.name for strategy, _ in strategies if strategy.follows_pods],
        force_seconds=options.resource_force_update_seconds,
        clock=boot_clock,
    )
    evictor = PodEvictor(cluster.client, cluster.events, context.auditor, context.registries, boot_clock)

    rules, announced = NodeRules(), announced_pods(states)
    states.callbacks.register(StateType.NODE_TOPOLOGY, "cpu-rules", "CPU pools for pods", rules.topology)
    states.callbacks.register(StateType.NODE_METADATA, "cpu-rules", "CPU normalization", rules.node)

    sources = ViewSources(
        average=averages(context.cache, boot_clock),
        memory_now=memory_reader(context.files),
        io_now=advisor.block_io.bytes_per_second,
        supports=context.supports,
        collect_interval=options.collect_res_used_interval,
    )
    views = ViewBuilder(states, rules, sources, executor.current, normalized=gates.enabled("CPUNormalization"))

    def picture() -> NodeView | None:
        if states.pods is None or not states.pods.answered:
            return None  # nobody's settings are given back because the kubelet is silent
        judged = None if interference is None else _interference_view(interference)
        return views.full(
            RoundInputs(boot_clock(), advisor.use.snapshot, advisor.node_info.topology, judged, announced.current())
        )

    def outline() -> NodeView | None:
        if states.pods is None or not states.pods.answered:
            return None
        return views.outline(advisor.node_info.topology, boot_clock())

    publish = NoticePublisher(cluster.events, context.auditor, context.registries)
    actor = Actor(files, context.auditor, context.registries)
    manager = QoSManager(strategies, picture, executor, evictor, context.registries, publish, actor, outline=outline)
    attach_enforcement(context.registries, executor)

    async def page(_: web.Request) -> web.Response:
        state = state_page(manager, executor, RULES)
        state.node_slo = cluster.slo_condition.problems
        state.equivalents = equivalents(context.supports, kubepods_dir(states.driver))
        state.held_back = throttled_page(actions.throttled, SYSTEM_CLOCK.now() - boot_clock())
        return web.Response(body=encode(state), content_type="application/json")

    async def give_back() -> None:
        left = manager.restore()
        for setting, cause in left.problems.items():
            log.warning("setting could not be given back", setting=setting.label, cause=cause)

    if interference is not None:
        interference.views.show_throttling(
            lambda uid: throttled_about(actions.throttled, uid, SYSTEM_CLOCK.now() - boot_clock())
        )
    context.routes.append(web.get("/enforcement", page))
    context.runner.add_stop("settings", give_back)
    plugins = [strategy for strategy, _ in every]
    registration = runtime_hooks(context, states, plugins, manager, announced, outline, executor.current)
    if strategies:
        context.runner.add(context.periodic("qos", ROUND_SECONDS, manager.round))
    context.runner.add(registration)
    log.info("enforcing", strategies=",".join(strategy.name for strategy, _ in strategies), gates=str(gates))


def _interference_view(interference: Interference) -> InterferenceView:
    evaluator = interference.evaluator
    evidence = evaluator.evidence
    return InterferenceView(
        tuple(evaluator.active), evaluator.strategies.current(), None if evidence is None else evidence.at
    )


def _strategies(context: Context, actions: ThrottleCulprits) -> list[tuple[Strategy, float]]:
    options, gates = context.options, context.gates
    found: list[tuple[Strategy, float]] = []
    if gates.enabled("BECPUSuppress"):
        suppress = CPUSuppress(be_cpu_manager=gates.enabled("BECPUManager"), target=lambda: actions.target)
        found.append((suppress, options.cpu_suppress_interval_seconds))
    if gates.enabled("GroupIdentity"):
        identity = GroupIdentity(context.supports)
        found.append((identity, options.runtime_hooks_reconcile_interval))
    if gates.enabled("CPUSetAllocator"):
        allocator = CPUSetAllocator(
            be_cpu_manager=gates.enabled("BECPUManager"), unset_quota=not options.disable_unset_cpu_quota
        )
        found.append((allocator, options.runtime_hooks_reconcile_interval))
    if gates.enabled("CPUNormalization"):
        found.append((CPUNormalization(), options.runtime_hooks_reconcile_interval))
    if gates.enabled("OOMScoreAdj"):
        found.append((OOMScoreAdj(), options.runtime_hooks_reconcile_interval))
    if gates.enabled("CoreSched"):
        cookies = CoreSched(context.host.facts.features["core_sched"])
        found.append((cookies, options.runtime_hooks_reconcile_interval))
    if gates.enabled("BatchResource"):
        found.append((BatchResource(), options.runtime_hooks_reconcile_interval))
    if gates.enabled("CPUBurst"):
        beyond = context.supports("cpu.bvt_warp_ns", "")  # only Anolis takes a burst above the quota
        burst = CPUBurst(interval=options.collect_res_used_interval, beyond_quota=beyond)
        found.append((burst, options.reconcile_interval_seconds))
    if gates.enabled("InterferenceActions"):
        found.append((actions, ROUND_SECONDS))
    if gates.enabled("SystemConfig"):
        found.append((SystemConfigStrategy(), options.reconcile_interval_seconds))
    if gates.enabled("CgroupReconcile"):
        found.append((MemoryQOSReconcile(), options.reconcile_interval_seconds))
        found.append((MemoryReclaim(), options.reconcile_interval_seconds))
    by_cpu = [feature for feature in cpuevict.FEATURES if gates.enabled(feature)]
    if by_cpu:
        evict = cpuevict.CPUEvict(
            by_cpu,
            interval=options.collect_res_used_interval,
            started=boot_clock(),
            cool_seconds=options.cpu_evict_cool_time_seconds,
        )
        found.append((evict, options.cpu_evict_interval_seconds))
    by_memory = [feature for feature in memoryevict.FEATURES if gates.enabled(feature)]
    if by_memory:
        reclaim = memoryevict.MemoryEvict(by_memory, cool_seconds=options.memory_evict_cool_time_seconds)
        found.append((reclaim, options.memory_evict_interval_seconds))
    return found


def _ledger(context: Context) -> Ledger:
    path = Path(context.options.state_dir) / LEDGER
    try:
        ledger, said = Ledger.load(path, context.boot_id)
    except LedgerError as error:
        log.warning("settings of an earlier koordlet can't be given back", error=str(error))
        return Ledger(path, context.boot_id)
    if said:
        log.warning("settings of an earlier koordlet can't be given back", cause=said)
    return ledger
