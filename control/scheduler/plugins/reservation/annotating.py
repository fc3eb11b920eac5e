"""The annotation `reservation-allocated` outside the merged patch of a binding: removed from pods whose binding failed,
written to running pods that a reservation takes over (spec 06 §4.7, §4.9)."""

from __future__ import annotations

import asyncio

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.status import SUCCESS, PluginStatus, error
from control.scheduler.state.pods import PodInfo
from koordlet.api.annotations.reservation import ALLOCATED, ReservationAllocated, without_allocated
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube import Conflict, KubeError, NotFound, PatchKind

log = get_logger(__name__)


class AllocatedWriter:
    """Removes in background tasks. A pod that keeps the annotation harms nothing: the next binding replaces it, and a
    reservation that takes over pods may take one with its own annotation."""

    def __init__(self, handle: Handle) -> None:
        self._client = handle.client
        self._pods = None if handle.objects is None else handle.objects.informer(Pod)
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, pod: PodInfo, name: str, uid: str) -> PluginStatus:
        """Name the reservation in a running pod, unless it is gone or another reservation's."""
        live = None if self._pods is None else self._pods.get(pod.key)
        if self._client is None or live is None or live.metadata.uid != pod.uid:
            return error(f"pod {pod.key} to be taken over is gone")
        meta = live.metadata
        try:
            named = ALLOCATED.get(meta.annotations)
            if named is not None and named.uid not in ("", uid):
                return error(f"pod {pod.key} to be taken over uses reservation {named.name}")
            text = ALLOCATED.text(ReservationAllocated(name=name, uid=uid))
            body = {
                "metadata": {
                    "uid": pod.uid,
                    "resourceVersion": meta.resource_version,
                    "annotations": {ALLOCATED.key: text},
                }
            }
            await self._client.patch(Pod, pod.name, pod.namespace, body=body, kind=PatchKind.MERGE)
        except (KubeError, WireError) as failure:
            return error(f"pod {pod.key} to be taken over: {failure}")
        return SUCCESS

    def remove(self, pod: PodInfo, uid: str, *, bound: bool = False) -> None:
        """Remove the annotation, unless it names another reservation than `uid`, or the pod is bound and `bound` is not
        set."""
        if self._client is not None:
            task = asyncio.create_task(self._remove(pod, uid, bound), name=f"unallocate:{pod.key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = [*self._tasks]
        await end_tasks(*tasks)

    async def _remove(self, pod: PodInfo, uid: str, bound: bool) -> None:
        live = None if self._pods is None else self._pods.get(pod.key)
        if self._client is None or live is None or live.metadata.uid != pod.uid:
            return
        if live.spec.node_name and not bound:
            return
        try:
            if without_allocated(live.metadata.annotations, uid) is None:
                return
            version = live.metadata.resource_version
            body = {"metadata": {"uid": pod.uid, "resourceVersion": version, "annotations": {ALLOCATED.key: None}}}
            await self._client.patch(Pod, pod.name, pod.namespace, body=body, kind=PatchKind.MERGE)
        except (Conflict, NotFound):  # it changed, perhaps it is bound now, or it is gone
            return
        except (KubeError, WireError) as failure:
            log.warning("Failed to remove the reservation of a pod that was not bound", pod=pod.key, err=failure)
