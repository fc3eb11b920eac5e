"""Last-level cache and memory bandwidth by QoS class: the resctrl groups LSR, LS and BE (spec 03 §3.7). Pure.

As soon as one class is enabled, all three groups exist; those of disabled classes are not limited. Threads of an
enabled class are in its group, except those of pods with a range of their own (`runtimehooks.hooks.resctrlpods`). With
all classes disabled, groups and mount are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koordlet import audit
from koordlet.api.core import Pod
from koordlet.api.names import ANNOTATION_RESCTRL
from koordlet.api.sloconfig.resourceqos import ResctrlQOS, ResourceQOSStrategy
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
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
"""Capabilities of the mounted resctrl; None while it is not mounted."""

MOUNTED = DesiredSetting(Setting(MOUNT), ON, REASON)


def unmounted(missing: str) -> QoSDecision:
    """The decision without a mounted resctrl: mount it, or `missing`, the reason why it cannot be."""
    return QoSDecision(note=missing) if missing else QoSDecision((MOUNTED,), note="resctrl is not mounted yet")


def config_of(strategy: ResourceQOSStrategy) -> dict[str, ResctrlQOS]:
    """Group -> its class's values; disabled classes have neutral ones."""
    configs = {}
    for group, name in CLASSES.items():
        config = getattr(strategy, name)
        if config is not None and config.resctrl_qos is not None:
            configs[group] = config.resctrl_qos
    return configs


def lines(config: ResctrlQOS, facts: ResctrlFacts) -> tuple[dict[str, str], list[str]]:
    """Schemata lines as settings hold them, and errors of invalid values."""
    schemata, errors = {}, []
    start, end, percent = config.cat_range_start_percent, config.cat_range_end_percent, config.mba_percent
    if facts.caches and start is not None and end is not None:
        try:
            mask = legal_mask(facts, start, end)
        except InvalidValue as error:
            errors.append(str(error))
        else:
            schemata[L3] = row(dict.fromkeys(facts.caches, mask), 16)
    if facts.bandwidths and percent is not None:
        if 0 < percent <= 100:
            schemata[MB] = row(dict.fromkeys(facts.bandwidths, mba_value(percent, facts.vendor)), 10)
        else:
            errors.append(f"mbaPercent: {percent} is not within 1 and 100")
    return schemata, errors


class ResctrlClasses(Strategy):
    """The strategy. `facts` is called in each round, because resctrl may be mounted meanwhile. `missing`: why this CPU
    cannot have it, empty if it can."""

    name = "resctrl"

    def __init__(self, facts: Facts, missing: str = "") -> None:
        self._facts = facts
        self._missing = missing

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None:
            return None
        configs = config_of(strategy)
        if not any(config.enable for config in configs.values()):
            return QoSDecision(note="no class limits cache or bandwidth")
        facts = self._facts()
        if facts is None:
            return unmounted(self._missing)
        updates, errors = [MOUNTED], []
        for group, config in configs.items():
            schemata, invalid = lines(config, facts)
            errors += [f"{group}: {error}" for error in invalid]
            about = audit.group(group)
            updates.append(DesiredSetting(Setting(GROUP, device=group), PRESENT, GROUP_REASON, about=about))
            updates += [
                DesiredSetting(Setting(line, device=group), value, REASON, about=about)
                for line, value in schemata.items()
            ]
        updates += self._tasks(view, {group for group, config in configs.items() if config.enable})
        return QoSDecision(tuple(updates), note="; ".join(errors) or "groups " + ", ".join(configs))

    @staticmethod
    def _tasks(view: NodeView, groups: set[str]) -> Iterator[DesiredSetting]:
        directories: dict[str, list[str]] = {group: [] for group in sorted(groups)}
        for pod in view.pods:
            group = GROUP_OF.get(pod.meta.qos)
            if group in groups and pod.active and not _own_range(pod.meta.pod):
                directories[group].append(pod.meta.cgroup_dir)
        for group, below in directories.items():
            if below:
                setting = Setting(TASKS, device=group)
                yield DesiredSetting(setting, " ".join(sorted(below)), TASKS_REASON, ABSENT, audit.group(group))


def _own_range(pod: Pod | None) -> bool:
    return pod is not None and ANNOTATION_RESCTRL in pod.metadata.annotations
