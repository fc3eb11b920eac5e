"""Why a pod is, or would be, on the node that it is on: what the scheduler tells `koordctl explain pod`.

Served as JSON by koord-scheduler under /apis/v1/explain/{namespace}/{pod}.
"""

import msgspec

from koordlet.api.encoding.base import Struct


class NodesRefused(Struct):
    """Nodes that one plugin refused for one reason."""

    plugin: str
    reason: str
    preemption_might_help: bool
    count: int
    nodes: list[str] = msgspec.field(default_factory=list)
    """The first few, ascending."""


class NodeScored(Struct):
    """A node that fits, and what every plugin gave it (weighted)."""

    node: str
    total: int
    scores: dict[str, int] = msgspec.field(default_factory=dict)


class PodPlacement(Struct):
    """A pod's placement, judged on the cluster as it is now; a placed pod as if it had to be placed anew."""

    pod: str
    """`namespace/name`"""
    state: str
    """placed, assumed, active, backoff, error, unschedulable, gated or out (being scheduled right now)"""
    node: str = ""
    nominated: str = ""
    attempts: int = 0
    gated_by: str = ""
    rejected_by: list[str] = msgspec.field(default_factory=list)
    """Plugins whose events wake it."""
    message: str = ""
    """Why no node would fit now; empty when one would."""
    nodes: int = 0
    feasible: int = 0
    refused: list[NodesRefused] = msgspec.field(default_factory=list)
    """Most nodes first."""
    scored: list[NodeScored] = msgspec.field(default_factory=list)
    """The best, best first, and the pod's own node."""
