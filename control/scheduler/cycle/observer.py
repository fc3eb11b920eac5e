"""Named points of a cycle at which observers are called, for debug output and auditing.

The durations of single plugin calls are measured separately, in sampled cycles (`framework.timing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.state.columns import RowArray
from control.scheduler.state.pods import PodInfo

if TYPE_CHECKING:
    from control.scheduler.cycle.cycle import Cycle


class CycleObserver:
    """Override the points of interest. Observers run inside the cycle: they must be fast and must change nothing."""

    def on_scored(self, cycle: Cycle, state: CycleState, pod: PodInfo, feasible: RowArray) -> None:
        """Several nodes fit and all scores are known; the best node is chosen next."""

    def on_unschedulable(self, cycle: Cycle, state: CycleState, pod: PodInfo, failure: FitError) -> None:
        """No node fits, and the PostFilter plugins have run."""
