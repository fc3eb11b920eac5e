"""What a plugin's constructor receives: the cluster state and the services that exist before the plugins (spec 05
§5.1).

Services that are built from the plugins follow later, in a `Runtime` that `Plugin.connect` receives. Both are frozen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from control.scheduler.framework.waitingpods import WaitingPods
from control.scheduler.state.foreignnominations import ForeignNominations
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.subjects import Subjects
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, Informer


class Objects(Protocol):
    """Typed caches of cluster objects. `informer(kind)` may be called only before the start."""

    def informer(self, kind: type[Any]) -> Informer[Any]: ...


class PodsAtPermit(Protocol):
    """Pods that are held at Permit."""

    def waiting(self, uid: str) -> PodInfo | None: ...

    def allow(self, uid: str, plugin: str) -> None:
        """Release a pod from the wait that `plugin` requested."""

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        """Reject a held pod. False when it is not held."""


def _follow_nothing(kind: type[Any], as_pod: Callable[[Any], Pod], subject: str) -> None:
    """The default of `Handle.follow`."""


def _ignore_preemption(victims: int) -> None:
    """The default of `Handle.observe_preemption`."""


@dataclass(frozen=True)
class Handle:
    """One per profile. All profiles share `table`, `shapes`, `counters`, `objects` and `subjects`."""

    table: NodeTable
    shapes: Shapes
    counters: PodCounters
    profile: str = "koord-scheduler"
    clock: Clock = SYSTEM_CLOCK
    rng: random.Random = field(default_factory=random.Random)
    gates: FeatureGates | None = None
    client: Client | None = None
    objects: Objects | None = None
    subjects: Subjects = field(default_factory=Subjects)
    follow: Callable[[type[Any], Callable[[Any], Pod], str], object] = _follow_nothing
    """(kind, as_pod, subject): handle the objects of a kind like pods, see `ClusterEventHandlers.follow`."""
    foreign: ForeignNominations = field(default_factory=ForeignNominations)
    """Pods that other schedulers nominated; empty without feature gate CrossSchedulerNomination."""
    waiting: PodsAtPermit = field(default_factory=lambda: WaitingPods(SYSTEM_CLOCK))
    observe_preemption: Callable[[int], object] = _ignore_preemption
    """Called with 0 for each preemption attempt, and with the number of victims of each successful one."""
