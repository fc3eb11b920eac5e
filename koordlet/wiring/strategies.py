"""The table of QoS strategies: feature gates, how each is built, and how often it decides."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter

from koordlet.api.core import PersistentVolumeClaim
from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.qosmanager.engine.strategy import Strategy
from koordlet.qosmanager.strategies import cpuevict, memoryevict
from koordlet.qosmanager.strategies.blkio import BlkIO
from koordlet.qosmanager.strategies.cpuburst import CPUBurst
from koordlet.qosmanager.strategies.cpusuppress import CPUSuppress
from koordlet.qosmanager.strategies.memoryqos import MemoryQOSReconcile
from koordlet.qosmanager.strategies.memoryreclaim import MemoryReclaim
from koordlet.qosmanager.strategies.resctrl import Facts, ResctrlClasses
from koordlet.qosmanager.strategies.systemconfig import SystemConfigStrategy
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.resourceexecutor.addresssets import AddressStore
from koordlet.resourceexecutor.blockio import BlockStore
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.hooks.coresched import CoreSched
from koordlet.runtimehooks.hooks.cpunormalization import CPUNormalization
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.runtimehooks.hooks.groupidentity import GroupIdentity
from koordlet.runtimehooks.hooks.netqos import NetQoS
from koordlet.runtimehooks.hooks.oomscore import OOMScoreAdj
from koordlet.runtimehooks.hooks.resctrlpods import ResctrlPods
from koordlet.runtimehooks.hooks.terway import TerwayQoS
from koordlet.statesinformer.pods.claims import ClaimVolumes
from koordlet.system import resctrl
from koordlet.system.errors import KernelFileError, MalformedFile
from koordlet.system.network.netroute import default_interface
from koordlet.system.resctrl import ResctrlFacts
from koordlet.wiring.context import WiringContext
from koordlet.wiring.levers import io_limits_are_flat, storage_fact
from koordlet.wiring.states import Cluster

log = get_logger(__name__)

ROUND_PERIOD_S = 1.0
"""In each round the strategies that are due decide."""
EVERY_ROUND_S = ROUND_PERIOD_S / 2
"""A period with which a strategy decides in each round, also if a round begins early by some milliseconds."""
CLAIMS_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class StrategyInputs:
    """What strategies are built from."""

    context: WiringContext
    cluster: Cluster
    throttling: ThrottleCulprits

    def gate(self, name: str) -> bool:
        return self.context.gates.enabled(name)


@dataclass(frozen=True, slots=True)
class StrategyEntry:
    """One strategy; it is built if any of its gates is enabled."""

    gates: Collection[str]
    build: Callable[[StrategyInputs], Strategy]
    period: Callable[[object], float]
    """koordlet's options -> seconds between two decisions; 0: only as a runtime hook."""


@dataclass(frozen=True, slots=True)
class BuiltStrategy:
    """A strategy with its period in seconds."""

    strategy: Strategy
    period: float


def build_strategies(inputs: StrategyInputs) -> list[BuiltStrategy]:
    """The strategies whose gates are enabled, in the order of the table."""
    options = inputs.context.options
    return [
        BuiltStrategy(entry.build(inputs), entry.period(options))
        for entry in STRATEGIES
        if any(inputs.gate(gate) for gate in entry.gates)
    ]


def _cpu_suppress(inputs: StrategyInputs) -> Strategy:
    return CPUSuppress(be_cpu_manager=inputs.gate("BECPUManager"), target=lambda: inputs.throttling.target)


def _cpuset_allocator(inputs: StrategyInputs) -> Strategy:
    keep_quota = inputs.context.options.disable_unset_cpu_quota
    return CPUSetAllocator(be_cpu_manager=inputs.gate("BECPUManager"), unset_quota=not keep_quota)


def _cpu_burst(inputs: StrategyInputs) -> Strategy:
    beyond_quota = inputs.context.supports("cpu.bvt_warp_ns", "")  # only Anolis accepts a burst above the quota
    return CPUBurst(interval=inputs.context.options.collect_res_used_interval, beyond_quota=beyond_quota)


def _cpu_evict(inputs: StrategyInputs) -> Strategy:
    options = inputs.context.options
    return cpuevict.CPUEvict(
        [feature for feature in cpuevict.FEATURES if inputs.gate(feature)],
        interval=options.collect_res_used_interval,
        started=boot_clock(),
        cool_seconds=options.cpu_evict_cool_time_seconds,
    )


