"""Who holds the CPUs and NUMA zones of a node, for `koordctl node` (spec 06 §7).

koord-scheduler serves it as JSON under /apis/v1/plugins/NodeNUMAResource/nodes/{name}. Only what `koordctl` shows.
"""

import msgspec

from koordlet.api.encoding.base import Struct


class PageCPU(Struct):
    """The position of a CPU."""

    cpu_id: int = msgspec.field(name="cpuID")
    core_id: int = msgspec.field(default=-1, name="coreID")
    node_id: int = msgspec.field(default=-1, name="nodeID")
    socket_id: int = msgspec.field(default=-1, name="socketID")


class PageCPUTopology(Struct):
    """All CPUs, by id."""

    cpu_details: dict[str, PageCPU] = {}


class PageZone(Struct):
    """Amounts of a NUMA zone, as Kubernetes writes them."""

    node: int
    resources: dict[str, str] = {}


class PageCPUPod(Struct):
    """What a pod holds."""

    namespace: str
    name: str
    cpuset: str = ""
    cpu_exclusive_policy: str = ""
    numa_node_resources: list[PageZone] = []


class NodeCPUPage(Struct):
    """One node."""

    name: str
    cpu_topology: PageCPUTopology
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    policy: str = ""
    numa_topology_policy: str = ""
    numa_node_resources: list[PageZone] = []
    remaining: dict[str, dict[str, str]] = msgspec.field(default_factory=dict, name="remainingNUMANodeResources")
    available_cpus: str = msgspec.field(default="", name="availableCPUs")
    allocated_pods: dict[str, PageCPUPod] = {}
