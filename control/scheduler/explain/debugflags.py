"""Switches that make cycles talk, and the cycle that obeys them (spec 05 §7.1, §7.2).

Switched off they cost two comparisons a cycle. A table of scores asks every Score plugin once more, at the moment when
the cycle has asked them itself.
"""

from __future__ import annotations

from control.scheduler.audit.auditor import Auditor
from control.scheduler.cycle.equivalence import Remembered
from control.scheduler.cycle.failures import FitError
from control.scheduler.explain.diagnosis import Diagnoses, score_table
from control.scheduler.explain.podreport import scored
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.timing import MeasuredCycle
from control.scheduler.plugins.coscheduling.plugin import QUESTIONED
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class Debug:
    """The switches, shared by all profiles. `scores`: how many nodes a table shows; 0: none."""

    def __init__(self, diagnoses: Diagnoses, scores: int = 0) -> None:
        self.diagnoses, self.scores = diagnoses, scores

    def set_scores(self, number: int) -> None:
        """Raises ValueError for less than 0."""
        if number < 0:
            raise ValueError(f"{number} is negative")
        self.scores = number

    def set_diagnoses(self, on: bool) -> None:
        self.diagnoses.on = on

    def set_blocking(self, on: bool) -> None:
        self.diagnoses.blocking = on


class TalkingCycle(MeasuredCycle):
    """A cycle that tells what `debug` asks for."""

    debug: Debug | None = None
    auditor: Auditor | None = None

    def _totals(self, state: CycleState, pod: PodInfo, remembered: Remembered, feasible: RowArray) -> IntArray:
        totals = super()._totals(state, pod, remembered, feasible)
        if self.debug is not None and self.debug.scores:
            best = scored(self, state, pod, feasible, limit=self.debug.scores)
            for line in score_table(pod.key, best, (one.plugin.name for one in self.framework.scorers)):
                log.info("Scores", pod=pod.key, row=line)
        return totals

    def _post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        super()._post_filter(state, pod, failure)
        if self.auditor is not None:
            self.auditor.post_filter(pod, failure)
        if self.debug is not None and self.debug.diagnoses.on:
            ours = state.of_job
            waiting = () if ours is None else [one for one in self.waiting.waiting_pods() if ours(one)]
            names = self.table.names
            nodes = [names[one.row] for one in waiting if one.row >= 0]
            self.debug.diagnoses.failed(pod, failure, names, state.data.get(QUESTIONED, ""), nodes)
