"""Acting on interference: the best-effort pods that hurt a service are held back, step by step, and let go again.

    verdicts -> blame (who may be held back) -> squeeze (how hard) -> levers (which settings)

`interferenceStrategy.actions` switches it on by resource. Only best-effort pods are ever touched; other culprits are
named once and left alone. Every change is told: audit log, an Event on culprit and victim, a count. Pure but for what
is held back now, which is lost with the process: the next one begins with everything free (the ledger gives it back).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from koordlet.api.sloconfig.interferenceactions import REPORT, InterferenceAction, enabled
from koordlet.interference import wording
from koordlet.interference.model import Verdict
from koordlet.qosmanager.engine.eviction import USED, Task, best_effort_victim, by_priority
from koordlet.qosmanager.engine.strategy import Decision, Notice, Rows, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.throttling.culprits import Charge, Key, charges
from koordlet.qosmanager.throttling.level import Blame, Pace, Squeeze, advance, evict_now
from koordlet.qosmanager.throttling.levers import CpuLever, Lever, MemoryLever, target_percent
from koordlet.resourceexecutor import DesiredSetting
from koordlet.statesinformer.pods.model import PodMeta

NAME = "interferenceactions"
FEATURE = "InterferenceActions"
STALE_SECONDS = 10.0
"""Verdicts older than this say nothing: what is held back stays as it is."""
TIGHTENED, RELEASED, FREED = "InterferenceTightened", "InterferenceReleased", "InterferenceFreed"
SPARED, WOULD = "InterferenceNotActedOn", "InterferenceWouldAct"
GONE, OFF = "it is gone", "switched off"
EVENT_SECONDS = 60.0
"""Between two Events about one culprit and resource; every step is in the audit log."""
STEPS = "interference_action_steps_total"


@dataclass(frozen=True, slots=True)
class Said:
    """What is held back now, for pages. `victims`: (pod UID, container) that it is for."""

    pod: PodMeta
    resource: str
    held: Squeeze
    left: str
    victims: tuple[tuple[str, str], ...]
    why: str
    problem: str = ""


@dataclass(slots=True)
class _Held:
    """One culprit and resource: how hard, and the last case that it is for."""

    squeeze: Squeeze
    pod: PodMeta
    why: str
    victims: tuple[tuple[str, str], ...]
    told: float = -inf
    """When an Event last said so."""


class InterferenceActions(Strategy):
    """The strategy. `supports` tells what the kernel has, `more` are the levers of other resources than CPU and memory
    (one without a lever is let be), `suppress` says that CPU suppress runs, which asks `target`."""

    name = NAME
    gate = FEATURE

    def __init__(self, supports: Supports, more: Mapping[str, Lever] | None = None, *, suppress: bool = True) -> None:
        self._cpu = CpuLever(suppress=suppress)
        self._levers: dict[str, Lever] = {"cpu": self._cpu, "memory": MemoryLever(supports), **(more or {})}
        self._held: dict[Key, _Held] = {}
        self._told: set[tuple[str, ...]] = set()
        """Culprits that were named and let be."""
        self.said: tuple[Said, ...] = ()
        self.target = 100
        """Percent of its CPU budget that best effort as a whole keeps."""

    def left(self, resource: str) -> dict[str, int]:
        """Pod UID -> percent left, of pods that are held back in that resource."""
        return {uid: one.squeeze.level for (uid, which), one in self._held.items() if which == resource}

    def decide(self, view: NodeView) -> Decision | None:
        """See the module."""
        judged = view.judged
        strategy = None if judged is None else judged.strategy
        on = enabled(strategy.actions) if strategy is not None and strategy.enable is not False else {}
        if judged is None or strategy is None or strategy.actions is None or not on:
            return self._decision(view, on, self._free_all(OFF))
        if judged.at is None or view.now - judged.at > STALE_SECONDS:
            return None if self._held else Decision(note="waiting for verdicts")
        pods = {pod.meta.uid: pod for pod in view.pods}
        found, spared = charges(
            judged.verdicts,
            pods,
            on,
            least_share=(strategy.actions.min_share_percent or 0) / 100,
            least_confidence=(strategy.actions.min_confidence_percent or 0) / 100,
        )
        notices = self._spared(spared, strategy.event is not False)
        would = {key for key in found if on[key[1]].policy == REPORT}
        notices += self._would(would, found, pods)
        for key in sorted({*self._held, *(found.keys() - would)}):
            notices += self._advance(view, key, found.get(key), pods.get(key[0]), on.get(key[1]), strategy.event)
        tasks = self._evictions(view, found, pods, on)
        return self._decision(view, on, notices, tasks)

    def evicted(self, now: float) -> None:
        """Somebody went: the others get as long again."""
        for one in self._held.values():
            if one.squeeze.at_floor is not None:
                one.squeeze = replace(one.squeeze, at_floor=now)

    # --- one culprit

    def _advance(
        self,
        view: NodeView,
        key: Key,
        charge: Charge | None,
        pod: PodView | None,
        action: InterferenceAction | None,
        event: bool | None,
    ) -> list[Notice]:
        """One step for one culprit and resource, and what is to be said of it."""
        resource, known = key[1], self._held.get(key)
        if pod is None or action is None or action.policy == REPORT:
            return [self._freed(key, GONE if pod is None else OFF)] if known else []
        lever = self._levers.get(resource)
        base = None if lever is None else lever.base(view, pod)
        if lever is None or (known is None and base is None):
            return []
        blame = Blame.NONE if charge is None else charge.blame
        before = None if known is None else known.squeeze
        after = advance(before, blame, _pace(action), view.now, base or 0)
        if after is None:
            return [self._freed(key, "nobody is hurt any more")] if known else []
        if charge is not None:
            victims = tuple(sorted({(v.victim.pod_uid, v.victim.name) for v, _ in charge.cases}))
            told = -inf if known is None else known.told
            self._held[key] = known = _Held(after, pod.meta, _why(charge), victims, told)
        elif known is not None:
            known.squeeze = after
        if known is None or (before is not None and before.level == after.level):
            return []
        return self._stepped(view, lever, resource, known, before, charge, event is not False)

    def _stepped(
        self,
        view: NodeView,
        lever: Lever,
        resource: str,
        held: _Held,
        before: Squeeze | None,
        charge: Charge | None,
        event: bool,
    ) -> list[Notice]:
        after, meta = held.squeeze, held.pod
        down = before is None or after.level < before.level
        event = event and down and view.now - held.told >= EVENT_SECONDS
        if event:
            held.told = view.now
        details = {"resource": resource, "level": after.level, "base": after.base, "was": before and before.level}
        left = f"{after.level} % of {_amount(resource, after.base)}, {lever.words(view, after)}"
        text = f"{resource}: {'held back to' if down else 'given back up to'} {left}: {held.why}"
        found = [
            Notice(
                meta,
                TIGHTENED if down else RELEASED,
                text,
                event=f"{resource} is held back: {_whom(charge)}" if event and charge is not None else "",
                warning=True,
                details=details,
                counts=(STEPS, resource, "tighten" if down else "release"),
            )
        ]
        if event and charge is not None:
            for victim in _victim_pods(view, charge):
                words = f"{meta.namespace}/{meta.name}, which holds it up, gets less {resource}"
                found.append(Notice(victim, TIGHTENED, f"{words}: {left}", event=words))
        return found

    def _freed(self, key: Key, why: str) -> Notice:
        held = self._held.pop(key)
        text = f"{key[1]}: free again, {why}"
        words = "" if why == GONE or held.told == -inf else f"{key[1]} is free again"
        return Notice(held.pod, FREED, text, event=words, counts=(STEPS, key[1], "free"))

    def _free_all(self, why: str) -> list[Notice]:
        self._told.clear()
        return [self._freed(key, why) for key in sorted(self._held)]

    # --- culprits that are let be

    def _spared(self, spared: list[tuple[Verdict, PodView]], event: bool) -> list[Notice]:
        """Those that may not be touched, once for as long as they hurt somebody."""
        found, now = [], set()
        for verdict, pod in spared:
            key = ("spared", verdict.victim.key, verdict.resource.value, pod.meta.uid)
            now.add(key)
            if key not in self._told:
                what = f"{pod.meta.qos or 'no QoS class'}, {pod.meta.priority_class or 'no priority class'}"
                text = f"hurts {_name(verdict)} and is left alone ({what}): {wording.sentence(verdict)}"
                words = f"hurts {_name(verdict)} in {verdict.resource.value}; pods of its class are never held back"
                found.append(Notice(pod.meta, SPARED, text, event=words if event else ""))
        self._told = {key for key in self._told if key[0] != "spared"} | now
        return found

    def _would(self, keys: set[Key], found: Mapping[Key, Charge], pods: Mapping[str, PodView]) -> list[Notice]:
        """Policy `report`."""
        now = {("would", *key) for key in keys}
        said = [
            Notice(pods[key[0]].meta, WOULD, f"{key[1]} would be held back: {_why(found[key])}")
            for key in sorted(keys)
            if ("would", *key) not in self._told
        ]
        self._told = {key for key in self._told if key[0] != "would"} | now
        return said

    # --- the whole

    def _evictions(
        self,
        view: NodeView,
        found: Mapping[Key, Charge],
        pods: Mapping[str, PodView],
        on: Mapping[str, InterferenceAction],
    ) -> tuple[Task, ...]:
        """One task a resource, for one victim: the first that may and can go."""
        due: dict[str, list[PodView]] = {}
        for (uid, resource), one in self._held.items():
            charge, action = found.get((uid, resource)), on.get(resource)
            if charge is None or action is None or not evict_now(one.squeeze, charge.blame, _pace(action), view.now):
                continue
            if self._levers[resource].problem(view, pods[uid], action):  # it was never held back
                continue
            if best_effort_victim(pods[uid], FEATURE):
                due.setdefault(resource, []).append(pods[uid])
        tasks = []
        for resource, victims in sorted(due.items()):
            order = sorted(victims, key=lambda pod: (by_priority(pod), -found[pod.meta.uid, resource].worst[1]))
            gives = {pod.meta.uid: {resource: 1} for pod in order}
            tasks.append(Task(FEATURE, USED, {resource: 1}, tuple(order), gives))
        return tuple(tasks)

    def _decision(
        self,
        view: NodeView,
        on: Mapping[str, InterferenceAction],
        notices: list[Notice],
        tasks: tuple[Task, ...] = (),
    ) -> Decision:
        updates: list[DesiredSetting] = []
        said: list[Said] = []
        levels: dict[tuple[str, ...], float] = {}
        pods = {pod.meta.uid: pod for pod in view.pods}
        for (uid, resource), one in sorted(self._held.items()):
            lever, action, pod = self._levers[resource], on[resource], pods[uid]
            updates += lever.updates(view, pod, one.squeeze, action)
            left, problem = lever.words(view, one.squeeze), lever.problem(view, pod, action)
            said.append(Said(one.pod, resource, one.squeeze, left, one.victims, one.why, problem))
            levels[uid, one.pod.name, one.pod.namespace, resource] = one.squeeze.level / 100
        self.said = tuple(said)
        cpu = [one.squeeze for (_, resource), one in self._held.items() if resource == "cpu"]
        self.target = target_percent(cpu) if self._cpu.whole(view) else 100
        rows: dict[str, Rows] = {"interference_action_level": levels}
        return Decision(tuple(updates), tasks, rows, self._note(on), tuple(notices))

    def _note(self, on: Mapping[str, InterferenceAction]) -> str:
        if not on:
            return "off"
        if not self._held:
            return f"nobody is held back (acts on {', '.join(on)})"
        names = [
            f"{one.pod.namespace}/{one.pod.name} {key[1]} {one.squeeze.level} %" for key, one in self._held.items()
        ]
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"held back: {', '.join(sorted(names)[:3])}{rest}"


def _pace(action: InterferenceAction) -> Pace:
    return Pace(
        step=action.step_percent or 1,
        floor=action.floor_percent or 1,
        interval=float(action.interval_seconds or 1),
        release=float(action.release_seconds or 1),
        evict_after=float(action.evict_after_seconds or 0),
    )


def _amount(resource: str, base: int) -> str:
    if resource == "io":
        return f"{base >> 10} KiB a second"
    if resource == "network":
        return "its class"
    return f"{base}m" if resource == "cpu" else f"{base >> 20} MiB"


def _name(verdict: Verdict) -> str:
    victim = verdict.victim
    return f"container {victim.name} of {victim.namespace}/{victim.pod_name}"


def _why(charge: Charge) -> str:
    verdict, share = charge.worst
    more = len(charge.cases) - 1
    also = f" (and {more} more)" if more else ""
    lost = wording.percent(verdict.lost)
    waits = wording.WAITS[verdict.resource]
    return (
        f"{_name(verdict)} lost {lost} of its time waiting {waits}, {wording.percent(share)} of that for this pod{also}"
    )


def _whom(charge: Charge) -> str:
    verdict, _ = charge.worst
    return f"{_name(verdict)} waits {wording.WAITS[verdict.resource]} because of it"


def _victim_pods(view: NodeView, charge: Charge) -> list[PodMeta]:
    uids = {verdict.victim.pod_uid for verdict, _ in charge.cases}
    return [pod.meta for pod in view.pods if pod.meta.uid in uids]
