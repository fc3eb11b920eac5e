"""Last-level cache and memory bandwidth by QoS class: the resctrl groups LSR, LS and BE (spec 03 §3.7). Pure.

As soon as one class is switched on, all three groups are there, those that are off with everything. Threads of a class
that is on are in its group, except those of pods that bring a range of their own (`runtimehooks.resctrlpods`). With
every class off, groups and mount are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koordlet import audit
from koordlet.api.core import Pod
from koordlet.api.names import ANNOTATION_RESCTRL
from koordlet.api.sloconfig.resourceqos import ResctrlQOS, ResourceQOSStrategy
from koordlet.qosmanager.engine.strategy import Decision, Strategy
from koordlet.qosmanager.engine.view import NodeView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.resctrlgroups import GROUP, L3, MB, MOUNT, ON, PRESENT, TASKS, row
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.errors import InvalidValue
from koordlet.system.resctrl import ResctrlFacts, legal_mask, mba_value

REASON, GROUP_REASON, TASKS_REASON = "UpdateResctrl", "CreateCATGroup", "ApplyCatL3GroupTasks"
CLASSES = {"LSR": "lsr_class", "LS": "ls_class", "BE": "be_class"}
GROUP_OF = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}
"""Effective QoS -> group."""
Facts = Callable[[], ResctrlFacts | None]
"""What the mounted resctrl can do; None while it is not mounted."""

MOUNTED = DesiredSetting(Setting(MOUNT), ON, REASON)


def unmounted(missing: str) -> Decision:
    """The decision while there is no resctrl: mount it, or say why not."""
    return Decision(note=missing) if missing else Decision((MOUNTED,), note="resctrl is not mounted yet")


def config_of(strategy: ResourceQOSStrategy) -> dict[str, ResctrlQOS]:
    """Group -> its class's values; classes that are off have neutral ones."""
    found = {}
    for group, name in CLASSES.items():
        given = getattr(strategy, name)
        if given is not None and given.resctrl_qos is not None:
            found[group] = given.resctrl_qos
    return found


def lines(config: ResctrlQOS, facts: ResctrlFacts) -> tuple[dict[str, str], list[str]]:
    """Schemata lines as settings hold them, and what is wrong with the rest."""
    found, wrong = {}, []
    start, end, percent = config.cat_range_start_percent, config.cat_range_end_percent, config.mba_percent
    if facts.caches and start is not None and end is not None:
        try:
            mask = legal_mask(facts, start, end)
        except InvalidValue as error:
            wrong.append(str(error))
        else:
            found[L3] = row(dict.fromkeys(facts.caches, mask), 16)
    if facts.bandwidths and percent is not None:
        if 0 < percent <= 100:
            found[MB] = row(dict.fromkeys(facts.bandwidths, mba_value(percent, facts.vendor)), 10)
        else:
            wrong.append(f"mbaPercent: {percent} is not within 1 and 100")
    return found, wrong


class ResctrlClasses(Strategy):
    """The strategy. `facts` is asked at each round: resctrl may be mounted by it. `missing` says why this CPU can't
    have it, empty when it can."""

    name = "resctrl"
    gate = "RdtResctrl"

    def __init__(self, facts: Facts, missing: str = "") -> None:
        self._facts, self._missing = facts, missing

    def decide(self, view: NodeView) -> Decision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None:
            return None
        configs = config_of(strategy)
        if not any(config.enable for config in configs.values()):
            return Decision(note="no class limits cache or bandwidth")
        facts = self._facts()
        if facts is None:
            return unmounted(self._missing)
        updates, wrong = [MOUNTED], []
        for group, config in configs.items():
            found, said = lines(config, facts)
            wrong += [f"{group}: {one}" for one in said]
            about = audit.group(group)
            updates.append(DesiredSetting(Setting(GROUP, device=group), PRESENT, GROUP_REASON, about=about))
            updates += [
                DesiredSetting(Setting(line, device=group), value, REASON, about=about) for line, value in found.items()
            ]
        updates += self._tasks(view, {group for group, config in configs.items() if config.enable})
        return Decision(tuple(updates), note="; ".join(wrong) or "groups " + ", ".join(configs))

    @staticmethod
    def _tasks(view: NodeView, groups: set[str]) -> Iterator[DesiredSetting]:
        directories: dict[str, list[str]] = {group: [] for group in sorted(groups)}
        for pod in view.pods:
            group = GROUP_OF.get(pod.meta.qos)
            if group in groups and pod.active and not _own_range(pod.meta.pod):
                directories[group].append(pod.meta.cgroup_dir)
        for group, found in directories.items():
            if found:
                yield DesiredSetting(
                    Setting(TASKS, device=group), " ".join(sorted(found)), TASKS_REASON, ABSENT, audit.group(group)
                )


def _own_range(pod: Pod | None) -> bool:
    return pod is not None and ANNOTATION_RESCTRL in pod.metadata.annotations
