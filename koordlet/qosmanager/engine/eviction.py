"""Eviction tasks and how they are worked off: a victim counts for every task that it helps (spec 03 §3.1). Pure.

An `EvictionTask` states what must be released and the victims in order. `EvictionProgress` yields the next victim and
records the result; the caller evicts. A pod is evicted once, even if several tasks name it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from koordlet.api import priority
from koordlet.api.annotations import pod as controls
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError
from koordlet.api.names import (
    LABEL_PRIORITY,
    RESOURCE_BATCH_CPU,
    RESOURCE_BATCH_MEMORY,
    RESOURCE_MID_CPU,
    RESOURCE_MID_MEMORY,
)
from koordlet.qosmanager.engine.view import PodView

Amounts = Mapping[str, int]
USED, REQUESTED = "podUsed", "podResourceRequest"
CPU, MEMORY = "cpu", "memory"
CLASS_RESOURCES = {
    priority.BATCH: {CPU: RESOURCE_BATCH_CPU, MEMORY: RESOURCE_BATCH_MEMORY},
    priority.MID: {CPU: RESOURCE_MID_CPU, MEMORY: RESOURCE_MID_MEMORY},
}
"""Resource names that batch and mid pods request; other pods request the native ones."""


@dataclass(frozen=True, slots=True)
class EvictionTask:
    """`release`: resource -> amount to release, milli-cores or bytes. `victims` in order of eviction, each one once.
    `contributes`: what any pod of the node releases, uid -> resource -> amount."""

    feature: str
    kind: str
    release: Amounts
    victims: tuple[PodView, ...]
    contributes: Mapping[str, Amounts]

    @property
    def reason(self) -> str:
        """Koordinator's wording."""
        return f"trigger by koordlet feature {self.feature}"


@dataclass
class EvictionProgress:
    """One round over `tasks`. `gone`: uids of pods evicted earlier that still exist; they count as released."""

    tasks: Sequence[EvictionTask]
    gone: Collection[str] = ()
    released: dict[str, dict[str, int]] = field(default_factory=dict)
    """Kind -> resource -> amount."""
    _tried: set[str] = field(default_factory=set)

    def victims(self) -> Iterator[tuple[PodView, EvictionTask]]:
        """The next victim and its task. Call `succeeded` before the next step; a pod whose eviction failed counts for
        nothing and is not tried again."""
        for task in self.tasks:
            for pod in task.victims:
                if not self._missing(task):
                    break
                uid = pod.meta.uid
                if uid in self._tried or not self._helps(pod, task):
                    continue
                self._tried.add(uid)
                if uid in self.gone:
                    self.succeeded(pod)
                else:
                    yield pod, task

    def succeeded(self, pod: PodView) -> None:
        """The pod is being evicted: its contribution counts for every kind, the largest of all tasks of that kind."""
        merged: dict[str, dict[str, int]] = {}
        for task in self.tasks:
            for resource, amount in task.contributes.get(pod.meta.uid, {}).items():
                of_kind = merged.setdefault(task.kind, {})
                of_kind[resource] = max(of_kind.get(resource, 0), amount)
        for kind, amounts in merged.items():
            sums = self.released.setdefault(kind, {})
            for resource, amount in amounts.items():
                sums[resource] = sums.get(resource, 0) + amount

    def _missing(self, task: EvictionTask) -> dict[str, int]:
        done = self.released.get(task.kind, {})
        return {name: rest for name, amount in task.release.items() if (rest := amount - done.get(name, 0)) > 0}

    def _helps(self, pod: PodView, task: EvictionTask) -> bool:
        """Whether the pod releases anything that is still missing."""
        contribution = task.contributes.get(pod.meta.uid, {})
        return any(contribution.get(resource, 0) > 0 for resource in self._missing(task))


def request(pod: PodView, resource: str) -> tuple[str, int]:
    """Resource name and amount that a pod requests for `resource` (cpu or memory): batch and mid pods under their
    class's names, others natively; milli-cores or bytes."""
    spec = pod.meta.pod
    name = CLASS_RESOURCES.get(pod.meta.priority_class, {}).get(resource, resource)
    return name, 0 if spec is None else sum_requests(spec, name)


def sum_requests(pod: Pod, name: str) -> int:
    """Requests of containers and sidecars: milli-cores for native cpu, otherwise whole units. Negative and absent ones
    count as 0."""
    total = 0
    for container in [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.is_sidecar)]:
        amount = container.resources.requests.get(name)
        if amount is not None:
            total += max(amount.milli_value() if name == CPU else amount.value(), 0)
    return total


def evictable(pod: PodView, feature: str, threshold: int) -> bool:
    """Whether priority-based eviction may evict the pod: active, allowed, enabled, and its priority at most
    `threshold`."""
    spec = pod.meta.pod
    return (
        spec is not None
        and pod.active
        and priority.priority_value(spec) <= threshold
        and controls.eviction_enabled(spec.metadata.labels)
        and controls.eviction_allowed(spec.metadata.annotations, feature)
    )


def best_effort_victim(pod: PodView) -> bool:
    """Whether best-effort eviction may evict the pod. No annotation exempts a pod: see `prefers_to_stay`."""
    return pod.meta.pod is not None and pod.active and pod.raw_qos == "BE"


def prefers_to_stay(pod: PodView, feature: str) -> bool:
    """Whether the pod's `eviction-policy` does not list the feature. Eviction of best-effort pods for lack of CPU or
    memory takes such pods last; other evictions leave them out."""
    return pod.meta.pod is not None and not controls.eviction_allowed(pod.meta.pod.metadata.annotations, feature)


def by_priority(pod: PodView) -> tuple[int, int, int]:
    """Sort key: eviction-priority annotation, priority value, priority label, each ascending."""
    spec = pod.meta.pod
    if spec is None:
        return 0, 0, 0
    try:
        own = controls.eviction_priority(spec.metadata.annotations)
    except WireError:
        own = 0
    value = priority.priority_value(spec)
    labels = spec.metadata.labels
    try:
        return own, value, priority.sub_priority(labels) if labels.get(LABEL_PRIORITY) else value
    except priority.PriorityError:
        return own, value, value
