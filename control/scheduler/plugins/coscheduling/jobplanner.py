"""Plans preemption for a whole gang: the nodes of its members and the victims (spec 05 §11).

    plan = JobPlanner(table, policy).plan(job, rows, choose)     # raises NotHelpful or SimulationFailed

Everything is tried on the table itself and reverted. Potential victims are removed from the candidate nodes, cheapest
nodes first. Members are placed one after another, and each stays for the next one (spec 05 §17, D3). Then potential
victims are added back node by node, most important first, as long as the members there still fit. Finally the plan is
verified as a whole with only the victims removed, because constraints across nodes must hold beside the remaining pods.

Each evaluation runs the PreFilter plugins again, because pods were added and removed since the previous one. Filters
run for all candidate nodes at once; the chosen node is evaluated again with nominated pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from control.scheduler.cycle.equivalence import run_filters
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import PASS, PASS_CODE
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import Code, PluginStatus
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable, Trial
from koordlet.api import names

NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "no potential victims"
FIRST_NODES = 256
"""Number of candidate nodes in the first step."""
GROWTH_FACTOR = 4
"""By how much the number of candidate nodes grows when they do not suffice."""


class NotHelpful(Exception):
    """Not every member can be placed. The text has the format of a scheduling failure."""


class SimulationFailed(Exception):
    """A plugin failed during the simulation. The text is the plugin's."""


@dataclass(frozen=True)
class PreemptingJob:
    """`members`: the pods to place, in order. `mine(pod)`: the pod belongs to the job and is never a victim."""

    trigger: PodInfo
    members: Sequence[PodInfo]
    mine: Callable[[PodInfo], bool]
    same_job: frozenset[str] = frozenset()
    """uids of pods whose nominations do not block the members."""


@dataclass(frozen=True)
class PreemptionPlan:
    """`rows`: uid of each member -> its row. `victims`: row -> its victims, most important first; never empty lists."""

    rows: Mapping[str, int] = field(default_factory=dict)
    victims: Mapping[int, tuple[PodInfo, ...]] = field(default_factory=dict)


Choose: TypeAlias = Callable[[CycleState, Mapping[str, int]], Mapping[str, str]]
"""(state of the trigger, cost by node) -> node by member key, for gangs that are placed by another planner. Called
while all potential victims are removed. Raises NotHelpful."""


# Decisions


def job_key(pod: PodInfo) -> str:
    """The job of a pod, from its label; without the label the pod's own key (spec 05 §17, D15)."""
    return pod.shape.labels.get(names.LABEL_QUESTIONED_OBJECT_KEY, "") or pod.key


def costs(victims: Mapping[int, Collection[PodInfo]]) -> dict[int, int]:
    """Row -> cost of its potential victims: the highest rank of each job on the row, summed over the jobs.

    Ranks number the distinct priorities of all potential victims, ascending from 0.
    """
    ranks = {
        candidate: rank
        for rank, candidate in enumerate(sorted({pod.priority for pods in victims.values() for pod in pods}))
    }
    cost_of = {}
    for row, pods in victims.items():
        highest: dict[str, int] = {}
        for pod in pods:
            highest[job_key(pod)] = max(highest.get(job_key(pod), 0), ranks[pod.priority])
        cost_of[row] = sum(highest.values())
    return cost_of


