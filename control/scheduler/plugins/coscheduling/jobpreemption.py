"""Room for a whole gang: where its members would go and who must leave for that (spec 05 §11).

    plan = JobPlanner(handle, skip).plan(job, rows, choose)     # raises NotHelpful or SimulationFailed

Everything is tried on the table itself and taken back, whatever comes of it. Potential victims leave the candidate
nodes, the cheapest first; members are placed one after another, and each stays for the next one (§17, D3); then victims
come back node by node, most important first, as long as the members there still fit. The plan that is left is tried
once more as a whole, with nobody gone but the victims: constraints that reach across nodes must hold beside those who
stay.

Each look runs the PreFilter plugins anew, because other pods have come and gone since the last; columns are asked for
all candidate nodes in one go, and the one node that is chosen is asked with nominated pods in mind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from control.scheduler.cycle.equivalence import run_filters
from control.scheduler.cycle.failures import PASS, PASS_CODE
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.runtime import Runtime
from control.scheduler.framework.status import Code, PluginStatus
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable, Trial
from koordlet.api import names
from koordlet.api.annotations.scheduling import is_preemptible, quota_preemptible

NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "no potential victims"
FIRST, GROWTH = 256, 4
"""How many nodes are looked at to begin with, and how many times as many when those don't do."""


class NotHelpful(Exception):
    """Not every member can be placed; the text says why, in the words of a scheduling failure."""


class SimulationFailed(Exception):
    """A plugin failed while trying; the text is its."""


@dataclass(frozen=True)
class PreemptingJob:
    """`members`: who needs a node, in the order of placing. `mine(pod)`: never a victim, because of the same job."""

    trigger: PodInfo
    members: Sequence[PodInfo]
    mine: Callable[[PodInfo], bool]
    same_job: frozenset[str] = frozenset()
    """uids whose nominations the members need not respect."""


@dataclass(frozen=True)
class PreemptionPlan:
    """`rows`: uid of each member -> its row. `victims`: row -> who must leave, most important first; none is empty."""

    rows: Mapping[str, int] = field(default_factory=dict)
    victims: Mapping[int, tuple[PodInfo, ...]] = field(default_factory=dict)


Choose: TypeAlias = Callable[[CycleState, Mapping[str, int]], Mapping[str, str]]
"""(state of the trigger, cost by node) -> node by key of every member, for gangs that are planned otherwise; raises
NotHelpful. Called while all potential victims are gone."""


# Decisions


def may_leave(pod: PodInfo, priority: int) -> bool:
    """Whether a pod may be a victim of a job of this priority."""
    labels = pod.shape.labels
    return pod.priority < priority and is_preemptible(labels) and quota_preemptible(labels)


def job_key(pod: PodInfo) -> str:
    """What a pod shares with its siblings; its own name without the label (spec 05 §17, D15)."""
    return pod.shape.labels.get(names.LABEL_QUESTIONED_OBJECT_KEY, "") or pod.key


def costs(victims: Mapping[int, Collection[PodInfo]]) -> dict[int, int]:
    """Row -> what its potential victims are worth: over the jobs there, the sum of each one's highest rank.

    Ranks are the distinct priorities of all, ascending from 0.
    """
    ranks = {one: rank for rank, one in enumerate(sorted({pod.priority for pods in victims.values() for pod in pods}))}
    found = {}
    for row, pods in victims.items():
        highest: dict[str, int] = {}
        for pod in pods:
            highest[job_key(pod)] = max(highest.get(job_key(pod), 0), ranks[pod.priority])
        found[row] = sum(highest.values())
    return found


