"""The result of a scheduling cycle, and what the cycle and the engine that places whole jobs exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import PluginStatus
from control.scheduler.state.pods import PodInfo

if TYPE_CHECKING:
    from control.scheduler.cycle.cycle import Cycle


class CycleFailed(Exception):
    """The cycle failed for another reason than that no node fits. Nothing is left assumed or reserved."""

    def __init__(self, status: PluginStatus, *, chosen: bool = False) -> None:
        """`chosen`: the plugin decided about one node, at Reserve or Permit."""
        super().__init__(status.message)
        self.status = status
        self.text = refusal_text(status) if chosen else status.message
        """The message for users."""


def refusal_text(status: PluginStatus) -> str:
    """The message for a pod whose only node a plugin refused, in kube-scheduler's form for one node."""
    if not status.rejected:
        return status.message
    counts = sorted(f"{count} {reason}" for reason, count in Counter(status.reasons).items())
    return " ".join(["0/1 nodes are available:", *([f"{', '.join(counts)}."] if counts else [])])


class JobBindings(Protocol):
    """Follows the bindings of one job."""

    def ended(self, placement: Placement, ok: bool) -> None: ...


@dataclass
class Placement:
    """A pod with its node. `parked`: the plugins that hold it at Permit, with the seconds that each requested."""

    pod: PodInfo
    row: int
    node: str
    state: CycleState
    evaluated: int
    feasible: int
    parked: Mapping[str, float] = field(default_factory=dict)
    failures_before: int = 0
    """Number of failed cycles of the process when the pod was placed."""
    job: tuple[Placement, ...] = ()
    """The placements of all members, this one included, when the whole job was placed at once (spec 05 §12)."""
    bindings: JobBindings | None = None
    """Notified when the binding ends, for a pod that was placed with its job."""
    phase: str = ""
    """How far binding got: PreBind or Bind."""


class BatchEngine(Protocol):
    """Places a whole job that was planned in `state.plan`."""

    def place(self, cycle: Cycle, state: CycleState, pod: PodInfo) -> Placement | PluginStatus:
        """The placement of `pod` with those of all members, or the reason why there is none; then nothing is
        claimed."""
