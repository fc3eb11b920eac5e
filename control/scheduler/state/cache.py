"""The pods that are counted on nodes: bound pods of the API server, assumed pods of this process (spec 05 §3.2).

A pod is unknown, then *assumed* (placed here, binding in progress), then *bound*. Assumed pods do not expire: a binding
either succeeds and the watch confirms it, or fails and the pod is forgotten.
"""

from __future__ import annotations

from control.scheduler.state.pods import POD, PodInfo, Shapes
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class CacheError(Exception):
    """The state of the pod does not allow the step."""


class Cache:
    """The pods that are counted in `table`, by uid."""

    def __init__(self, table: NodeTable, shapes: Shapes) -> None:
        self.table = table
        self.shapes = shapes
        self.pods: dict[str, PodInfo] = {}
        self.assumed: set[str] = set()

    def assume(self, pod: PodInfo, node: str) -> None:
        """Count a pod on the node that was chosen for it. Raises CacheError."""
        if pod.uid in self.pods:
            raise CacheError(f"pod {pod.key} is in the cache, so can't be assumed")
        pod.assumed = True  # before the listeners of the table are called with the pod
        try:
            self.table.add_pod(pod, node)
        except ValueError as failure:
            pod.assumed = False
            raise CacheError(str(failure)) from failure
        self.pods[pod.uid] = pod
        self.assumed.add(pod.uid)

    def forget(self, pod: PodInfo) -> None:
        """Stop counting an assumed pod. Raises CacheError."""
        if pod.uid not in self.assumed:
            raise CacheError(f"pod {pod.key} is not assumed, so can't be forgotten")
        self.assumed.remove(pod.uid)
        del self.pods[pod.uid]
        self.table.remove_pod(pod)
        pod.assumed = False

    def set_pod(self, pod: Pod, subject: str = POD) -> PodInfo | None:
        """Apply the API server's version of a pod that has a node. None: it has terminated and is not counted.

        Confirms an assumed pod. A pod that was bound to another node than assumed is moved there.
        """
        meta, node = pod.metadata, pod.spec.node_name
        known = self.pods.get(meta.uid)
        if is_terminated(pod):
            self.remove_pod(meta.uid)
            return None
        if known is None:
            info = self.shapes.info(pod, subject)
            self.table.add_pod(info, node)
            self.pods[meta.uid] = info
            return info
        if known.assumed:
            self.assumed.discard(meta.uid)
            known.assumed = False
        counted_on = self.table.names[known.row]
        if counted_on != node:
            log.warning("Pod was bound to another node than assumed", pod=known.key, assumed=counted_on, node=node)
        old = known.pod
        unchanged = (
            counted_on == node
            and old.metadata.labels == meta.labels
            and old.metadata.annotations == meta.annotations
            and known.terminating == (meta.deletion_timestamp is not None)
            and _same_spec(old, pod)
        )
        if unchanged:
            _update(known, pod)
            return known
        self.table.remove_pod(known)
        known.shape = self.shapes.shape(pod)
        _update(known, pod)
        self.table.add_pod(known, node)
        return known

    def remove_pod(self, uid: str) -> PodInfo | None:
        """A bound or assumed pod was deleted. Returns its last known version."""
        known = self.pods.pop(uid, None)
        if known is not None:
            self.assumed.discard(uid)
            known.assumed = False
            self.table.remove_pod(known)
        return known


def _same_spec(old: Pod, new: Pod) -> bool:
    """Whether the parts of the spec that determine the shape are equal. Binding changes only the node name."""
    a, b = old.spec, new.spec
    return (
        a.containers == b.containers
        and a.init_containers == b.init_containers
        and a.resources == b.resources
        and a.tolerations == b.tolerations
        and a.priority == b.priority
    )


def _update(info: PodInfo, pod: Pod) -> None:
    info.pod = pod
    info.version = pod.metadata.resource_version
    info.terminating = pod.metadata.deletion_timestamp is not None
    info.nominated = pod.status.nominated_node_name
    start = pod.status.start_time
    info.start_time = start.timestamp() if start else None
