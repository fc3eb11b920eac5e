"""Input and output of the detector. Pure data.

**Symptom.** For every container and resource there are two numbers over the evidence window: the fraction of the wanted
time that was lost because of *others*, and the fraction lost because of the container *itself* (its own quota, its own
limit, its own threads competing with each other). Wanted time is all time in which its tasks wanted to make progress,
whether they did or not, so the two fractions sum to 1 at most and the container's size and load cancel out.
The cache's symptom is cycles per instruction, which has no upper bound. NaN means unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

Floats = NDArray[np.float64]


def ratio(part: Floats, whole: Floats) -> Floats:
    """`part / whole`; almost 0 where both are 0."""
    quotient: Floats = part / np.maximum(whole, 1e-12)
    return quotient


class WaitResource(StrEnum):
    """What a container waits for; the order is that of every array's resource axis."""

    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"
    NETWORK = "network"
    CACHE = "cache"


RESOURCES = tuple(WaitResource)


class Cause(StrEnum):
    """What causes the delay; the order is that of every array's cause axis."""

    NEIGHBOUR = "neighbour"
    SELF = "self"


CAUSES = tuple(Cause)


class AlarmState(IntEnum):
    """State of one (container, resource, cause). In INTERFERED and RECOVERING the alarm is active."""

    QUIET = 0
    SUSPECTED = 1
    INTERFERED = 2
    RECOVERING = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def alarm(self) -> bool:
        """Whether the alarm is active."""
        return self in (AlarmState.INTERFERED, AlarmState.RECOVERING)


@dataclass(frozen=True, slots=True)
class ResourceEvidence:
    """One resource over the window; element i of every array belongs to container i of the evidence."""

    source: str
    """Origin of the figures: bpf, bcc, schedstat, pressure, counters."""
    others: Floats
    """Symptom caused by others; NaN where unknown."""
    own: Floats
    """Symptom caused by the container itself."""
    parts: Mapping[str, Floats] = field(default_factory=dict)
    """Self-inflicted delay by kind (quota, threads, limit, throttle), in seconds per second."""
    latency: Floats | None = None
    """99th percentile of one wait, seconds."""
    pressure: Floats | None = None
    """Fraction of wall time with at least one task stalled (PSI)."""
    culprits: Callable[[int], Sequence[CulpritTime]] = lambda _: ()
    """Container i -> culprits of its waiting, itself included, longest first, in seconds per second of the source's
    window. Without a probe: the containers that used most CPU."""
    hypervisor: Floats | None = None
    """Symptom caused by a hypervisor that took CPUs away, for which nothing on this machine is responsible. None where
    it is not separated."""
    named: bool = False
    """Whether culprits were measured by a probe's matrix, rather than guessed from CPU use."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Input of one evaluation."""

    subjects: tuple[Subject, ...]
    """The containers, in the order of all arrays. The same tuple object as before means the same containers."""
    seconds: float
    """Length of the window that ends at `at`."""
    resources: Mapping[WaitResource, ResourceEvidence]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Culprit:
    """One culprit of a container's waiting."""

    owner: Owner
    share: float
    """Fraction of all waiting of the container for this resource, including that behind its own tasks; the shares of
    all culprits sum to 1 at most."""
    seconds: float
    """Seconds waited because of the culprit, per second of wall time."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One figure that supports a verdict: its value now and its usual value."""

    name: str
    unit: str
    """share, seconds, cpi"""
    now: float
    usual: float | None
    """The container's value while it was quiet; None until enough was learned."""
    limit: float | None = None
    """Value from which on it counts as a delay; None for a figure that only supports."""


Track = tuple[str, WaitResource, Cause]
"""What verdicts follow each other for: the key of the victim's subject, resource, cause."""


class Verdict(msgspec.Struct, frozen=True):
    """State, score and culprits of one container, resource and cause. A msgspec struct, because most of the hundreds of
    verdicts per second differ from the previous one in a few numbers only (`msgspec.structs.replace`)."""

    victim: Subject
    resource: WaitResource
    cause: Cause
    state: AlarmState
    score: float
    """1 is the threshold."""
    lost: float
    """Current value of the symptom."""
    began: float
    """Time of the first suspicion, on the evidence's clock."""
    since: float
    """Time at which `state` was entered."""
    at: float
    window: float
    """Length in seconds of the evidence that ends at `at`."""
    source: str
    confidence: float
    """0..1"""
    severity: str
    """low, medium, high"""
    action: str
    """Recommended next step (advice.ACTIONS)."""
    signals: tuple[Signal, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    parts: Mapping[str, float] = {}

    @property
    def on(self) -> bool:
        """Whether the alarm is active."""
        return self.state.alarm

    @property
    def track(self) -> Track:
        return self.victim.key, self.resource, self.cause


@dataclass(frozen=True, slots=True)
class StateChange:
    """A verdict whose state is no longer `before`."""

    verdict: Verdict
    before: AlarmState