def by_importance(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Those first that come back first."""
    return sorted(pods, key=lambda pod: (-pod.priority, job_key(pod), pod.key))


def text(nodes: int, tried: Mapping[int, PluginStatus], without: int) -> str:
    """Why not: what nodes say that were tried, `without` victims, and that the others can't be helped."""
    counts: Counter[str] = Counter(reason for status in tried.values() for reason in status.reasons)
    counts += Counter({NO_VICTIMS: without, NOT_HELPFUL: nodes - without - len(tried)})
    said = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{nodes} nodes are available: {said}."


def _take_away(groups: Iterable[Iterable[PodInfo]], trial: Trial) -> None:
    for pods in groups:
        for pod in pods:
            trial.remove(pod)


# Trying


class JobPlanner:
    """See the module text. `skip`: the plugin that plans the job itself; its PreFilter is not asked."""

    def __init__(self, table: NodeTable, skip: str = "") -> None:
        self._table = table
        self._skip = skip
        self._runtime = Runtime()

    def connect(self, runtime: Runtime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime

    def plan(self, job: PreemptingJob, rows: RowArray, choose: Choose | None = None) -> PreemptionPlan:
        """`rows`: where removing pods may help. Raises NotHelpful or SimulationFailed; changes nothing."""
        table, priority = self._table, job.trigger.priority
        there = {
            row: [pod for pod in table.pods[row].values() if may_leave(pod, priority) and not job.mine(pod)]
            for row in rows.tolist()
        }
        victims = {row: pods for row, pods in there.items() if pods}
        if not victims:
            raise NotHelpful(text(table.nodes_alive, {}, len(there)))
        with table.what_if() as trial:
            if choose is None:
                placed = self._place(job, there, trial)
            else:
                _take_away(victims.values(), trial)
                placed = self._placed_by(choose, job, costs(victims), trial)
            used = set(placed.values())
            for row in victims.keys() - used:
                for pod in victims[row]:
                    if pod.row < 0:
                        trial.add(pod, row)
            gone = {row: self._victims(job, placed, row, victims[row], trial) for row in sorted(used & victims.keys())}
            self._verify(job, placed, trial)
        return PreemptionPlan(placed, {row: pods for row, pods in gone.items() if pods})

    def _place(self, job: PreemptingJob, there: Mapping[int, Collection[PodInfo]], trial: Trial) -> dict[str, int]:
        """The cheapest node for each member in turn, the first by name among equals.

        Nodes without potential victims hurt nobody, so they come first: members that are smaller than the trigger may
        fit there. Victims leave the next nodes only when those before don't do, which spares large clusters most of
        the work. A node that refused a member is not asked again for its like, unless there is no other.
        """
        cost, names_of = costs({row: pods for row, pods in there.items() if pods}), self._table.names
        order = np.array(sorted(there, key=lambda row: (cost.get(row, -1), names_of[row])), np.intp)
        opened = 0
        refusing: dict[int, dict[int, PluginStatus]] = {}
        placed: dict[str, int] = {}
        for pod in job.members:
            said = refusing.setdefault(pod.shape.id, {})
            row = None
            while row is None:
                rows = order[:opened]
                row, refused = self._first(job, pod, rows[~np.isin(rows, list(said))])
                said |= refused
                if opened == len(order):
                    break
                if row is None:
                    more = order[opened : max(FIRST, opened * GROWTH)]
                    _take_away((there[one] for one in more.tolist()), trial)
                    opened += len(more)
            if row is None:
                row, refused = self._first(job, pod, order)
            if row is None:
                known = {one: status for one, status in refused.items() if there[one]}
                raise NotHelpful(text(self._table.nodes_alive, known, len(there) - len(cost)))
            trial.add(pod, row)
            placed[pod.uid] = row
        return placed

    def _first(self, job: PreemptingJob, pod: PodInfo, rows: RowArray) -> tuple[int | None, dict[int, PluginStatus]]:
        """The first of the rows that takes the pod as the table stands, and what those before it (or all) say.

        Of rows behind the first that fits only what the columns say is known."""
        state, allowed, status = self._prepared(job, pod, rows)
        refused = dict.fromkeys(rows[~np.isin(rows, allowed)].tolist(), status)
        if not len(allowed):
            return None, refused
        fits = self._runtime.fits
        columns = tuple(one for one in self._runtime.profile.filters if not one.by_row)
        codes = run_filters(state, pod, allowed, columns, self._table.size)
        plugins = {one.index: one.plugin for one in columns}
        for row, code in zip(allowed[codes != PASS].tolist(), codes[codes != PASS].tolist(), strict=True):
            plugin = plugins[code >> 16]
            refused[row] = plugin.reasons.status(code & 0xFFFF).by(plugin.name)
        for row in allowed[codes == PASS_CODE].tolist():
            answer = fits(state, pod, row)
            if answer.ok:
                return row, refused
            refused[row] = answer
        return None, refused

    def _prepared(self, job: PreemptingJob, pod: PodInfo, rows: RowArray) -> tuple[CycleState, RowArray, PluginStatus]:
        """A cycle of the pod's own up to Filter: its state, the rows that are left, and what the others say."""
        state = CycleState(phase="PostFilter", same_job=job.same_job, of_job=job.mine)
        left_out = PluginStatus(Code.UNRESOLVABLE, (NOT_HELPFUL,))
        for plugin in self._runtime.profile.pre_filter:
            if plugin.name == self._skip:
                state.skip_filter.add(plugin.name)
                continue
            result = plugin.pre_filter(state, pod)
            if result.status.skipped:
                state.skip_filter.add(plugin.name)
                continue
            if result.status.rejected:
                return state, rows[:0], result.status.by(plugin.name)
            if not result.status.ok:
                raise SimulationFailed(result.status.message)
            if result.rows is not None:
                rows = rows[np.isin(rows, result.rows)]
        return state, rows, left_out

    def _placed_by(self, choose: Choose, job: PreemptingJob, cost: Mapping[int, int], trial: Trial) -> dict[str, int]:
        table = self._table
        state, rows, status = self._prepared(job, job.trigger, np.flatnonzero(table.valid))
        if not len(rows):
            raise NotHelpful(f"0/{table.nodes_alive} nodes are available: {status.message}.")
        nodes = choose(state, {table.names[row]: amount for row, amount in cost.items()})
        placed = {pod.uid: table.rows[nodes[pod.key]] for pod in job.members}
        for pod in job.members:
            trial.add(pod, placed[pod.uid])
        return placed

    def _victims(
        self, job: PreemptingJob, placed: Mapping[str, int], row: int, removed: Collection[PodInfo], trial: Trial
    ) -> tuple[PodInfo, ...]:
        """Who can't come back to the row, with all members of the row there."""
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
        """Take the members away and put them back one after another: what the first says that doesn't fit any more."""
        for pod in members:
            trial.remove(pod)
        refusal: PluginStatus | None = None
        for pod in members:
            if refusal is None:
                row = placed[pod.uid]
                found, refused = self._first(job, pod, np.array([row], np.intp))
                refusal = refused[row] if found is None else None
            trial.add(pod, placed[pod.uid])
        return refusal

    def _verify(self, job: PreemptingJob, placed: Mapping[str, int], trial: Trial) -> None:
        refusal = self._refusal(job, job.members, placed, trial)
        if refusal is not None:
            raise NotHelpful(f"the plan does not hold with those who stay: {refusal.message}")
