"""Which pods count where: bound ones as the API server tells, assumed ones as this process decided (spec 05 §3.2).

A pod is unknown, then *assumed* (placed here, binding under way), then *bound*. Assumed pods don't expire: a binding
either succeeds and the watch confirms it, or fails and the pod is forgotten.
"""

from __future__ import annotations

from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class CacheError(Exception):
    """A step that the pod's state does not allow."""


class Cache:
    """The pods that are counted in `table`, by uid."""

    def __init__(self, table: NodeTable, shapes: Shapes) -> None:
        self.table, self.shapes = table, shapes
        self.pods: dict[str, PodInfo] = {}
        self.assumed: set[str] = set()

    def assume(self, pod: PodInfo, node: str) -> None:
        """Count a pod on the node that was chosen for it."""
        if pod.uid in self.pods:
            raise CacheError(f"pod {pod.key} is in the cache, so can't be assumed")
        self.table.add_pod(pod, node)
        self.pods[pod.uid] = pod
        self.assumed.add(pod.uid)
        pod.assumed = True

    def forget(self, pod: PodInfo) -> None:
        """Take an assumption back."""
        if pod.uid not in self.assumed:
            raise CacheError(f"pod {pod.key} is not assumed, so can't be forgotten")
        self.assumed.remove(pod.uid)
        del self.pods[pod.uid]
        self.table.remove_pod(pod)
        pod.assumed = False

    def set_pod(self, pod: Pod) -> PodInfo | None:
        """Take over what the API server says of a pod that has a node. None: it ended and counts no longer.

        Confirms an assumption; a pod that was bound elsewhere than assumed moves to where it really is.
        """
        meta, node = pod.metadata, pod.spec.node_name
        known = self.pods.get(meta.uid)
        if is_terminated(pod):
            self.remove_pod(meta.uid)
            return None
        if known is None:
            info = self.shapes.info(pod)
            self.table.add_pod(info, node)
            self.pods[meta.uid] = info
            return info
        if known.assumed:
            self.assumed.discard(meta.uid)
            known.assumed = False
        where = self.table.names[known.row]
        if where != node:
            log.warning("Pod was bound to another node than assumed", pod=known.key, assumed=where, node=node)
        old = known.pod
        same = (
            where == node
            and old.metadata.labels == meta.labels
            and old.metadata.annotations == meta.annotations
            and known.terminating == (meta.deletion_timestamp is not None)
            and _same_spec(old, pod)
        )
        if same:
            _take(known, pod)
            return known
        self.table.remove_pod(known)
        fresh = self.shapes.shape(pod)
        known.shape = fresh
        _take(known, pod)
        self.table.add_pod(known, node)
        return known

    def remove_pod(self, uid: str) -> PodInfo | None:
        """The pod is gone, bound or assumed. Returns what was known of it."""
        known = self.pods.pop(uid, None)
        if known is not None:
            self.assumed.discard(uid)
            known.assumed = False
            self.table.remove_pod(known)
        return known


def _same_spec(old: Pod, new: Pod) -> bool:
    """Whether nothing changed that a shape is made of; binding alone sets the node's name."""
    a, b = old.spec, new.spec
    return (
        a.containers == b.containers
        and a.init_containers == b.init_containers
        and a.resources == b.resources
        and a.tolerations == b.tolerations
        and a.priority == b.priority
    )


def _take(info: PodInfo, pod: Pod) -> None:
    info.pod = pod
    info.version = pod.metadata.resource_version
    info.terminating = pod.metadata.deletion_timestamp is not None
    info.nominated = pod.status.nominated_node_name
    start = pod.status.start_time
    info.start_time = start.timestamp() if start else None
