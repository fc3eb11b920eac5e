"""The best of several feasible nodes: the weighted sum of all scores, a random choice among equal nodes."""

from __future__ import annotations

import numpy as np

from control.scheduler.cycle.equivalence import EquivalenceClass, check_range
from control.scheduler.cycle.placement import CycleFailed
from control.scheduler.framework.plugin import CycleState, Reads
from control.scheduler.framework.profile import Framework, ScorePlugin
from control.scheduler.framework.status import Code
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo

MIN_SAMPLED_NODES = 100
"""At least this number of feasible nodes is scored."""


class Scoring:
    """The Score phase of one profile. Methods take the plugins to call, in their order, as `calls`."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._table = framework.handle.table
        self._next_start = 0

    def sample(self, feasible: RowArray) -> RowArray:
        """The share of the feasible rows that `percentageOfNodesToScore` allows, from where the last cycle stopped."""
        limit = max(MIN_SAMPLED_NODES, self._table.nodes_alive * self._framework.percentage // 100)
        if len(feasible) <= limit:
            return feasible
        begin = int(np.searchsorted(feasible, self._next_start))
        chosen = np.take(feasible, np.arange(begin, begin + limit), mode="wrap")
        self._next_start = (int(chosen[-1]) + 1) % self._table.size
        return np.sort(chosen)

    def totals(
        self, calls: Framework, state: CycleState, pod: PodInfo, cached: EquivalenceClass, feasible: RowArray
    ) -> IntArray:
        """[len(feasible)]: the weighted sum of all scores. Raises CycleFailed, ScoreOutOfRange."""
        for plugin in calls.pre_score:
            status = plugin.pre_score(state, pod, feasible)
            if status.code is Code.SKIP:
                state.skip_score.add(plugin.name)
            elif not status.ok:
                raise CycleFailed(status.by(plugin.name))
        cached.score(calls, state, pod, feasible)
        total: IntArray = cached.base[feasible] + _node_total(calls, state, pod, cached, feasible)
        for scorer in (*calls.normalized_scorers[Reads.PODS], *calls.row_scorers):
            if scorer.plugin.name not in state.skip_score:
                _add(state, pod, scorer, feasible, cached.raw[scorer.plugin.name][feasible], total)
        for scorer in calls.cluster_scorers:
            if scorer.plugin.name not in state.skip_score:
                _add(state, pod, scorer, feasible, scorer.plugin.score(state, pod, feasible), total)
        if state.extenders is not None and state.extenders.scores:
            names, scores = self._table.names, state.extenders.scores
            total += np.fromiter((scores.get(names[row], 0) for row in feasible), np.int64, len(feasible))
        return total

    def best(self, feasible: RowArray, totals: IntArray) -> int:
        """The row with the highest total; a random one of several."""
        ties = np.flatnonzero(totals == totals.max())
        at = 0 if len(ties) == 1 else self._framework.handle.rng.randrange(len(ties))
        return int(feasible[ties[at]])


def _node_total(
    calls: Framework, state: CycleState, pod: PodInfo, cached: EquivalenceClass, feasible: RowArray
) -> IntArray | int:
    """The normalized scores that depend on nodes only: unchanged while the nodes and the feasible rows are."""
    scorers = calls.normalized_scorers[Reads.NODE]
    if all(scorer.plugin.name in state.skip_score for scorer in scorers):
        return 0
    versions = (cached.raw_version, cached.version) if feasible is cached.feasible else None
    if versions is not None and cached.node_total_versions == versions:
        return cached.node_total
    total = np.zeros(len(feasible), np.int64)
    for scorer in scorers:
        _add(state, pod, scorer, feasible, cached.raw[scorer.plugin.name][feasible], total)
    cached.node_total, cached.node_total_versions = total, versions
    return total


def _add(
    state: CycleState, pod: PodInfo, scorer: ScorePlugin, rows: RowArray, scores: IntArray, total: IntArray
) -> None:
    """Add a plugin's weighted scores to the total."""
    if scorer.plugin.name in state.skip_score:
        return
    if scorer.normalizes:
        scores = scorer.plugin.normalize(state, pod, rows, scores)
    check_range(scorer, scores)
    total += scores * scorer.weight
