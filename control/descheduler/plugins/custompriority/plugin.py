"""The plugin: which pods leave which nodes, one by one or whole nodes at a time (spec 07 §7.1 to §7.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control.descheduler.framework.plugin import BalancePlugin
from control.descheduler.plugins.custompriority.args import DRAIN_NODE, CustomPriorityArgs, EvictionClass
from control.descheduler.plugins.custompriority.targets import TargetNodes, requested_on
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.core import Node
from koordlet.app.logging import get_logger
from koordlet.app.loopslice import yield_to_loop
from koordlet.kube import KubeError

log = get_logger(__name__)

MAX_MISSES: Final = 5
"""A node is left after this many pods in a row that fit no target."""
ClassMembers = tuple[EvictionClass, list[NodeRecord]]


class CustomPriority(BalancePlugin):
    """See the package's text."""

    name = "CustomPriority"
    args_type = CustomPriorityArgs
    _args: CustomPriorityArgs

    async def balance(self, nodes: Sequence[NodeRecord]) -> None:
        args = self._args
        if args.paused:
            return
        classes = self._classes(args.selected(nodes))
        for index, (source, members) in enumerate(classes[:-1]):
            later = [(node, eviction_class) for eviction_class, targets in classes[index + 1 :] for node in targets]
            targets = TargetNodes(later, node_fit=args.node_fit)
            for node in members:
                if _kept(node, source):
                    continue
                await yield_to_loop()
                if args.mode == DRAIN_NODE:
                    await self._drain(node, source, targets)
                else:
                    await self._relieve(node, source, targets)

    def _classes(self, nodes: Sequence[NodeRecord]) -> list[ClassMembers]:
        """The classes that have nodes, in the order of eviction. A node belongs to the first class that selects it."""
        members: list[ClassMembers] = [(eviction_class, []) for eviction_class in self._args.eviction_order]
        for node in nodes:
            for eviction_class, chosen in members:
                if eviction_class.node_selector is not None and eviction_class.node_selector.matches(node.labels):
                    chosen.append(node)
                    break
        return [(eviction_class, chosen) for eviction_class, chosen in members if chosen]

    def _pods(self, node: NodeRecord) -> list[PodRecord]:
        """The pods that may go, smallest first. Requests are those of the regular containers."""
        args, evictor = self._args, self._handle.evictor
        pods = [pod for pod in node.active_pods() if args.considers(pod) and evictor.filter(pod) is None]
        return sorted(pods, key=lambda pod: (*_container_requests(pod), pod.namespace, pod.name))

    async def _relieve(self, node: NodeRecord, source: EvictionClass, targets: TargetNodes) -> None:
        """BestEffort: evict what fits elsewhere."""
        chosen: list[PodRecord] = []
        misses = 0
        for pod in self._pods(node):
            if self._args.node_fit and not targets.fits_any(pod):
                misses += 1
                if misses == MAX_MISSES:
                    break
                continue
            misses = 0
            chosen.append(pod)
        for pod in chosen:
            await self._evict(pod, f"evicting from {source.name} priority resource to lower priority resource")

    async def _drain(self, node: NodeRecord, source: EvictionClass, targets: TargetNodes) -> None:
        """DrainNode: evict all pods if all of them find room, else none. A node without such pods is left alone.

        The first refused eviction ends the pass for the node, for example at a limit. A drain that has evicted a pod
        is then in progress: the node stays cordoned, so that it gets no new pods until a later pass continues.
        """
        pods = self._pods(node)
        remaining = targets.remaining.copy()
        if not pods or not all(targets.place(pod, remaining) for pod in pods):
            return
        cordon = self._args.auto_cordon and not self._args.dry_run and not self._handle.dry_run
        cordoned = cordon and not node.unschedulable and await self._cordon(node.name, True)
        targets.remaining = remaining
        for leaving, pod in enumerate(pods):
            if not await self._evict(pod, f"drain node {node.name} (sourcePriority={source.name})"):
                if cordoned and leaving == 0:
                    await self._cordon(node.name, False)
                log.info("A drain waits", node=node.name, evicted=leaving, remaining=len(pods) - leaving)
                return

    async def _evict(self, pod: PodRecord, reason: str) -> bool:
        return await self._handle.evictor.evict(pod, reason, dry_run=self._args.dry_run)

    async def _cordon(self, node: str, unschedulable: bool) -> bool:
        """Set or reset `spec.unschedulable`; a failure is only logged."""
        try:
            await self._handle.client.patch(Node, node, body={"spec": {"unschedulable": unschedulable or None}})
        except KubeError as error:
            log.warning("Cannot change whether the node is schedulable", node=node, cordon=unschedulable, err=error)
            return False
        return True


def _kept(node: NodeRecord, source: EvictionClass) -> bool:
    """Whether the node keeps its pods: it is below the class's threshold in every listed resource."""
    return bool(source.keep_threshold) and all(
        requested_on(node, name) < percent * 0.01 * node.allocatable.get(name, 0)
        for name, percent in source.keep_threshold.items()
    )


def _container_requests(pod: PodRecord) -> tuple[int, int]:
    """(milli-cores, bytes) of the regular containers."""
    containers = [container.resources.requests for container in pod.pod.spec.containers]
    cpu = sum(requests["cpu"].milli_value() for requests in containers if "cpu" in requests)
    return cpu, sum(requests["memory"].value() for requests in containers if "memory" in requests)