def by_importance(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Most important first; in this order potential victims are added back."""
    return sorted(pods, key=lambda pod: (-pod.priority, job_key(pod), pod.key))


def text(nodes: int, tried: Mapping[int, PluginStatus], without: int) -> str:
    """The failure message: reasons of the tried nodes, `without`: number of nodes without victims, and of the
    others."""
    counts: Counter[str] = Counter(reason for status in tried.values() for reason in status.reasons)
    counts += Counter({NO_VICTIMS: without, NOT_HELPFUL: nodes - without - len(tried)})
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{nodes} nodes are available: {reasons}."


def _trial_state(job: PreemptingJob) -> CycleState:
    """The state of an evaluation; `prepare` fills it, `run_undo` reverts what plugins did for it."""
    return CycleState(phase="PostFilter", same_job=job.same_job, of_job=job.mine, trial=True)


def _remove_all(groups: Iterable[Iterable[PodInfo]], trial: Trial) -> None:
    for pods in groups:
        for pod in pods:
            trial.remove(pod)


# Trying


class JobPlanner:
    """See the module text. `skip`: the plugin that plans the job; its PreFilter is not called."""

    def __init__(self, table: NodeTable, policy: VictimPolicy, skip: str = "") -> None:
        self._table = table
        self._policy = policy
        self._skip = skip
        self._runtime = PluginRuntime()

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime

    def plan(self, job: PreemptingJob, rows: RowArray, choose: Choose | None = None) -> PreemptionPlan:
        """`rows`: where removing pods may help. Raises NotHelpful or SimulationFailed; changes nothing."""
        table, eligible = self._table, self._policy.eligible
        candidates = {
            row: [pod for pod in table.pods[row].values() if eligible(pod, job.trigger) and not job.mine(pod)]
            for row in rows.tolist()
        }
        victims = {row: pods for row, pods in candidates.items() if pods}
        if not victims:
            raise NotHelpful(text(table.nodes_alive, {}, len(candidates)))
        with table.what_if() as trial:
            if choose is None:
                placed = self._place(job, candidates, trial)
            else:
                _remove_all(victims.values(), trial)
                placed = self._placed_by(choose, job, costs(victims), trial)
            used = set(placed.values())
            for row in victims.keys() - used:
                for pod in victims[row]:
                    if pod.row < 0:
                        trial.add(pod, row)
            gone = {row: self._victims(job, placed, row, victims[row], trial) for row in sorted(used & victims.keys())}
            self._verify(job, placed, trial)
        return PreemptionPlan(placed, {row: pods for row, pods in gone.items() if pods})

    def _place(self, job: PreemptingJob, candidates: Mapping[int, Collection[PodInfo]], trial: Trial) -> dict[str, int]:
        """Place each member on the cheapest node, the first by name among equal nodes.

        Nodes without potential victims come first: members smaller than the trigger may fit candidates. Victims are
        removed from further nodes only when the previous nodes do not suffice, which saves most of the work in large
        clusters. A node that rejected a member is not tried for pods of the same shape, unless no other node is left.
        """
        cost, names_of = costs({row: pods for row, pods in candidates.items() if pods}), self._table.names
        order = np.array(sorted(candidates, key=lambda row: (cost.get(row, -1), names_of[row])), np.intp)
        opened = 0
        refusing: dict[int, dict[int, PluginStatus]] = {}
        placed: dict[str, int] = {}
        for pod in job.members:
            refusals = refusing.setdefault(pod.shape.id, {})
            row = None
            while row is None:
                rows = order[:opened]
                row, refused = self._first(job, pod, rows[~np.isin(rows, list(refusals))])
                refusals |= refused
                if opened == len(order):
                    break
                if row is None:
                    more = order[opened : max(FIRST_NODES, opened * GROWTH_FACTOR)]
                    _remove_all((candidates[candidate] for candidate in more.tolist()), trial)
                    opened += len(more)
            if row is None:
                row, refused = self._first(job, pod, order)
            if row is None:
                known = {candidate: status for candidate, status in refused.items() if candidates[candidate]}
                raise NotHelpful(text(self._table.nodes_alive, known, len(candidates) - len(cost)))
            trial.add(pod, row)
            placed[pod.uid] = row
        return placed

    def _first(self, job: PreemptingJob, pod: PodInfo, rows: RowArray) -> tuple[int | None, dict[int, PluginStatus]]:
        """(the first of the rows that fits the pod, the statuses of rejecting rows).

        Rows after the first fitting one are evaluated without nominated pods only."""
        state = _trial_state(job)
        try:
            return self._first_prepared(state, pod, rows)
        finally:
            state.run_undo()

    def _first_prepared(
        self, state: CycleState, pod: PodInfo, rows: RowArray
    ) -> tuple[int | None, dict[int, PluginStatus]]:
        prepared = prepare(self._runtime.profile, state, pod, self._skip)
        status = prepared.status
        if status.rejected:
            return None, dict.fromkeys(rows.tolist(), status)
        if not status.ok:
            raise SimulationFailed(status.message)
        allowed = rows if prepared.rows is None else rows[np.isin(rows, prepared.rows)]
        left_out = PluginStatus(Code.UNRESOLVABLE, (NOT_HELPFUL,))
        refused = dict.fromkeys(rows[~np.isin(rows, allowed)].tolist(), left_out)
        if not len(allowed):
            return None, refused
        fits = self._runtime.fits
        columns = tuple(column for column in self._runtime.profile.filters if not column.by_row)
        codes = run_filters(state, pod, allowed, columns, self._table.size)
        plugins = {column.index: column.plugin for column in columns}
        for row, code in zip(allowed[codes != PASS].tolist(), codes[codes != PASS].tolist(), strict=True):
            plugin = plugins[code >> 16]
            refused[row] = plugin.reasons.status(code & 0xFFFF).by(plugin.name)
        for row in allowed[codes == PASS_CODE].tolist():
            status = fits(state, pod, row)
            if status.ok:
                return row, refused
            refused[row] = status
        return None, refused

    def _placed_by(self, choose: Choose, job: PreemptingJob, cost: Mapping[int, int], trial: Trial) -> dict[str, int]:
        table = self._table
        state = _trial_state(job)
        try:
            status = prepare(self._runtime.profile, state, job.trigger, self._skip).status
            if status.rejected:
                raise NotHelpful(f"0/{table.nodes_alive} nodes are available: {status.message}.")
            if not status.ok:
                raise SimulationFailed(status.message)
            nodes = choose(state, {table.names[row]: amount for row, amount in cost.items()})
        finally:
            state.run_undo()
        placed = {pod.uid: table.rows[nodes[pod.key]] for pod in job.members}
        for pod in job.members:
            trial.add(pod, placed[pod.uid])
        return placed

    def _victims(
        self, job: PreemptingJob, placed: Mapping[str, int], row: int, removed: Collection[PodInfo], trial: Trial
    ) -> tuple[PodInfo, ...]:
        """The potential victims that cannot be added back to the row beside its members."""
        members = [pod for pod in job.members if placed[pod.uid] == row]
        gone = []
        for pod in by_importance(removed):
            trial.add(pod, row)
            if self._refusal(job, members, placed, trial) is not None:
                trial.remove(pod)
                gone.append(pod)
        return tuple(gone)

    def _refusal(
        self, job: PreemptingJob, members: Sequence[PodInfo], placed: Mapping[str, int], trial: Trial
    ) -> PluginStatus | None:
        """Remove the members and add them back one after another: the status of the first that no longer fits, or
        None."""
        for pod in members:
            trial.remove(pod)
        refusal: PluginStatus | None = None
        for pod in members:
            if refusal is None:
                row = placed[pod.uid]
                fitting, refused = self._first(job, pod, np.array([row], np.intp))
                refusal = refused[row] if fitting is None else None
            trial.add(pod, placed[pod.uid])
        return refusal

    def _verify(self, job: PreemptingJob, placed: Mapping[str, int], trial: Trial) -> None:
        refusal = self._refusal(job, job.members, placed, trial)
        if refusal is not None:
            raise NotHelpful(f"the plan does not hold with those who stay: {refusal.message}")
