"""Forwards events of the API server to cache and queue (spec 05 §3.7).

Each informer has two handlers. The constructor registers the first, before the plugins are created, so that the cache
is updated before the plugins see an event. `route` registers the last, after the plugins are created, so that the queue
handles an event after cache and plugins.

Node events go to the hints of the plugins that rejected a pod. The whole node is not checked first: a pod that one
plugin rejected, on a node that another plugin rejects too, would otherwise miss the change that matters to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from control.scheduler.framework.plugin import ClusterEvent
from control.scheduler.framework.profile import Framework
from control.scheduler.queue.changes import POD_ADD, POD_DELETE, node_changes, pod_changes
from control.scheduler.queue.queue import Precheck, SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.objects import ClusterObjects
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node, Pod
from koordlet.api.core.podresources import is_terminated

NODE_ADD: Final = ClusterEvent("Node", "Add")
NODE_DELETE: Final = ClusterEvent("Node", "Delete")


class ClusterEventHandlers:
    """See the module text."""

    def __init__(
        self, objects: ClusterObjects, cache: Cache, handled: Callable[[tuple[str, ...], float], object] | None = None
    ) -> None:
        """`handled((event,), seconds)` receives how long the queue took to handle an event."""
        self._handled = handled or (lambda event, seconds: None)
        self._objects = objects
        self._cache = cache
        self._table = cache.table
        self._queue: SchedulingQueue | None = None
        self._frameworks: Mapping[str, Framework] = {}
        self._reject: Callable[[str], object] = lambda uid: None
        self._before: PodInfo | None = None
        """The pod of the present event as it was in the cache before."""
        self._node_events: list[ClusterEvent] = []
        objects.informer(Pod).add_handler(self._pod_counted, self._pod_recounted, self._pod_uncounted)
        objects.informer(Node).add_handler(self._node_set, self._node_changed, self._node_removed)

    def route(
        self, queue: SchedulingQueue, frameworks: Mapping[str, Framework], reject: Callable[[str], object]
    ) -> None:
        """Forward events to the queue from now on. All informers must exist.

        `reject(uid)` ends the wait at Permit of a deleted pod."""
        self._queue = queue
        self._frameworks = frameworks
        self._reject = reject
        self._objects.informer(Pod).add_handler(self._pod_added, self._pod_updated, self._pod_deleted)
        self._objects.informer(Node).add_handler(self._node_added, self._node_updated, self._node_deleted)
        for kind, informer in self._objects:
            if kind not in (Pod, Node):
                self._route_other(kind.__name__, informer)

    def _route_other(self, kind: str, informer: Any) -> None:
        added, updated, deleted = (ClusterEvent(kind, action) for action in ("Add", "Update", "Delete"))
        informer.add_handler(
            lambda new: self._move(added, None, new),
            lambda old, new: self._move(updated, old, new),
            lambda old: self._move(deleted, old, None),
        )

    def _move(self, event: ClusterEvent, old: Any, new: Any, precheck: Precheck | None = None) -> None:
        begun = perf_counter()
        self._routed().move(event, old, new, precheck)
        self._handled((event.resource + event.action,), perf_counter() - begun)

    def _add(self, pod: Pod) -> None:
        begun = perf_counter()
        self._routed().add(self._cache.shapes.info(pod))
        self._handled(("UnscheduledPodAdd",), perf_counter() - begun)

    def _routed(self) -> SchedulingQueue:
        if self._queue is None:
            raise RuntimeError("an event arrived before `route` was called")
        return self._queue

    # First handlers: the cache

    def _pod_counted(self, pod: Pod) -> None:
        self._before = self._cache.pods.get(pod.metadata.uid)
        if pod.spec.node_name:
            self._cache.set_pod(pod)

    def _pod_recounted(self, old: Pod, new: Pod) -> None:
        known = self._cache.pods.get(new.metadata.uid)
        self._before = None
        if known is not None:
            self._before = PodInfo(known.pod, known.shape)
        if new.spec.node_name:
            self._cache.set_pod(new)

    def _pod_uncounted(self, pod: Pod) -> None:
        self._before = self._cache.remove_pod(pod.metadata.uid)  # also an assumed pod, whose binding will fail

    def _node_set(self, node: Node) -> None:
        self._table.set_node(node)

    def _node_changed(self, old: Node, new: Node) -> None:
        self._node_events = node_changes(old, new)
        if self._node_events or _images(old) != _images(new):
            self._table.set_node(new)

    def _node_removed(self, node: Node) -> None:
        self._table.remove_node(node.metadata.name)

    # Last handlers: the queue, pods

    def _pod_added(self, pod: Pod) -> None:
        if is_terminated(pod):
            return
        if pod.spec.node_name:
            self._assigned(pod, self._before)
        elif pod.spec.scheduler_name in self._frameworks and pod.metadata.uid not in self._cache.assumed:
            self._add(pod)

    def _pod_updated(self, old: Pod, new: Pod) -> None:
        queue, uid = self._routed(), new.metadata.uid
        if is_terminated(new):
            self._gone(new, self._before)
        elif new.spec.node_name:
            self._assigned(new, self._before if old.spec.node_name else None)
        elif new.spec.scheduler_name not in self._frameworks:
            record = queue.record(uid)
            if record is not None:
                queue.delete(record.pod)
        elif uid not in self._cache.assumed:
            record = queue.record(uid)
            known = record.pod if record is not None else None
            queue.update(known, self._info(known, old, new))
            nominated = old.status.nominated_node_name
            if nominated and nominated != new.status.nominated_node_name:
                self._nomination_lost(old)

    def _pod_deleted(self, pod: Pod) -> None:
        self._gone(pod, self._before)

    def _info(self, known: PodInfo | None, old: Pod, new: Pod) -> PodInfo:
        """The new version. An update of the status only keeps the shape."""
        a, b = old.metadata, new.metadata
        if known is not None and a.labels == b.labels and a.annotations == b.annotations and old.spec == new.spec:
            return PodInfo(new, known.shape)
        return self._cache.shapes.info(new)

    def _assigned(self, pod: Pod, before: PodInfo | None) -> None:
        """A pod has a node. `before`: its previous version if it had the node already."""
        queue, uid = self._routed(), pod.metadata.uid
        record = queue.record(uid)
        if record is not None:
            queue.delete(record.pod)
        now = self._cache.pods.get(uid)
        if now is None:
            return
        if before is None:
            self._move(POD_ADD, None, now)
        else:
            for event in pod_changes(before, now, "AssignedPod"):
                self._move(event, before, now)

    def _gone(self, pod: Pod, before: PodInfo | None) -> None:
        queue, uid = self._routed(), pod.metadata.uid
        record = queue.record(uid)
        if record is not None:
            queue.delete(record.pod)
        self._reject(uid)
        if before is not None or pod.spec.node_name:
            self._move(POD_DELETE, before or self._cache.shapes.info(pod), None)
        elif record is not None and pod.status.nominated_node_name:
            self._nomination_lost(pod)

    def _nomination_lost(self, pod: Pod) -> None:
        """Pods of the same or a lower priority left room for the nominated pod: for them it was like an assigned
        one."""
        lost = self._cache.shapes.info(replace(pod, spec=replace(pod.spec, node_name=pod.status.nominated_node_name)))
        self._move(POD_DELETE, lost, None, lambda other: other.priority <= lost.priority)

    # Last handlers: the queue, nodes

    def _node_added(self, node: Node) -> None:
        self._move(NODE_ADD, None, node)

    def _node_updated(self, old: Node, new: Node) -> None:
        for event in self._node_events:
            self._move(event, old, new)

    def _node_deleted(self, node: Node) -> None:
        self._move(NODE_DELETE, node, None)


def _images(node: Node) -> object:
    return getattr(node.status, "images", None)
