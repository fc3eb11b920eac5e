"""The garbage collector: deletes objects whose owners are deleted.

Background: an object without any existing owner is deleted; if some owners exist, references to the others are removed.
Foreground: the dependents of an owner with the finalizer `foregroundDeletion` are deleted first; the owner is removed
when no blocking dependent (blockOwnerDeletion) is left. Orphan: the references of the dependents to an owner with the
finalizer `orphan` are removed first.

`Graph` has the owner references by uid, only of objects that have owners. All served kinds are watched, custom ones
while they are served. The existence of an owner whose kind isn't served is unknown; its dependents stay unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing
from control.standalone.deletion import FOREGROUND, ORPHAN, DeletionOptions
from control.standalone.errors import StatusError
from control.standalone.kinds import ResourceKind
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, ObjectRegistry, WriteOptions
from koordlet.app.logging import get_logger

Json = dict[str, Any]
log = get_logger(__name__)

WRITE = WriteOptions(field_manager="garbage-collector")
KINDS_POLL_SECONDS = 0.5
RECHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Kind, namespace, name and uid of an object."""

    key: str
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class Graph:
    """Owner references by uid. `observe` and `forget` are idempotent."""

    addresses: dict[str, Address] = field(default_factory=dict)
    owners: dict[str, frozenset[str]] = field(default_factory=dict)
    dependents: dict[str, set[str]] = field(default_factory=dict)

    def observe(self, address: Address, owners: frozenset[str]) -> None:
        for former_owner in self.owners.get(address.uid, frozenset()) - owners:
            self._unlink(former_owner, address.uid)
        if not owners:
            self.addresses.pop(address.uid, None)
            self.owners.pop(address.uid, None)
            return
        self.addresses[address.uid] = address
        self.owners[address.uid] = owners
        for owner in owners:
            self.dependents.setdefault(owner, set()).add(address.uid)

    def forget(self, uid: str) -> None:
        for owner in self.owners.pop(uid, frozenset()):
            self._unlink(owner, uid)
        self.addresses.pop(uid, None)

    def dependents_of(self, uid: str) -> list[Address]:
        return [self.addresses[each] for each in sorted(self.dependents.get(uid, ()))]

    def _unlink(self, owner: str, uid: str) -> None:
        dependents = self.dependents.get(owner)
        if dependents is not None:
            dependents.discard(uid)
            if not dependents:
                del self.dependents[owner]


