"""Trying a pod on a row with other pods added or removed; plugins take part, and everything is reverted (spec 05
§3.6)."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from control.scheduler.framework.status import SUCCESS, PluginStatus
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import Trial

if TYPE_CHECKING:
    from control.scheduler.framework.plugin import CycleState
    from control.scheduler.framework.profile import Framework


class DryRun:
    """`with DryRun(framework, state, pod) as trial: trial.remove(victim); runtime.fits(state, pod, row)`.

    Pods may be added and removed again in any order. A plugin that refuses a change ends the dry run with its status.
    """

    def __init__(self, framework: Framework, state: CycleState, pod: PodInfo) -> None:
        self._framework = framework
        self._state = state
        self._pod = pod
        self._trial = Trial(framework.handle.table)
        self._done: list[tuple[PodInfo, int, bool]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._done:
            other, row, was_added = self._done.pop()
            for plugin in self._framework.removed if was_added else self._framework.added:
                if was_added:
                    plugin.removed(self._state, self._pod, other, row)
                else:
                    plugin.added(self._state, self._pod, other, row)
        self._trial.undo()

    def add(self, other: PodInfo, row: int) -> PluginStatus:
        self._trial.add(other, row)
        self._done.append((other, row, True))
        for plugin in self._framework.added:
            status = plugin.added(self._state, self._pod, other, row)
            if not status.ok:
                return status.by(plugin.name)
        return SUCCESS

    def remove(self, other: PodInfo) -> PluginStatus:
        row = other.row
        self._trial.remove(other)
        self._done.append((other, row, False))
        for plugin in self._framework.removed:
            status = plugin.removed(self._state, self._pod, other, row)
            if not status.ok:
                return status.by(plugin.name)
        return SUCCESS
