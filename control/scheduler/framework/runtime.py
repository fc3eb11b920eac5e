"""Services that are built from the plugins of a profile and connected to them afterwards (spec 05 §5.1).

The queue needs the plugins' QueueSort and interests, and a cycle needs the plugins in their order. So plugins are built
first, then queue and cycle. Then, before the first event, `Plugin.connect` gives each plugin a `PluginRuntime`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from control.scheduler.framework.status import PluginStatus
from control.scheduler.state.nominations import Nominations
from control.scheduler.state.pods import PodInfo

if TYPE_CHECKING:
    from control.scheduler.framework.plugin import CycleState, Plugin
    from control.scheduler.framework.profile import Framework


Timed = Callable[["Plugin", str, Callable[..., Any]], Callable[..., Any]]
"""(plugin, extension point, method) -> the method with its duration measured."""


def untimed(plugin: Plugin, point: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A `Timed` that measures nothing."""
    return method


class PluginQueue(Protocol):
    """The part of the scheduling queue that plugins and cycles use."""

    @property
    def nominations(self) -> Nominations: ...

    def activate(self, keys: Iterable[str]) -> None:
        """Move waiting pods (`namespace/name`) to the active queue immediately."""

    def requeue(self, pod: PodInfo, rejected_by: Iterable[str] = ()) -> object:
        """Return a pod whose failed attempt a plugin took over. `rejected_by`: the plugins whose events may help; none:
        after a backoff."""

    def pending(self, key: str) -> PodInfo | None:
        """A pod in the queue, by `namespace/name`."""


class EmptyQueue:
    """A queue without pods, for cycles that run without one."""

    def __init__(self) -> None:
        self.nominations = Nominations()

    def activate(self, keys: Iterable[str]) -> None:
        return

    def requeue(self, pod: PodInfo, rejected_by: Iterable[str] = ()) -> object:
        return None

    def pending(self, key: str) -> PodInfo | None:
        return None


class VictimEvictor(Protocol):
    """Deletes pods to make room for another one."""

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        """Mark the victims as preempted and delete them in the background. Failures are logged and counted."""

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        """Remove the nominations from the statuses of pods in the background."""

    def evicting_for(self, uid: str) -> bool:
        """Whether deletion calls for this preemptor are still in progress."""


class NoEvictor:
    """Deletes nothing, for cycles that run without an API server."""

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        return

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        return

    def evicting_for(self, uid: str) -> bool:
        return False


class GangAuditor(Protocol):
    """Records what happens to gang groups."""

    def all_attempted(self, group: str) -> None:
        """Every member of a gang group was tried; none failed, but there are not enough members."""


def _no_filters(state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
    raise RuntimeError("the plugin is not connected to a cycle")


@dataclass(frozen=True)
class PluginRuntime:
    """Services that are built from the plugins of a profile."""

    framework: Framework | None = None
    """The profile: the other plugins and the order in which they run. None only before `Plugin.connect`."""
    fits: Callable[[CycleState, PodInfo, int], PluginStatus] = _no_filters
    """(state, pod, row): the result of the Filter plugins for the row as the table is, nominated pods included."""
    queue: PluginQueue = field(default_factory=EmptyQueue)
    evictor: VictimEvictor = field(default_factory=NoEvictor)
    auditor: GangAuditor | None = None

    @property
    def profile(self) -> Framework:
        if self.framework is None:
            raise RuntimeError("the plugin is not connected to a cycle")
        return self.framework
