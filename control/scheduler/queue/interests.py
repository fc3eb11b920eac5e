"""Which events which plugin wants to hear of, and whether one is worth another attempt of a pod (spec 05 §3.3-7).

A hint is asked once an event for all waiting pods of a shape: it may not depend on what differs between equal pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any, Final

from control.scheduler.framework.plugin import Event, Interest, Plugin
from control.scheduler.framework.status import Status
from control.scheduler.queue.record import Record
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)

ANY: Final = "*"
_WHOLE: Final = frozenset(("Add", "Delete", "Update"))
_PODS: Final = frozenset(("AssignedPod", "UnscheduledPod"))


HintTimed = Callable[[tuple[str, ...], float], object]
"""((plugin, event, `Queue` or `QueueSkip`), seconds): how long a hint took."""
EVERY: Final = 10
"""One hint of so many is timed."""


class Verdict(IntEnum):
    """Whether a pod should be tried again."""

    SKIP = 0
    AFTER_BACKOFF = 1
    NOW = 2


@dataclass(frozen=True)
class QueueProfile:
    """What the queue asks of the plugins of one profile.

    `sort_key(pod, timestamp)` orders the active queue and must be the same in all profiles; `gates` are the PreEnqueue
    plugins in order; `interests` those of every enabled plugin, by name."""

    sort_key: Callable[[PodInfo, float], Any]
    gates: Sequence[tuple[str, Callable[[PodInfo], Status]]] = ()
    interests: Mapping[str, Sequence[Interest]] = field(default_factory=dict)

    @classmethod
    def of(cls, sort: Plugin, gates: Iterable[Plugin], plugins: Iterable[Plugin]) -> QueueProfile:
        return cls(
            sort.sort_key,
            [(plugin.name, plugin.pre_enqueue) for plugin in gates],
            {plugin.name: list(plugin.interests()) for plugin in plugins},
        )


def concerns(interest: Interest, event: Event) -> bool:
    """Whether an event is one that the interest names. `Update` covers all parts of an update."""
    resource, action = interest.resource, event.action
    if resource not in (ANY, event.resource) and not (resource == "Pod" and event.resource in _PODS):
        return False
    actions = interest.actions
    if not actions or action == ANY or action in actions or ANY in actions:
        return True
    return action not in _WHOLE and "Update" in actions


class Interests:
    """The interests of all profiles, and the verdict on events."""

    def __init__(self, profiles: Mapping[str, QueueProfile], timed: HintTimed | None = None) -> None:
        self._profiles, self._timed = profiles, timed
        self._asked = 0
        self._found: dict[tuple[str, str, Event], list[Interest]] = {}
        self._wanted: dict[Event, bool] = {}

    def wanted(self, event: Event) -> bool:
        """Whether any plugin of any profile wants to hear of it."""
        found = self._wanted.get(event)
        if found is None:
            found = event.resource == ANY or any(
                concerns(one, event)
                for profile in self._profiles.values()
                for several in profile.interests.values()
                for one in several
            )
            self._wanted[event] = found
        return found

    def of(self, profile: str, plugin: str, event: Event) -> list[Interest]:
        """The interests of one plugin that an event concerns."""
        key = (profile, plugin, event)
        found = self._found.get(key)
        if found is None:
            known = self._profiles.get(profile)
            several = known.interests.get(plugin, ()) if known is not None else ()
            found = self._found[key] = [one for one in several if concerns(one, event)]
        return found

    def helps(self, pod: PodInfo, plugin: str, event: Event, old: Any, new: Any) -> bool:
        """Whether an event may change a plugin's mind about a pod. A hint that raises counts as yes."""
        for interest in self.of(pod.shape.scheduler, plugin, event):
            if interest.hint is None:
                return True
            self._asked += 1
            measured = self._timed is not None and self._asked % EVERY == 0
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

    def verdict(self, record: Record, event: Event, old: Any, new: Any) -> Verdict:
        """What an event means for one pod that was rejected or gated."""
        wakers = record.wakers
        if not wakers or event.resource == ANY:
            return Verdict.AFTER_BACKOFF
        best = Verdict.SKIP
        for plugin in sorted(wakers):
            if self.helps(record.pod, plugin, event, old, new):
                if plugin in record.pending_by:
                    return Verdict.NOW
                best = Verdict.AFTER_BACKOFF
        return best