class GarbageCollector(EmbeddedController):
    """Its queue has uids as ("", uid); their addresses are in `_queued`."""

    name = "garbage-collector"

    def __init__(self, registry: ObjectRegistry) -> None:
        super().__init__(registry)
        self.graph = Graph()
        self._queued: dict[str, Address] = {}  # what is in the queue
        self._following: dict[str, asyncio.Task[None]] = {}
        self._since = 0
        """The version of the initial graph. Watches start after it, so that no deletion in between is missed."""

    def watches(self) -> dict[str, Mapper]:
        return {}

    def prepare(self) -> None:
        self.graph = Graph()
        self._queued = {}
        self._following = {}
        self.registry.store.commit()
        self._since = self.registry.store.revision
        for kind in self._kinds():  # the whole graph first, else an owner could appear to have no dependents
            for entry in self.registry.store.entries(kind.stored_as):
                self._observe(kind, entry.obj)

    async def start(self) -> None:
        await super().start()
        self._spawn(self._follow_kinds(), f"{self.name}:kinds")

    def _kinds(self) -> list[ResourceKind]:
        return [kind for kind in self.registry.kinds if not kind.storage_key and "delete" in kind.verbs]

    async def _follow_kinds(self) -> None:
        since: int | None = self._since
        generation = -1
        while True:
            if generation != self.registry.kinds.generation:
                generation = self.registry.kinds.generation
                served = {kind.key: kind for kind in self._kinds()}
                for key in [key for key in self._following if key not in served]:
                    self._following.pop(key).cancel()
                for key, kind in served.items():
                    if key not in self._following:
                        task = self._spawn(self._follow(key, self._mapper(kind), since), f"{self.name}:{key}")
                        self._following[key] = task
                since = None
            await asyncio.sleep(KINDS_POLL_SECONDS)

    def _mapper(self, kind: ResourceKind) -> Mapper:
        def changed(change: ObjectChange) -> list[Key]:
            if change.type == "DELETED":
                self._deleted(change.object)
            else:
                self._observe(kind, change.object)
            return []

        return changed

    def _observe(self, kind: ResourceKind, obj: Json) -> None:
        metadata = obj["metadata"]
        address = Address(kind.key, metadata.get("namespace") or "", metadata["name"], metadata["uid"])
        owners = frozenset(str(each.get("uid")) for each in metadata.get("ownerReferences") or ())
        changed = self.graph.owners.get(address.uid, frozenset()) != owners
        self.graph.observe(address, owners)
        waiting = metadata.get("deletionTimestamp") and {FOREGROUND, ORPHAN} & set(metadata.get("finalizers") or ())
        if changed or waiting:
            self._enqueue(address)

    def _deleted(self, obj: Json) -> None:
        uid = obj["metadata"]["uid"]
        owners = self.graph.owners.get(uid, frozenset())
        for dependent in self.graph.dependents_of(uid):
            self._enqueue(dependent)
        self.graph.forget(uid)
        for owner in owners:  # an owner may wait for the deletion of this object
            if (waiting := self._queued.get(owner)) is not None:
                self._enqueue(waiting)

    def _enqueue(self, address: Address) -> None:
        self._queued[address.uid] = address
        self.queue.add(("", address.uid))

    async def reconcile(self, key: Key) -> float | None:
        address = self._queued.get(key[1])
        obj = self._find(address) if address is not None else None
        if address is None or obj is None:
            self._queued.pop(key[1], None)
            return None
        metadata = obj["metadata"]
        finalizers = metadata.get("finalizers") or ()
        if metadata.get("deletionTimestamp"):
            if ORPHAN in finalizers:
                await self._orphan(address)
            elif FOREGROUND in finalizers:
                return await self._foreground(address)
            else:
                self._queued.pop(address.uid, None)
            return None
        again = await self._collect(address, obj)
        if again is None:
            self._queued.pop(address.uid, None)
        return again

    def _find(self, address: Address) -> Json | None:
        kind = self.registry.kinds.get(address.key)
        if kind is None:
            return None
        obj = self.registry.store.get(kind.stored_as, address.namespace or None, address.name)
        return obj if obj is not None and obj["metadata"]["uid"] == address.uid else None

    async def _collect(self, address: Address, obj: Json) -> float | None:
        """The background rule, for one object that isn't being deleted."""
        absent, deleting, present = [], [], []  # uids of owners
        for reference in obj["metadata"].get("ownerReferences") or ():
            owner, known = self._owner(address, reference)
            if not known:
                return RECHECK_SECONDS
            if owner is None:
                absent.append(reference["uid"])
            elif _deleting_in_foreground(owner):
                deleting.append(reference["uid"])
            else:
                present.append(reference["uid"])
        if not absent and not deleting:
            return None
        if present:
            await self._drop_references(address, {*absent, *deleting})
            return None
        policy = "Background"
        if deleting and self.graph.dependents_of(address.uid):
            policy = "Foreground"
        elif ORPHAN in (obj["metadata"].get("finalizers") or ()):
            policy = "Orphan"
        elif FOREGROUND in (obj["metadata"].get("finalizers") or ()):
            policy = "Foreground"
        await self._delete(address, policy)
        return None

    def _owner(self, address: Address, reference: Mapping[str, Any]) -> tuple[Json | None, bool]:
        """(the live owner or None, whether its existence is known)."""
        kind = self.registry.kinds.by_gvk(str(reference.get("apiVersion")), str(reference.get("kind")))
        if kind is None:
            return None, False
        if kind.namespaced and not address.namespace:
            log.warning("Owner of a cluster-wide object is namespaced, ignoring it", object=str(address))
            return None, False
        namespace = address.namespace if kind.namespaced else None
        owner = self.registry.store.get(kind.stored_as, namespace, str(reference.get("name")))
        if owner is None or owner["metadata"]["uid"] != reference.get("uid"):
            return None, True
        return owner, True

    async def _foreground(self, owner: Address) -> float | None:
        blocking = False
        for dependent in self.graph.dependents_of(owner.uid):
            obj = self._find(dependent)
            if obj is None:
                continue
            references = obj["metadata"].get("ownerReferences") or ()
            if any(each.get("uid") == owner.uid and each.get("blockOwnerDeletion") for each in references):
                blocking = True
            if not obj["metadata"].get("deletionTimestamp"):
                self._enqueue(dependent)
        if not blocking:
            await self._drop_finalizer(owner, FOREGROUND)
            return None
        return RECHECK_SECONDS

    async def _orphan(self, owner: Address) -> None:
        for dependent in self.graph.dependents_of(owner.uid):
            await self._drop_references(dependent, {owner.uid})
        await self._drop_finalizer(owner, ORPHAN)

    async def _drop_references(self, address: Address, uids: set[str]) -> None:
        def change(obj: Json) -> Json | None:
            references = obj["metadata"].get("ownerReferences") or []
            remaining = [each for each in references if each.get("uid") not in uids]
            if obj["metadata"]["uid"] != address.uid or remaining == references:
                return None
            obj["metadata"]["ownerReferences"] = remaining
            if not remaining:
                del obj["metadata"]["ownerReferences"]
            return obj

        await self._modify(address, change)

    async def _drop_finalizer(self, address: Address, finalizer: str) -> None:
        def change(obj: Json) -> Json | None:
            finalizers = obj["metadata"].get("finalizers") or []
            if obj["metadata"]["uid"] != address.uid or finalizer not in finalizers:
                return None
            obj["metadata"]["finalizers"] = [each for each in finalizers if each != finalizer]
            return obj

        await self._modify(address, change)

    async def _modify(self, address: Address, change: Any) -> None:
        write = self.registry.modify(address.key, address.namespace or None, address.name, change, SYSTEM, WRITE)
        await ignore_missing(write)

    async def _delete(self, address: Address, policy: str) -> None:
        options = DeletionOptions(propagation_policy=policy, uid=address.uid)
        try:
            await self.registry.delete(address.key, address.namespace or None, address.name, SYSTEM, options)
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):  # deleted, or the name belongs to another object
                raise


def _deleting_in_foreground(obj: Json) -> bool:
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND in (metadata.get("finalizers") or ())
