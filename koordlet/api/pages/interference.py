"""What koordlet says about interference: `/interference` for one pod, and the short forms in NodeMetric and `/top`.

Ours, not Koordinator's. `koordctl explain pod` prints the long form. Times are Unix seconds; absent means not known.
"""

from typing import Annotated

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written

EXTENSION_KEY = "interference"
"""Key in `NodeMetric.status.podsMetric[].extensions`."""


class Blamed(Struct):
    """One who is to blame."""

    kind: Annotated[str, doc("container, pod, qos, host-application, system, root, kernel or gone.")] = ""
    namespace: str = ""
    pod: str = ""
    name: str = ""
    qos: str = ""
    share: Annotated[float, doc("Part of all that the container waited, 0 to 1.")] = written(float)
    seconds: Annotated[float, doc("Seconds waited because of it, a second.")] = written(float)

    @property
    def label(self) -> str:
        """`namespace/pod/name`, as far as known."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.kind


class SignalSaid(Struct):
    """One figure that was weighed."""

    name: str = ""
    unit: Annotated[str, doc("share, seconds or cpi.")] = ""
    now: float = written(float)
    usual: Annotated[float | None, doc("What this container had while nothing was wrong.")] = None
    limit: Annotated[float | None, doc("Where it counts as trouble.")] = None


class VerdictSaid(Struct):
    """What is wrong with one container's use of one resource."""

    container: str = ""
    resource: Annotated[str, doc("cpu, memory, io, network or cache.")] = ""
    cause: Annotated[str, doc("neighbour or self.")] = ""
    state: Annotated[str, doc("quiet, suspected, interfered or recovering.")] = ""
    score: Annotated[float, doc("1 is the threshold.")] = written(float)
    lost: Annotated[float, doc("Part of the time it wanted to get on that was lost, 0 to 1.")] = written(float)
    began: Annotated[float, doc("When it was first suspected.")] = written(float)
    at: Annotated[float, doc("End of the evidence window.")] = written(float)
    window: Annotated[float, doc("Seconds of evidence.")] = written(float)
    source: Annotated[str, doc("bpf, bcc, schedstat, pressure or counters.")] = ""
    confidence: float = written(float)
    severity: Annotated[str, doc("low, medium or high.")] = ""
    action: Annotated[str, doc("Recommended next step, one word.")] = ""
    advice: Annotated[str, doc("The same in a sentence.")] = ""
    signals: list[SignalSaid] = msgspec.field(default_factory=list)
    culprits: Annotated[list[Blamed], doc("Largest share first.")] = msgspec.field(default_factory=list)
    parts: Annotated[dict[str, float], doc("Own trouble by kind, seconds a second.")] = msgspec.field(
        default_factory=dict
    )


class Brief(Struct):
    """A verdict in one line: NodeMetric and `/top`."""

    container: str = ""
    resource: str = ""
    cause: str = ""
    state: str = ""
    score: float = written(float)
    lost: float = written(float)
    confidence: float = written(float)
    culprit: Annotated[str, doc("`namespace/pod/container` of the worst, empty when it is its own doing.")] = ""
    share: Annotated[float, doc("The worst culprit's share, 0 to 1.")] = written(float)
    action: str = ""


class SeriesSaid(Struct):
    """One symptom over the last minutes; -1 where nothing is known."""

    resource: str = ""
    cause: str = ""
    usual: Annotated[float | None, doc("95th percentile while quiet.")] = None
    state: str = ""
    values: Annotated[list[float], doc("Largest value of each step, oldest first.")] = msgspec.field(
        default_factory=list
    )


class ChangeSaid(Struct):
    """A state was left for another."""

    at: float = written(float)
    before: str = ""
    verdict: VerdictSaid = msgspec.field(default_factory=VerdictSaid)


class ContainerExplained(Struct):
    """One container: series, what is wrong now, what changed."""

    name: str = ""
    id: str = ""
    series: list[SeriesSaid] = msgspec.field(default_factory=list)
    verdicts: Annotated[list[VerdictSaid], doc("Of everything that is not quiet now.")] = msgspec.field(
        default_factory=list
    )
    changes: Annotated[list[ChangeSaid], doc("Oldest first, bounded.")] = msgspec.field(default_factory=list)
    hypervisor: Annotated[float, doc("Part of its time lost because a hypervisor took CPUs away, 0 to 1.")] = written(
        float
    )


class HeldBack(Struct):
    """A best-effort pod that is held back because it hurts a service."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    resource: Annotated[str, doc("cpu, memory, io or network.")] = ""
    percent: Annotated[int, doc("What is left to it, of what it had when this began.")] = written(int)
    had: Annotated[int, doc("Milli-cores, bytes, bytes a second, or 100 percent that it had.")] = written(int)
    left: Annotated[str, doc("What is left, as it is set.")] = ""
    since: Annotated[float, doc("Unix time of the first step.")] = written(float)
    floor: Annotated[bool, doc("Whether nothing more is taken.")] = False
    why: Annotated[str, doc("Whom it hurts most, and how much.")] = ""
    problem: Annotated[str, doc("Why it is not held back in fact; empty when it is.")] = ""


class PodExplained(Struct):
    """`/interference?pod=namespace/name`."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    qos: str = ""
    judged: Annotated[bool, doc("Whether its QoS class is among those that can be victims.")] = written(bool)
    enabled: Annotated[bool, doc("Whether the node detects interference.")] = written(bool)
    node: str = ""
    at: Annotated[float, doc("Unix time of the last evaluation.")] = written(float)
    step: Annotated[float, doc("Seconds of one value of a series.")] = written(float)
    sources: Annotated[dict[str, str], doc("Resource -> where its evidence comes from.")] = msgspec.field(
        default_factory=dict
    )
    missing: Annotated[dict[str, str], doc("Resource -> why there is no evidence.")] = msgspec.field(
        default_factory=dict
    )
    containers: list[ContainerExplained] = msgspec.field(default_factory=list)
    held_back: Annotated[list[HeldBack], doc("How this pod is held back, because it hurts others.")] = msgspec.field(
        default_factory=list
    )
    held_back_for: Annotated[list[HeldBack], doc("Pods that are held back for its sake.")] = msgspec.field(
        default_factory=list
    )


class NodeInterference(Struct):
    """The node in short: how many containers are interfered, and who does most of it."""

    interfered: Annotated[dict[str, int], doc("Resource -> containers that a neighbour hurts now.")] = msgspec.field(
        default_factory=dict
    )
    self_inflicted: Annotated[dict[str, int], doc("Resource -> containers that hurt themselves now.")] = msgspec.field(
        default_factory=dict
    )
    worst_culprits: Annotated[list[Blamed], doc("By seconds lost on the whole node, largest first.")] = msgspec.field(
        default_factory=list
    )


class NodeExplained(Struct):
    """`/interference` without a pod."""

    node: str = ""
    at: float = written(float)
    enabled: bool = written(bool)
    summary: NodeInterference = msgspec.field(default_factory=NodeInterference)
    verdicts: dict[str, list[Brief]] = msgspec.field(default_factory=dict)
