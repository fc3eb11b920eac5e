"""Pods that other schedulers nominated to nodes (spec 05 §5.5, feature gate CrossSchedulerNomination).

Pods of this scheduler leave room for those with a higher priority. Pods with equal priority are ignored, so that two
schedulers do not block each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated


class ForeignNominations:
    """Filled by the handlers of pod events that `handlers` returns; empty without them."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        """Node -> pods by uid."""
        self._of: dict[str, str] = {}
        """uid -> node."""

    def on(self, node: str, priority: int) -> list[PodInfo]:
        """The pods nominated to a node with a higher priority."""
        return [nomination for nomination in self._nodes.get(node, {}).values() if nomination.priority > priority]

    def nodes(self) -> Iterable[str]:
        """Nodes that have such pods."""
        return self._nodes.keys()

    def handlers(
        self, own: Collection[str], info: Callable[[Pod], PodInfo], lost: Callable[[PodInfo], object]
    ) -> tuple[Callable[[Pod], None], Callable[[Pod, Pod], None], Callable[[Pod], None]]:
        """For pods that are added, updated and deleted. `own`: names of this scheduler's profiles; `lost(pod)` is
        called when a nomination ended without a binding."""

        def seen(pod: Pod) -> None:
            node = pod.status.nominated_node_name
            waits = not pod.spec.node_name and not is_terminated(pod) and pod.spec.scheduler_name not in own
            before = self._remove(pod.metadata.uid)
            if node and waits:
                self._of[pod.metadata.uid] = node
                self._nodes.setdefault(node, {})[pod.metadata.uid] = info(pod)
            if before is not None and not pod.spec.node_name and self._of.get(pod.metadata.uid) != nominated(before):
                lost(before)

        def changed(old: Pod, new: Pod) -> None:
            if old.metadata.uid != new.metadata.uid:
                gone(old)
            seen(new)

        def gone(pod: Pod) -> None:
            before = self._remove(pod.metadata.uid)
            if before is not None and not pod.spec.node_name:
                lost(before)

        return seen, changed, gone

    def _remove(self, uid: str) -> PodInfo | None:
        node = self._of.pop(uid, None)
        if node is None:
            return None
        pods = self._nodes[node]
        pod = pods.pop(uid)
        if not pods:
            del self._nodes[node]
        return pod


def nominated(pod: PodInfo) -> str:
    """The node in the status of a pod."""
    return pod.pod.status.nominated_node_name
