"""The lock of a node on which a vendor's device plugin works for one pod at a time (spec 06 §3.10).

It is an annotation of the Node. The vendor's plugin removes it when the pod's devices are attached. A lock that is old,
or whose pod is gone, is taken over. The vendors' format has the pod's name only, so the UID is remembered: otherwise a
tenant would keep a lock by a new pod of the same name that waits permanently.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.status import SUCCESS, PluginStatus, error, unschedulable
from control.scheduler.state.pods import PodInfo
from koordlet.api.annotations.device import VendorLock, vendor_lock
from koordlet.api.core import Node, Pod
from koordlet.api.encoding.times import Time
from koordlet.api.encoding.wire import WireError
from koordlet.kube import Conflict, KubeError

MAX_ATTEMPTS: Final = 5
"""The kubelet and others change the Node, too."""


class NodeLocks:
    """Of one profile. Needs the rights to get and patch Nodes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._pods = None if handle.objects is None else handle.objects.informer(Pod)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By node: one pod after another."""
        self._taken: dict[str, tuple[VendorLock, str]] = {}
        """By node: the lock that this process has written last, until it is old, and the UID of its pod."""

    async def take(self, node: str, key: str, pod: PodInfo) -> PluginStatus:
        """Lock the node for the pod, with the annotation `key`."""
        client = self._handle.client
        if client is None:
            return error("no API server to lock nodes at")
        turn = self._turns.setdefault(node, asyncio.Lock())
        async with turn:
            for _ in range(MAX_ATTEMPTS):
                try:
                    live = await client.get(Node, node)
                    lock = vendor_lock(live.metadata.annotations, key)
                    if lock is not None and self._held(node, lock, pod):
                        return unschedulable(f'node "{node}" has been locked')
                    now = Time.from_unix(self._handle.clock.now())
                    mine = VendorLock(now, pod.namespace, pod.name)
                    changed = {"resourceVersion": live.metadata.resource_version, "annotations": {key: str(mine)}}
                    await client.patch(Node, node, body={"metadata": changed})
                except Conflict:
                    continue
                except (KubeError, WireError) as failure:
                    return error(f"lock of node {node}: {failure}")
                self._taken = {name: taken for name, taken in self._taken.items() if not taken[0].expired(now)}
                self._taken[node] = mine, pod.uid
                return SUCCESS
        return error(f"lock of node {node}: it changed in each of {MAX_ATTEMPTS} attempts")

    def _held(self, node: str, lock: VendorLock, pod: PodInfo) -> bool:
        """Whether another pod works with it."""
        if (lock.namespace, lock.name) == (pod.namespace, pod.name):
            return False
        if lock.expired(Time.from_unix(self._handle.clock.now())):
            return False
        if self._pods is None:
            return True
        holder = self._pods.get(f"{lock.namespace}/{lock.name}")
        written, uid = self._taken.get(node, (None, ""))
        return holder is not None and (str(written) != str(lock) or holder.metadata.uid == uid)
