"""Explanation of a pod's placement for `koordctl explain pod`.

koord-scheduler serves it as JSON under /apis/v1/explain/{namespace}/{pod}.
"""

from koordlet.api.encoding.base import Struct


class RejectedNodes(Struct):
    """Nodes that one plugin rejected for one reason."""

    plugin: str
    reason: str
    preemption_might_help: bool
    count: int
    nodes: list[str] = []
    """the first few, ascending"""
    details: list[str] = []
    """of the first node, from the plugin"""


class ScoredNode(Struct):
    """A feasible node and its weighted score by plugin."""

    node: str
    total: int
    scores: dict[str, int] = {}


class ConsideredReservation(Struct):
    """A reservation whose owners match the pod."""

    name: str
    node: str
    policy: str
    left: str
    """what the next owner may take, e.g. `cpu:2,memory:4Gi`"""
    result: str
    """`fits`, or why the pod cannot use it"""


class PodPlacement(Struct):
    """The placement of a pod in the current cluster; a scheduled pod is evaluated as if it were pending."""

    pod: str
    """`namespace/name`"""
    state: str
    """placed, assumed, active, backoff, error, unschedulable, gated or out (being scheduled right now)"""
    node: str = ""
    nominated: str = ""
    attempts: int = 0
    gated_by: str = ""
    rejected_by: list[str] = []
    """plugins whose events cause a retry"""
    message: str = ""
    """why no node is feasible now; empty if one is"""
    nodes: int = 0
    feasible: int = 0
    refused: list[RejectedNodes] = []
    """most nodes first"""
    reservations: list[ConsideredReservation] = []
    """the first few, those that fit first"""
    scored: list[ScoredNode] = []
    """the nodes with the highest scores in descending order, and the pod's own node"""
