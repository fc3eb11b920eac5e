"""What the detector is given and what it says. Pure data.

**Symptom.** For every container and resource there are two numbers over the evidence window: the part of the time that
its tasks wanted to get on and could not because of *others*, and the same because of *itself* (own quota, own limit,
own threads in each other's way): each over all the time that its tasks wanted, got or not, so that both sum to 1 at
most and a container's size and load cancel out.
The cache's symptom is cycles per instruction, which has no upper end. NaN means that nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.metricsadvisor.stalls.latency import Blame
from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject

Floats = NDArray[np.float64]


def part_of(part: Floats, whole: Floats) -> Floats:
    """`part / whole`, and next to nothing where there is no whole."""
    found: Floats = part / np.maximum(whole, 1e-12)
    return found


class Resource(StrEnum):
    """What is waited for; the order is that of every array's resource axis."""

    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"
    NETWORK = "network"
    CACHE = "cache"


RESOURCES = tuple(Resource)


class Cause(StrEnum):
    """Who is to blame; the order is that of every array's cause axis."""

    NEIGHBOUR = "neighbour"
    SELF = "self"


CAUSES = tuple(Cause)


class State(IntEnum):
    """Of one (container, resource, cause). Interfered and recovering count as an alarm that is on."""

    QUIET = 0
    SUSPECTED = 1
    INTERFERED = 2
    RECOVERING = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class ResourceEvidence:
    """One resource over the window; element i of every array belongs to container i of the evidence."""

    source: str
    """Where it comes from: bpf, bcc, schedstat, pressure, counters."""
    others: Floats
    """Symptom caused by others; NaN where unknown."""
    own: Floats
    """Symptom caused by itself."""
    parts: Mapping[str, Floats] = field(default_factory=dict)
    """Own trouble by kind (quota, threads, limit, throttle), seconds a second."""
    latency: Floats | None = None
    """99th percentile of one wait, seconds."""
    pressure: Floats | None = None
    """Share of wall time with at least one task stalled (PSI)."""
    culprits: Callable[[int], Sequence[Blame]] = lambda _: ()
    """Container i -> whose doing it was, itself included, largest first; seconds a second, of the source's window.
    Where nobody was seen at it, who used how much CPU."""
    hypervisor: Floats | None = None
    """Symptom caused by a hypervisor that took CPUs away, nobody's doing on this machine. None where that is not
    told apart."""
    named: bool = False
    """Whether culprits were seen at it (a probe's matrix) rather than guessed from who used most."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one evaluation looks at."""

    subjects: tuple[Subject, ...]
    """The containers, in the order of all arrays. The same tuple object as before means the same containers."""
    seconds: float
    """Length of the window that ended now."""
    resources: Mapping[Resource, ResourceEvidence]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Culprit:
    """One who is to blame."""

    owner: Owner
    share: float
    """Of all that the container waited for this resource, its own tasks' doing included; shares sum to 1 at most."""
    seconds: float
    """Seconds waited because of it, a second of wall time."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One figure that was weighed: now against usual."""

    name: str
    unit: str
    """share, seconds, cpi"""
    now: float
    usual: float | None
    """What this container had while nothing was wrong; None before enough was seen."""
    limit: float | None = None
    """Where it counts as trouble; None for a figure that only supports."""

    @property
    def factor(self) -> float | None:
        """How many times the usual value."""
        return self.now / self.usual if self.usual else None


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong with one container's use of one resource, and because of whom. A struct, because of hundreds a
    second most differ from the one before in a few numbers only (`msgspec.structs.replace`)."""

    victim: Subject
    resource: Resource
    cause: Cause
    state: State
    score: float
    """1 is the threshold."""
    lost: float
    """The symptom now."""
    began: float
    """When it was first suspected, on the evidence's clock."""
    since: float
    """When the state was entered."""
    at: float
    window: float
    """Seconds of evidence that end at `at`."""
    source: str
    confidence: float
    """0..1"""
    severity: str
    """low, medium, high"""
    action: str
    """Recommended next step (advice.ACTIONS)."""
    signals: tuple[Signal, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    parts: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def on(self) -> bool:
        """Whether it counts as an alarm."""
        return self.state in (State.INTERFERED, State.RECOVERING)


@dataclass(frozen=True, slots=True)
class Change:
    """A state was left for another."""

    verdict: Verdict
    before: State
