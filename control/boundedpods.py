"""Bounds the memory of a cached pod, and of other objects that tenants write.

Kubernetes accepts pods of 1.5 MiB, which need up to 12 MiB when they are decoded, so that a hundred pods of one tenant
would take all memory of a component. Of a longer pod than ordinary ones, long annotations are not kept. If that is not
enough, only what the pod holds is kept: its requests and limits as those of one container, and what identifies and
classifies it. The scheduler does not place such a pod, because it does not know the pod's constraints. An object of
another kind loses labels and annotations that no component reads; if that is not enough, it is refused as a malformed
one is. No I/O.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final

import msgspec

from koordlet.api import names
from koordlet.api.core.pod import (
    Container,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    ResourceList,
    ResourceRequirements,
)
from koordlet.api.core.podresources import pod_limits, pod_requests
from koordlet.api.encoding.wire import WireError

ORDINARY_BYTES: Final = 32 << 10
"""JSON of a pod that is kept as it is, without a closer look; ordinary pods have 1 to 5 KiB."""
MAX_ANNOTATION_BYTES: Final = 64 << 10
"""Memory of the annotations of a longer pod. What a component reads has 16 KiB at most."""
MAX_BYTES: Final = 512 << 10
"""Memory of a longer pod whose constraints are kept, such as an affinity with the names of 5,000 nodes."""
MAX_ENTRIES: Final = 64
"""Of maps and lists of a pod whose constraints are not kept, beside the entries with known keys."""
TOO_LONG: Final = "pod-is-too-long"
"""The gate that keeps such a pod from being placed; it is not in the API server."""
TOO_LONG_REASON: Final = (
    f"the pod is too long to be scheduled: it needs more than {MAX_BYTES >> 10} KiB of memory; shorten its labels, "
    "containers, volumes, tolerations or affinity"
)
_KNOWN_KEYS: Final = frozenset(
    ("cpu", "memory", "ephemeral-storage", *(value for value in vars(names).values() if isinstance(value, str)))
)
_ALLOCATIONS: Final = frozenset(
    (
        names.ANNOTATION_RESOURCE_STATUS,
        names.ANNOTATION_DEVICE_ALLOCATED,
        names.ANNOTATION_RESERVATION_ALLOCATED,
        names.ANNOTATION_GPU_MINORS,
        names.ANNOTATION_CAMBRICON_DSMLU_PROFILE,
        names.ANNOTATION_METAX_GPU_DEVICES_ALLOCATED,
    )
)
"""What the scheduler wrote and reads again: without it, CPUs and devices would be allocated twice."""
_encode: Final = msgspec.json.Encoder(enc_hook=bool).encode
"""Only for the length: quantities and times, which are short, are a word each."""


def bounded(pod: Pod) -> Pod:
    """The pod, which is changed in place, or another one with what it holds."""
    try:
        if len(_encode(pod)) <= ORDINARY_BYTES:
            return pod
    except RecursionError:
        pass  # nested deeply: it is not an ordinary one
    pod.metadata.annotations = _shortest(pod.metadata.annotations)
    return pod if kept_bytes(pod) <= MAX_BYTES else _what_it_holds(pod)


def is_too_long(pod: Pod) -> bool:
    """Whether the pod's constraints were not kept."""
    return any(gate.name == TOO_LONG for gate in pod.spec.scheduling_gates)


def bounded_object(obj: Any, limit: int = MAX_BYTES) -> Any:
    """An object of another kind, changed in place. Raises WireError if it needs more memory nevertheless."""
    try:
        if len(_encode(obj)) <= ORDINARY_BYTES or kept_bytes(obj) <= limit:
            return obj
    except RecursionError:
        pass
    meta = obj.metadata
    meta.annotations, meta.labels = _shortest(meta.annotations), few(meta.labels)
    meta.owner_references, meta.finalizers = meta.owner_references[:MAX_ENTRIES], meta.finalizers[:MAX_ENTRIES]
    if kept_bytes(obj) > limit:
        raise WireError(f"it needs more than {limit >> 10} KiB of memory; make it shorter", where=meta.key)
    return obj


def kept_bytes(value: Any) -> int:
    """Memory of a decoded value, without empty lists and maps, which cached objects share."""
    total, pending = 0, [value]
    while pending:
        part = pending.pop()
        if not part and part.__class__ is not str:
            continue
        total += getsizeof(part)
        if isinstance(part, msgspec.Struct):
            pending += [getattr(part, name) for name in part.__struct_fields__]
        elif isinstance(part, dict):
            pending += [*part, *part.values()]
        elif isinstance(part, list):
            pending += part
    return total


def _shortest(annotations: dict[str, str]) -> dict[str, str]:
    """Allocations, then known annotations and then others, the shortest first: neither long nor many annotations of a
    tenant may hide what components wrote."""
    kept, room = {}, MAX_ANNOTATION_BYTES
    sizes = {key: getsizeof(key) + getsizeof(text) for key, text in annotations.items()}
    for key in sorted(sizes, key=lambda key: (key not in _ALLOCATIONS, key not in _KNOWN_KEYS, sizes[key])):
        room -= sizes[key]
        if room < 0:
            break
        kept[key] = annotations[key]
    return kept


def _what_it_holds(pod: Pod) -> Pod:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    resources = ResourceRequirements(requests=few(pod_requests(pod)), limits=few(pod_limits(pod)))
    return Pod(
        kind=pod.kind,
        api_version=pod.api_version,
        metadata=msgspec.structs.replace(
            meta, labels=few(meta.labels), owner_references=meta.owner_references[:MAX_ENTRIES], finalizers=[]
        ),
        spec=PodSpec(
            containers=[Container(name=container.name, resources=resources) for container in spec.containers[:1]],
            restart_policy=spec.restart_policy,
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            priority_class_name=spec.priority_class_name,
            priority=spec.priority,
            preemption_policy=spec.preemption_policy,
            scheduling_gates=[PodSchedulingGate(name=TOO_LONG)],
        ),
        status=PodStatus(
            phase=status.phase,
            conditions=status.conditions[:MAX_ENTRIES],
            start_time=status.start_time,
            qos_class=status.qos_class,
        ),
    )


def few(entries: dict[str, Any] | ResourceList) -> dict[str, Any]:
    """The entries with known keys, and the first of the others."""
    kept = {key: entries[key] for key in sorted(entries.keys() & _KNOWN_KEYS)}
    return kept | dict(list(entries.items())[:MAX_ENTRIES])
