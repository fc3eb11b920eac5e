"""Which pods are nominated to which node: by their status, or in memory until the status follows (spec 05 §3.3-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from control.scheduler.state.pods import PodInfo


class Nominations:
    """Node -> pods. Keeps `PodInfo.nominated` in step."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[PodInfo]] = {}
        self._of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def set(self, pod: PodInfo, node: str) -> None:
        """Nominate (mode Override); "" clears."""
        self.remove(pod.uid)
        pod.nominated = node
        if node:
            self._nodes.setdefault(node, []).append(pod)
            self._of[pod.uid] = node

    def keep(self, pod: PodInfo) -> None:
        """Nominate as the pod's status says (mode Noop)."""
        self.set(pod, pod.pod.status.nominated_node_name)

    def replaced(self, old: PodInfo | None, new: PodInfo) -> None:
        """A new version: its status decides, but one that never named a node leaves what is in memory."""
        said = new.pod.status.nominated_node_name
        if not said and (old is None or not old.pod.status.nominated_node_name):
            said = self._of.get(new.uid, "")
        self.set(new, said)

    def remove(self, uid: str) -> None:
        node = self._of.pop(uid, None)
        if node is not None:
            left = [pod for pod in self._nodes[node] if pod.uid != uid]
            if left:
                self._nodes[node] = left
            else:
                del self._nodes[node]

    def of(self, uid: str) -> str:
        """The node that a pod is nominated to, or ""."""
        return self._of.get(uid, "")

    def by_node(self) -> Mapping[str, Sequence[PodInfo]]:
        """Nodes that pods are nominated to, and the pods. Live."""
        return self._nodes
