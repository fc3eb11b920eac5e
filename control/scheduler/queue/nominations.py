"""Which pods are nominated to which node: by their status, or in memory until the status follows (spec 05 §3.3-10)."""

from __future__ import annotations

from collections.abc import Iterable

from control.scheduler.pods import PodInfo


class Nominations:
    """Node -> pods. Keeps `PodInfo.nominated` in step."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        self._of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._of)

    def set(self, pod: PodInfo, node: str) -> None:
        """Nominate (mode Override); "" clears."""
        self.remove(pod.uid)
        pod.nominated = node
        if node:
            self._nodes.setdefault(node, {})[pod.uid] = pod
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
            pods = self._nodes[node]
            del pods[uid]
            if not pods:
                del self._nodes[node]

    def on(self, node: str) -> Iterable[PodInfo]:
        """The pods nominated to a node; must not be kept."""
        return self._nodes.get(node, _NOBODY).values()

    def of(self, uid: str) -> str:
        """The node that a pod is nominated to, or ""."""
        return self._of.get(uid, "")

    def nodes(self) -> Iterable[str]:
        """Nodes with nominated pods."""
        return self._nodes.keys()


_NOBODY: dict[str, PodInfo] = {}
