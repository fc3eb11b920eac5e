"""Why a pod would go where: every plugin's answer for every node, asked afresh (`koordctl explain pod`).

Nothing is remembered and nothing stays changed. Hooks that drive a round (BeforePreFilter, FindOneNode, PreferNodes)
are left out, and a pod that counts on a node is taken off it for the time of the question.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec.structs import replace

from control.scheduler.cycle.cycle import Cycle, left_out, narrow
from control.scheduler.cycle.equivalence import ask
from control.scheduler.cycle.failures import LEFT_OUT, PASS, FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.api.pages.placement import NodeScored, NodesRefused, PodPlacement

SHOWN = 10
"""Nodes that are named of each kind."""


def explain(cycle: Cycle, pod: PodInfo, state: str) -> PodPlacement:
    """What the cycle would make of the pod now. `state` is where the pod is, in words for the user."""
    table = cycle.table
    own = table.names[pod.row] if pod.row >= 0 else ""
    found = PodPlacement(pod=pod.key, state=state, node=own, nominated=pod.nominated, attempts=pod.attempts)
    found.nodes = table.nodes_alive
    given = pod.pod
    with table.what_if() as trial:
        if pod.row >= 0:
            trial.remove(pod)
            pod.pod = replace(given, spec=replace(given.spec, node_name=""))  # else NodeName refuses all the others
        try:
            _judge(cycle, pod, own, found)
        finally:
            pod.pod = given
    return found


def _judge(cycle: Cycle, pod: PodInfo, own: str, found: PodPlacement) -> None:
    state = CycleState()
    try:
        failure, feasible = judge(cycle, state, pod)
        found.feasible = len(feasible)
        found.scored = scored(cycle, state, pod, feasible, own) if len(feasible) else []
    finally:
        while state.undo:
            state.undo.pop()()
    found.refused = _refused(failure, cycle.table.names)
    if not found.feasible:
        found.message = failure.text()


def judge(cycle: Cycle, state: CycleState, pod: PodInfo, within: RowArray | None = None) -> tuple[FitError, RowArray]:
    """(what every node says, the rows that fit), among the rows `within`. The caller calls `state.undo`."""
    framework, table = cycle.framework, cycle.table
    valid = np.flatnonzero(table.valid) if within is None else within
    failure = FitError(pod, framework, valid, np.full(len(valid), PASS, np.uint32))
    rows, narrowed_by, status = narrow(framework, state, pod)
    if not status.ok:
        failure.pre_filter = status
        return failure, valid[:0]
    failure.codes = ask(state, pod, valid, framework.filters, table.size)
    if rows is not None:
        failure.codes[~np.isin(valid, rows)] = LEFT_OUT
        failure.left_out = left_out(narrowed_by)
    return failure, valid[failure.codes == PASS]


def scored(
    cycle: Cycle, state: CycleState, pod: PodInfo, feasible: RowArray, own: str = "", limit: int = SHOWN
) -> list[NodeScored]:
    """The best nodes, and the pod's own; scores are weighted."""
    by_plugin: dict[str, IntArray] = {}
    for plugin in cycle.framework.pre_score:
        if plugin.pre_score(state, pod, feasible).code is Code.SKIP:
            state.skip_score.add(plugin.name)
    total = np.zeros(len(feasible), np.int64)
    for scorer in cycle.framework.scorers:
        name = scorer.plugin.name
        if name in state.skip_score:
            continue
        scores = scorer.plugin.score(state, pod, feasible)
        if scorer.normalizes:
            scores = scorer.plugin.normalize(state, pod, feasible, scores)
        by_plugin[name] = scores * scorer.weight
        total += by_plugin[name]
    names = [cycle.table.names[row] for row in feasible.tolist()]
    order = sorted(range(len(names)), key=lambda at: (-int(total[at]), names[at]))
    shown = order[:limit] + [at for at in order[limit:] if names[at] == own]
    return [
        NodeScored(
            node=names[at],
            total=int(total[at]),
            scores={name: int(scores[at]) for name, scores in by_plugin.items()},
        )
        for at in shown
    ]


def _refused(failure: FitError, names: list[str]) -> list[NodesRefused]:
    groups: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for row, status in failure.statuses():
        if not status.ok:
            might_help = status.code is not Code.UNRESOLVABLE
            groups[status.plugin, status.message, might_help].append(names[row])
    found = [
        NodesRefused(
            plugin=plugin,
            reason=reason,
            preemption_might_help=might_help,
            count=len(nodes),
            nodes=sorted(nodes)[:SHOWN],
        )
        for (plugin, reason, might_help), nodes in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.count, one.plugin, one.reason))
