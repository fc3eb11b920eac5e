"""What is known about every row for pods of one shape: who rejects it, what it scores (design §3.6, spec 05 §15.2).

The first pod of a shape has every row looked at; the next one only the rows that changed since, which is mostly the
one row that its predecessor took. Answers that depend on more than the row (`Reads.CLUSTER`) are never kept here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np

from control.scheduler.cycle.failures import PASS, PASS_CODE, Codes
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Reads
from control.scheduler.framework.profile import Filterer, Framework, Scorer
from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable


class ScoreOutOfRange(Exception):
    """A plugin's score is not within 0..100."""


class Remembered:
    """One shape's answers. `codes`: of the filters below CLUSTER; `base`: weighted sum of the scores kept here."""

    def __init__(self, framework: Framework, table: NodeTable) -> None:
        self._table = table
        self._node_filters = framework.group(Reads.NODE)
        self._pod_filters = framework.group(Reads.PODS)
        self._row_filters = tuple(f for f in framework.filters if f.by_row)
        kept = tuple(s for s in framework.scorers if s.plugin.reads is not Reads.CLUSTER and not s.by_row)
        self._sums = {reads: tuple(s for s in kept if s.plugin.reads is reads and not s.normalizes) for reads in Reads}
        self._raws = {reads: tuple(s for s in kept if s.plugin.reads is reads and s.normalizes) for reads in Reads}
        self._row_scores = tuple(s for s in framework.scorers if s.by_row)
        self._skip_filter: frozenset[str] | None = None
        self._skip_score: frozenset[str] | None = None
        self._node_at = self._pod_at = 0
        self._scored_node_at = self._scored_pod_at = 0
        self.codes: Codes = np.empty(0, np.uint32)
        self._node_codes: Codes = np.empty(0, np.uint32)
        self.ok: Mask = np.empty(0, np.bool_)
        """[row]: valid, and rejected by nobody here."""
        self.version = 0
        """Counts changes of `ok`."""
        self._feasible_of = -1
        self._feasible: RowArray = np.empty(0, np.intp)
        self._node_sum: IntArray = np.empty(0, np.int64)
        self.base: IntArray = np.empty(0, np.int64)
        self.raw: dict[str, IntArray] = {}
        """By plugin that normalizes: [row] raw scores."""
        self.raw_version = 0
        """Counts changes of `raw` that may touch more than the rows of the last pods."""
        self.node_total: IntArray = np.empty(0, np.int64)
        self.node_total_of: tuple[int, int] | None = None
        """`raw_version` and `version` that the cycle's sum `node_total` over the feasible rows was made of."""
        self._known: dict[str, Mask] = {}

    # -- filters -----------------------------------------------------------------------------------------------------

    def filter(self, state: CycleState, pod: PodInfo) -> None:
        """Bring `codes` and `ok` up to date."""
        table = self._table
        skip = frozenset(state.skip_filter)
        nodes, pods = table.node_log.since(self._node_at), table.pod_log.since(self._pod_at)
        self._node_at, self._pod_at = table.node_log.end, table.pod_log.end
        if skip != self._skip_filter or nodes is None or pods is None or len(nodes) + len(pods) > table.size // 2:
            self._skip_filter = skip
            self._resize(table.size)
            self._filter(state, pod, table.all, nodes_too=True)
            self.version += 1
            return
        if len(self.ok) < table.size:
            self._resize(table.size)
        if nodes:
            self._filter(state, pod, _unique(nodes), nodes_too=True)
        if pods:
            rows = _unique(pods)
            if len(rows) == 1:
                self._filter_row(state, pod, rows)
            else:
                self._filter(state, pod, rows, nodes_too=False)

    def _resize(self, size: int) -> None:
        def sized(array: Codes) -> Codes:
            return np.concatenate((array[:size], np.full(max(0, size - len(array)), PASS, np.uint32)))

        self.codes, self._node_codes = sized(self.codes), sized(self._node_codes)
        self.ok = np.concatenate((self.ok[:size], np.zeros(max(0, size - len(self.ok)), np.bool_)))

    def _filter_row(self, state: CycleState, pod: PodInfo, rows: RowArray) -> None:
        """`_filter` for the one row that the last pod took: plain integers are faster than arrays of one."""
        row = int(rows[0])
        code = int(self._node_codes[row])
        for one in self._pod_filters:
            if one.plugin.name not in state.skip_filter:
                reason = one.plugin.filter(state, pod, rows).item(0)
                if reason:
                    code = min(code, one.index << 16 | reason)
                    break
        ok = code == PASS_CODE and bool(self._table.valid[row])
        if ok and self._row_filters:
            code = int(self._ask(state, pod, rows, self._row_filters)[0])
            ok = code == PASS_CODE
        if ok != self.ok[row]:
            self.version += 1
            self.ok[row] = ok
        self.codes[row] = code

    def _filter(self, state: CycleState, pod: PodInfo, rows: Rows, *, nodes_too: bool) -> None:
        if nodes_too:
            self._node_codes[rows] = self._ask(state, pod, rows, self._node_filters)
        codes = self._ask(state, pod, rows, self._pod_filters)
        np.minimum(codes, self._node_codes[rows], out=codes)
        ok = (codes == PASS) & self._table.valid[rows]
        if self._row_filters and ok.any():
            survivors = np.flatnonzero(ok) if isinstance(rows, slice) else rows[ok]
            late = self._ask(state, pod, survivors, self._row_filters)
            codes[ok] = late
            ok[ok] = late == PASS
        if isinstance(rows, slice) or not np.array_equal(ok, self.ok[rows]):
            self.version += 1
            self.ok[rows] = ok
        self.codes[rows] = codes

    def _ask(self, state: CycleState, pod: PodInfo, rows: Rows, filters: tuple[Filterer, ...]) -> Codes:
        return ask(state, pod, rows, filters, self._table.size)

    @property
    def feasible(self) -> RowArray:
        """The rows that are `ok`. Not to be changed."""
        if self._feasible_of != self.version:
            self._feasible_of, self._feasible = self.version, np.flatnonzero(self.ok)
        return self._feasible

    # -- scores ------------------------------------------------------------------------------------------------------

    def score(self, state: CycleState, pod: PodInfo, feasible: RowArray) -> None:
        """Bring `base` and `raw` up to date."""
        table = self._table
        skip = frozenset(state.skip_score)
        nodes, pods = table.node_log.since(self._scored_node_at), table.pod_log.since(self._scored_pod_at)
        self._scored_node_at, self._scored_pod_at = table.node_log.end, table.pod_log.end
        if (
            skip != self._skip_score
            or nodes is None
            or pods is None
            or len(self.base) != table.size
            or len(nodes) + len(pods) > table.size // 2
        ):
            self._skip_score = skip
            self.base, self._node_sum = np.zeros(table.size, np.int64), np.zeros(table.size, np.int64)
            self.raw = {s.plugin.name: np.zeros(table.size, np.int64) for g in self._raws.values() for s in g}
            self._known = {s.plugin.name: np.zeros(table.size, np.bool_) for s in self._row_scores}
            for scorer in self._row_scores:
                self.raw[scorer.plugin.name] = np.zeros(table.size, np.int64)
            self._score(state, pod, table.all, nodes_too=True)
        else:
            if nodes:
                self._score(state, pod, _unique(nodes), nodes_too=True)
            if pods:
                self._score(state, pod, _unique(pods), nodes_too=False)
        for scorer in self._row_scores:
            self._score_rows(state, pod, feasible, scorer)

    def _score(self, state: CycleState, pod: PodInfo, rows: Rows, *, nodes_too: bool) -> None:
        if nodes_too:
            self._node_sum[rows] = self._sum(state, pod, rows, Reads.NODE)
            self._take_raw(state, pod, rows, Reads.NODE)
            self.raw_version += 1
        self.base[rows] = self._node_sum[rows] + self._sum(state, pod, rows, Reads.PODS)
        self._take_raw(state, pod, rows, Reads.PODS)
        for known in self._known.values():
            known[rows] = False

    def _sum(self, state: CycleState, pod: PodInfo, rows: Rows, reads: Reads) -> IntArray | int:
        total: IntArray | int = 0
        for scorer in self._sums[reads]:
            if scorer.plugin.name not in state.skip_score:
                scores = scorer.plugin.score(state, pod, rows)
                check_range(scorer, scores)
                total = total + (scores * scorer.weight if scorer.weight != 1 else scores)
        return total

    def _take_raw(self, state: CycleState, pod: PodInfo, rows: Rows, reads: Reads) -> None:
        for scorer in self._raws[reads]:
            if scorer.plugin.name not in state.skip_score:
                self.raw[scorer.plugin.name][rows] = scorer.plugin.score(state, pod, rows)

    def _score_rows(self, state: CycleState, pod: PodInfo, feasible: RowArray, scorer: Scorer) -> None:
        name = scorer.plugin.name
        if name in state.skip_score:
            return
        missing = feasible[~self._known[name][feasible]]
        if len(missing):
            self.raw[name][missing] = scorer.plugin.score(state, pod, missing)
            self._known[name][missing] = True


