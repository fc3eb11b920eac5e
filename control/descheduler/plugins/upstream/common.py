"""What the plugins of Kubernetes' descheduler share: common arguments, selection of pods, eviction, node fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from control.descheduler.config.selection import NamespaceRule, considered, namespace_errors
from control.descheduler.config.selectors import selector_errors
from control.descheduler.framework.plugin import DeschedulerPlugin, PluginArgs
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core.pod import ContainerStatus
from koordlet.api.meta import LabelSelector


class NamespacedArgs(PluginArgs):
    """Arguments that all of them have, except those that name namespaces differently."""

    namespaces: NamespaceRule | None = None
    label_selector: LabelSelector | None = None

    def check(self, path: str) -> list[str]:
        errors = namespace_errors(self.namespaces, f"{path}.namespaces")
        return errors + selector_errors(self.label_selector, f"{path}.labelSelector")


class UpstreamPlugin(DeschedulerPlugin):
    """Base of these plugins. Unknown arguments are ignored, as in Koordinator."""

    strict_args: ClassVar[bool] = False

    def chosen(self, pod: PodRecord) -> bool:
        """Whether namespaces and label selector of the arguments select the pod, and it may be evicted."""
        args: NamespacedArgs = self._args
        if not considered(pod, args.namespaces, []):
            return False
        if args.label_selector is not None and not args.label_selector.matches(pod.pod.metadata.labels):
            return False
        return self._handle.evictor.filter(pod) is None

    async def evict(self, pod: PodRecord, reason: str) -> bool:
        """Evict a pod that passes the last filters; False if it stays."""
        if self._handle.evictor.pre_eviction_filter(pod) is not None:
            return False
        return await self._handle.evictor.evict(pod, reason)

    def pods_of(self, node: NodeRecord) -> list[PodRecord]:
        """The chosen pods of a node that are not Succeeded or Failed."""
        return [pod for pod in node.active_pods() if self.chosen(pod)]


def by_priority(pod: PodRecord) -> tuple[int, int, float, str]:
    """Sort key: lowest priority first, then Kubernetes QoS, then oldest."""
    return (pod.order.priority, pod.order.kube_qos, pod.created, pod.key)


def statuses(pod: PodRecord, *, init: bool) -> Iterator[ContainerStatus]:
    """The statuses of its containers, with init containers on request."""
    yield from pod.pod.status.container_statuses
    if init:
        yield from pod.pod.status.init_container_statuses


def reasons_of(pod: PodRecord, *, init: bool) -> set[str]:
    """The pod's own reason, and those of its waiting and terminated containers."""
    reasons = {pod.pod.status.reason}
    for status in statuses(pod, init=init):
        if status.state.waiting is not None:
            reasons.add(status.state.waiting.reason)
        if status.state.terminated is not None:
            reasons.add(status.state.terminated.reason)
    return reasons - {""}


def has_owner_of(pod: PodRecord, kinds: Collection[str]) -> bool:
    return any(owner.kind in kinds for owner in pod.pod.metadata.owner_references)
