"""The CPUs that the scheduler allocated to pods (`resource-status`), as far as koordlet accepts them. Pure.

The annotation belongs to the scheduler, but users who may change a pod may be able to change it, and root acts on it.
So koordlet accepts CPUs only for the classes that the scheduler pins (spec 01 §4.2, spec 03 §4.6), only CPUs of this
node, not more than the pod requests, and none that another pod holds. A refused or malformed allocation counts as
absent. Decoding is bounded and remembered by text (`koordlet.api.annotations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from koordlet.api import names
from koordlet.api.annotations.scheduling import RESOURCE_STATUS
from koordlet.api.core import Pod, is_terminated, pod_requests
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.remembered import RememberedTexts
from koordlet.api.encoding.wire import WireError
from koordlet.api.priority import PROD, priority_class
from koordlet.api.qos import LSE, LSR, raw_qos_class
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError

PINNED_CLASSES: Final = (LSE, LSR)
"""QoS classes whose pods the scheduler pins to CPUs, with priority class koord-prod."""


@dataclass(frozen=True, slots=True)
class CPUAllocation:
    """What a pod's annotation gives it."""

    cpus: CPUSet = CPUSet()  # noqa: RUF009 - immutable
    """Empty for none."""
    numa_nodes: tuple[int, ...] = ()
    """NUMA nodes with CPU time for the pod."""
    error: str = ""
    """Why the annotation is malformed; empty otherwise."""
    refused: str = ""
    """Why its CPUs are not accepted; empty otherwise."""


NO_ALLOCATION: Final = CPUAllocation()


def allocation_of(pod: Pod) -> CPUAllocation:
    """The allocation of a pod, without regard to node and other pods."""
    annotations = pod.metadata.annotations
    text = annotations.get(names.ANNOTATION_RESOURCE_STATUS)
    if text is None or is_terminated(pod):
        return NO_ALLOCATION
    try:
        status = RESOURCE_STATUS.get(annotations)
        nodes = tuple(share.node for share in status.numa_node_resources if _has_cpu(share.resources))
        allocation = CPUAllocation(_parsed(status.cpuset), nodes)
    except (WireError, CPUSetError) as error:
        return CPUAllocation(error=f"pod {pod.metadata.key}: {names.ANNOTATION_RESOURCE_STATUS}: {error}")
    qos, priority = raw_qos_class(pod), priority_class(pod)
    if allocation.cpus and (qos not in PINNED_CLASSES or priority != PROD):
        expected = f"LSE and LSR pods of priority class {PROD}"
        return _refuse(allocation, f"CPUs are for {expected}, not for {qos or 'unlabelled'} pods of {priority}")
    return allocation


def accept(
    allocations: Mapping[str, tuple[Pod, CPUAllocation]], held: Mapping[str, CPUSet], online: CPUSet | None
) -> dict[str, CPUAllocation]:
    """The allocations of all pods of the node by UID, of which no two overlap. `held`: the CPUs that each pod was
    accepted with before; they take precedence, then older pods. Terminating pods come last, because the scheduler may
    have allocated their CPUs again. `online`: CPUs of the node, None while unknown."""

    def order(uid: str) -> tuple[bool, bool, str, str]:
        pod, allocation = allocations[uid]
        return precedence(pod, uid, keeps=held.get(uid) == allocation.cpus)

    accepted: dict[str, CPUAllocation] = {}
    holders: dict[int, str] = {}
    for uid in sorted(allocations, key=order):
        pod, allocation = allocations[uid]
        if allocation.cpus:
            allocation = _checked(pod, allocation, holders, online)
            holders.update(dict.fromkeys(allocation.cpus, pod.metadata.key))
        accepted[uid] = allocation
    return accepted


def precedence(pod: Pod, uid: str, *, keeps: bool) -> tuple[bool, bool, str, str]:
    """The order in which pods get what they claim: those that keep what they have, then older pods. Terminating pods
    come last, because the scheduler may have allocated theirs again."""
    created = pod.metadata.creation_timestamp
    return pod.metadata.deletion_timestamp is not None, not keeps, "" if created is None else str(created), uid


def _checked(pod: Pod, allocation: CPUAllocation, holders: Mapping[int, str], online: CPUSet | None) -> CPUAllocation:
    cpus = allocation.cpus
    requested = pod_requests(pod).get("cpu", ZERO)
    if Quantity.of(len(cpus)) > requested:
        return _refuse(allocation, f"{len(cpus)} CPUs are more than the request of {requested}")
    if online is not None and not cpus <= online:
        return _refuse(allocation, f"this node has no CPUs {cpus - online}")
    shared = CPUSet(cpu for cpu in cpus if cpu in holders)
    if shared:
        return _refuse(allocation, f"pod {holders[min(shared)]} has the CPUs {shared}")
    return allocation


def _refuse(allocation: CPUAllocation, reason: str) -> CPUAllocation:
    return replace(allocation, cpus=CPUSet(), refused=f"{names.ANNOTATION_RESOURCE_STATUS}: {reason}")


_parsed = RememberedTexts(CPUSet.parse, CPUSetError, max_chars=1 << 20)


def _has_cpu(resources: Mapping[str, Quantity]) -> bool:
    batch = resources.get(names.RESOURCE_BATCH_CPU)
    return bool(resources.get("cpu", ZERO).milli_value()) or (batch is not None and batch.value() > 0)
