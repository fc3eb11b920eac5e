"""The kubelet's own part of the cgroup tree: the kubepods root, the QoS parents and the pod directories.

Container directories below a pod belong to the runtime. Which of root and parents did not exist before is
remembered in a file, so that cleaning up removes nothing that somebody else made. With an owner the directories are
marked, too (`ownermark`), for those who come after a kubelet whose state directory is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, QosClass
from control.standalone.kubelet.cgroups.ownermark import CgroupOwner
from control.standalone.kubelet.cgroups.values import pod_values, qos_values, root_values
from control.standalone.kubelet.pods.spec import ParsedPod, qos_class
from control.standalone.kubelet.runtimes.launcher import write_json
from koordlet.app.logging import get_logger

log = get_logger(__name__)

REMOVE_ROUNDS = 500
REMOVE_PAUSE = 0.02


class PodCgroups:
    """`allocatable_milli` and `allocatable_memory` (bytes) size the root, reserved parts already taken off."""

    def __init__(
        self,
        tree: CgroupTree,
        names: CgroupNames,
        state_file: Path,
        allocatable_milli: int,
        allocatable_memory: int,
        enforce_root: bool = True,
        owner: CgroupOwner | None = None,
    ) -> None:
        self.tree = tree
        self.names = names
        self._owner = owner
        self._state_file = state_file
        self._root_values = root_values(allocatable_milli, allocatable_memory)
        self._enforce_root = enforce_root

    def _parents(self) -> list[str]:
        return [self.names.root(), self.names.qos(QosClass.BURSTABLE), self.names.qos(QosClass.BESTEFFORT)]

    def setup(self) -> None:
        """Make root and QoS parents, and limit the root; safe to repeat."""
        made = self._made()
        prefix = self.names.prefix.strip("/")
        for path in ([prefix] if prefix else []) + self._parents():
            if not self.tree.exists(path) and path not in made:
                made.append(path)
                write_json(str(self._state_file), {"made": made})  # before mkdir: rather too many than forgotten
            self.tree.create(path)
            if path in made:
                self._mark(path)
        if self._enforce_root:
            self.tree.apply(self.names.root(), self._root_values)

    def _mark(self, path: str) -> None:
        if self._owner is not None and (problem := ownermark.write(self.tree, path, self._owner)) is not None:
            log.once("cgroup-mark", "cgroups can't be marked: nobody can tell later whose they were", reason=problem)

    def _made(self) -> list[str]:
        try:
            made = json.loads(self._state_file.read_bytes()).get("made", [])
        except FileNotFoundError:
            return []
        return [str(path) for path in made]

    def update_qos(self, pods: Iterable[ParsedPod]) -> None:
        """Set the QoS parents to what `pods` (all that are not over) request together."""
        pods = list(pods)
        for qos in (QosClass.BURSTABLE, QosClass.BESTEFFORT):
            self.tree.apply(self.names.qos(qos), qos_values(qos, pods))

    def pod_dir(self, pod: ParsedPod) -> str:
        return self.names.pod(qos_class(pod), pod.uid)

    def ensure_pod(self, pod: ParsedPod) -> str:
        """Make a pod's directory. Its values are written until the first container is in it and never again:
        from then on koordlet may have set them otherwise."""
        path = self.pod_dir(pod)
        if not self.tree.exists(path) or not self.tree.children(path):
            self.tree.create(path)
            self._mark(path)
            self.tree.apply(path, pod_values(pod))
        return path

    async def remove_pod(self, path: str) -> bool:
        """Kill what is left in a pod's directory and remove it; False when it would not go."""
        for _ in range(REMOVE_ROUNDS):
            self.tree.kill(path)
            if self.tree.remove(path):
                return True
            await asyncio.sleep(REMOVE_PAUSE)
        log.error("a pod's cgroup stays behind", cgroup=path, pids=sorted(self.tree.pids(path)))
        return False

    def teardown(self) -> list[str]:
        """Remove root and parents that this kubelet made and that are empty now; the ones that stay."""
        left = [path for path in reversed(self._made()) if not self._remove_empty(path)]
        if not left:
            self._state_file.unlink(missing_ok=True)
        return left

    def _remove_empty(self, path: str) -> bool:
        if self.tree.children(path) or self.tree.pids(path):
            return False
        return self.tree.remove(path)
