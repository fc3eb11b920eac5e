"""One pod's scheduling cycle, from PreFilter to Permit, in one synchronous go (spec 05 §3.5, §5.3 to §5.5).

    placement = cycle.place(pod)        # assumed in the cache, reserved, and allowed or parked at Permit
    except FitError as failure: …       # no node fits; PostFilter has run
    except CycleFailed as failure: …    # an error, or a rejection after a node was chosen; everything is taken back

All nodes are looked at, not a sample: remembered answers make that cheap, and a sample's loss of score is none. Only
an explicit `percentageOfNodesToScore` limits how many feasible nodes are scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from control.scheduler.cycle.dryrun import DryRun
from control.scheduler.cycle.equivalence import Memory, Remembered, ScoreOutOfRange, ask, check_range
from control.scheduler.cycle.failures import LEFT_OUT, PASS, Codes, FitError
from control.scheduler.framework.plugin import CycleState, Reads
from control.scheduler.framework.profile import Framework, Scorer
from control.scheduler.framework.status import SUCCESS, Code, Status, error, unresolvable, unschedulable
from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.state.cache import Cache
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo

MIN_FEASIBLE = 100
NOT_ALLOWED = unschedulable("node(s) were not allowed by an extender", plugin="Extender")
FILTERED, SCORED = -2, -1
"""How far a cycle came: to Filter (no node fits, or one only), or to Score."""


class CycleFailed(Exception):
    """The cycle ended otherwise than for want of a node; nothing is left assumed or reserved."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


@dataclass
class Placement:
    """A pod that has a node. `parked`: it waits at Permit for these plugins, seconds each."""

    pod: PodInfo
    row: int
    node: str
    state: CycleState
    evaluated: int
    feasible: int
    parked: Mapping[str, float] = field(default_factory=dict)
    after: int = 0
    """How many cycles had failed when the pod was placed."""
    job: tuple[Placement, ...] = ()
    """Everybody's placement, this one included, when the pod's whole job was placed at once (spec 05 §12)."""
    bindings: Bindings | None = None
    """Told how the binding of a pod ends that was placed with its job."""
    phase: str = ""
    """How far binding came: PreBind or Bind."""


class Bindings(Protocol):
    """Follows the bindings of one job."""

    def ended(self, placement: Placement, ok: bool) -> None: ...


class Verdict(Protocol):
    """What extenders said of the nodes that fitted the pod before its cycle, by name."""

    @property
    def allowed(self) -> Collection[str]: ...

    @property
    def refused(self) -> Mapping[str, Status]: ...

    @property
    def scores(self) -> Mapping[str, int]: ...


class Batch(Protocol):
    """Places a whole job that was planned in `state.plan`; or says why not, with nothing claimed."""

    def place(self, state: CycleState, pod: PodInfo) -> Placement | Status: ...


