"""koordlet's interference reports: page `/interference` for one pod, and the short forms in NodeMetric and `/top`.

Not in Koordinator. `koordctl explain pod` prints the page. Times are Unix seconds; an absent value is unknown.
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.wire import WireError, convert

EXTENSION_KEY = "interference"
"""Key in `NodeMetric.status.podsMetric[].extensions`."""


class CulpritReport(Struct):
    """A culprit and its share."""

    kind: Annotated[str, doc("container, pod, qos, host-application, system, root, kernel or gone.")] = ""
    namespace: str = ""
    pod: str = ""
    name: str = ""
    qos: str = ""
    share: Annotated[float, doc("Share of the container's waiting time that it caused, 0 to 1.")] = written(float)
    seconds: Annotated[float, doc("Waiting time that it caused, seconds per second.")] = written(float)

    @property
    def label(self) -> str:
        """`namespace/pod/name`, as far as known."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.kind


class SignalReport(Struct):
    """One signal used for a verdict."""

    name: str = ""
    unit: Annotated[str, doc("share, seconds or cpi.")] = ""
    now: float = written(float)
    usual: Annotated[float | None, doc("Usual value of this container without interference.")] = None
    limit: Annotated[float | None, doc("Threshold.")] = None


class VerdictReport(Struct):
    """The verdict on one resource of one container."""

    container: str = ""
    resource: Annotated[str, doc("cpu, memory, io, network or cache.")] = ""
    cause: Annotated[str, doc("neighbour or self.")] = ""
    state: Annotated[str, doc("quiet, suspected, interfered or recovering.")] = ""
    score: Annotated[float, doc("1 is the threshold.")] = written(float)
    lost: Annotated[float, doc("Share of the demanded running time that was lost, 0 to 1.")] = written(float)
    began: Annotated[float, doc("Time when it was first suspected.")] = written(float)
    at: Annotated[float, doc("End of the evidence window.")] = written(float)
    window: Annotated[float, doc("Seconds of evidence.")] = written(float)
    source: Annotated[str, doc("bpf, bcc, schedstat, pressure or counters.")] = ""
    confidence: float = written(float)
    severity: Annotated[str, doc("low, medium or high.")] = ""
    action: Annotated[str, doc("Recommended next step, one word.")] = ""
    advice: Annotated[str, doc("The recommended step as a sentence.")] = ""
    signals: list[SignalReport] = []
    culprits: Annotated[list[CulpritReport], doc("Largest share first.")] = []
    parts: Annotated[dict[str, float], doc("Self-inflicted delay by kind, seconds per second.")] = {}


class Brief(Struct):
    """The short form of a verdict, for NodeMetric and `/top`."""

    container: str = ""
    resource: str = ""
    cause: str = ""
    state: str = ""
    score: float = written(float)
    lost: float = written(float)
    confidence: float = written(float)
    culprit: Annotated[str, doc("`namespace/pod/container` of the main culprit, empty if self-inflicted.")] = ""
    share: Annotated[float, doc("The main culprit's share, 0 to 1.")] = written(float)
    action: str = ""


def briefs_of(document: Any) -> list[Brief]:
    """The briefs that a NodeMetric has under EXTENSION_KEY; none if it is malformed."""
    try:
        briefs: list[Brief] = convert(document, list[Brief])
    except WireError:
        return []
    return briefs


class SeriesReport(Struct):
    """One symptom over the last minutes; -1: unknown."""

    resource: str = ""
    cause: str = ""
    usual: Annotated[float | None, doc("95th percentile while quiet.")] = None
    state: str = ""
    values: Annotated[list[float], doc("Largest value of each step, oldest first.")] = []


class StateChangeReport(Struct):
    """A change of state."""

    at: float = written(float)
    before: str = ""
    verdict: VerdictReport = msgspec.field(default_factory=VerdictReport)


class ContainerInterferenceReport(Struct):
    """One container: series, current verdicts, state changes."""

    name: str = ""
    id: str = ""
    series: list[SeriesReport] = []
    verdicts: Annotated[list[VerdictReport], doc("Verdicts that are not quiet now.")] = []
    changes: Annotated[list[StateChangeReport], doc("Oldest first, bounded.")] = []
    hypervisor: Annotated[float, doc("Share of its time lost to hypervisor steal, 0 to 1.")] = written(float)


class ThrottledPodReport(Struct):
    """A best-effort pod that is throttled because it delays a latency-sensitive pod."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    resource: Annotated[str, doc("cpu, memory, io or network.")] = ""
    percent: Annotated[int, doc("Remaining percentage of the amount before throttling.")] = written(int)
    had: Annotated[int, doc("Amount before throttling: milli-cores, bytes, bytes/s, or 100 percent.")] = written(int)
    left: Annotated[str, doc("The value that is set.")] = ""
    since: Annotated[float, doc("Unix time of the first step.")] = written(float)
    floor: Annotated[bool, doc("Whether the lower limit is reached.")] = False
    why: Annotated[str, doc("The main victim, and its delay.")] = ""
    problem: Annotated[str, doc("Why throttling is not in effect; empty if it is.")] = ""


class PodInterferenceReport(Struct):
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
    sources: Annotated[dict[str, str], doc("Resource -> where its evidence comes from.")] = {}
    missing: Annotated[dict[str, str], doc("Resource -> reason why there is no evidence.")] = {}
    containers: list[ContainerInterferenceReport] = []
    held_back: Annotated[list[ThrottledPodReport], doc("How this pod is throttled because it delays others.")] = []
    held_back_for: Annotated[list[ThrottledPodReport], doc("Pods that are throttled because they delay this pod.")] = []


class NodeInterference(Struct):
    """Summary of the node: number of victims and the main culprits."""

    hurt_pods: Annotated[int, doc("Number of pods that co-located pods delay.")] = written(int)
    interfered: Annotated[dict[str, int], doc("Resource -> number of containers delayed by co-located pods.")] = {}
    self_inflicted: Annotated[dict[str, int], doc("Resource -> number of containers that delay themselves.")] = {}
    worst_culprits: Annotated[list[CulpritReport], doc("By seconds lost on the whole node, largest first.")] = []


class NodeInterferenceReport(Struct):
    """`/interference` without a pod."""

    node: str = ""
    at: float = written(float)
    enabled: bool = written(bool)
    summary: NodeInterference = msgspec.field(default_factory=NodeInterference)
    verdicts: dict[str, list[Brief]] = {}
