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
from control.scheduler.state.pods import POD, PodInfo
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
        self._followed: list[_Followed] = []
        self.follow(Pod, lambda pod: pod, POD)
        objects.informer(Node).add_handler(self._node_set, self._node_changed, self._node_removed)

    def follow(self, kind: type[Any], as_pod: Callable[[Any], Pod], subject: str) -> None:
        """Handle the objects of a kind like pods: `as_pod` shows an object as the pod that is scheduled for it.

        Call it before `route`, in the constructor of the plugin that schedules them. Only the first call for a kind
        has an effect, because all profiles share the cache and the queue."""
        if any(known.kind is kind for known in self._followed):
            return
        followed = _Followed(self, kind, as_pod, subject)
        self._followed.append(followed)
        self._objects.informer(kind).add_handler(followed.count, followed.recount, followed.uncount)

    def route(
        self, queue: SchedulingQueue, frameworks: Mapping[str, Framework], reject: Callable[[str], object]
    ) -> None:
        """Forward events to the queue from now on. All informers must exist.

        `reject(uid)` ends the wait at Permit of a deleted pod."""
        self._queue = queue
        self._frameworks = frameworks
        self._reject = reject
        for followed in self._followed:
            self._objects.informer(followed.kind).add_handler(followed.add, followed.update, followed.delete)
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

    def _add(self, pod: Pod, subject: str) -> None:
        begun = perf_counter()
        self._routed().add(self._cache.shapes.info(pod, subject))
        self._handled(("UnscheduledPodAdd",), perf_counter() - begun)

    def _routed(self) -> SchedulingQueue:
        if self._queue is None:
            raise RuntimeError("an event arrived before `route` was called")
        return self._queue

    # First handlers: the cache

    def _pod_counted(self, pod: Pod, subject: str) -> None:
        self._before = self._cache.pods.get(pod.metadata.uid)
        if pod.spec.node_name:
            self._cache.set_pod(pod, subject)

    def _pod_recounted(self, new: Pod, subject: str) -> None:
        known = self._cache.pods.get(new.metadata.uid)
        self._before = None
        if known is not None:
            self._before = PodInfo(known.pod, known.shape, subject)
        if new.spec.node_name:
            self._cache.set_pod(new, subject)
        elif known is not None and not known.assumed:  # never a pod: its node is final
            self._cache.remove_pod(new.metadata.uid)

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

    def _pod_added(self, pod: Pod, subject: str) -> None:
        if is_terminated(pod):
            return
        if pod.spec.node_name:
            self._assigned(pod, self._before)
        elif pod.spec.scheduler_name in self._frameworks and pod.metadata.uid not in self._cache.assumed:
            self._add(pod, subject)

    def _pod_updated(self, old: Pod, new: Pod, subject: str) -> None:
        queue, uid = self._routed(), new.metadata.uid
        if is_terminated(new):
            self._gone(new, self._before, subject)
        elif new.spec.node_name:
            self._assigned(new, self._before if old.spec.node_name else None)
        elif new.spec.scheduler_name not in self._frameworks:
            record = queue.record(uid)
            if record is not None:
                queue.delete(record.pod)
        elif uid not in self._cache.assumed:
            record = queue.record(uid)
            known = record.pod if record is not None else None
            queue.update(known, self._info(known, old, new, subject))
            if old.spec.node_name and self._before is not None:
                self._move(POD_DELETE, self._before, None)
            nominated = old.status.nominated_node_name
            if nominated and nominated != new.status.nominated_node_name:
                self._nomination_lost(old, subject)

    def _pod_deleted(self, pod: Pod, subject: str) -> None:
        self._gone(pod, self._before, subject)

    def _info(self, known: PodInfo | None, old: Pod, new: Pod, subject: str) -> PodInfo:
        """The new version. An update of the status only keeps the shape."""
        a, b = old.metadata, new.metadata
        if known is not None and a.labels == b.labels and a.annotations == b.annotations and old.spec == new.spec:
            return PodInfo(new, known.shape, subject)
        return self._cache.shapes.info(new, subject)

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

    def _gone(self, pod: Pod, before: PodInfo | None, subject: str) -> None:
        queue, uid = self._routed(), pod.metadata.uid
        record = queue.record(uid)
        if record is not None:
            queue.delete(record.pod)
        self._reject(uid)
        if before is not None or pod.spec.node_name:
            self._move(POD_DELETE, before or self._cache.shapes.info(pod, subject), None)
        elif record is not None and pod.status.nominated_node_name:
            self._nomination_lost(pod, subject)

    def _nomination_lost(self, pod: Pod, subject: str) -> None:
        """Pods of the same or a lower priority left room for the nominated pod: for them it was like an assigned
        one."""
        spec = replace(pod.spec, node_name=pod.status.nominated_node_name)
        lost = self._cache.shapes.info(replace(pod, spec=spec), subject)
        self._move(POD_DELETE, lost, None, lambda other: other.priority <= lost.priority)

    def foreign_nomination_lost(self, pod: PodInfo) -> None:
        """The same for a pod that another scheduler nominated."""
        self._nomination_lost(pod.pod, pod.subject)

    # Last handlers: the queue, nodes

    def _node_added(self, node: Node) -> None:
        self._move(NODE_ADD, None, node)

    def _node_updated(self, old: Node, new: Node) -> None:
        for event in self._node_events:
            self._move(event, old, new)

    def _node_deleted(self, node: Node) -> None:
        self._move(NODE_DELETE, node, None)


class _Followed:
    """The handlers of one kind of subjects: `count` to `uncount` for the cache, `add` to `delete` for the queue."""

    def __init__(
        self, handlers: ClusterEventHandlers, kind: type[Any], as_pod: Callable[[Any], Pod], subject: str
    ) -> None:
        self.kind = kind
        self._handlers = handlers
        self._as_pod = as_pod
        self._subject = subject

    def count(self, new: Any) -> None:
        self._handlers._pod_counted(self._as_pod(new), self._subject)

    def recount(self, old: Any, new: Any) -> None:
        self._handlers._pod_recounted(self._as_pod(new), self._subject)

    def uncount(self, old: Any) -> None:
        self._handlers._pod_uncounted(self._as_pod(old))

    def add(self, new: Any) -> None:
        self._handlers._pod_added(self._as_pod(new), self._subject)

    def update(self, old: Any, new: Any) -> None:
        self._handlers._pod_updated(self._as_pod(old), self._as_pod(new), self._subject)

    def delete(self, old: Any) -> None:
        self._handlers._pod_deleted(self._as_pod(old), self._subject)


def _images(node: Node) -> object:
    return getattr(node.status, "images", None)
