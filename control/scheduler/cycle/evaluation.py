"""Evaluating a pod against all nodes without the equivalence cache: PreFilter, every filter, every score.

Used to explain decisions, and before extenders are called. Plugins that drive a cycle (BeforePreFilter, FindOneNode,
PreferNodes) are not called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from control.scheduler.cycle.equivalence import run_filters
from control.scheduler.cycle.failures import LEFT_OUT, PASS, FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unresolvable
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.api.pages.placement import ScoredNode


def run_pre_filters(
    calls: Framework, state: CycleState, pod: PodInfo
) -> tuple[RowArray | None, list[str], PluginStatus]:
    """(the rows to evaluate or None for all, the plugins that restricted them, SUCCESS or the rejection)."""
    rows: RowArray | None = None
    narrowed_by: list[str] = []
    for plugin in calls.pre_filter:
        result = plugin.pre_filter(state, pod)
        if result.status.code is Code.SKIP:
            state.skip_filter.add(plugin.name)
            continue
        if result.status.code is not Code.SUCCESS:
            return rows, narrowed_by, result.status.by(plugin.name)
        if result.rows is not None:
            narrowed_by.append(plugin.name)
            rows = result.rows if rows is None else np.intersect1d(rows, result.rows)
            if not len(rows):
                suffix = " simultaneously" if len(narrowed_by) > 1 else ""
                return rows, narrowed_by, excluded(narrowed_by, suffix)
    return rows, narrowed_by, SUCCESS


def excluded(narrowed_by: Sequence[str], suffix: str = "") -> PluginStatus:
    """The status of nodes that PreFilter plugins excluded."""
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(narrowed_by)}]{suffix}")


def evaluate(
    framework: Framework, state: CycleState, pod: PodInfo, within: RowArray | None = None
) -> tuple[FitError, RowArray]:
    """(the status of every node, the rows that fit), among the rows `within`. The caller runs `state.run_undo`."""
    table = framework.handle.table
    valid = np.flatnonzero(table.valid) if within is None else within
    failure = FitError(pod, framework, valid, np.full(len(valid), PASS, np.uint32))
    rows, narrowed_by, status = run_pre_filters(framework, state, pod)
    if not status.ok:
        failure.pre_filter = status
        return failure, valid[:0]
    failure.codes = run_filters(state, pod, valid, framework.filters, table.size)
    if rows is not None:
        failure.codes[~np.isin(valid, rows)] = LEFT_OUT
        failure.left_out = excluded(narrowed_by)
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
