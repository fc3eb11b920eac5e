"""Makes room for one pod: eligibility for preemption, the nodes that are tried, and the consequences (spec 05 §3.6).

A plugin that preempts owns a `Preemption` with its policy. Dry runs are made on the table itself and reverted
(`DryRun`). The evictor marks and deletes victims in the background.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from control.scheduler.cycle.dryrun import DryRun
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, PostFilterResult
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unschedulable
from control.scheduler.framework.suggestion import waiting_for_victims
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.plugins.defaultpreemption.victims import Victims, best, minimal_victims
from control.scheduler.state.pods import PodInfo
from koordlet.api.core.workloads import PodDisruptionBudget

TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
MIN_CANDIDATES_PERCENT: Final = 10
MIN_CANDIDATES: Final = 100


class Preemption:
    """See the module text. `owner`: name of the plugin."""

    def __init__(
        self,
        handle: Handle,
        owner: str,
        policy: VictimPolicy,
        *,
        percentage: int = MIN_CANDIDATES_PERCENT,
        absolute: int = MIN_CANDIDATES,
    ) -> None:
        """`percentage` of the nodes, at least `absolute`, are tried if they suffice."""
        self.handle = handle
        self.table = handle.table
        self.policy = policy
        self._owner = owner
        self._percentage = percentage
        self._absolute = absolute
        self._informer = None if handle.objects is None else handle.objects.informer(PodDisruptionBudget)
        self.runtime = PluginRuntime()

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self.runtime = runtime

    def evicting(self, pod: PodInfo) -> bool:
        """Whether deletion calls for victims of this pod are in progress."""
        return self.runtime.evictor.evicting_for(pod.uid)

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        """Make room, or state why there is none. Changes nothing if another plugin preempts for the pod or its job."""
        if state.preempted_for_job or self._belongs_to_another(failure):
            return PostFilterResult(unschedulable())
        self.handle.observe_preemption(0)
        reason = self._ineligible(pod, failure)
        if reason:
            if reason == TERMINATING:
                state.suggest(waiting_for_victims(pod.nominated))
            return PostFilterResult(unschedulable(f"preemption: {reason}"))
        candidates, refused = self._candidates(state, pod, failure)
        if not candidates:
            # An existing nomination is useless now, so it is removed.
            return PostFilterResult(unschedulable(f"preemption: {self._why(failure, refused)}"), nominated="")
        chosen = best(candidates)
        node = self.table.names[chosen.row]
        self._make_room(pod, node, chosen.pods)
        self.handle.observe_preemption(len(chosen.pods))
        return PostFilterResult(SUCCESS, nominated=node)

    def would_displace(self, state: CycleState, pod: PodInfo, failure: FitError) -> list[Victims]:
        """The victims on each node where preemption would help, best node first. Changes nothing."""
        if self._belongs_to_another(failure) or self._ineligible(pod, failure):
            return []
        candidates, _ = self._candidates(state, pod, failure)
        return sorted(candidates, key=lambda candidate: (candidate.rank, self.table.names[candidate.row]))

    def _belongs_to_another(self, failure: FitError) -> bool:
        """Whether only the plugin that rejected the pod may preempt for it. A dry run does not repeat PreFilter."""
        rejecting = "" if failure.pre_filter is None else failure.pre_filter.plugin
        plugin = self.runtime.profile.plugins.get(rejecting)
        return plugin is not None and plugin.makes_room_itself and rejecting != self._owner

    def _ineligible(self, pod: PodInfo, failure: FitError) -> str:
        """Why the pod may not preempt now; empty if it may."""
        if pod.pod.spec.preemption_policy == "Never":
            return "not eligible due to preemptionPolicy=Never."
        row = self.table.row(pod.nominated) if pod.nominated else None
        if row is None or row not in failure.rows or failure.status(row).code is Code.UNRESOLVABLE:
            return ""
        if any(self.policy.leaving(other, pod) for other in self._on(row)):
            return TERMINATING
        return ""

    def _candidates(
        self, state: CycleState, pod: PodInfo, failure: FitError
    ) -> tuple[list[Victims], dict[int, PluginStatus]]:
        """The nodes on which victims would help, and the statuses of the other nodes that were tried."""
        rows = failure.preemptible().tolist()
        enough = self._enough(len(rows))
        candidates: list[Victims] = []
        refused: dict[int, PluginStatus] = {}
        possible = self.policy.rows(pod)
        if possible is not None:
            names = self.table.names
            refused = {row: self.policy.none_on(names[row], pod) for row in rows if row not in possible}
            rows = [row for row in rows if row in possible]
        budgets = self._budgets()
        begin = self.handle.rng.randrange(len(rows)) if rows else 0
        for row in rows[begin:] + rows[:begin]:
            outcome = self._try(state, pod, row, budgets)
            if isinstance(outcome, PluginStatus):
                refused[row] = outcome
            else:
                candidates.append(outcome)
                if len(candidates) >= enough and any(not candidate.violations for candidate in candidates):
                    break
        return candidates, refused

    def _enough(self, nodes: int) -> int:
        return min(nodes, max(nodes * self._percentage // 100, self._absolute))

    def _try(
        self, state: CycleState, pod: PodInfo, row: int, budgets: Sequence[PodDisruptionBudget]
    ) -> Victims | PluginStatus:
        eligible = [other for other in self._on(row) if self.policy.eligible(other, pod)]
        if not eligible:
            return self.policy.none_on(self.table.names[row], pod)
        with DryRun(self.runtime.profile, state, pod) as trial:
            for other in eligible:
                status = trial.remove(other)
                if not status.ok:
                    return status
            status = self._fits(state, pod, row)
            if not status.ok:
                return status

            def fits_with(other: PodInfo) -> bool:
                if trial.add(other, row).ok and self._fits(state, pod, row).ok:
                    return True
                trial.remove(other)
                return False

            victims = minimal_victims(eligible, budgets, row, fits_with)
            return (
                victims if victims.pods else unschedulable(NOT_HELPFUL)
            )  # no plugin but an extender rejected the node

    def _fits(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        status = self.policy.admits(state, pod)
        return self.runtime.fits(state, pod, row) if status.ok else status

    def _make_room(self, pod: PodInfo, node: str, victims: Sequence[PodInfo]) -> None:
        queue = self.runtime.queue
        deleted = [v for v in victims if not self.handle.waiting.reject(v.uid, self._owner, "preempted")]
        message = f"{self.handle.profile}: {self.policy.message}"
        self.runtime.evictor.evict(deleted, by=pod, message=message)
        lesser = [other for other in queue.nominations.on(node) if self.policy.yields(other, pod)]
        for other in lesser:
            queue.nominations.set(other, "")
        self.runtime.evictor.clear_nominations(lesser)

    def _why(self, failure: FitError, refused: dict[int, PluginStatus]) -> str:
        counts: Counter[str] = Counter()
        for row in failure.rows.tolist():
            status = refused.get(row)
            for reason in status.reasons if status is not None else (NOT_HELPFUL,):
                counts[reason] += 1
        reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
        return f"0/{len(failure.rows)} nodes are available: {reasons}."

    def _on(self, row: int) -> list[PodInfo]:
        return list(self.table.pods[row].values())

    def _budgets(self) -> Sequence[PodDisruptionBudget]:
        return () if self._informer is None else self._informer.list()
