"""Throttles best-effort pods that interfere with services, step by step, and releases them again.

    verdicts --culprits--> CulpritCases --state--> ThrottleState --levers--> settings

`interferenceStrategy.actions` enables it per resource. Only best-effort pods are throttled; a worst culprit of another
class gets one notice and is not modified. A suspicion, for which short evidence is enough, allows one step (`state`).
Every change is published (`messages`): in the audit log, as Events on culprit and victim if there is an alarm, and as a
count. The state is lost with the process: the next process starts with nothing throttled, and the ledger restores the
settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from koordlet.api.sloconfig.interferenceactions import REPORT, InterferenceAction, enabled
from koordlet.interference.model import Verdict
from koordlet.qosmanager.engine.eviction import USED, EvictionTask, best_effort_victim, by_priority, prefers_to_stay
from koordlet.qosmanager.engine.strategy import Notice, QoSDecision, Rows, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.throttling import messages
from koordlet.qosmanager.throttling.culprits import CulpritCases, Key, throttle_candidates
from koordlet.qosmanager.throttling.levers import CpuLever, Lever, MemoryLever
from koordlet.qosmanager.throttling.state import (
    FULL,
    CulpritStatus,
    ThrottlePace,
    ThrottleState,
    advance,
    eviction_due,
)
from koordlet.resourceexecutor import DesiredSetting
from koordlet.statesinformer.pods.model import PodMeta

NAME = "interferenceactions"
FEATURE = "InterferenceActions"
STALE_SECONDS = 10.0
"""Verdicts older than this are ignored: throttled pods stay as they are."""
EVENT_SECONDS = 60.0
"""Between two Events about one culprit and resource; the audit log has every step."""
GONE, DISABLED, NOT_NEEDED = "the pod is gone", "disabled", "no container is delayed any more"
PODS_IN_NOTE = 3


@dataclass(frozen=True, slots=True)
class ThrottledPod:
    """One throttled pod and resource, for pages. `victims`: (pod UID, container) that it delays."""

    pod: PodMeta
    resource: str
    state: ThrottleState
    remaining: str
    """The setting in force, in words."""
    victims: tuple[tuple[str, str], ...]
    why: str
    problem: str = ""


@dataclass(slots=True)
class _Culprit:
    """One culprit and resource: its state, and the last cases against it."""

    state: ThrottleState
    pod: PodMeta
    why: str
    victims: tuple[tuple[str, str], ...]
    event_at: float = -inf
    """Time of the last Event about it."""


@dataclass(frozen=True, slots=True)
class _RoundInputs:
    """Inputs of one round. `actions`: enabled actions by resource."""

    view: NodeView
    actions: Mapping[str, InterferenceAction]
    cases: Mapping[Key, CulpritCases]
    pods: Mapping[str, PodView]
    events: bool


class ThrottleCulprits(Strategy):
    """The strategy. `more`: levers of resources other than CPU and memory (a resource without a lever is not
    throttled). `suppress`: CPU suppress is enabled, which reads `target`."""

    name = NAME

    def __init__(self, supports: Supports, more: Mapping[str, Lever] | None = None, *, suppress: bool = True) -> None:
        self._cpu = CpuLever(suppress=suppress)
        self._levers: dict[str, Lever] = {"cpu": self._cpu, "memory": MemoryLever(supports), **(more or {})}
        self._culprits: dict[Key, _Culprit] = {}
        self._released: dict[Key, ThrottleState] = {}
        """Culprits that are not throttled any more, as long as they are remembered."""
        self._suspects = False
        self._published_exempt: set[tuple[str, str, str]] = set()
        """(victim, resource, pod UID) of exempt culprits that were published."""
        self._published_reports: set[Key] = set()
        """Culprits that policy `report` published."""
        self.throttled: tuple[ThrottledPod, ...] = ()
        self.target = FULL
        """Percent of its CPU budget that best effort as a whole keeps."""

    def levels(self, resource: str) -> dict[str, int]:
        """Pod UID -> level in percent, of pods that are throttled in that resource."""
        return {uid: culprit.state.level for (uid, of), culprit in self._culprits.items() if of == resource}

    def suspect(self) -> None:
        """A container begins to be suspected of being delayed: decide in the next round, due or not."""
        self._suspects = True

    def outdated(self) -> bool:
        """Whether something is suspected since the last decision."""
        return self._suspects

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        self._suspects = False
        interference = view.interference
        strategy = None if interference is None else interference.strategy
        actions = enabled(strategy.actions) if strategy is not None and strategy.enable is not False else {}
        if interference is None or strategy is None or strategy.actions is None or not actions:
            return self._decision(view, {}, self._free_all())
        if interference.at is None or view.now - interference.at > STALE_SECONDS:
            return None if self._culprits else QoSDecision(note="waiting for verdicts")
        pods = {pod.meta.uid: pod for pod in view.pods}
        cases, exempt = throttle_candidates(
            (*(verdict for verdict in interference.verdicts if verdict.on), *interference.suspicions),
            pods,
            actions,
            min_share=(strategy.actions.min_share_percent or 0) / 100,
            min_confidence=(strategy.actions.min_confidence_percent or 0) / 100,
        )
        inputs = _RoundInputs(view, actions, cases, pods, events=strategy.event is not False)
        reported = {key for key in cases if actions[key[1]].policy == REPORT}
        notices = self._exempt(exempt, inputs) + self._reports(reported, inputs)
        for key in sorted({*self._culprits, *self._released, *(cases.keys() - reported)}):
            notices += self._advance(key, inputs)
        return self._decision(view, actions, notices, self._evictions(inputs))

    def evicted(self, now: float) -> None:
        """A culprit was evicted: the others' time at the floor starts again."""
        for culprit in self._culprits.values():
            if culprit.state.at_floor_since is not None:
                culprit.state = replace(culprit.state, at_floor_since=now)

    def _advance(self, key: Key, inputs: _RoundInputs) -> list[Notice]:
        """One round of one culprit and resource; what is to be published."""
        uid, resource = key
        known, cases = self._culprits.get(key), inputs.cases.get(key)
        pod, action = inputs.pods.get(uid), inputs.actions.get(resource)
        released = self._released.pop(key, None)
        if pod is None or action is None or action.policy == REPORT:
            return [self._free(key, GONE if pod is None else DISABLED)] if known else []
        lever = self._levers.get(resource)
        base = None if lever is None else lever.base(inputs.view, pod)
        if lever is None or (known is None and released is None and base is None):
            return []
        status = CulpritStatus.QUIET if cases is None else cases.status
        before = released if known is None else known.state
        after = advance(before, status, _pace(action), inputs.view.now, base or 0)
        if after is not None and after.level >= FULL:
            self._released[key] = after
            after = None
        if after is None:
            return [self._free(key, NOT_NEEDED)] if known else []
        if cases is not None:
            event_at = -inf if known is None else known.event_at
            self._culprits[key] = known = _Culprit(after, pod.meta, messages.why_text(cases), cases.victims, event_at)
        elif known is not None:
            known.state = after
        if known is None or (before is not None and before.level == after.level):
            return []
        return self._step_notices(known, before, resource, lever, cases, inputs)

    def _step_notices(
        self,
        culprit: _Culprit,
        before: ThrottleState | None,
        resource: str,
        lever: Lever,
        cases: CulpritCases | None,
        inputs: _RoundInputs,
    ) -> list[Notice]:
        after, pod, now = culprit.state, culprit.pod, inputs.view.now
        remaining = messages.remaining_text(resource, after, lever.text(inputs.view, after))
        down = messages.is_step_down(before, after)
        due = inputs.events and down and after.confirmed and now - culprit.event_at >= EVENT_SECONDS
        if due:
            culprit.event_at = now
        event = messages.culprit_event(resource, cases) if due and cases is not None else ""
        notices = [messages.stepped(pod, resource, before, after, remaining, culprit.why, event)]
        if due and cases is not None:
            notices += messages.victim_notices(inputs.view.pods, pod, resource, cases, remaining)
        return notices

    def _free(self, key: Key, why: str) -> Notice:
        culprit = self._culprits.pop(key)
        return messages.freed(culprit.pod, key[1], why, event=why != GONE and culprit.event_at != -inf)

    def _free_all(self) -> list[Notice]:
        self._released.clear()
        self._published_exempt.clear()
        self._published_reports.clear()
        return [self._free(key, DISABLED) for key in sorted(self._culprits)]

    def _exempt(self, exempt: list[tuple[Verdict, PodView]], inputs: _RoundInputs) -> list[Notice]:
        """Culprits that must not be throttled, once for as long as they interfere."""
        notices, current = [], set()
        for verdict, pod in exempt:
            case = (verdict.victim.key, verdict.resource.value, pod.meta.uid)
            if case not in self._published_exempt and case not in current:
                notices.append(messages.exempt(verdict, pod, event=inputs.events))
            current.add(case)
        self._published_exempt = current
        return notices

    def _reports(self, reported: set[Key], inputs: _RoundInputs) -> list[Notice]:
        """Policy `report`: culprits that would be throttled, once for as long as they interfere."""
        new = sorted(reported - self._published_reports)
        self._published_reports = reported
        return [messages.would_throttle(inputs.pods[uid].meta, of, inputs.cases[uid, of]) for uid, of in new]

    def _evictions(self, inputs: _RoundInputs) -> tuple[EvictionTask, ...]:
        """One task per resource, for one victim: the first that may be evicted."""
        due: dict[str, list[PodView]] = {}
        for (uid, resource), culprit in self._culprits.items():
            cases, action = inputs.cases.get((uid, resource)), inputs.actions.get(resource)
            if cases is None or action is None:
                continue
            if not eviction_due(culprit.state, cases.status, _pace(action), inputs.view.now):
                continue
            pod = inputs.pods[uid]
            if self._levers[resource].problem(inputs.view, pod, action):  # it could not be throttled
                continue
            if best_effort_victim(pod) and not prefers_to_stay(pod, FEATURE):  # it stays throttled
                due.setdefault(resource, []).append(pod)
        tasks = []
        for resource, victims in sorted(due.items()):
            order = sorted(victims, key=lambda pod: (by_priority(pod), -inputs.cases[pod.meta.uid, resource].worst[1]))
            contributes = {pod.meta.uid: {resource: 1} for pod in order}
            tasks.append(EvictionTask(FEATURE, USED, {resource: 1}, tuple(order), contributes))
        return tuple(tasks)

    def _decision(
        self,
        view: NodeView,
        actions: Mapping[str, InterferenceAction],
        notices: list[Notice],
        tasks: tuple[EvictionTask, ...] = (),
    ) -> QoSDecision:
        updates: list[DesiredSetting] = []
        throttled: list[ThrottledPod] = []
        levels: dict[tuple[str, ...], float] = {}
        pods = {pod.meta.uid: pod for pod in view.pods}
        for (uid, resource), culprit in sorted(self._culprits.items()):
            lever, action, pod, state = self._levers[resource], actions[resource], pods[uid], culprit.state
            updates += lever.updates(view, pod, state, action)
            remaining, problem = lever.text(view, state), lever.problem(view, pod, action)
            throttled.append(
                ThrottledPod(culprit.pod, resource, state, remaining, culprit.victims, culprit.why, problem)
            )
            levels[uid, culprit.pod.name, culprit.pod.namespace, resource] = state.level / FULL
        self.throttled = tuple(throttled)
        # The lowest level applies where best effort as a whole has a quota.
        self.target = min(self.levels("cpu").values(), default=FULL) if self._cpu.whole(view) else FULL
        rows: dict[str, Rows] = {"interference_action_level": levels}
        return QoSDecision(tuple(updates), tasks, rows, self._note(actions), tuple(notices))

    def _note(self, actions: Mapping[str, InterferenceAction]) -> str:
        if not actions:
            return "off"
        if not self._culprits:
            return f"no pod is throttled (acts on {', '.join(actions)})"
        names = sorted(
            f"{culprit.pod.namespace}/{culprit.pod.name} {resource} {culprit.state.level} %"
            for (_, resource), culprit in self._culprits.items()
        )
        rest = f" and {len(names) - PODS_IN_NOTE} more" if len(names) > PODS_IN_NOTE else ""
        return f"throttled: {', '.join(names[:PODS_IN_NOTE])}{rest}"


def _pace(action: InterferenceAction) -> ThrottlePace:
    return ThrottlePace(
        step=action.step_percent or 1,
        floor=action.floor_percent or 1,
        interval=float(action.interval_seconds or 1),
        release=float(action.release_seconds or 1),
        evict_after=float(action.evict_after_seconds or 0),
    )
