"""The plugin: makes room for a pod by deleting pods of lower priority.

Until the deletion calls have returned, PreEnqueue keeps the preemptor out of the queue.
"""

from __future__ import annotations

from typing import Any, ClassVar

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, Plugin, PostFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable, unschedulable
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.plugins.defaultpreemption.preemption import MIN_CANDIDATES, MIN_CANDIDATES_PERCENT, Preemption
from control.scheduler.plugins.defaultpreemption.victims import Victims
from control.scheduler.state.pods import POD, PodInfo


class DefaultPreemption(Plugin):
    """See the module text. Arguments: `minCandidateNodesPercentage` 10, `minCandidateNodesAbsolute` 100."""

    name: ClassVar[str] = "DefaultPreemption"

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._preemption = Preemption(
            handle,
            self.name,
            VictimPolicy(),
            percentage=getattr(args, "min_candidate_nodes_percentage", MIN_CANDIDATES_PERCENT),
            absolute=getattr(args, "min_candidate_nodes_absolute", MIN_CANDIDATES),
        )

    def connect(self, runtime: PluginRuntime) -> None:
        super().connect(runtime)
        self._preemption.connect(runtime)

    def pre_enqueue(self, pod: PodInfo) -> PluginStatus:
        if self._preemption.evicting(pod):
            return unresolvable("waiting for the preemption for this pod to be finished")
        return SUCCESS

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        if pod.subject != POD:  # only the plugin of another subject may preempt for it
            return PostFilterResult(unschedulable())
        return self._preemption.post_filter(state, pod, failure)

    def would_displace(self, state: CycleState, pod: PodInfo, failure: FitError) -> list[Victims]:
        """See `Preemption.would_displace`."""
        return self._preemption.would_displace(state, pod, failure) if pod.subject == POD else []
