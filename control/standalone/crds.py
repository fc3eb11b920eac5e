"""Custom kinds at run time: each CustomResourceDefinition adds a served kind; its deletion removes kind and objects.

One task watches the CRDs. For each it checks that the names are free, writes the conditions NamesAccepted and
Established, and adds the `ResourceKind` to `Kinds`, which discovery, OpenAPI and routing read. When a CRD is
deleted, its objects are deleted first (their finalizers are respected), then its own finalizer is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from control.standalone import errors, objectmeta
from control.standalone.kinds import CRD, Kinds, ResourceKind, ScaleSpec, version_priority
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectRegistry, WriteOptions
from control.standalone.strategy import CRD_CLEANUP
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

Json = dict[str, Any]
log = get_logger(__name__)

_STATUS = WriteOptions(subresource="status", field_manager="kube-apiserver")
_RETRY_SECONDS = 0.2


def kind_of(crd: Mapping[str, Any]) -> ResourceKind:
    """The `ResourceKind` that a valid CRD describes."""
    spec, names = crd["spec"], crd["spec"]["names"]
    served = [v for v in spec["versions"] if v.get("served")]
    served.sort(key=lambda v: version_priority(v["name"]))
    storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
    subresources = [v.get("subresources") or {} for v in spec["versions"]]
    scale = next((s["scale"] for s in subresources if s.get("scale")), None)
    return ResourceKind(
        group=spec["group"],
        versions=tuple(v["name"] for v in served) or (storage,),
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec.get("scope") == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status=any("status" in s for s in subresources),
        generation=True,
        scale=ScaleSpec(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or "")
        if scale
        else None,
        unconditional_update=False,
        keeps_status_on_create=False,
        returns_deleted=False,
        storage_version=storage,
        custom=True,
        crd=crd,
    )


def name_conflict(kinds: Kinds, kind: ResourceKind) -> tuple[str, str] | None:
    """(reason, message) when another kind of the group already has one of the names, else None."""
    taken: dict[str, str] = {}
    for other in kinds:
        if other.group == kind.group and other.key != kind.key:
            for name in (other.plural, other.singular, *other.short_names):
                taken[name] = other.key
            if other.kind == kind.kind:
                return "KindConflict", f'"{kind.kind}" is already in use'
    for reason, names in (
        ("PluralConflict", (kind.plural,)),
        ("SingularConflict", (kind.singular,)),
        ("ShortNamesConflict", kind.short_names),
    ):
        for name in names:
            if name in taken:
                return reason, f'"{name}" is already in use'
    return None


class CrdController:
    """First `await load()`, which serves the stored CRDs, then run `run()` as a task."""

    def __init__(self, registry: ObjectRegistry, changed: Callable[[], Awaitable[None]]) -> None:
        """`changed` is awaited after each change of the set of kinds."""
        self._registry = registry
        self._changed = changed
        self._cleanups: dict[str, asyncio.Task[None]] = {}

    async def load(self) -> int:
        """Serve every stored CRD; returns the version to watch from."""
        store = self._registry.store
        store.commit()
        revision = store.revision
        for crd in store.list(CRD):
            await self._serve(crd)
        return revision

    async def run(self, since: int) -> None:
        """Watch the CRDs without end; loads all of them again when the watch has become too old."""
        while True:
            try:
                async for change in self._registry.watch(CRD, None, since):
                    since = change.rv
                    before = self._registry.kinds.generation
                    await self._reconcile(change.type, change.object)
                    if self._registry.kinds.generation != before:
                        await self._changed()
            except errors.StatusError as error:
                if error.reason != "Expired":
                    raise
                log.warning("The watch of CRDs is too old, listing all of them again")
                since = await self.load()

    async def stop(self) -> None:
        await end_tasks(*self._cleanups.values())

    async def _reconcile(self, type: str, crd: Json) -> None:
        name = crd["metadata"]["name"]
        if type == "DELETED":
            key = kind_of(crd).key
            self._registry.kinds.discard(key)
            self._registry.store.wake(key)
        elif crd["metadata"].get("deletionTimestamp"):
            if name not in self._cleanups:
                task = asyncio.create_task(self._clean_up(name), name=f"crd-cleanup-{name}")
                self._cleanups[name] = task
                task.add_done_callback(lambda t: self._cleaned_up(name, t))
        else:
            await self._serve(crd)

    async def _serve(self, crd: Json) -> None:
        kind = kind_of(crd)
        kinds = self._registry.kinds
        conflict = name_conflict(kinds, kind)
        accepted = conflict is None
        if accepted and not crd["metadata"].get("deletionTimestamp"):
            known = kinds.get(kind.key)
            if known is None or known.crd is None or known.crd["spec"] != crd["spec"]:
                kinds.add(replace(kind, crd=crd))
        elif crd["metadata"].get("deletionTimestamp"):
            kinds.add(kind)
            await self._reconcile("MODIFIED", crd)
            return
        reason, message = conflict or ("NoConflicts", "no conflicts found")
        now = objectmeta.timestamp(self._registry.now())

        def status(live: Json) -> Json | None:
            live_status = live.setdefault("status", {})
            conditions = live_status.setdefault("conditions", [])
            changed = _set(conditions, "NamesAccepted", accepted, reason, message, now)
            if accepted:
                text = "the initial names have been accepted"
                changed |= _set(conditions, "Established", True, "InitialNamesAccepted", text, now)
                names = live["spec"]["names"]
                changed |= live_status.get("acceptedNames") != names
                live_status["acceptedNames"] = names
            else:
                text = "not all names are accepted"
                changed |= _set(conditions, "Established", False, "NotAccepted", text, now)
                live_status.setdefault("acceptedNames", {"plural": "", "kind": ""})
            storage = next(v["name"] for v in live["spec"]["versions"] if v.get("storage"))
            stored = live_status.setdefault("storedVersions", [])
            if storage not in stored:
                stored.append(storage)
                changed = True
            return live if changed else None

        try:
            await self._registry.modify(CRD, None, crd["metadata"]["name"], status, SYSTEM, _STATUS)
        except errors.StatusError as error:
            if error.reason != "NotFound":  # deleted in the meantime: its DELETED event follows
                raise

    async def _clean_up(self, name: str) -> None:
        """Delete all objects of a CRD that is being deleted, wait until they are gone, then remove its finalizer."""
        crd = self._registry.find(CRD, None, name)
        if crd is None:
            return
        key = kind_of(crd).key
        if self._registry.kinds.get(key) is not None:
            while self._registry.store.count(key):
                for entry in self._registry.store.entries(key):
                    ns, object_name = entry.address
                    if entry.obj["metadata"].get("deletionTimestamp") is None:
                        await self._delete(key, ns, object_name)
                if self._registry.store.count(key):
                    await self._registry.store.wait(key, _RETRY_SECONDS)

        def release(live: Json) -> Json:
            live["metadata"]["finalizers"] = [f for f in live["metadata"].get("finalizers") or [] if f != CRD_CLEANUP]
            return live

        try:
            await self._registry.modify(CRD, None, name, release)
        except errors.StatusError as error:
            if error.reason != "NotFound":
                raise

    async def _delete(self, key: str, ns: str, name: str) -> None:
        try:
            await self._registry.delete(key, ns or None, name)
        except errors.StatusError as error:
            if error.reason != "NotFound":
                raise

    def _cleaned_up(self, name: str, task: asyncio.Task[None]) -> None:
        self._cleanups.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("Cannot remove the objects of a CRD", crd=name, err=task.exception())


def _set(conditions: list[Json], type: str, true: bool, reason: str, message: str, now: str) -> bool:
    """Update one condition; False when it was up to date."""
    status = "True" if true else "False"
    old = next((c for c in conditions if c["type"] == type), None)
    if old and (old["status"], old.get("reason"), old.get("message")) == (status, reason, message):
        return False
    since = now if old is None or old["status"] != status else old["lastTransitionTime"]
    new = {"lastTransitionTime": since, "message": message, "reason": reason, "status": status, "type": type}
    if old is None:
        conditions.append(new)
    else:
        old.update(new)
    return True
