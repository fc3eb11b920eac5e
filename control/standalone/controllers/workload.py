"""The base class of the workload controllers: finds, creates and deletes their pods, and writes status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from control.standalone.controllers import conditions, ownership
from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself
from control.standalone.deletion import DeletionOptions
from control.standalone.kinds import POD
from control.standalone.objectmeta import parse_timestamp
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, WriteOptions

Json = dict[str, Any]

BURST = 500
"""Limit of the pods created or deleted in one pass; the next pass continues."""
WRITE = WriteOptions(field_manager="kube-controller-manager")
STATUS = WriteOptions(subresource="status", field_manager="kube-controller-manager")


class WorkloadController(EmbeddedController):
    """A controller of one kind whose objects own pods (or ReplicaSets)."""

    kind: str  # key, e.g. "apps/replicasets"
    kind_name: str
    children_kind: str = POD

    def watches(self) -> dict[str, Mapper]:
        return {self.kind: itself, self.children_kind: self._owners_of}

    def _owners_of(self, change: ObjectChange) -> list[Key]:
        child = change.object
        if ownership.controller_of(child) is not None:
            return ownership.owner_key(child, self.kind_name)
        labels = child["metadata"].get("labels")
        if not labels or change.type == "DELETED":
            return []
        namespace = child["metadata"]["namespace"]  # an orphan: any owner that selects it may adopt it
        return [
            (namespace, each["metadata"]["name"])
            for each in self.registry.store.list(self.kind, namespace)
            if ownership.children([child], each)[1] and not each["metadata"].get("deletionTimestamp")
        ]

    async def owned(self, owner: Json) -> list[Json]:
        """The owner's children (shared, read only); adopts the orphans that it selects."""
        namespace = owner["metadata"]["namespace"]
        controlled, orphans = ownership.children(self.registry.store.list(self.children_kind, namespace), owner)
        if owner["metadata"].get("deletionTimestamp"):
            return controlled
        for orphan in orphans:
            adopted = await self._adopt(owner, orphan)
            if adopted is not None:
                controlled.append(adopted)
        return controlled

    async def _adopt(self, owner: Json, orphan: Json) -> Json | None:
        def change(obj: Json) -> Json | None:
            if ownership.controller_of(obj) is not None:
                return None
            references = [*(obj["metadata"].get("ownerReferences") or ()), ownership.reference(owner)]
            obj["metadata"]["ownerReferences"] = references
            return obj

        metadata = orphan["metadata"]
        write = self.registry.modify(self.children_kind, metadata["namespace"], metadata["name"], change, SYSTEM, WRITE)
        adopted: Json | None = await ignore_missing(write)
        return adopted if adopted is not None and ownership.controlled_by(adopted, owner) else None

    async def create_pod(self, pod: Json) -> Json:
        return await self.registry.create(POD, pod["metadata"]["namespace"], pod, SYSTEM, WRITE)

    async def delete_child(self, child: Mapping[str, Any]) -> None:
        metadata = child["metadata"]
        options = DeletionOptions(propagation_policy="Background", uid=metadata["uid"])
        await ignore_missing(
            self.registry.delete(self.children_kind, metadata["namespace"], metadata["name"], SYSTEM, options)
        )

    async def set_status(self, key: Key, change: Callable[[Json], Json]) -> None:
        """`change` gets the current status and returns the new one; nothing is written if they are equal."""

        def update(obj: Json) -> Json | None:
            old = obj.get("status") or {}
            new = change(dict(old))
            return None if new == old else {**obj, "status": new}

        await ignore_missing(self.registry.modify(self.kind, *key, update, SYSTEM, STATUS))


def available(pod: Json, min_ready: int, now: float) -> float | None:
    """Seconds until the pod has been ready for `min_ready` seconds, 0 when it has; None when it isn't ready."""
    condition = conditions.find((pod.get("status") or {}).get("conditions"), "Ready")
    if condition is None or condition.get("status") != "True":
        return None
    since = condition.get("lastTransitionTime")
    if not min_ready or not since:
        return 0.0
    return max(0.0, parse_timestamp(since) + min_ready - now)


def soonest(times: list[float | None]) -> float | None:
    """The least of the positive times; None when there is none."""
    return min((each for each in times if each), default=None)
