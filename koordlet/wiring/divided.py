"""What is divided by other means than a number in a cgroup's file: cache and memory bandwidth, disks, the network."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.core import PersistentVolumeClaim
from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metricsadvisor.facts.storage import FACT_STORAGE
from koordlet.qosmanager.engine.strategy import Strategy
from koordlet.qosmanager.engine.view import NodeView
from koordlet.qosmanager.rules.bandwidth import total
from koordlet.qosmanager.strategies.blkio import BlkIO
from koordlet.qosmanager.strategies.resctrl import Facts, ResctrlClasses
from koordlet.qosmanager.throttling.iolever import IoLever
from koordlet.qosmanager.throttling.levers import Lever, NetworkLever
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.resourceexecutor.addresssets import AddressStore
from koordlet.resourceexecutor.blockio import BlockStore
from koordlet.resourceexecutor.resctrlgroups import ResctrlStore
from koordlet.resourceexecutor.stores import SettingStore
from koordlet.resourceexecutor.terwayfiles import TerwayStore
from koordlet.resourceexecutor.traffic import TrafficStore
from koordlet.runtimehooks.hooks.netqos import NetQoS
from koordlet.runtimehooks.hooks.resctrlpods import ResctrlPods
from koordlet.runtimehooks.hooks.terway import TerwayQoS
from koordlet.statesinformer.pods.claims import ClaimVolumes
from koordlet.system import resctrl
from koordlet.system.cgroup import tree
from koordlet.system.devices.storage import LocalStorage, read_local_storage
from koordlet.system.errors import CgroupGone, KernelFileError, MalformedFile
from koordlet.system.network.netroute import default_interface
from koordlet.system.resctrl import ResctrlFacts
from koordlet.wiring.context import Context
from koordlet.wiring.states import Cluster

log = get_logger(__name__)

CLAIMS_SECONDS = 5.0
DISKS_SECONDS = 60.0


def stores(context: Context) -> list[SettingStore]:
    """Whatever the gates say: what an earlier koordlet set is given back through them."""

    def threads(directory: str) -> Iterator[int]:
        for below in tree.walk(context.files.hierarchy("cpu"), directory):
            try:
                yield from context.files.tasks(below) or ()
            except CgroupGone:
                continue

    return [
        ResctrlStore(context.host.roots.resctrl, threads),
        BlockStore(context.files),
        TrafficStore(),
        AddressStore(),
        TerwayStore(context.host.roots.terway_qos),
    ]


def strategies(context: Context, cluster: Cluster, actions: ThrottleCulprits) -> list[tuple[Strategy, float]]:
    """Those that are gated on, with their intervals; `actions` says who is held back."""
    options, gates = context.options, context.gates
    found: list[tuple[Strategy, float]] = []
    if gates.enabled("RdtResctrl"):
        found.append((ResctrlClasses(*_resctrl(context)), options.reconcile_interval_seconds))
    if gates.enabled("Resctrl"):
        found.append((ResctrlPods(*_resctrl(context)), options.runtime_hooks_reconcile_interval))
    if gates.enabled("BlkIOReconcile"):
        found.append((_blkio(context, cluster), options.reconcile_interval_seconds))
    if gates.enabled("TCNetworkQoS"):
        found.append((_netqos(context, actions), options.runtime_hooks_reconcile_interval))
    if gates.enabled("TerwayQoS"):
        found.append((TerwayQoS(), options.runtime_hooks_reconcile_interval))
    return found


def _resctrl(context: Context) -> tuple[Facts, str]:
    """One that is mounted can be used, whatever the CPU's flags say (Arm has none)."""
    root, vendor = context.host.roots.resctrl, context.host.facts.cpu.vendor

    last: ResctrlFacts | None = None

    def facts() -> ResctrlFacts | None:
        nonlocal last
        try:
            last = resctrl.read_facts(root, vendor)
        except (OSError, KernelFileError) as error:  # as before: nothing is given back for that
            log.once(f"resctrl:{error}", "resctrl can't be read", error=str(error))
        return last

    return facts, context.host.facts.reasons().get("resctrl", "")


def _netqos(context: Context, actions: ThrottleCulprits) -> NetQoS:
    """In koordlet's own network namespace, which is the node's."""

    def interface() -> str | None:
        try:
            return default_interface(context.host.roots)
        except MalformedFile as error:
            log.once(f"route:{error}", "the default route can't be told", error=str(error))
            return None

    missing = AddressStore().probe()
    if missing:
        log.info("addresses are matched by filters", cause=missing)
    return NetQoS(
        interface,
        context.supports,
        missing,
        held=lambda: actions.levels("network"),
    )


def _blkio(context: Context, cluster: Cluster) -> BlkIO:
    async def claim(namespace: str, name: str) -> PersistentVolumeClaim:
        return await cluster.client.get(PersistentVolumeClaim, name, namespace)

    claims, store = ClaimVolumes(claim), BlockStore(context.files)
    context.runner.add(context.periodic("claims", CLAIMS_SECONDS, claims.refresh))
    return BlkIO(
        lambda: _storage(context),
        store.supports,
        claims=claims.volume,
        kubelet_dir=str(context.host.roots.var_lib_kubelet),
        flat=_flat(context),
    )


def levers(context: Context) -> dict[str, Lever]:
    """For culprits that hurt by what is divided here."""

    def no_classes(view: NodeView) -> str:
        if not context.gates.enabled("TCNetworkQoS"):
            return "gate TCNetworkQoS is off: nothing is shaped"
        if total(view) <= 0:
            return "totalNetworkBandwidth is not said: nothing is shaped"
        strategy = view.slo.resource_qos_strategy
        classes = () if strategy is None else (strategy.ls_class, strategy.be_class)
        asked = any(one is not None and one.network_qos is not None and one.network_qos.enable for one in classes)
        return "" if asked else "no class has networkQOS: only pods with a limit of their own are shaped"

    return {"io": _io_lever(context), "network": NetworkLever(no_classes)}


def _io_lever(context: Context) -> IoLever:
    """Without gate BlkIOReconcile nobody collects disks: then they are looked at while somebody is held back."""
    seen: tuple[float, LocalStorage] | None = None

    def disks() -> Collection[str]:
        nonlocal seen
        storage, now = _storage(context), boot_clock()
        if storage is None and (seen is None or now - seen[0] >= DISKS_SECONDS):
            try:
                seen = now, read_local_storage(context.host.roots)
            except KernelFileError as error:
                log.once(f"disks:{type(error).__name__}", "disks can't be told", cause=str(error))
        if storage is None and seen is not None:
            storage = seen[1]
        return () if storage is None else storage.disk_numbers.values()

    return IoLever(disks, BlockStore(context.files).supports, flat=_flat(context))


def _storage(context: Context) -> LocalStorage | None:
    fact = context.fact(FACT_STORAGE, context.options.collect_node_storage_info_interval)
    return fact if isinstance(fact, LocalStorage) else None


def _flat(context: Context) -> bool:
    """Whether limits of block I/O are not passed down."""
    facts = context.host.facts
    return facts.cgroup_version == 1 and not facts.anolis
