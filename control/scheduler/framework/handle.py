"""What a plugin is given to work with (spec 05 §5.1, the extended handle)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from control.scheduler.framework.plugin import Event
from control.scheduler.framework.status import Status
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.table import NodeTable
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, EventRecorder, Informer

if TYPE_CHECKING:
    from control.scheduler.framework.profile import Framework


class Objects(Protocol):
    """Typed copies of cluster objects. `informer(kind)` may be asked for before the start only."""

    def informer(self, kind: type[Any]) -> Informer[Any]: ...


class Waiting(Protocol):
    """Pods parked at Permit, and pods whose turn it is."""

    def waiting_pods(self) -> Iterable[PodInfo]: ...

    def waiting(self, uid: str) -> PodInfo | None: ...

    def allow(self, uid: str, plugin: str) -> None:
        """Let a parked pod go on as far as `plugin` is concerned."""

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        """Reject a parked pod. False when it is not parked."""


class Queue(Protocol):
    """What plugins ask of the scheduling queue."""

    def activate(self, keys: Iterable[str]) -> None:
        """Bring waiting pods (`namespace/name`) into the active queue at once."""

    def move(self, event: Event, old: Any = None, new: Any = None) -> None:
        """Something happened: wake the pods that it may help."""

    def take(self, pod: PodInfo) -> None:
        """Remove a pod that is scheduled out of turn, keeping its nomination."""

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Note a nomination in memory; "" clears it."""

    def nominated_on(self, node: str) -> Iterable[PodInfo]: ...

    def nominated_nodes(self) -> Iterable[str]:
        """Nodes that some pod is nominated to. None, mostly: then it must cost nothing."""

    def pending(self, key: str) -> PodInfo | None:
        """A pod that the queue knows, by `namespace/name`."""


class Evictor(Protocol):
    """Removes pods to make room for another."""

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        """Mark the victims as preempted and delete them, in the background; failures are logged and counted."""

    def evicting_for(self, uid: str) -> bool:
        """Whether deletion calls for this preemptor are still running."""


class JobAuditor(Protocol):
    """Follows workloads through their attempts."""

    def all_attempted(self, group: str) -> None:
        """A gang group's turn ended without a failure, and without enough members."""


@dataclass
class Handle:
    """One per profile; `table`, `shapes`, `counters` and `objects` are shared by all profiles of the process."""

    table: NodeTable
    shapes: Shapes
    counters: PodCounters
    profile: str = "koord-scheduler"
    clock: Clock = SYSTEM_CLOCK
    rng: random.Random = field(default_factory=random.Random)
    gates: FeatureGates | None = None
    client: Client | None = None
    events: EventRecorder | None = None
    objects: Objects | None = None
    waiting: Waiting | None = None
    queue: Queue | None = None
    evictor: Evictor | None = None
    framework: Framework | None = None
    fits: Callable[[Any, PodInfo, int], Status] | None = None
    """(state, pod, row): what the Filter plugins say of the row as the table stands, nominated pods included."""
    preempting: Callable[[int], object] | None = None
    """Told of each attempt to preempt (0), and of how many victims one found."""
    auditor: JobAuditor | None = None
    plugin: Callable[[str], Any] | None = None
    """Another plugin of the same profile, by name; None when it is not enabled."""
