"""koordlet's page `/top`: the current state of the node, with one row per container. Not in Koordinator.

`koordctl top` prints it. An absent value is not known (yet): a first reading has no rate, a kernel without PSI has no
pressure, a probe that is not loaded provides no latency.
"""

from typing import Annotated

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.pages.interference import Brief


class TopCulprit(Struct):
    """The group that used the CPU while the subject waited for it."""

    kind: Annotated[str, doc("container, pod, qos, host-application, system, root, kernel, idle, gone or unknown.")] = (
        ""
    )
    namespace: str = ""
    pod: str = ""
    name: Annotated[str, doc("Container, unit or thread name.")] = ""
    qos: str = ""
    share: Annotated[float, doc("Share of the subject's waiting time that it caused, 0 to 1.")] = written(float)
    wait: Annotated[float, doc("Waiting time that it caused, seconds per second.")] = written(float)


class TopPressure(Struct):
    """Share of wall time, 0 to 1, in which some (or all) tasks were stalled."""

    cpu: float | None = None
    memory: float | None = None
    io: float | None = None


class SchedLatency(Struct):
    """Run-queue latency over the last window."""

    p50: Annotated[float | None, doc("Seconds from runnable to running, median.")] = None
    p99: Annotated[float | None, doc("Seconds from runnable to running, 99th percentile.")] = None
    wait: Annotated[float, doc("Time that tasks waited for a CPU used by others, seconds per second.")] = written(float)
    throttled: Annotated[float, doc("Time that tasks waited for quota, seconds per second.")] = written(float)
    count: Annotated[int, doc("Waits that ended in the window.")] = written(int)
    culprits: Annotated[list[TopCulprit], doc("Largest first.")] = []


class TopRow(Struct):
    """One container, service or other group."""

    kind: str = ""
    namespace: str = ""
    pod: str = ""
    name: str = ""
    id: Annotated[str, doc("Container id or cgroup path.")] = ""
    qos: str = ""
    priority: str = ""
    cpu: Annotated[float | None, doc("Cores used.")] = None
    memory: Annotated[float | None, doc("Bytes used, page cache excluded.")] = None
    throttled: Annotated[float | None, doc("Share of CFS periods in which quota ran out, 0 to 1.")] = None
    pressure: TopPressure | None = None
    sched: SchedLatency | None = None
    verdicts: Annotated[list[Brief], doc("Current verdicts, most severe first.")] = []


class FeatureState(Struct):
    """A probe or kernel feature, and why it is unavailable."""

    name: str
    up: bool = written(bool)
    source: Annotated[str, doc("Where the figures come from: core, bcc, schedstat, …")] = ""
    reason: str = ""


class Top(Struct):
    """The page."""

    node: str = ""
    at: Annotated[float, doc("Unix time of the snapshot.")] = written(float)
    cpus: Annotated[int, doc("Online CPUs.")] = written(int)
    cpu: Annotated[float | None, doc("Cores used on the node.")] = None
    memory: Annotated[float | None, doc("Bytes used on the node, page cache excluded.")] = None
    memory_total: Annotated[float | None, doc("Bytes of memory.")] = None
    system_cpu: Annotated[float | None, doc("Cores used outside pods and host applications.")] = None
    system_memory: Annotated[float | None, doc("Bytes used outside pods and host applications.")] = None
    window: Annotated[float, doc("Seconds that latency figures cover.")] = written(float)
    probes: list[FeatureState] = []
    conditions: Annotated[list[FeatureState], doc("Degraded features, with reasons.")] = []
    rows: list[TopRow] = []