class Cycle:
    """The cycles of one profile. Not for several threads; nothing here awaits."""

    def __init__(self, framework: Framework, cache: Cache, waiting: WaitingPods) -> None:
        self.framework, self.cache, self.waiting = framework, cache, waiting
        self.table = cache.table
        self.batch: Batch | None = None
        """Places jobs at once that were planned; None: each pod in a cycle of its own."""
        self.extended: Verdict | None = None
        """What extenders said of the pod whose cycle is next; None: they were not asked."""
        self.memory = Memory(framework, self.table)
        self._cluster_filters = framework.group(Reads.CLUSTER)
        self._cluster_scores = tuple(s for s in framework.scorers if s.plugin.reads is Reads.CLUSTER and not s.by_row)
        others = tuple(s for s in framework.scorers if s not in self._cluster_scores and (s.normalizes or s.by_row))
        self._by_node = tuple(s for s in others if s.plugin.reads is Reads.NODE and not s.by_row)
        self._by_pods = tuple(s for s in others if s not in self._by_node)
        self._next_start = 0
        self.evaluations: Counter[tuple[frozenset[str], frozenset[str], int]] = Counter()
        """Cycles, by who was skipped and how far they came: see `timing.Evaluations`."""
        framework.handle.fits = self.fits

    # -- the whole ---------------------------------------------------------------------------------------------------

    def place(self, pod: PodInfo) -> Placement:
        """Find a node for the pod and claim it. Raises FitError or CycleFailed, see the module text."""
        state = CycleState()
        try:
            try:
                placement = self._choose(state, pod)
                self._count(state, FILTERED if placement.feasible == 1 else SCORED)
            except FitError as failure:
                self._count(state, FILTERED if failure.pre_filter is None else self._asked(failure.pre_filter))
                self._post_filter(state, pod, failure)
                raise
            except ScoreOutOfRange as failure:
                raise CycleFailed(error(str(failure))) from failure
        finally:
            while state.undo:
                state.undo.pop()()
        if not placement.job:
            self.claim(placement)
            try:
                self.permit(placement)
            except BaseException:  # also a plugin's fault: what was claimed must not stay claimed
                self.take_back(placement)
                raise
        return placement

    def _choose(self, state: CycleState, pod: PodInfo) -> Placement:
        table = self.table
        if table.nodes_alive == 0:
            raise CycleFailed(error("no nodes available to schedule pods"))
        rows, narrowed_by = self._pre_filter(state, pod)
        if state.plan and self.batch is not None:
            return self._place_job(self.batch, state, pod)
        remembered = self.memory.of(pod)
        remembered.filter(state, pod)
        feasible = self._feasible(state, pod, remembered, rows)
        if not len(feasible):
            raise self._fit_error(state, pod, remembered, rows, narrowed_by)
        if self.framework.percentage:
            feasible = self._sample(feasible)
        if len(feasible) == 1:
            row = int(feasible[0])
        else:
            row = self._best(feasible, self._totals(state, pod, remembered, feasible))
        return Placement(pod, row, table.names[row], state, table.nodes_alive, len(feasible))

    def _place_job(self, batch: Batch, state: CycleState, pod: PodInfo) -> Placement:
        while state.undo:  # what was tried for this pod must not stand in the way of the others
            state.undo.pop()()
        found = batch.place(state, pod)
        if isinstance(found, Status):
            raise self._refusal(pod, found)
        return found

    def _count(self, state: CycleState, reached: int) -> None:
        self.evaluations[frozenset(state.skip_filter), frozenset(state.skip_score), reached] += 1

    def _asked(self, status: Status) -> int:
        """How many PreFilter plugins were asked until one rejected the pod."""
        names = [plugin.name for plugin in self.framework.pre_filter]
        return names.index(status.plugin) + 1 if status.plugin in names else len(names)

    # -- filtering ---------------------------------------------------------------------------------------------------

    def _pre_filter(self, state: CycleState, pod: PodInfo) -> tuple[RowArray | None, list[str]]:
        """The rows to look at (None: all), and who narrowed them."""
        for plugin in self.framework.before_pre_filter:
            self._expect(pod, plugin.before_pre_filter(state, pod).by(plugin.name))
        rows, narrowed_by, status = narrow(self.framework, state, pod)
        self._expect(pod, status)
        for plugin in self.framework.after_pre_filter:
            self._expect(pod, plugin.after_pre_filter(state, pod, rows).by(plugin.name))
        planner = self.framework.find_one_node
        if planner is not None:
            status, row = planner.find_one_node(state, pod, rows)
            if status.ok:
                return np.array([row], np.intp), [planner.name]
            if not status.skipped:
                self._expect(pod, status.by(planner.name))
        preferring = self.framework.prefer_nodes
        if preferring is not None:
            for row in preferring.prefer_nodes(state, pod, rows):
                if self.fits(state, pod, row).ok:
                    return np.array([row], np.intp), [preferring.name]
        return rows, narrowed_by

    def _expect(self, pod: PodInfo, status: Status) -> None:
        if not status.ok and not status.skipped:
            raise self._refusal(pod, status)

    def _refusal(self, pod: PodInfo, status: Status) -> FitError | CycleFailed:
        """What a rejection or an error before Filter ends the cycle with."""
        if not status.rejected:
            return CycleFailed(status)
        rows = np.flatnonzero(self.table.valid)
        return FitError(pod, self.framework, rows, np.full(len(rows), LEFT_OUT, np.uint32), status)

    def _feasible(self, state: CycleState, pod: PodInfo, remembered: Remembered, rows: RowArray | None) -> RowArray:
        nominated = self.table.row(pod.nominated) if pod.nominated else None
        if (
            nominated is not None
            and (rows is None or nominated in rows)
            and (self.extended is None or pod.nominated in self.extended.allowed)
            and self.fits(state, pod, nominated).ok
        ):
            return np.array([nominated], np.intp)
        feasible = remembered.feasible if rows is None else rows[remembered.ok[rows]]
        if len(feasible) and any(f.plugin.name not in state.skip_filter for f in self._cluster_filters):
            passed = ask(state, pod, feasible, self._cluster_filters, self.table.size) == PASS
            feasible = feasible if passed.all() else feasible[passed]
        crowded = self._nominated_rows(state, pod)
        if crowded:
            refused = [
                row
                for row, others in crowded.items()
                if row in feasible and not self._fits_beside(state, pod, row, others).ok
            ]
            feasible = np.setdiff1d(feasible, np.array(refused, np.intp)) if refused else feasible
        if self.extended is not None:
            names, allowed = self.table.names, self.extended.allowed
            feasible = feasible[np.fromiter((names[row] in allowed for row in feasible), np.bool_, len(feasible))]
        return feasible

    def _fit_error(
        self, state: CycleState, pod: PodInfo, remembered: Remembered, rows: RowArray | None, narrowed_by: Sequence[str]
    ) -> FitError:
        valid = np.flatnonzero(self.table.valid)
        codes: Codes = remembered.codes[valid]
        if self._cluster_filters:
            codes = np.minimum(codes, ask(state, pod, valid, self._cluster_filters, self.table.size))
        if rows is not None:
            codes[~np.isin(valid, rows)] = LEFT_OUT
        failure = FitError(pod, self.framework, valid, codes)
        failure.left_out = left_out(narrowed_by)
        passed = set(valid[codes == PASS].tolist())  # only the nominated pods stand in the way there
        for row, others in self._nominated_rows(state, pod).items():
            if rows is None or row in rows:  # upstream asks beside nominated pods first, and tells that
                status = self._fits_beside(state, pod, row, others)
                if not status.ok:
                    failure.overrides[row] = status
        extended = self.extended
        if extended is not None:
            for row in passed:
                name = self.table.names[row]
                if name not in extended.allowed:
                    failure.overrides[row] = extended.refused.get(name, NOT_ALLOWED)
        return failure

    def check(self, state: CycleState, pod: PodInfo, row: int) -> Status:
        """What the Filter plugins say of the row as the table stands, nominations left aside."""
        rows = np.array([row], np.intp)
        for one in self.framework.filters:
            if one.plugin.name not in state.skip_filter:
                reason = int(one.plugin.filter(state, pod, rows)[0])
                if reason:
                    return one.plugin.reasons.status(reason).by(one.plugin.name)
        return SUCCESS

    def fits(self, state: CycleState, pod: PodInfo, row: int) -> Status:
        """`check`, with and without the pods nominated there (spec 05 §5.5)."""
        others = self._nominated_on(state, pod, self.table.names[row])
        if others:
            status = self._fits_beside(state, pod, row, others)
            if not status.ok:
                return status
        return self.check(state, pod, row)

    def _nominated_rows(self, state: CycleState, pod: PodInfo) -> dict[int, list[PodInfo]]:
        """Rows with pods nominated to them that this pod must leave room for."""
        queue = self.framework.handle.queue
        found: dict[int, list[PodInfo]] = {}
        for node in queue.nominated_nodes() if queue is not None else ():
            row, others = self.table.row(node), self._nominated_on(state, pod, node)
            if row is not None and others:
                found[row] = others
        return found

    def _nominated_on(self, state: CycleState, pod: PodInfo, node: str) -> list[PodInfo]:
        """Pods nominated to a node that this one must leave room for."""
        queue = self.framework.handle.queue
        return [
            p
            for p in (queue.nominated_on(node) if queue is not None else ())
            if p.priority >= pod.priority and p.uid != pod.uid and p.row < 0 and p.uid not in state.same_job
        ]

    def _fits_beside(self, state: CycleState, pod: PodInfo, row: int, others: Sequence[PodInfo]) -> Status:
        with DryRun(self.framework, state, pod) as trial:
            for other in others:
                status = trial.add(other, row)
                if not status.ok:
                    return error(*status.reasons, plugin=status.plugin)
            return self.check(state, pod, row)

    # -- scoring -----------------------------------------------------------------------------------------------------

    def _sample(self, feasible: RowArray) -> RowArray:
        """So many feasible rows as `percentageOfNodesToScore` asks for, beginning where the last cycle ended."""
        wanted = max(MIN_FEASIBLE, self.table.nodes_alive * self.framework.percentage // 100)
        if len(feasible) <= wanted:
            return feasible
        begin = int(np.searchsorted(feasible, self._next_start))
        chosen = np.take(feasible, np.arange(begin, begin + wanted), mode="wrap")
        self._next_start = (int(chosen[-1]) + 1) % self.table.size
        return np.sort(chosen)

    def _totals(self, state: CycleState, pod: PodInfo, remembered: Remembered, feasible: RowArray) -> IntArray:
        """[len(feasible)]: the weighted sum of all scores."""
        for plugin in self.framework.pre_score:
            status = plugin.pre_score(state, pod, feasible)
            if status.code is Code.SKIP:
                state.skip_score.add(plugin.name)
            elif not status.ok:
                raise CycleFailed(status.by(plugin.name))
        remembered.score(state, pod, feasible)
        total: IntArray = remembered.base[feasible] + self._node_total(state, pod, remembered, feasible)
        for scorer in self._by_pods:
            self._add(state, pod, scorer, feasible, remembered.raw[scorer.plugin.name][feasible], total)
        for scorer in self._cluster_scores:
            if scorer.plugin.name not in state.skip_score:
                self._add(state, pod, scorer, feasible, scorer.plugin.score(state, pod, feasible), total)
        if self.extended is not None and self.extended.scores:
            names, scores = self.table.names, self.extended.scores
            total += np.fromiter((scores.get(names[row], 0) for row in feasible), np.int64, len(feasible))
        return total

    def _node_total(
        self, state: CycleState, pod: PodInfo, remembered: Remembered, feasible: RowArray
    ) -> IntArray | int:
        """The normalized scores that only nodes decide: the same as long as the nodes and the feasible rows are."""
        if all(scorer.plugin.name in state.skip_score for scorer in self._by_node):
            return 0
        key = (remembered.raw_version, remembered.version) if feasible is remembered.feasible else None
        if key is not None and remembered.node_total_of == key:
            return remembered.node_total
        total = np.zeros(len(feasible), np.int64)
        for scorer in self._by_node:
            self._add(state, pod, scorer, feasible, remembered.raw[scorer.plugin.name][feasible], total)
        remembered.node_total, remembered.node_total_of = total, key
        return total

    def _add(
        self, state: CycleState, pod: PodInfo, scorer: Scorer, rows: RowArray, scores: IntArray, total: IntArray
    ) -> None:
        """Add a plugin's weighted scores to the total."""
        if scorer.plugin.name in state.skip_score:
            return
        if scorer.normalizes:
            scores = scorer.plugin.normalize(state, pod, rows, scores)
        check_range(scorer, scores)
        total += scores * scorer.weight

    def _best(self, feasible: RowArray, totals: IntArray) -> int:
        """The row with the highest total; among equals a random one."""
        ties = np.flatnonzero(totals == totals.max())
        at = 0 if len(ties) == 1 else self.framework.handle.rng.randrange(len(ties))
        return int(feasible[ties[at]])

    # -- after the choice --------------------------------------------------------------------------------------------

    def claim(self, placement: Placement) -> None:
        """Assume and reserve; everything is taken back when somebody refuses. Raises CacheError, CycleFailed."""
        pod, row, state = placement.pod, placement.row, placement.state
        for plugin in self.framework.resize:
            status = plugin.resize_pod(state, pod, row)
            if not status.ok:
                raise CycleFailed(status.by(plugin.name))
        self.cache.assume(pod, placement.node)
        pod.nominated = ""
        state.phase = "Reserve"
        try:
            for plugin in self.framework.reserve:
                status = plugin.reserve(state, pod, row)
                if not status.ok:
                    raise CycleFailed(status.by(plugin.name))
        except BaseException:  # also a plugin's fault: what it claimed must not stay claimed
            self.take_back(placement)
            raise
        state.phase = ""

    def permit(self, placement: Placement) -> None:
        """Ask for permission, and park the pod if somebody wants it to wait. Raises CycleFailed; takes nothing back."""
        parked: dict[str, float] = {}
        for plugin in self.framework.permit:
            status = plugin.permit(placement.state, placement.pod, placement.row)
            if status.code is Code.WAIT:
                parked[plugin.name] = status.timeout
            elif not status.ok:
                raise CycleFailed(status.by(plugin.name))
        if parked:
            placement.parked = parked
            self.waiting.park(placement.pod, parked)

    def take_back(self, placement: Placement) -> None:
        """Unreserve everywhere and forget the pod."""
        pod = placement.pod
        for plugin in self.framework.unreserve:
            plugin.unreserve(placement.state, pod, placement.row)
        if pod.assumed:  # it may be gone, or bound by somebody else, meanwhile
            self.cache.forget(pod)
        for plugin in self.framework.forgotten:
            plugin.forgotten(pod)

    def _post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        """Let the PostFilter plugins make room; the first success ends it (spec 05 §3.5-4)."""
        state.phase = "PostFilter"
        said: list[str] = []
        outcome = None
        for plugin in self.framework.post_filter:
            result = plugin.post_filter(state, pod, failure)
            if result.status.code is Code.ERROR:
                raise CycleFailed(result.status.by(plugin.name))
            if result.status.message:
                said.append(result.status.message)
            if result.status.ok or result.nominated is not None:
                outcome = outcome or result
            if result.status.ok:
                outcome, said = result, [result.status.message]
                break
            if result.status.code is Code.UNRESOLVABLE:
                break
        failure.post_filter = tuple(said)
        if outcome is not None:
            failure.nominated = outcome.nominated
        for plugin in self.framework.after_post_filter:
            plugin.after_post_filter(state, pod, failure, outcome)
        state.phase = ""


def narrow(framework: Framework, state: CycleState, pod: PodInfo) -> tuple[RowArray | None, list[str], Status]:
    """PreFilter: (the rows to look at or None for all, who narrowed them, SUCCESS or whoever said no)."""
    rows: RowArray | None = None
    narrowed_by: list[str] = []
    for plugin in framework.pre_filter:
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
                return rows, narrowed_by, left_out(narrowed_by, " simultaneously" if len(narrowed_by) > 1 else "")
    return rows, narrowed_by, SUCCESS


def left_out(narrowed_by: Sequence[str], how: str = "") -> Status:
    """What a node says that PreFilter plugins left out."""
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(narrowed_by)}]{how}")
