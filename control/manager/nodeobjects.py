"""Cluster-scoped objects that exist once per Node under the Node's name: NodeMetric and NodeSLO (spec 04 §4, §5).

| Node | object | action |
| --- | --- | --- |
| absent | absent | none |
| absent | exists | delete |
| exists | absent | create |
| exists | exists | patch where the computed spec differs |

Subclasses compute the spec. Before an object is deleted, the Node is read from the API server, because a stale cache
must not delete the policy of an existing node.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.metrics import FAILED, SUCCEEDED
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeMetric, NodeSLO
from koordlet.app.logging import get_logger
from koordlet.app.metrics import UnsuffixedCounter
from koordlet.kube import Conflict, Informer, KubeError, NotFound, merge_diff

log = get_logger(__name__)
T = TypeVar("T", NodeMetric, NodeSLO)


class NodeObjectController(ManagerController, Generic[T]):
    """See the module docstring."""

    kind: ClassVar[type]
    annotations: ClassVar[tuple[str, ...]]
    """Annotations of the Node that the spec depends on, in addition to all of its labels."""

    def __init__(self, context: ManagerContext, count: UnsuffixedCounter) -> None:
        super().__init__(context)
        self.nodes = context.caches.informer(Node)
        self.objects: Informer[T] = context.caches.informer(self.kind)
        self._count = count

    @abstractmethod
    def desired(self, node: Node, existing: T | None) -> Mapping[str, Any] | None:
        """The fields of `spec` that this controller owns, as a JSON object; None when they cannot be computed now."""

    @abstractmethod
    def owned(self, existing: T) -> Mapping[str, Any]:
        """The current values of these fields in the object."""

    @abstractmethod
    def new(self, name: str, spec: Mapping[str, Any]) -> T:
        """A new object."""

    def watch(self) -> None:
        self.nodes.add_handler(
            on_add=lambda node: self.queue.add(node.metadata.name),
            on_update=self._node_updated,
            on_delete=lambda node: self.queue.add(node.metadata.name),
        )
        self.objects.add_handler(
            on_add=lambda obj: self.queue.add(obj.metadata.name),
            on_update=self._object_updated,
            on_delete=lambda obj: self.queue.add(obj.metadata.name),
        )
        self.context.config.subscribe(lambda *_: self._all())

    def _node_updated(self, old: Node, new: Node) -> None:
        changed = old.metadata.labels != new.metadata.labels or old.status.allocatable != new.status.allocatable
        before, after = old.metadata.annotations, new.metadata.annotations
        if changed or old is new or any(before.get(name) != after.get(name) for name in self.annotations):
            self.queue.add(new.metadata.name)

    def _object_updated(self, old: T, new: T) -> None:
        if old is new or old.metadata.generation != new.metadata.generation:  # old is new: a resync
            self.queue.add(new.metadata.name)

    def _all(self) -> None:
        for node in self.nodes.list():
            self.queue.add(node.metadata.name)

    async def reconcile(self, key: str) -> float | None:
        node, existing = self.nodes.get(key), self.objects.get(key)
        if node is None:
            if existing is not None:
                await self._delete(existing)
            return None
        spec = self.desired(node, existing)
        if spec is None:
            return None
        if existing is None:
            await self._create(key, spec)
        else:
            await self._update(existing, spec)
        return None

    async def _delete(self, existing: T) -> None:
        name = existing.metadata.name
        try:
            await self.context.client.get(Node, name)
        except NotFound:
            await self._counted(
                f"delete{self.kind.__name__}",
                self.context.client.delete(self.kind, name, uid=existing.metadata.uid, missing_ok=True),
            )
            return
        except KubeError:
            self._count.labels(FAILED, "reconcileNodeGetError").inc()
            raise
        log.info("Keeping the object because its Node exists again", kind=self.kind.__name__, node=name)

    async def _create(self, name: str, spec: Mapping[str, Any]) -> None:
        try:
            await self._counted(f"create{self.kind.__name__}", self.context.client.create(self.new(name, spec)))
        except Conflict as error:
            if not error.already_exists:
                raise
            log.debug("Object exists already, waiting for its watch event", kind=self.kind.__name__, node=name)

    async def _update(self, existing: T, spec: Mapping[str, Any]) -> None:
        patch = merge_diff(self.owned(existing), spec)
        if not patch:
            return
        name = existing.metadata.name
        # Conditional on the uid, not on the resourceVersion: koordlet updates the status of a NodeMetric frequently.
        body = {"metadata": {"uid": existing.metadata.uid}, "spec": patch}
        await self._counted(f"update{self.kind.__name__}", self.context.client.patch(self.kind, name, body=body))

    async def _counted(self, reason: str, request: Any) -> None:
        try:
            await request
        except KubeError:
            self._count.labels(FAILED, reason).inc()
            raise
        self._count.labels(SUCCEEDED, reason).inc()
