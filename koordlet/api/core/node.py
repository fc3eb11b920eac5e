"""Nodes, trimmed to the fields that are read here (core/v1). Images and volumes in use are dropped."""

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.core.selectors import Taint
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject


class NodeSpec(Struct):
    """`spec` of a node."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeCondition(Struct):
    """A condition of a node."""

    type: str
    status: str
    last_heartbeat_time: Time | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class NodeAddress(Struct):
    """An address of a node: InternalIP, Hostname …"""

    type: str
    address: str


class DaemonEndpoint(Struct):
    """The port of a node daemon."""

    port: int = msgspec.field(name="Port")


class NodeDaemonEndpoints(Struct):
    """Ports of the daemons of a node."""

    kubelet_endpoint: DaemonEndpoint | None = None


class NodeSystemInfo(Struct):
    """Identity and software versions of a node."""

    machine_id: str = msgspec.field(default="", name="machineID")
    system_uuid: str = msgspec.field(default="", name="systemUUID")
    boot_id: str = msgspec.field(default="", name="bootID")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class NodeStatus(Struct):
    """`status` of a node."""

    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    phase: str = ""
    conditions: list[NodeCondition] = []
    addresses: list[NodeAddress] = []
    daemon_endpoints: NodeDaemonEndpoints = msgspec.field(default_factory=NodeDaemonEndpoints)
    node_info: NodeSystemInfo = msgspec.field(default_factory=NodeSystemInfo)

    def condition(self, condition_type: str) -> NodeCondition | None:
        """The condition of that type, or None."""
        return next((c for c in self.conditions if c.type == condition_type), None)


class Node(ApiObject, api_version="v1"):
    """core/v1 Node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


def is_ready(node: Node) -> bool:
    """Whether the node's Ready condition is True."""
    ready = node.status.condition("Ready")
    return ready is not None and ready.status == "True"
