"""Tasks of eviction and the one way to work them off: a victim counts for every task it helps (spec 03 §3.1). Pure.

`Task` says what must be released and who may go, in order. `Progress` is asked for the next victim and told what
became of it; the caller does the evicting. A pod goes once, whoever wants it.
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
OF_CLASS = {
    priority.BATCH: {CPU: RESOURCE_BATCH_CPU, MEMORY: RESOURCE_BATCH_MEMORY},
    priority.MID: {CPU: RESOURCE_MID_CPU, MEMORY: RESOURCE_MID_MEMORY},
}
"""Names under which batch and mid pods ask for resources; others ask for native ones."""


@dataclass(frozen=True, slots=True)
class Task:
    """`release`: resource -> amount to get back, milli-cores or bytes. `victims` in the order in which they go, each
    one once. `contributes`: what any pod of the node gives, uid -> resource -> amount."""

    feature: str
    kind: str
    release: Amounts
    victims: tuple[PodView, ...]
    contributes: Mapping[str, Amounts]

    @property
    def reason(self) -> str:
        """As the original words it."""
        return f"trigger by koordlet feature {self.feature}"


@dataclass
class Progress:
    """One round over `tasks`. `gone`: uids of pods evicted earlier that are still there; they count as released."""

    tasks: Sequence[Task]
    gone: Collection[str] = ()
    released: dict[str, dict[str, int]] = field(default_factory=dict)
    """Kind -> resource -> amount."""
    _taken: set[str] = field(default_factory=set)

    def victims(self) -> Iterator[tuple[PodView, Task]]:
        """Who goes next, and for which task. Say `succeeded` before asking on; a pod that could not go counts for
        nothing and is not asked again."""
        for task in self.tasks:
            for pod in task.victims:
                if self._enough(task):
                    break
                uid = pod.meta.uid
                if uid in self._taken or not self._helps(pod, task):
                    continue
                self._taken.add(uid)
                if uid in self.gone:
                    self.succeeded(pod)
                else:
                    yield pod, task

    def succeeded(self, pod: PodView) -> None:
        """The pod goes: what it contributes counts for every kind, merged by the largest over tasks."""
        merged: dict[str, dict[str, int]] = {}
        for task in self.tasks:
            for resource, amount in task.contributes.get(pod.meta.uid, {}).items():
                of_kind = merged.setdefault(task.kind, {})
                of_kind[resource] = max(of_kind.get(resource, 0), amount)
        for kind, amounts in merged.items():
            sums = self.released.setdefault(kind, {})
            for resource, amount in amounts.items():
                sums[resource] = sums.get(resource, 0) + amount

    def _missing(self, task: Task) -> dict[str, int]:
        done = self.released.get(task.kind, {})
        return {name: rest for name, amount in task.release.items() if (rest := amount - done.get(name, 0)) > 0}

    def _enough(self, task: Task) -> bool:
        return not self._missing(task)

    def _helps(self, pod: PodView, task: Task) -> bool:
        """A pod that gives nothing of what is missing is left alone."""
        gives = task.contributes.get(pod.meta.uid, {})
        return any(gives.get(resource, 0) > 0 for resource in self._missing(task))


def request(pod: PodView, resource: str) -> tuple[str, int]:
    """Name and amount of what a pod asks for in `resource` (cpu or memory): batch and mid pods under those names,
    others natively; milli-cores or bytes."""
    found = pod.meta.pod
    name = OF_CLASS.get(pod.meta.priority_class, {}).get(resource, resource)
    return name, 0 if found is None else sum_requests(found, name)


def sum_requests(pod: Pod, name: str) -> int:
    """Requests of containers and sidecars; milli for native cpu, whole units else. Negative and absent ones count 0."""
    total = 0
    for container in [*pod.spec.containers, *(c for c in pod.spec.init_containers if c.is_sidecar)]:
        amount = container.resources.requests.get(name)
        if amount is not None:
            total += max(amount.milli_value() if name == CPU else amount.value(), 0)
    return total


def evictable(pod: PodView, feature: str, threshold: int) -> bool:
    """Whether priority-based eviction may take the pod: active, allowed, enabled, and of no higher priority."""
    found = pod.meta.pod
    return (
        found is not None
        and pod.active
        and priority.priority_value(found) <= threshold
        and controls.eviction_enabled(found.metadata.labels)
        and controls.eviction_allowed(found.metadata.annotations, feature)
    )


def best_effort_victim(pod: PodView, feature: str) -> bool:
    """Whether a BE eviction may take the pod."""
    found = pod.meta.pod
    return (
        found is not None
        and pod.active
        and pod.raw_qos == "BE"
        and controls.eviction_allowed(found.metadata.annotations, feature)
    )


def by_priority(pod: PodView) -> tuple[int, int, int]:
    """Who goes first: eviction-priority annotation, priority value, priority label, each ascending."""
    found = pod.meta.pod
    if found is None:
        return 0, 0, 0
    try:
        own = controls.eviction_priority(found.metadata.annotations)
    except WireError:
        own = 0
    value = priority.priority_value(found)
    labels = found.metadata.labels
    try:
        return own, value, priority.sub_priority(labels) if labels.get(LABEL_PRIORITY) else value
    except priority.PriorityError:
        return own, value, value
