"""The equivalence cache: filter and score results of every row for pods of one shape (spec 05 §15.2).

For the first pod of a shape every row is evaluated. For the next pod only the rows that changed since are evaluated,
usually the one row that the previous pod took. If PreFilter restricted the rows, others are left until they are needed.
Results that depend on more than the row (`Reads.CLUSTER`) are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

import numpy as np

from control.scheduler.cycle.failures import PASS, PASS_CODE, Codes
from control.scheduler.cycle.leftrows import LeftRows
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Reads
from control.scheduler.framework.profile import FilterPlugin, Framework, ScorePlugin
from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable


class ScoreOutOfRange(Exception):
    """A plugin's score is not within 0..100."""


class EquivalenceClass:
    """The cached results for one shape. Methods take the plugins to call, in their order, as `calls`."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._skip_filter: frozenset[str] | None = None
        self._skip_score: frozenset[str] | None = None
        self._node_position = 0
        self._pod_position = 0
        """Positions in the table's logs up to which the filter results are current."""
        self._scored_node_position = 0
        self._scored_pod_position = 0
        self.codes: Codes = np.empty(0, np.uint32)
        """[row]: of the filters that do not read the whole cluster."""
        self._node_codes: Codes = np.empty(0, np.uint32)
        self.ok: Mask = np.empty(0, np.bool_)
        """[row]: valid, and accepted by every cached filter."""
        self.version = 0
        """Number of changes of `ok`."""
        self._feasible_version = -1
        self._feasible: RowArray = np.empty(0, np.intp)
        self._node_sum: IntArray = np.empty(0, np.int64)
        self.base: IntArray = np.empty(0, np.int64)
        """[row]: weighted sum of the cached scores that are final."""
        self.raw: dict[str, IntArray] = {}
        """By plugin that normalizes: [row] raw scores."""
        self.raw_version = 0
        """Number of changes of `raw` that may concern more rows than those of the last pods."""
        self.node_total: IntArray = np.empty(0, np.int64)
        """[feasible row]: sum of the normalized scores that depend on nodes only."""
        self.node_total_versions: tuple[int, int] | None = None
        """`raw_version` and `version` for which `node_total` was computed."""
        self._unfiltered, self._unscored = LeftRows(), LeftRows()
        self._scored: dict[str, Mask] = {}
        """By plugin that scores one row at a time: [row] whether its raw score is known."""

    # Filters

    def filter(self, calls: Framework, state: CycleState, pod: PodInfo, needed_rows: RowArray | None) -> None:
        """Bring `codes` and `ok` up to date, only at `needed_rows` (None: all)."""
        table = self._table
        skip = frozenset(state.skip_filter)
        nodes, pods = table.node_log.since(self._node_position), table.pod_log.since(self._pod_position)
        self._node_position, self._pod_position = table.node_log.end, table.pod_log.end
        known, self._skip_filter = self._skip_filter, None  # if a plugin raises, everything is evaluated again
        everything = skip != known or nodes is None or pods is None or len(nodes) + len(pods) > table.size // 2
        if everything or len(self.ok) < table.size:
            self._resize(table.size)
        if needed_rows is not None or (self._unfiltered and not everything):
            changed_nodes, changed_pods = (table.all, []) if everything else (nodes or [], pods or [])
            rows, nodes_changed = self._unfiltered.due(changed_nodes, changed_pods, needed_rows, table.size)
            if len(rows):
                self._filter(calls, state, pod, rows, nodes_changed=nodes_changed)
        elif everything:
            self._unfiltered.clear()
            self._filter(calls, state, pod, table.all, nodes_changed=True)
            self.version += 1
        else:
            self._filter_changed(calls, state, pod, nodes or [], pods or [])
        self._skip_filter = skip

    def _filter_changed(
        self, calls: Framework, state: CycleState, pod: PodInfo, nodes: list[int], pods: list[int]
    ) -> None:
        if nodes:
            self._filter(calls, state, pod, _unique(nodes), nodes_changed=True)
        if pods:
            rows = _unique(pods)
            if len(rows) == 1:
                self._filter_row(calls, state, pod, rows)
            else:
                self._filter(calls, state, pod, rows, nodes_changed=False)

    def _resize(self, size: int) -> None:
        def sized(array: Codes) -> Codes:
            return np.concatenate((array[:size], np.full(max(0, size - len(array)), PASS, np.uint32)))

        self.codes = sized(self.codes)
        self._node_codes = sized(self._node_codes)
        self.ok = np.concatenate((self.ok[:size], np.zeros(max(0, size - len(self.ok)), np.bool_)))

    def _filter_row(self, calls: Framework, state: CycleState, pod: PodInfo, rows: RowArray) -> None:
        """`_filter` for the one row that the last pod took: plain integers are faster than arrays of length 1."""
        row = int(rows[0])
        code = int(self._node_codes[row])
        for filter_plugin in calls.pod_filters:
            if filter_plugin.plugin.name not in state.skip_filter:
                reason = filter_plugin.plugin.filter(state, pod, rows).item(0)
                if reason:
                    code = min(code, filter_plugin.index << 16 | reason)
                    break
        ok = code == PASS_CODE and bool(self._table.valid[row])
        if ok and calls.row_filters:
            code = int(self._run(state, pod, rows, calls.row_filters)[0])
            ok = code == PASS_CODE
        if ok != self.ok[row]:
            self.version += 1
            self.ok[row] = ok
        self.codes[row] = code

    def _filter(self, calls: Framework, state: CycleState, pod: PodInfo, rows: Rows, *, nodes_changed: bool) -> None:
        if nodes_changed:
            self._node_codes[rows] = self._run(state, pod, rows, calls.node_filters)
        codes = self._run(state, pod, rows, calls.pod_filters)
        np.minimum(codes, self._node_codes[rows], out=codes)
        ok = (codes == PASS) & self._table.valid[rows]
        if calls.row_filters and ok.any():
            survivors = np.flatnonzero(ok) if isinstance(rows, slice) else rows[ok]
            late = self._run(state, pod, survivors, calls.row_filters)
            codes[ok] = late
            ok[ok] = late == PASS
        if isinstance(rows, slice) or not np.array_equal(ok, self.ok[rows]):
            self.version += 1
            self.ok[rows] = ok
        self.codes[rows] = codes

    def _run(self, state: CycleState, pod: PodInfo, rows: Rows, filters: tuple[FilterPlugin, ...]) -> Codes:
        return run_filters(state, pod, rows, filters, self._table.size)

    @property
    def feasible(self) -> RowArray:
        """The rows that are `ok`. Do not modify the array."""
        if self._feasible_version != self.version:
            self._feasible_version, self._feasible = self.version, np.flatnonzero(self.ok)
        return self._feasible

    # Scores

    def score(self, calls: Framework, state: CycleState, pod: PodInfo, feasible: RowArray) -> None:
        """Bring `base` and `raw` up to date, at least at the `feasible` rows."""
        table = self._table
        skip = frozenset(state.skip_score)
        nodes = table.node_log.since(self._scored_node_position)
        pods = table.pod_log.since(self._scored_pod_position)
        self._scored_node_position, self._scored_pod_position = table.node_log.end, table.pod_log.end
        known, self._skip_score = self._skip_score, None  # if a plugin raises, everything is evaluated again
        needed_rows = None if feasible is self._feasible else feasible
        everything = (
            skip != known
            or nodes is None
            or pods is None
            or len(self.base) != table.size
            or len(nodes) + len(pods) > table.size // 2
        )
        if everything:
            self._reset_scores(calls)
        if needed_rows is not None or (self._unscored and not everything):
            changed_nodes, changed_pods = (table.all, []) if everything else (nodes or [], pods or [])
            rows, nodes_changed = self._unscored.due(changed_nodes, changed_pods, needed_rows, table.size)
            if len(rows):
                self._score(calls, state, pod, rows, nodes_changed=nodes_changed)
        elif everything:
            self._unscored.clear()
            self._score(calls, state, pod, table.all, nodes_changed=True)
        else:
            if nodes:
                self._score(calls, state, pod, _unique(nodes), nodes_changed=True)
            if pods:
                self._score(calls, state, pod, _unique(pods), nodes_changed=False)
        for scorer in calls.row_scorers:
            self._score_missing_rows(state, pod, feasible, scorer)
        self._skip_score = skip

    def _reset_scores(self, calls: Framework) -> None:
        size = self._table.size
        self.base, self._node_sum = np.zeros(size, np.int64), np.zeros(size, np.int64)
        normalized = [scorer for scorers in calls.normalized_scorers.values() for scorer in scorers]
        self.raw = {scorer.plugin.name: np.zeros(size, np.int64) for scorer in (*normalized, *calls.row_scorers)}
        self._scored = {scorer.plugin.name: np.zeros(size, np.bool_) for scorer in calls.row_scorers}

    def _score(self, calls: Framework, state: CycleState, pod: PodInfo, rows: Rows, *, nodes_changed: bool) -> None:
        if nodes_changed:
            self._node_sum[rows] = _weighted_sum(state, pod, rows, calls.final_scorers[Reads.NODE])
            self._update_raw(state, pod, rows, calls.normalized_scorers[Reads.NODE])
            self.raw_version += 1
        self.base[rows] = self._node_sum[rows] + _weighted_sum(state, pod, rows, calls.final_scorers[Reads.PODS])
        self._update_raw(state, pod, rows, calls.normalized_scorers[Reads.PODS])
        for scored in self._scored.values():
            scored[rows] = False

    def _update_raw(self, state: CycleState, pod: PodInfo, rows: Rows, scorers: tuple[ScorePlugin, ...]) -> None:
        for scorer in scorers:
            if scorer.plugin.name not in state.skip_score:
                self.raw[scorer.plugin.name][rows] = scorer.plugin.score(state, pod, rows)

    def _score_missing_rows(self, state: CycleState, pod: PodInfo, feasible: RowArray, scorer: ScorePlugin) -> None:
        name = scorer.plugin.name
        if name in state.skip_score:
            return
        missing = feasible[~self._scored[name][feasible]]
        if len(missing):
            self.raw[name][missing] = scorer.plugin.score(state, pod, missing)
            self._scored[name][missing] = True


