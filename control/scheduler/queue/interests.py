"""The events that each plugin is interested in, and whether an event justifies another attempt (spec 05 §3.3-7).

A hint is called once per event for all waiting pods of a shape, so it may not depend on data of a single replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any, Final

from control.scheduler.framework.plugin import ClusterEvent, EventInterest, Plugin
from control.scheduler.framework.runtime import Timed, untimed
from control.scheduler.framework.status import PluginStatus
from control.scheduler.queue.record import QueuedPod
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)

ANY: Final = "*"
_WHOLE: Final = frozenset(("Add", "Delete", "Update"))
_PODS: Final = frozenset(("AssignedPod", "UnscheduledPod"))


HintTimed = Callable[[tuple[str, ...], float], object]
"""((plugin, event, `Queue` or `QueueSkip`), seconds): the duration of a hint."""
SAMPLE_INTERVAL: Final = 10
"""One hint call out of this number is timed."""


class QueueHint(IntEnum):
    """Whether and when a pod is to be tried again."""

    SKIP = 0
    AFTER_BACKOFF = 1
    NOW = 2


@dataclass(frozen=True)
class QueueProfile:
    """The functions of the plugins of one profile that the queue calls.

    `sort_key(pod, timestamp)` orders the active queue and must be the same in all profiles. `gates`: name and check of
    the PreEnqueue plugins, in order. `interests`: those of every enabled plugin, by name."""

    sort_key: Callable[[PodInfo, float], Any]
    gates: Sequence[tuple[str, Callable[[PodInfo], PluginStatus]]] = ()
    interests: Mapping[str, Sequence[EventInterest]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, sort: Plugin, gates: Iterable[Plugin], plugins: Iterable[Plugin], timed: Timed = untimed
    ) -> QueueProfile:
        """`timed` measures the calls of PreEnqueue."""
        return cls(
            sort.sort_key,
            [(plugin.name, timed(plugin, "PreEnqueue", plugin.pre_enqueue)) for plugin in gates],
            {plugin.name: list(plugin.interests()) for plugin in plugins},
        )


def concerns(interest: EventInterest, event: ClusterEvent) -> bool:
    """Whether the interest covers the event. The action `Update` covers all parts of an update."""
    resource, action = interest.resource, event.action
    if resource not in (ANY, event.resource) and not (resource == "Pod" and event.resource in _PODS):
        return False
    actions = interest.actions
    if not actions or action == ANY or action in actions or ANY in actions:
        return True
    return action not in _WHOLE and "Update" in actions


class Interests:
    """The interests of all profiles, and the evaluation of events."""

    def __init__(self, profiles: Mapping[str, QueueProfile], timed: HintTimed | None) -> None:
        self._profiles = profiles
        self._timed = timed
        self._hint_calls = 0
        self._by_event: dict[tuple[str, str, ClusterEvent], list[EventInterest]] = {}
        self._covered: dict[ClusterEvent, bool] = {}

    def covers(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile is interested in the event."""
        covered = self._covered.get(event)
        if covered is None:
            covered = event.resource == ANY or any(
                concerns(interest, event)
                for profile in self._profiles.values()
                for interests in profile.interests.values()
                for interest in interests
            )
            self._covered[event] = covered
        return covered

    def of(self, profile: str, plugin: str, event: ClusterEvent) -> list[EventInterest]:
        """The interests of one plugin that cover an event."""
        key = (profile, plugin, event)
        covering = self._by_event.get(key)
        if covering is None:
            known = self._profiles.get(profile)
            interests = known.interests.get(plugin, ()) if known is not None else ()
            covering = self._by_event[key] = [interest for interest in interests if concerns(interest, event)]
        return covering

    def helps(self, pod: PodInfo, plugin: str, event: ClusterEvent, old: Any, new: Any) -> bool:
        """Whether the plugin may accept the pod after the event. True if a hint raises."""
        for interest in self.of(pod.shape.scheduler, plugin, event):
            if interest.hint is None:
                return True
            self._hint_calls += 1
            measured = self._timed is not None and self._hint_calls % SAMPLE_INTERVAL == 0
            begun = perf_counter() if measured else 0.0
            try:
                helps = interest.hint(pod, old, new)
                if measured and self._timed is not None:
                    labels = (plugin, event.resource + event.action, "Queue" if helps else "QueueSkip")
                    self._timed(labels, perf_counter() - begun)
                if helps:
                    return True
            except Exception as error:
                log.exception("Queueing hint failed", plugin=plugin, pod=pod.key, err=error)
                return True
        return False

    def evaluate(self, record: QueuedPod, event: ClusterEvent, old: Any, new: Any) -> QueueHint:
        """Whether the event justifies another attempt of a pod that was rejected or gated."""
        wakers = record.wakers
        if not wakers or event.resource == ANY:
            return QueueHint.AFTER_BACKOFF
        best = QueueHint.SKIP
        for plugin in sorted(wakers):
            if self.helps(record.pod, plugin, event, old, new):
                if plugin in record.pending_by:
                    return QueueHint.NOW
                best = QueueHint.AFTER_BACKOFF
        return best
