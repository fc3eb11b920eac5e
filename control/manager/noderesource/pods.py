"""The facts about a pod that the calculation needs, extracted once when the pod changes. Pure.

100,000 of them are the manager's largest table, so they are small tuples.
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
BATCH_CLASSES = (priority.BATCH, priority.FREE)
"""Priority classes that run on batch resources. All others, and pods without a class, are *high priority*."""


class PodFacts(NamedTuple):
    """One pod of a node that is Running or Pending."""

    key: str
    """`namespace/name`"""
    priority: str
    """priority class, defaulted as in spec 04 §2"""
    exclusive: bool
    """QoS LSE: its CPUs count as used even when they are idle"""
    request: Amounts
    numa: tuple[int, ...] = ()
    """NUMA nodes that the scheduler assigned; empty: not bound"""

    @property
    def prod(self) -> bool:
        """Whether its request reduces the unallocated amount of mid resources."""
        return self.priority not in BATCH_CLASSES and self.priority != priority.MID


def pod_facts(pod: Pod) -> PodFacts | None:
    """None for a pod that uses no resources of a node: not scheduled, or terminated."""
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
        return ()  # spec 04 §6.4: such a pod counts as not bound
    return tuple(sorted({resource.node for resource in status.numa_node_resources}))
