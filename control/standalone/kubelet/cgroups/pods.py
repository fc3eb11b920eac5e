"""The kubelet's part of the cgroup tree: the kubepods root, the parents of the QoS classes and the pod directories.

Container directories below a pod belong to the runtime. A file records which of root and parents this kubelet
created, so that a clean-up removes nothing else. With an owner, the directories are also marked and the root is locked
(`ownermark`), so that they can be attributed after the state directory was removed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, QosClass
from control.standalone.kubelet.cgroups.ownermark import CgroupMark
from control.standalone.kubelet.cgroups.values import pod_values, qos_values, root_values
from control.standalone.kubelet.pods.spec import ParsedPod, qos_class
from control.standalone.kubelet.runtimes.launcher import write_json
from koordlet.app.logging import get_logger

log = get_logger(__name__)

REMOVE_ATTEMPTS = 500
REMOVE_PAUSE_SECONDS = 0.02


class PodCgroups:
    """`allocatable_milli` (milli-cores) and `allocatable_memory` (bytes) limit the root: capacity less reservations."""

    def __init__(
        self,
        tree: CgroupTree,
        names: CgroupNames,
        state_file: Path,
        allocatable_milli: int,
        allocatable_memory: int,
        enforce_root: bool = True,
        owner: CgroupMark | None = None,
    ) -> None:
        self.tree = tree
        self.names = names
        self._owner = owner
        self._lock: int | None = None
        self._state_file = state_file
        self._root_values = root_values(allocatable_milli, allocatable_memory)
        self._enforce_root = enforce_root

    def _parents(self) -> list[str]:
        return [self.names.root(), self.names.qos(QosClass.BURSTABLE), self.names.qos(QosClass.BESTEFFORT)]

    def setup(self) -> None:
        """Create root and QoS parents, and limit the root; idempotent."""
        created = self._created()
        prefix = self.names.prefix.strip("/")
        for path in ([prefix] if prefix else []) + self._parents():
            if not self.tree.exists(path) and path not in created:
                created.append(path)
                # Before mkdir: a recorded directory that does not exist is harmless, the opposite leaks one.
                write_json(str(self._state_file), {"made": created})
            self.tree.create(path)
            if path in created:
                self._mark(path)
        if self._owner is not None and self._lock is None:
            self._lock = ownermark.lock(self.tree, self.names.root())
        if self._enforce_root:
            self.tree.apply(self.names.root(), self._root_values)

    def _mark(self, path: str) -> None:
        if self._owner is not None and (problem := ownermark.write(self.tree, path, self._owner)) is not None:
            log.once("cgroup-mark", "Cannot mark cgroups with their owner", reason=problem)

    def _created(self) -> list[str]:
        try:
            created = json.loads(self._state_file.read_bytes()).get("made", [])
        except FileNotFoundError:
            return []
        return [str(path) for path in created]

    def update_qos(self, pods: Iterable[ParsedPod]) -> None:
        """Set the QoS parents to the sum of the requests of `pods` (all that are not finished)."""
        pods = list(pods)
        for qos in (QosClass.BURSTABLE, QosClass.BESTEFFORT):
            self.tree.apply(self.names.qos(qos), qos_values(qos, pods))

    def pod_dir(self, pod: ParsedPod) -> str:
        return self.names.pod(qos_class(pod), pod.uid)

    def ensure_pod(self, pod: ParsedPod) -> str:
        """Create a pod's directory. Its values are written until the first container is in it and never again,
        because koordlet may have changed them since."""
        path = self.pod_dir(pod)
        if not self.tree.exists(path) or not self.tree.children(path):
            self.tree.create(path)
            self._mark(path)
            self.tree.apply(path, pod_values(pod))
        return path

    async def remove_pod(self, path: str) -> bool:
        """Kill all processes in a pod's directory and remove it; False when it could not be removed."""
        for _ in range(REMOVE_ATTEMPTS):
            self.tree.kill(path)
            if self.tree.remove(path):
                return True
            await asyncio.sleep(REMOVE_PAUSE_SECONDS)
        log.error("Cannot remove a pod's cgroup", cgroup=path, pids=sorted(self.tree.pids(path)))
        return False

    def teardown(self) -> list[str]:
        """Remove the root and parents that this kubelet created, if they are empty. Returns those that remain."""
        remaining = [path for path in reversed(self._created()) if not self._remove_empty(path)]
        if not remaining:
            self._state_file.unlink(missing_ok=True)
        return remaining

    def _remove_empty(self, path: str) -> bool:
        if self.tree.children(path) or self.tree.pids(path):
            return False
        return self.tree.remove(path)
