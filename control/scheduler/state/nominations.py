"""Pods nominated to nodes: by their status, or in memory until the status is written (spec 05 §3.3-10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from control.scheduler.state.pods import PodInfo


class Nominations:
    """Node -> pods. Keeps `PodInfo.nominated` consistent."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[PodInfo]] = {}
        self._of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def set(self, pod: PodInfo, node: str) -> None:
        """Nominate the pod to a node (mode Override); "" removes the nomination."""
        self.remove(pod.uid)
        pod.nominated = node
        if node:
            self._nodes.setdefault(node, []).append(pod)
            self._of[pod.uid] = node

    def replaced(self, old: PodInfo | None, new: PodInfo) -> None:
        """Apply a new version: its status decides. If no status ever named a node, the nomination in memory stays."""
        node = new.pod.status.nominated_node_name
        if not node and (old is None or not old.pod.status.nominated_node_name):
            node = self._of.get(new.uid, "")
        self.set(new, node)

    def remove(self, uid: str) -> None:
        node = self._of.pop(uid, None)
        if node is not None:
            remaining = [pod for pod in self._nodes[node] if pod.uid != uid]
            if remaining:
                self._nodes[node] = remaining
            else:
                del self._nodes[node]

    def restore(self, pod: PodInfo) -> None:
        """The pod lost the node that it held: restore its previous nomination."""
        self.set(pod, self._of.get(pod.uid) or pod.pod.status.nominated_node_name)

    def on(self, node: str) -> Iterable[PodInfo]:
        """The pods nominated to a node."""
        return self._nodes.get(node, ())

    def nodes(self) -> Collection[str]:
        """Nodes that have nominated pods. Called in every cycle and usually empty, so it must be cheap."""
        return self._nodes.keys()
