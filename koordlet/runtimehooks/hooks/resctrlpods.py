"""Last-level cache and memory bandwidth of one pod: a resctrl group of its own (spec 03 §4.11). Pure.

The common values of the annotation apply to every cache; values by cache override them. A line is written only when
every cache has a value. Groups are named after the pod's UID, so a restarted koordlet finds them. The group of a pod
that is gone is removed, and its threads return to the root group. Threads are found through the pod's cgroup, without a
flag.
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
from koordlet.runtimehooks.stages import NO_CHANGE, HookAnswer, HookContext, HookStage, followed_pods
from koordlet.system.resctrl import AMD, INTEL, ResctrlFacts, legal_mask, mba_value

log = get_logger(__name__)

PREFIX = "koordlet-"
REASON = "Pod Level Resctrl"
ORPHAN_GRACE_S = 10.0
"""How long a group without a pod is kept: the kubelet may not list its pod yet."""


def closid(uid: str) -> str:
    """The group of a pod."""
    return f"{PREFIX}{uid}"


def lines(requested: Resctrl, facts: ResctrlFacts) -> dict[str, dict[int, int]]:
    """Line -> value by cache id, for lines with a value for every cache. The first invalid range ends the reading of
    ranges; those before it are used. Unknown caches are skipped."""
    bandwidth = dict.fromkeys(facts.bandwidths, 0)
    common = requested.mb.schemata.percent
    for cache, percent in [*((cache, common) for cache in bandwidth), *_by_cache(requested)]:
        if cache in bandwidth and percent:
            bandwidth[cache] = _share(percent, facts.vendor)
    masks = dict.fromkeys(facts.caches, 0)
    ranges = [(cache, requested.llc.schemata.range) for cache in masks]
    ranges += [(entry.cache_id, entry.range) for entry in requested.llc.schemata_per_cache]
    for cache, percents in ranges:
        if cache not in masks or not percents:
            continue
        try:
            start, end = percents
            masks[cache] = legal_mask(facts, start, end)
        except ValueError as error:  # InvalidValue, or not two numbers
            log.once(f"resctrl:{percents}:{error}", "Range of a pod ignored", range=str(percents), error=str(error))
            break
    candidates = {L3: masks, MB: bandwidth}
    return {
        line: values for line, values in candidates.items() if values and all(value > 0 for value in values.values())
    }


def _by_cache(requested: Resctrl) -> Iterator[tuple[int, int]]:
    return ((entry.cache_id, entry.percent) for entry in requested.mb.schemata_per_cache)


def _share(percent: int, vendor: str) -> int:
    if not 0 < percent <= 100 or vendor not in (INTEL, AMD):
        return 0
    return mba_value(percent, vendor)


def requested_by(annotations: Mapping[str, str]) -> Resctrl | None:
    """The annotation of a pod. Raises WireError."""
    return RESCTRL.get(annotations) if ANNOTATION_RESCTRL in annotations else None


class ResctrlPods(Strategy):
    """The strategy, and the hook that creates the group before the first container starts. For the arguments see
    `ResctrlClasses`."""

    name = "resctrlpods"
    follows_pods = True
    hook = "Resctrl"
    stages: Collection[HookStage] = (
        HookStage.PRE_RUN_POD_SANDBOX,
        HookStage.PRE_CREATE_CONTAINER,
        HookStage.PRE_REMOVE_RUN_POD_SANDBOX,
    )

    def __init__(self, facts: Facts, missing: str = "") -> None:
        self._facts = facts
        self._missing = missing
        self._orphans: dict[str, float] = {}
        """Group without a pod -> time when it was first found without one."""

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        pods = [(pod, requested) for pod in followed_pods(view) if (requested := self._requested(pod)) is not None]
        facts = self._facts()
        if facts is None:
            return unmounted(self._missing) if pods else QoSDecision()
        settings = [MOUNTED] if pods else []
        for pod, requested in pods:
            settings += self._group(pod, requested, facts)
        orphans = self._removable(facts, {closid(pod.meta.uid) for pod, _ in pods}, view.now)
        settings += [DesiredSetting(Setting(GROUP, device=group), ABSENT, REASON, ABSENT) for group in orphans]
        return QoSDecision(tuple(settings), note=f"{len(pods)} pods with a group")

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: removing groups without a pod needs all pods."""
        return None if any(self._requested(pod) is not None for pod in followed_pods(view)) else ()

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The name of the group. A pod that is removed needs no answer; its group is removed later. A
        container gets no group that does not exist, because then it would not start."""
        facts = self._facts()
        if requested_by(context.annotations) is None or facts is None or stage is HookStage.PRE_REMOVE_RUN_POD_SANDBOX:
            return NO_CHANGE
        if stage is HookStage.PRE_CREATE_CONTAINER and closid(context.pod.meta.uid) not in facts.groups:
            return NO_CHANGE
        return HookAnswer(closid=closid(context.pod.meta.uid))

    @staticmethod
    def _requested(pod: PodView) -> Resctrl | None:
        if pod.meta.pod is None:
            return None
        try:
            return requested_by(pod.meta.pod.metadata.annotations)
        except WireError as error:
            name = f"{pod.meta.namespace}/{pod.meta.name}"
            log.once(f"{pod.meta.uid}:{error}", "Annotation ignored", pod=name, error=str(error))
            return None

    @staticmethod
    def _group(pod: PodView, requested: Resctrl, facts: ResctrlFacts) -> Iterator[DesiredSetting]:
        name = closid(pod.meta.uid)
        about = about_pod(pod.meta.namespace, pod.meta.name)
        yield DesiredSetting(Setting(GROUP, device=name), PRESENT, REASON, ABSENT, about)
        for line, values in lines(requested, facts).items():
            yield DesiredSetting(Setting(line, device=name), row(values, 16 if line == L3 else 10), REASON, None, about)
        yield DesiredSetting(Setting(TASKS, device=name), pod.meta.cgroup_dir, REASON, ABSENT, about)

    def _removable(self, facts: ResctrlFacts, used: set[str], now: float) -> list[str]:
        """Groups of pods that are gone, including those that an earlier koordlet created."""
        orphans = [group for group in facts.groups if group.startswith(PREFIX) and group not in used]
        self._orphans = {group: self._orphans.get(group, now) for group in orphans}
        return [group for group, since in self._orphans.items() if now - since >= ORPHAN_GRACE_S]
