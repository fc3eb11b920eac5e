"""The executor of kernel settings with its stores, its ledger of original values, and one-time actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.resourceexecutor import Executor, takeover
from koordlet.resourceexecutor.actions import Actor
from koordlet.resourceexecutor.addresssets import AddressStore
from koordlet.resourceexecutor.blockio import BlockStore
from koordlet.resourceexecutor.cookies import Cookies
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger, LedgerError
from koordlet.resourceexecutor.oomscores import OOMScoreStore
from koordlet.resourceexecutor.resctrlgroups import ResctrlStore
from koordlet.resourceexecutor.stores import SettingStore
from koordlet.resourceexecutor.terwayfiles import TerwayStore
from koordlet.resourceexecutor.traffic import TrafficStore
from koordlet.runtimehooks.hooks.coresched import attach_cookies
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup import tree
from koordlet.system.errors import CgroupGone
from koordlet.wiring.context import WiringContext
from koordlet.wiring.ownerrules import RULES
from koordlet.wiring.strategies import BuiltStrategy

log = get_logger(__name__)

LEDGER_FILE = "settings.json"


@dataclass(frozen=True, slots=True)
class SettingWriters:
    """What writes kernel settings."""

    executor: Executor
    actor: Actor
    """Writes that are done once, for example memory.reclaim."""


def build_setting_writers(
    context: WiringContext, states: KubeStates, strategies: Sequence[BuiltStrategy]
) -> SettingWriters:
    """Executor and actor for these strategies, which decide periodically."""
    cookies = Cookies(context.files.procs, context.host.facts.features["core_sched"], boot_clock)
    attach_cookies(context.registries, cookies, lambda: states.workloads.pods.values())
    files = KernelFiles(context.files, context.host.roots, [cookies, *_stores(context)])
    ledger = _ledger(context)
    _take_over(context, states, files, ledger)
    executor = Executor(
        files,
        ledger,
        context.auditor,
        context.registries,
        rules=RULES,
        expected=[built.strategy.name for built in strategies],
        reconcilers=[built.strategy.name for built in strategies if built.strategy.follows_pods],
        force_seconds=context.options.resource_force_update_seconds,
        clock=boot_clock,
    )
    return SettingWriters(executor, Actor(files, context.auditor, context.registries))


def _stores(context: WiringContext) -> list[SettingStore]:
    """All stores, whichever gates are enabled: settings of an earlier koordlet are restored through them."""

    def threads(directory: str) -> Iterator[int]:
        for descendant in tree.walk(context.files.hierarchy("cpu"), directory):
            try:
                yield from context.files.tasks(descendant) or ()
            except CgroupGone:
                continue

    return [
        OOMScoreStore(context.files.procs, context.host.roots),
        ResctrlStore(context.host.roots.resctrl, threads),
        BlockStore(context.files),
        TrafficStore(),
        AddressStore(),
        TerwayStore(context.host.roots.terway_qos),
    ]


def _take_over(context: WiringContext, states: KubeStates, files: KernelFiles, ledger: Ledger) -> None:
    """Enter what a predecessor left into the ledger."""
    if not takeover.predecessor_ran(context.host.roots.var_run):
        return
    left = takeover.leftovers(files, context.files, states.driver)
    if new := [setting for setting in left if setting not in ledger.originals]:
        log.info("Settings of an earlier agent are taken over", settings=len(new), first=new[0].label)
    for setting in new:
        ledger.originals[setting] = left[setting]


def _ledger(context: WiringContext) -> Ledger:
    path = Path(context.options.state_dir) / LEDGER_FILE
    try:
        ledger, problem = Ledger.load(path, context.boot_id)
    except LedgerError as error:
        log.warning("Cannot restore settings of an earlier koordlet", error=str(error))
        return Ledger(path, context.boot_id)
    if problem:
        log.warning("Cannot restore settings of an earlier koordlet", cause=problem)
    return ledger
