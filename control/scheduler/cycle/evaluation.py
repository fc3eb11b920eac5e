"""What precedes Filter (`prepare`), and evaluating a pod against all nodes without the equivalence cache.

Evaluation is used to explain decisions, and before extenders are called. Plugins that drive a cycle (FindOneNode,
PreferNodes) are not called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from control.scheduler.cycle.equivalence import run_filters
from control.scheduler.cycle.failures import LEFT_OUT, PASS, FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unresolvable
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.api.pages.placement import ScoredNode


@dataclass(frozen=True)
class PreFiltered:
    """`rows`: the rows to evaluate, None means all; `narrowed_by`: the plugins that restricted them."""

    status: PluginStatus = SUCCESS
    """SUCCESS, or the rejection or error that ended the preparation."""
    rows: RowArray | None = None
    narrowed_by: Sequence[str] = ()


def prepare(calls: Framework, state: CycleState, pod: PodInfo, skip: str = "") -> PreFiltered:
    """BeforePreFilter, PreFilter and AfterPreFilter (spec 05 §5.3), for every caller of Filter.

    The plugin named `skip` does not take part, neither here nor at Filter. The caller runs `state.run_undo`."""
    if skip:
        state.skip_filter.add(skip)
    for plugin in calls.before_pre_filter:
        if plugin.name != skip:
            status = plugin.before_pre_filter(state, pod)
            if not status.ok and not status.skipped:
                return PreFiltered(status.by(plugin.name))
    prepared = _pre_filter(calls, state, pod, skip)
    if prepared.status.ok:
        for plugin in calls.after_pre_filter:
            if plugin.name != skip:
                status = plugin.after_pre_filter(state, pod, prepared.rows)
                if not status.ok and not status.skipped:
                    return replace(prepared, status=status.by(plugin.name))
    return prepared


def _pre_filter(calls: Framework, state: CycleState, pod: PodInfo, skip: str) -> PreFiltered:
    """After an Unschedulable rejection the other plugins are still called: preemption needs their data.

    The rows that one plugin names may be empty, because its nodes do not exist; then every node is left out."""
    rows: RowArray | None = None
    rejection = SUCCESS
    narrowed_by: list[str] = []
    for plugin in calls.pre_filter:
        if plugin.name == skip:
            continue
        result = plugin.pre_filter(state, pod)
        if result.status.code is Code.SKIP:
            state.skip_filter.add(plugin.name)
            continue
        if result.status.code is Code.UNSCHEDULABLE:
            rejection = result.status.by(plugin.name)
            continue
        if result.status.code is not Code.SUCCESS:
            return PreFiltered(result.status.by(plugin.name), rows)
        if result.rows is not None:
            narrowed_by.append(plugin.name)
            rows = result.rows if rows is None else np.intersect1d(rows, result.rows)
            if not len(rows) and len(narrowed_by) > 1:
                return PreFiltered(excluded(narrowed_by, " simultaneously"), rows, narrowed_by)
    return PreFiltered(rejection, rows, narrowed_by)


def excluded(narrowed_by: Sequence[str], suffix: str = "") -> PluginStatus:
    """The status of nodes that PreFilter plugins excluded."""
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(narrowed_by))}]{suffix}")


def evaluate(
    framework: Framework, state: CycleState, pod: PodInfo, within: RowArray | None = None
) -> tuple[FitError, RowArray]:
    """(the status of every node, the rows that fit), among the rows `within`. The caller runs `state.run_undo`."""
    state.trial = True
    table = framework.handle.table
    valid = np.flatnonzero(table.valid) if within is None else within
    failure = FitError(pod, framework, valid, np.full(len(valid), PASS, np.uint32))
    prepared = prepare(framework, state, pod)
    failure.narrowed_by = frozenset(prepared.narrowed_by)
    if not prepared.status.ok:
        failure.pre_filter = prepared.status
        return failure, valid[:0]
    failure.codes = run_filters(state, pod, valid, framework.filters, table.size)
    if prepared.rows is not None:
        failure.codes[~np.isin(valid, prepared.rows)] = LEFT_OUT
        failure.left_out = excluded(prepared.narrowed_by)
    return failure, valid[failure.codes == PASS]


def rank_nodes(
    framework: Framework, state: CycleState, pod: PodInfo, feasible: RowArray, *, limit: int, always: str = ""
) -> list[ScoredNode]:
    """The `limit` best nodes with their weighted scores, best first, and in any case the node named `always`."""
    by_plugin: dict[str, IntArray] = {}
    for plugin in framework.pre_score:
        if plugin.pre_score(state, pod, feasible).code is Code.SKIP:
            state.skip_score.add(plugin.name)
    total = np.zeros(len(feasible), np.int64)
    for scorer in framework.scorers:
        name = scorer.plugin.name
        if name in state.skip_score:
            continue
        scores = scorer.plugin.score(state, pod, feasible)
        if scorer.normalizes:
            scores = scorer.plugin.normalize(state, pod, feasible, scores)
        by_plugin[name] = scores * scorer.weight
        total += by_plugin[name]
    names = [framework.handle.table.names[row] for row in feasible.tolist()]
    order = sorted(range(len(names)), key=lambda at: (-int(total[at]), names[at]))
    shown = order[:limit] + [at for at in order[limit:] if names[at] == always]
    return [
        ScoredNode(
            node=names[at],
            total=int(total[at]),
            scores={name: int(scores[at]) for name, scores in by_plugin.items()},
        )
        for at in shown
    ]
