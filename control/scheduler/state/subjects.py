"""What is scheduled: pods, and objects of other kinds that get a node as if they were pods (spec 05 §5.8).

Every `PodInfo` names the kind of its subject. Plugins, queue, cycle and table see a pod in any case. Where the API
server is involved, the subject's kind decides: which version is current, what Events are about, and where a failure is
written. A plugin that schedules another kind adds it to `Handle.subjects` in its constructor, has its events handled
like those of pods (`Handle.follow`), and sends its changes and bindings (`Plugin.apply_patch`, `Plugin.bind`), which
the default plugins leave to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from control.scheduler.state.pods import POD, PodInfo
from koordlet.api.core import Pod


@dataclass(frozen=True)
class FailedAttempt:
    """Why a subject has no node. `reason`: Unschedulable or SchedulerError; `nominated`: the node to write into its
    status, "" to remove the nomination, None to keep it."""

    reason: str
    message: str
    nominated: str | None


class ScheduledKind(Protocol):
    """How subjects of one kind are read and written at the API server."""

    def current(self, info: PodInfo) -> Pod | None:
        """The last known version, as a pod. None: it is gone. With a node, `spec.nodeName` is set."""

    def event_object(self, info: PodInfo) -> Any:
        """The API object that Events are about."""

    async def report(self, info: PodInfo, failed: FailedAttempt) -> None:
        """Write the failure into the status, unless it has it already or the subject has a node. Raises KubeError."""


class Subjects:
    """The kinds of subjects of this scheduler."""

    def __init__(self, pods: ScheduledKind | None = None) -> None:
        self._by_kind: dict[str, ScheduledKind] = {} if pods is None else {POD: pods}

    def add(self, kind: str, subject: ScheduledKind) -> None:
        self._by_kind[kind] = subject

    def get(self, kind: str) -> ScheduledKind | None:
        return self._by_kind.get(kind)

    def of(self, info: PodInfo) -> ScheduledKind:
        return self._by_kind[info.subject]

    def current(self, info: PodInfo) -> Pod | None:
        """See `ScheduledKind.current`."""
        return self.of(info).current(info)
