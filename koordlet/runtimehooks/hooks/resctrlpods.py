"""Last-level cache and memory bandwidth of one pod: a resctrl group of its own (spec 03 §4.11). Pure.

The annotation's common values go to every cache, those by cache over them. A line is written only when every cache has
a value. Groups are named after the pod's UID, so a koordlet that starts again finds them; one whose pod is gone is
removed, its threads go back to the root group. Threads are found by the pod's cgroup: no flag is needed for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from koordlet.api.annotations.pod import RESCTRL, Resctrl
from koordlet.api.encoding.wire import WireError
from koordlet.api.names import ANNOTATION_RESCTRL
from koordlet.app.logging import get_logger
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.strategies.resctrl import MOUNTED, Facts, unmounted
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.resctrlgroups import GROUP, L3, MB, PRESENT, TASKS, row
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.runtimehooks.stages import NOTHING, Answer, HookContext, ResctrlAnswer, Stage, followed
from koordlet.system.resctrl import AMD, INTEL, ResctrlFacts, format_l3, format_mb, legal_mask, mba_value

log = get_logger(__name__)

PREFIX = "koordlet-"
REASON = "Pod Level Resctrl"
GRACE_SECONDS = 10.0
"""A group that nobody asks for is left alone for so long: its pod may not be in the kubelet's list yet."""


def closid(uid: str) -> str:
    """The group of a pod."""
    return f"{PREFIX}{uid}"


def lines(asked: Resctrl, facts: ResctrlFacts) -> dict[str, dict[int, int]]:
    """Line -> value by cache id, for lines that are whole. A range that makes no sense ends the reading of ranges, as
    what came before it stands; unknown caches are passed over."""
    bandwidth = dict.fromkeys(facts.bandwidths, 0)
    common = asked.mb.schemata.percent
    for cache, percent in [*((cache, common) for cache in bandwidth), *_by_cache(asked)]:
        if cache in bandwidth and percent:
            bandwidth[cache] = _share(percent, facts.vendor)
    masks = dict.fromkeys(facts.caches, 0)
    ranges = [(cache, asked.llc.schemata.range) for cache in masks]
    ranges += [(one.cache_id, one.range) for one in asked.llc.schemata_per_cache]
    for cache, given in ranges:
        if cache not in masks or not given:
            continue
        try:
            start, end = given
            masks[cache] = legal_mask(facts, start, end)
        except ValueError as error:  # InvalidValue, or not two numbers
            log.once(f"resctrl:{given}:{error}", "range of a pod ignored", range=str(given), error=str(error))
            break
    found = {L3: masks, MB: bandwidth}
    return {line: values for line, values in found.items() if values and all(value > 0 for value in values.values())}


def _by_cache(asked: Resctrl) -> Iterator[tuple[int, int]]:
    return ((one.cache_id, one.percent) for one in asked.mb.schemata_per_cache)


def _share(percent: int, vendor: str) -> int:
    if not 0 < percent <= 100 or vendor not in (INTEL, AMD):
        return 0
    return mba_value(percent, vendor)


def asked_by(annotations: Mapping[str, str]) -> Resctrl | None:
    """Raises WireError."""
    return RESCTRL.get(annotations) if ANNOTATION_RESCTRL in annotations else None


class ResctrlPods(Strategy):
    """The strategy, and the hook that makes the group before the first container starts. For the arguments see
    `ResctrlClasses`."""

    name = "resctrlpods"
    gate = "Resctrl"
    follows_pods = True
    hook = "Resctrl"
    stages: Collection[Stage] = (
        Stage.PRE_RUN_POD_SANDBOX,
        Stage.PRE_CREATE_CONTAINER,
        Stage.PRE_REMOVE_RUN_POD_SANDBOX,
    )

    def __init__(self, facts: Facts, missing: str = "") -> None:
        self._facts, self._missing = facts, missing
        self._orphans: dict[str, float] = {}
        """Group without a pod -> when it was first seen so."""

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        asked = {pod.meta.uid: (pod, found) for pod in followed(view) if (found := self._asked(pod)) is not None}
        facts = self._facts()
        if facts is None:
            return unmounted(self._missing) if asked else QoSDecision()
        updates = [MOUNTED] if asked else []
        for pod, found in asked.values():
            updates += self._group(pod, found, facts)
        gone = self._gone(facts, {closid(uid) for uid in asked}, view.now)
        updates += [DesiredSetting(Setting(GROUP, device=group), ABSENT, REASON, ABSENT) for group in gone]
        return QoSDecision(tuple(updates), note=f"{len(asked)} pods with a group")

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: groups are counted, so that one which nobody asks for goes."""
        return None if any(self._asked(pod) is not None for pod in followed(view)) else ()

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """The group's name and schemata; a pod that goes needs no word, its group goes with it. A container is not told
        of a group that could not be made: it would not start."""
        facts = self._facts()
        asked = asked_by(context.annotations)
        if asked is None or facts is None or stage is Stage.PRE_REMOVE_RUN_POD_SANDBOX:
            return NOTHING
        if stage is Stage.PRE_CREATE_CONTAINER and closid(context.pod.meta.uid) not in facts.groups:
            return NOTHING
        found = lines(asked, facts)
        text = (format_l3(found[L3]) if L3 in found else "") + (format_mb(found[MB]) if MB in found else "")
        return Answer(resctrl=ResctrlAnswer(closid(context.pod.meta.uid), text))

    @staticmethod
    def _asked(pod: PodView) -> Resctrl | None:
        if pod.meta.pod is None:
            return None
        try:
            return asked_by(pod.meta.pod.metadata.annotations)
        except WireError as error:
            log.once(f"{pod.meta.uid}:{error}", "annotation ignored", pod=f"{pod.meta.namespace}/{pod.meta.name}",
                     error=str(error))  # fmt: skip
            return None

    @staticmethod
    def _group(pod: PodView, asked: Resctrl, facts: ResctrlFacts) -> Iterator[DesiredSetting]:
        name, about = closid(pod.meta.uid), about_pod(pod.meta.namespace, pod.meta.name)
        yield DesiredSetting(Setting(GROUP, device=name), PRESENT, REASON, ABSENT, about)
        for line, values in lines(asked, facts).items():
            yield DesiredSetting(Setting(line, device=name), row(values, 16 if line == L3 else 10), REASON, None, about)
        yield DesiredSetting(Setting(TASKS, device=name), pod.meta.cgroup_dir, REASON, ABSENT, about)

    def _gone(self, facts: ResctrlFacts, wanted: set[str], now: float) -> list[str]:
        """Groups of pods that are no more, also those that an earlier koordlet made."""
        orphans = [group for group in facts.groups if group.startswith(PREFIX) and group not in wanted]
        self._orphans = {group: self._orphans.get(group, now) for group in orphans}
        return [group for group, since in self._orphans.items() if now - since >= GRACE_SECONDS]