class EquivalenceCache:
    """The equivalence classes of the shapes used last."""

    MAX_CLASSES: Final = 128

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_shape: OrderedDict[Hashable, EquivalenceClass] = OrderedDict()

    def of(self, pod: PodInfo, variant: Hashable = None) -> EquivalenceClass:
        """`variant`: see `CycleState.variant`."""
        number: Hashable = pod.shape.equivalence_id
        if variant is not None:
            number = (number, variant)
        cached = self._by_shape.get(number)
        if cached is None:
            cached = self._by_shape[number] = EquivalenceClass(self._table)
            if len(self._by_shape) > self.MAX_CLASSES:
                self._by_shape.popitem(last=False)
        else:
            self._by_shape.move_to_end(number)
        return cached


def run_filters(state: CycleState, pod: PodInfo, rows: Rows, filters: tuple[FilterPlugin, ...], size: int) -> Codes:
    """Per row the code of the first of `filters` that rejects it, PASS if none does."""
    codes: Codes = np.full(count(rows, size), PASS, np.uint32)
    for filter_plugin in filters:
        if filter_plugin.plugin.name in state.skip_filter:
            continue
        reasons = filter_plugin.plugin.filter(state, pod, rows)
        if reasons.any():
            rejected = (reasons != 0) & (codes == PASS)
            codes[rejected] = reasons[rejected].astype(np.uint32) | np.uint32(filter_plugin.index << 16)
    return codes


def check_range(scorer: ScorePlugin, scores: IntArray) -> None:
    """Raises ScoreOutOfRange for a final score that is not within 0..100."""
    if len(scores) == 1:
        wrong = not 0 <= scores.item(0) <= MAX_SCORE
    else:
        wrong = len(scores) > 0 and bool(scores.min() < 0 or scores.max() > MAX_SCORE)
    if wrong:
        raise ScoreOutOfRange(
            f"plugin {scorer.plugin.name!r} returns an invalid score, it should in the range of [0, {MAX_SCORE}] after"
            " normalizing"
        )


def _weighted_sum(state: CycleState, pod: PodInfo, rows: Rows, scorers: tuple[ScorePlugin, ...]) -> IntArray | int:
    total: IntArray | int = 0
    for scorer in scorers:
        if scorer.plugin.name not in state.skip_score:
            scores = scorer.plugin.score(state, pod, rows)
            check_range(scorer, scores)
            total = total + (scores * scorer.weight if scorer.weight != 1 else scores)
    return total


def _unique(rows: list[int]) -> RowArray:
    return np.array(rows if len(rows) == 1 else sorted(set(rows)), np.intp)
