"""Debug output that flags and pages switch on at run time: score tables and diagnoses (spec 05 §7.1, §7.2).

Switched off it costs one comparison per cycle. A score table calls every Score plugin a second time.
"""

from __future__ import annotations

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.evaluation import rank_nodes
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.observer import CycleObserver
from control.scheduler.explain.diagnosis import Diagnoses, score_table
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.coscheduling.plugin import QUESTIONED
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class DebugOutput(CycleObserver):
    """Shared by all profiles. `scores`: the number of nodes in a score table; 0 switches it off."""

    def __init__(self, diagnoses: Diagnoses, scores: int = 0) -> None:
        self.diagnoses = diagnoses
        self.scores = scores

    def set_scores(self, number: int) -> None:
        """Raises ValueError for negative numbers."""
        if number < 0:
            raise ValueError(f"{number} is negative")
        self.scores = number

    def set_diagnoses(self, on: bool) -> None:
        self.diagnoses.on = on

    def set_blocking(self, on: bool) -> None:
        self.diagnoses.blocking = on

    def on_scored(self, cycle: Cycle, state: CycleState, pod: PodInfo, feasible: RowArray) -> None:
        if self.scores:
            best = rank_nodes(cycle.framework, state, pod, feasible, limit=self.scores)
            for line in score_table(pod.key, best, (scorer.plugin.name for scorer in cycle.framework.scorers)):
                log.info("Scores", pod=pod.key, row=line)

    def on_unschedulable(self, cycle: Cycle, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        if not self.diagnoses.on:
            return
        of_job = state.of_job
        waiting = (
            ()
            if of_job is None
            else [waiting_pod for waiting_pod in cycle.waiting.waiting_pods() if of_job(waiting_pod)]
        )
        names = cycle.table.names
        nodes = [names[waiting_pod.row] for waiting_pod in waiting if waiting_pod.row >= 0]
        self.diagnoses.failed(pod, failure, names, state.data.get(QUESTIONED, ""), nodes)