class Memory:
    """The remembered answers of the shapes used last."""

    LIMIT: Final = 128

    def __init__(self, framework: Framework, table: NodeTable) -> None:
        self._framework, self._table = framework, table
        self._by_look: OrderedDict[int, Remembered] = OrderedDict()

    def of(self, pod: PodInfo) -> Remembered:
        number = pod.shape.look
        found = self._by_look.get(number)
        if found is None:
            found = self._by_look[number] = Remembered(self._framework, self._table)
            if len(self._by_look) > self.LIMIT:
                self._by_look.popitem(last=False)
        else:
            self._by_look.move_to_end(number)
        return found


def ask(state: CycleState, pod: PodInfo, rows: Rows, filters: tuple[Filterer, ...], size: int) -> Codes:
    """The code of the first of `filters` that rejects each row, PASS where none does."""
    codes: Codes = np.full(count(rows, size), PASS, np.uint32)
    for one in filters:
        if one.plugin.name in state.skip_filter:
            continue
        reasons = one.plugin.filter(state, pod, rows)
        if reasons.any():
            hit = (reasons != 0) & (codes == PASS)
            codes[hit] = reasons[hit].astype(np.uint32) | np.uint32(one.index << 16)
    return codes


def check_range(scorer: Scorer, scores: IntArray) -> None:
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


def _unique(rows: list[int]) -> RowArray:
    return np.array(rows if len(rows) == 1 else sorted(set(rows)), np.intp)