def _memory_evict(inputs: StrategyInputs) -> Strategy:
    features = [feature for feature in memoryevict.FEATURES if inputs.gate(feature)]
    return memoryevict.MemoryEvict(features, cool_seconds=inputs.context.options.memory_evict_cool_time_seconds)


def _resctrl(context: WiringContext) -> tuple[Facts, str]:
    """A mounted resctrl is used even if the CPU's flags do not show it (Arm has no such flags)."""
    root = context.host.roots.resctrl
    vendor = context.host.facts.cpu.vendor
    last: ResctrlFacts | None = None

    def facts() -> ResctrlFacts | None:
        nonlocal last
        try:
            last = resctrl.read_facts(root, vendor)
        except (OSError, KernelFileError) as error:  # keep the last facts, so that no setting is restored
            log.once(f"resctrl:{error}", "Cannot read resctrl", error=str(error))
        return last

    return facts, context.host.facts.reasons().get("resctrl", "")


def _blkio(inputs: StrategyInputs) -> Strategy:
    context = inputs.context

    async def claim(namespace: str, name: str) -> PersistentVolumeClaim:
        return await inputs.cluster.client.get(PersistentVolumeClaim, name, namespace)

    claims = ClaimVolumes(claim)
    context.runner.add(context.periodic("claims", CLAIMS_PERIOD_S, claims.refresh))
    return BlkIO(
        lambda: storage_fact(context),
        BlockStore(context.files).supports,
        claims=claims.volume,
        kubelet_dir=str(context.host.roots.var_lib_kubelet),
        flat=io_limits_are_flat(context),
    )


def _netqos(inputs: StrategyInputs) -> Strategy:
    """In koordlet's own network namespace, which is the node's."""
    context = inputs.context

    def interface() -> str | None:
        try:
            return default_interface(context.host.roots)
        except MalformedFile as error:
            log.once(f"route:{error}", "Cannot read the default route", error=str(error))
            return None

    no_sets = AddressStore().probe()
    if no_sets:
        log.info("Addresses are matched by filters instead of sets", cause=no_sets)
    return NetQoS(interface, context.supports, no_sets, held=lambda: inputs.throttling.levels("network"))


_HOOKS = attrgetter("runtime_hooks_reconcile_interval")
_RECONCILE = attrgetter("reconcile_interval_seconds")

STRATEGIES = (
    StrategyEntry(["BECPUSuppress"], _cpu_suppress, attrgetter("cpu_suppress_interval_seconds")),
    StrategyEntry(["GroupIdentity"], lambda inputs: GroupIdentity(inputs.context.supports), _HOOKS),
    StrategyEntry(["CPUSetAllocator"], _cpuset_allocator, _HOOKS),
    StrategyEntry(["CPUNormalization"], lambda inputs: CPUNormalization(), _HOOKS),
    StrategyEntry(["OOMScoreAdj"], lambda inputs: OOMScoreAdj(), _HOOKS),
    StrategyEntry(["CoreSched"], lambda inputs: CoreSched(inputs.context.host.facts.features["core_sched"]), _HOOKS),
    StrategyEntry(["BatchResource"], lambda inputs: BatchResource(), _HOOKS),
    StrategyEntry(["CPUBurst"], _cpu_burst, _RECONCILE),
    StrategyEntry(["InterferenceActions"], lambda inputs: inputs.throttling, lambda options: EVERY_ROUND_S),
    StrategyEntry(["SystemConfig"], lambda inputs: SystemConfigStrategy(), _RECONCILE),
    StrategyEntry(["CgroupReconcile"], lambda inputs: MemoryQOSReconcile(), _RECONCILE),
    StrategyEntry(["CgroupReconcile"], lambda inputs: MemoryReclaim(), _RECONCILE),
    StrategyEntry(cpuevict.FEATURES, _cpu_evict, attrgetter("cpu_evict_interval_seconds")),
    StrategyEntry(memoryevict.FEATURES, _memory_evict, attrgetter("memory_evict_interval_seconds")),
    StrategyEntry(["RdtResctrl"], lambda inputs: ResctrlClasses(*_resctrl(inputs.context)), _RECONCILE),
    StrategyEntry(["Resctrl"], lambda inputs: ResctrlPods(*_resctrl(inputs.context)), _HOOKS),
    StrategyEntry(["BlkIOReconcile"], _blkio, _RECONCILE),
    StrategyEntry(["TCNetworkQoS"], _netqos, _HOOKS),
    StrategyEntry(["TerwayQoS"], lambda inputs: TerwayQoS(), _HOOKS),
)
"""Strategies decide in this order; see `Strategy.outdated`."""
