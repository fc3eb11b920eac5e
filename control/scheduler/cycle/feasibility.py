"""The feasible nodes of a pod, with room for pods that are nominated there (spec 05 §5.5), and the failure if none is.

A node with nominated pods of the same or a higher priority must fit the pod with and without them; of pods that other
schedulers nominated only those with a higher priority count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from control.scheduler.cycle.dryrun import DryRun
from control.scheduler.cycle.equivalence import EquivalenceClass, run_filters
from control.scheduler.cycle.evaluation import excluded
from control.scheduler.cycle.failures import LEFT_OUT, PASS, Codes, FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.runtime import PluginQueue
from control.scheduler.framework.status import SUCCESS, PluginStatus, error, unschedulable
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo

NOT_ALLOWED = unschedulable("node(s) were not allowed by an extender", plugin="Extender")


class Feasibility:
    """The Filter phase of one profile. Methods take the plugins to call, in their order, as `calls`."""

    def __init__(self, framework: Framework, queue: PluginQueue) -> None:
        self._framework = framework
        self._queue = queue
        self._foreign = framework.handle.foreign
        self._table = framework.handle.table
        gates = framework.handle.gates
        self._beside_only = gates is not None and gates.enabled("SkipFilterWithNominatedPods")
        """Nodes with nominated pods are evaluated with these pods only."""

    def rows(
        self, calls: Framework, state: CycleState, pod: PodInfo, cached: EquivalenceClass, rows: RowArray | None
    ) -> RowArray:
        """The feasible rows among `rows` (None: all). A node that the pod is nominated to is tried first, alone."""
        nominated = self._table.row(pod.nominated) if pod.nominated else None
        extenders = state.extenders
        if (
            nominated is not None
            and (rows is None or nominated in rows)
            and (extenders is None or pod.nominated in extenders.allowed)
            and self.fits(calls, state, pod, nominated).ok
        ):
            return np.array([nominated], np.intp)
        feasible = cached.feasible if rows is None else rows[cached.ok[rows]]
        if len(feasible) and any(
            filter_plugin.plugin.name not in state.skip_filter for filter_plugin in calls.cluster_filters
        ):
            passed = run_filters(state, pod, feasible, calls.cluster_filters, self._table.size) == PASS
            feasible = feasible if passed.all() else feasible[passed]
        feasible = self._beside_nominated(calls, state, pod, feasible, rows)
        if extenders is not None:
            names, allowed = self._table.names, extenders.allowed
            feasible = feasible[np.fromiter((names[row] in allowed for row in feasible), np.bool_, len(feasible))]
        return feasible

    def _beside_nominated(
        self, calls: Framework, state: CycleState, pod: PodInfo, feasible: RowArray, rows: RowArray | None
    ) -> RowArray:
        """The feasible rows when pods are nominated. `feasible`: without these pods."""
        refused: list[int] = []
        accepted: list[int] = []
        for row, nominated in self._nominated_rows(state, pod).items():
            alone = row in feasible
            if alone or (self._beside_only and (rows is None or row in rows)):
                fits = self._fits_beside(calls, state, pod, row, nominated).ok
                if fits != alone:
                    (accepted if fits else refused).append(row)
        if refused:
            feasible = np.setdiff1d(feasible, np.array(refused, np.intp))
        return np.union1d(feasible, np.array(accepted, np.intp)) if accepted else feasible

    def failure(
        self,
        calls: Framework,
        state: CycleState,
        pod: PodInfo,
        cached: EquivalenceClass,
        rows: RowArray | None,
        narrowed_by: Sequence[str],
    ) -> FitError:
        """Why no row is feasible. `narrowed_by`: the PreFilter plugins that restricted `rows`."""
        table = self._table
        valid = np.flatnonzero(table.valid)
        codes: Codes = cached.codes[valid]
        if calls.cluster_filters:
            codes = np.minimum(codes, run_filters(state, pod, valid, calls.cluster_filters, table.size))
        for filter_plugin in calls.row_filters:  # called for survivors only, but the first plugin determines the reason
            hidden = (codes < LEFT_OUT) & (codes >> np.uint32(16) > filter_plugin.index)
            if hidden.any():
                own = run_filters(state, pod, valid[hidden], (filter_plugin,), table.size)
                codes[hidden] = np.minimum(codes[hidden], own)
        if rows is not None:
            codes[~np.isin(valid, rows)] = LEFT_OUT
        failure = FitError(pod, self._framework, valid, codes)
        failure.left_out = excluded(narrowed_by)
        failure.narrowed_by = frozenset(narrowed_by)
        for row, nominated in self._nominated_rows(state, pod).items():
            if rows is None or row in rows:  # kube-scheduler reports the status beside nominated pods first
                status = self._fits_beside(calls, state, pod, row, nominated)
                if not status.ok:
                    failure.overrides[row] = status
        if state.extenders is not None:
            for row in valid[codes == PASS].tolist():
                name = table.names[row]
                if name not in state.extenders.allowed:
                    failure.overrides[row] = state.extenders.refused.get(name, NOT_ALLOWED)
        return failure

    def fits(self, calls: Framework, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """The result of the Filter plugins for the row as the table is, with and without the pods nominated there."""
        nominated = self._nominated_on(state, pod, self._table.names[row])
        if nominated:
            status = self._fits_beside(calls, state, pod, row, nominated)
            if not status.ok or self._beside_only:
                return status
        return self._check(calls, state, pod, row)

    def _check(self, calls: Framework, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        """The result of the Filter plugins for the row as the table is, without nominated pods."""
        rows = np.array([row], np.intp)
        for filter_plugin in calls.filters:
            if filter_plugin.plugin.name not in state.skip_filter:
                reason = int(filter_plugin.plugin.filter(state, pod, rows)[0])
                if reason:
                    return filter_plugin.plugin.reasons.status(reason).by(filter_plugin.plugin.name)
        return SUCCESS

    def _fits_beside(
        self, calls: Framework, state: CycleState, pod: PodInfo, row: int, others: Sequence[PodInfo]
    ) -> PluginStatus:
        with DryRun(self._framework, state, pod) as trial:
            for other in others:
                status = trial.add(other, row)
                if not status.ok:
                    return error(*status.reasons, plugin=status.plugin)
            return self._check(calls, state, pod, row)

    def _nominated_rows(self, state: CycleState, pod: PodInfo) -> dict[int, list[PodInfo]]:
        """Row -> the pods nominated to it that this pod must leave room for."""
        by_row: dict[int, list[PodInfo]] = {}
        for node in {*self._queue.nominations.nodes(), *self._foreign.nodes()}:
            row, nominated = self._table.row(node), self._nominated_on(state, pod, node)
            if row is not None and nominated:
                by_row[row] = nominated
        return by_row

    def _nominated_on(self, state: CycleState, pod: PodInfo, node: str) -> list[PodInfo]:
        """The pods nominated to a node that this pod must leave room for."""
        own = [
            other
            for other in self._queue.nominations.on(node)
            if other.priority >= pod.priority
            and other.uid != pod.uid
            and other.row < 0
            and other.uid not in state.same_job
        ]
        return [*own, *self._foreign.on(node, pod.priority)]
