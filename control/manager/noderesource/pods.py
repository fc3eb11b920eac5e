"""What the calculation needs of a pod: read once when the pod changes, kept instead of asking the pod again.

100,000 of these are a manager's largest table, so they are small tuples. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from control.manager.noderesource.units import Amounts, amounts
from koordlet.api import names, priority
from koordlet.api.annotations.scheduling import RESOURCE_STATUS
from koordlet.api.core import Pod, pod_requests
from koordlet.api.encoding.wire import WireError
from koordlet.api.qos import LSE, qos_class

ACTIVE_PHASES = ("Running", "Pending")
LENT = (priority.BATCH, priority.FREE)
"""Classes that run on what is lent as batch; all others are *high priority*, no class included."""


class PodFacts(NamedTuple):
    """One pod of a node that is Running or Pending."""

    key: str
    """`namespace/name`"""
    priority: str
    """class with default (spec 04 §2)"""
    exclusive: bool
    """QoS LSE: its CPUs are its own whether it uses them or not"""
    request: Amounts
    numa: tuple[int, ...] = ()
    """NUMA nodes that the scheduler gave it; empty: not bound"""

    @property
    def prod(self) -> bool:
        """Whether its request takes from what could be lent to mid pods."""
        return self.priority not in LENT and self.priority != priority.MID


def pod_facts(pod: Pod) -> PodFacts | None:
    """None for a pod that takes nothing of a node: not bound to one, or ended."""
    if pod.status.phase not in ACTIVE_PHASES or not pod.spec.node_name:
        return None
    return PodFacts(
        pod.metadata.key,
        priority.priority_class(pod),
        qos_class(pod) == LSE,
        amounts(pod_requests(pod)),
        _numa_nodes(pod),
    )


def _numa_nodes(pod: Pod) -> tuple[int, ...]:
    if names.ANNOTATION_RESOURCE_STATUS not in pod.metadata.annotations:
        return ()
    try:
        status = RESOURCE_STATUS.get(pod.metadata.annotations)
    except WireError:
        return ()  # the specification counts such a pod as not bound
    return tuple(sorted({one.node for one in status.numa_node_resources}))
