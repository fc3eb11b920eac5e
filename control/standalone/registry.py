"""The object registry: the generic rules of Kubernetes writes, on top of the store.

Callers are the HTTP layer, the embedded controllers and tests; all use plain dicts. Reads (`get`, `list`) return
private copies; writes take ownership of the object. The steps of a write: shape and metadata checks, schema
(prune, default), mutating admission, rules of the kind (`strategy`), validation, validating admission,
managedFields, compare-and-swap in the store. It returns when it is durable. Because admission may await, a write
whose base state changed in the meantime is retried on the new state. With a resourceVersion from the caller it
fails with 409 instead.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from control.standalone import deletion, errors, objectmeta, strategy
from control.standalone.deletion import DeletionOptions
from control.standalone.kinds import Kinds, ResourceKind
from control.standalone.patch import patches
from control.standalone.patch.apply import ApplyError, server_side_apply
from control.standalone.patch.managed_fields import ManagedFieldsError, update_on_write
from control.standalone.policyinterfaces import (
    SYSTEM,
    Admission,
    AdmissionAttributes,
    ApiUser,
    Schemas,
)
from control.standalone.selectors import Matcher
from control.standalone.store import Compacted, ObjectStore, TooLarge, VersionMismatch
from control.standalone.versions import Address, Entry, EventType, StoreEvent

Json = dict[str, Any]
Objects = list[Json]  # `ObjectRegistry.list` hides the builtin inside the class
Events = list[StoreEvent]
PatchKind = Literal["json", "merge", "strategic", "apply"]
MAX_ATTEMPTS = 8
"""Attempts of one write while other writers change the object, and of finding a free generated name."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Query parameters of a write. `warnings` collects the response's Warning headers."""

    dry_run: bool = False
    field_manager: str = "unknown"
    field_validation: str = "Ignore"  # Ignore, Warn, Strict
    subresource: str = ""
    version: str | None = None  # served version the client speaks; None = preferred
    force: bool = False  # apply: take conflicting fields
    warnings: list[str] = field(default_factory=list)
    create_missing: bool = False  # PUT to a kind that lets PUT create
    authorize_create: Callable[[], None] | None = None  # called before an update or apply creates; raises 403
    applying: bool = False  # the object is the result of server-side apply and has its managedFields


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One watch event: the object (shared, read only) and its version."""

    type: EventType
    object: Json
    rv: int


class ObjectRegistry:
    """See the module docstring. `kinds` may change while running (CRDs)."""

    def __init__(
        self,
        store: ObjectStore,
        kinds: Kinds,
        schemas: Schemas,
        admission: Admission,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.kinds = kinds
        self.schemas = schemas
        self.admission: Admission = admission
        self.now = now

    def kind(self, key: str) -> ResourceKind:
        """Raises StatusError 404 for a kind that isn't served."""
        kind = self.kinds.get(key)
        if kind is None:
            raise errors.no_such_resource()
        return kind

    def entry(self, kind: ResourceKind, ns: str | None, name: str) -> Entry:
        """The live object as the store's entry; raises StatusError 404."""
        entry = self.store.entry(kind.stored_as, ns if kind.namespaced else None, name)
        if entry is None:
            raise errors.not_found(kind.group, kind.plural, name)
        return entry

    def get(self, key: str, ns: str | None, name: str, version: str | None = None) -> Json:
        """A private copy in the requested served version; raises StatusError 404."""
        kind = self.kind(key)
        return strategy.to_version(kind, self.entry(kind, ns, name).copy(), version)

    def find(self, key: str, ns: str | None, name: str) -> Json | None:
        """A private copy, or None."""
        kind = self.kind(key)
        entry = self.store.entry(kind.stored_as, ns if kind.namespaced else None, name)
        return strategy.to_version(kind, entry.copy(), None) if entry else None

    def list(self, key: str, ns: str | None = None) -> Objects:
        """Private copies of the live objects, ordered by namespace and name."""
        kind = self.kind(key)
        return [strategy.to_version(kind, e.copy(), None) for e in self.store.entries(kind.stored_as, ns)]

    async def watch(self, key: str, ns: str | None = None, rv: int | None = None) -> AsyncIterator[ObjectChange]:
        """Changes after version `rv`, without end. With `rv` None the present objects come first, as ADDED.

        Raises errors.StatusError 410 when `rv` is older than the history, or the reader has fallen behind it.
        """
        kind = self.kind(key)
        self.store.commit()
        if rv is None:
            present = self.store.entries(kind.stored_as, ns)
            rv = self.store.revision
            for entry in present:
                yield ObjectChange("ADDED", entry.obj, entry.rv)
        while True:
            events = self.events_since(kind.stored_as, rv)
            if not events:
                await self.store.wait(kind.stored_as)
                continue
            for event in events:
                rv = event.rv
                if ns is None or event.entry.address[0] == ns:
                    yield ObjectChange(event.type, event.entry.obj, event.rv)

    def events_since(self, stored_as: str, rv: int) -> Events:
        """`ObjectStore.since`, with the API's error (410) for a compacted version."""
        try:
            return self.store.since(stored_as, rv)
        except Compacted as error:
            raise errors.too_old(rv, error.oldest) from error

    async def create(
        self, key: str, ns: str | None, obj: Json, user: ApiUser = SYSTEM, options: WriteOptions | None = None
    ) -> Json:
        """Store a new object; takes ownership of `obj`. Returns it as stored, in the client's version."""
        kind = self.kind(key)
        options = options or WriteOptions()
        obj = self._accept(kind, ns, obj, options)
        meta = obj["metadata"]
        if meta.get("resourceVersion"):
            raise errors.StatusError(500, "", "resourceVersion should not be set on objects to be created")
        prefix = "" if meta.get("name") else meta.get("generateName", "")
        if prefix:
            meta["name"] = objectmeta.generate_name(prefix)
        for stale in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
            meta.pop(stale, None)
        if not options.applying:
            meta.pop("managedFields", None)
        now = self.now()
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = objectmeta.timestamp(now)
        if kind.generation or kind.custom:
            meta["generation"] = 1
        else:
            meta.pop("generation", None)
        self._structure(kind, obj, options)
        if not options.applying:
            self._track(kind, None, obj, options)
        request = self._request("CREATE", kind, obj, None, user, options)
        await self.admission.mutate(request)
        obj = self._admitted(kind, request, options)
        strategy.prepare_create(kind, obj)  # after webhooks: a pod's QoS class depends on what they changed
        self.schemas.complete(kind, options.version or kind.versions[0], obj)
        self._validate(kind, obj, None, options, "")
        request.obj = obj
        await self.admission.validate(request)
        return await self._insert(kind, obj, prefix, options)

    async def _insert(self, kind: ResourceKind, obj: Json, prefix: str, options: WriteOptions) -> Json:
        ns = obj["metadata"].get("namespace")
        for attempt in range(MAX_ATTEMPTS):
            name = obj["metadata"]["name"]
            if self.store.entry(kind.stored_as, ns, name) is None:
                if options.dry_run:
                    return strategy.to_version(kind, obj, options.version)
                entry = self._put(kind, (ns or "", name), obj, None)
                await self.store.committed()
                return strategy.to_version(kind, entry.copy(), options.version)
            if not prefix or attempt == MAX_ATTEMPTS - 1:
                break
            obj["metadata"]["name"] = objectmeta.generate_name(prefix)
        raise errors.already_exists(kind.group, kind.plural, name)

    async def update(
        self,
        key: str,
        ns: str | None,
        name: str,
        obj: Json,
        user: ApiUser = SYSTEM,
        options: WriteOptions | None = None,
    ) -> Json:
        """Replace (PUT). With `options.subresource == "status"` only the status is replaced."""
        kind = self.kind(key)
        options = options or WriteOptions()
        if problem := objectmeta.shape_error(obj):
            raise errors.bad_request(problem)
        sent_rv = (obj.get("metadata") or {}).get("resourceVersion")
        present = self.store.entry(kind.stored_as, ns if kind.namespaced else None, name)
        if present is None and kind.create_on_update and options.create_missing and not sent_rv:
            _authorize_create(options)
            return await self.create(key, ns, obj, user, options)
        if not sent_rv and not kind.unconditional_update and present is not None:
            problem_rv = errors.FieldError(
                "FieldValueInvalid",
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            )
            raise errors.invalid(kind.group, kind.kind, name, [problem_rv])
        return await self.modify(key, ns, name, lambda _live: obj, user, options)

    async def patch(
        self,
        key: str,
        ns: str | None,
        name: str,
        patch_kind: PatchKind,
        body: Any,
        user: ApiUser,
        options: WriteOptions,
    ) -> Json:
        """Apply a patch document; `apply` creates a missing object (server-side apply)."""
        kind = self.kind(key)
        if patch_kind == "apply":
            return await self._apply(kind, ns, name, body, user, options)
        schema = self.schemas.merge_schema(kind, options.version or kind.versions[0])
        if patch_kind == "strategic" and kind.custom:
            raise errors.unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            )

        def change(live: Json) -> Json:
            if patch_kind == "json":
                return patches.json(live, body)
            if patch_kind == "merge":
                return patches.merge(live, body)
            return patches.strategic(live, body, schema)

        return await self.modify(key, ns, name, change, user, options)

    async def modify(
        self,
        key: str,
        ns: str | None,
        name: str,
        change: Callable[[Json], Json | None],
        user: ApiUser = SYSTEM,
        options: WriteOptions | None = None,
    ) -> Json:
        """Read, change, write; repeated from the start if another writer changed the object in the meantime.

        `change` gets a private copy in the client's version and returns the new object, or None for no change.
        If the returned object has a resourceVersion, the live object must still have it: otherwise 409.
        """
        kind = self.kind(key)
        options = options or WriteOptions()
        for _ in range(MAX_ATTEMPTS):
            entry = self.entry(kind, ns, name)
            old = entry.copy()
            new = change(strategy.to_version(kind, entry.copy(), options.version))
            if new is None:
                return strategy.to_version(kind, old, options.version)
            new = self._accept(kind, ns, new, options, name)
            self._preconditions(kind, entry, new)
            try:
                return await self._replace(kind, entry, old, new, user, options)
            except VersionMismatch:
                continue
        raise errors.conflict(kind.group, kind.plural, name)

    async def admit(self, key: str, obj: Json, user: ApiUser, options: WriteOptions) -> Json:
        """Only admission, for a subresource object that isn't stored (a pod's Binding). Returns the admitted object."""
        request = self._request("CREATE", self.kind(key), obj, None, user, options)
        await self.admission.mutate(request)
        await self.admission.validate(request)
        assert request.obj is not None, "admission of a write never removes the object"
        return request.obj

    async def _replace(
        self, kind: ResourceKind, entry: Entry, old: Json, new: Json, user: ApiUser, options: WriteOptions
    ) -> Json:
        strategy.keep_system_fields(old, new)
        if options.subresource:
            strategy.isolate(kind, options.subresource, old, new)
        self._structure(kind, new, options, old)
        strategy.isolate(kind, options.subresource, old, new)
        rewritten = strategy.rewrites_managers(old, new)
        tracked = not options.applying and options.subresource != "binding"
        if tracked and (old["metadata"].get("managedFields") or new["metadata"].get("managedFields")):
            self._track(kind, old, new, options)  # an object whose managers were cleared gets none by updates
        managers = new["metadata"].get("managedFields")
        request = self._request("UPDATE", kind, new, old, user, options)
        await self.admission.mutate(request)
        new = self._admitted(kind, request, options)
        strategy.keep_system_fields(old, new)
        strategy.set_managers(new, managers)
        strategy.isolate(kind, options.subresource, old, new)
        strategy.prepare_update(kind, options.subresource, old, new)
        strategy.bump_generation(kind, options.subresource, old, new)
        self._validate(kind, new, old, options, options.subresource)
        request.obj = new
        await self.admission.validate(request)
        cleared = "managedFields" in old["metadata"] and not managers
        if strategy.same(old, new, with_managers=options.applying or cleared or rewritten):
            await self.store.committed()  # the state returned may have been written in this turn of the loop
            return strategy.to_version(kind, old, options.version)
        if options.dry_run:
            return strategy.to_version(kind, new, options.version)
        ns, name = entry.address
        if deletion.removable(kind, new):
            written = self.store.remove(kind.stored_as, ns, name, expect=entry.rv, last=new)
        else:
            written = self._put(kind, entry.address, new, entry.rv)
        await self.store.committed()
        return strategy.to_version(kind, written.copy(), options.version)

    async def _apply(
        self, kind: ResourceKind, ns: str | None, name: str, body: Json, user: ApiUser, options: WriteOptions
    ) -> Json:
        if problem := objectmeta.shape_error(body):
            raise errors.bad_request(problem)
        version = options.version or kind.versions[0]
        self._check_applied(kind, version, name, body)
        schema = self.schemas.merge_schema(kind, version)
        now = objectmeta.timestamp(self.now())
        options = replace(options, applying=True)
        if kind.status and not options.subresource:
            body = {k: v for k, v in body.items() if k != "status"}

        def merged(live: Json | None) -> Json:
            manager, subresource, served = options.field_manager, options.subresource, kind.served_as(version)
            try:
                obj, conflicts = server_side_apply(live, body, manager, options.force, schema, subresource, served, now)
            except ApplyError as error:
                raise errors.bad_request(str(error)) from error
            if conflicts and not options.force:
                raise patches.conflict_error(conflicts)
            return obj

        if self.store.entry(kind.stored_as, ns if kind.namespaced else None, name) is None:
            if options.subresource:
                raise errors.not_found(kind.group, kind.plural, name)
            if (body.get("metadata") or {}).get("uid"):
                raise errors.conflict(kind.group, kind.plural, name, "uid mismatch: the provided object specified uid")
            _authorize_create(options)
            obj = merged(None)
            obj.setdefault("metadata", {})["name"] = name
            return await self.create(kind.key, ns, obj, user, options)
        return await self.modify(kind.key, ns, name, merged, user, options)

    def _check_applied(self, kind: ResourceKind, version: str, name: str, body: Json) -> None:
        """Refuse to apply another kind or name, or a field that the schema doesn't have."""
        api_version, meta = body.get("apiVersion", ""), body.get("metadata") or {}
        if body.get("kind") != kind.kind or api_version != kind.served_as(version):
            group, _, name_of_version = api_version.rpartition("/")
            raise errors.bad_request(f"invalid object type: {group}/{name_of_version}, Kind={body.get('kind', '')}")
        if meta.get("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            )
        copy = msgspec.json.decode(msgspec.json.encode({**body, "metadata": meta}))
        unknown = self.schemas.unknown_fields(kind, version, copy)
        if unknown:
            names = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {kind.group}/{version}, Kind={kind.kind}"
            why = f"failed to create typed patch object ({names}): .{unknown[0]}: field not declared in schema"
            raise errors.StatusError(500, "", why)

    async def delete(
        self,
        key: str,
        ns: str | None,
        name: str,
        user: ApiUser = SYSTEM,
        options: DeletionOptions | None = None,
    ) -> tuple[Json, bool]:
        """Delete, or start a graceful deletion. Returns the object and whether it has been removed."""
        kind = self.kind(key)
        options = options or DeletionOptions()
        request: AdmissionAttributes | None = None
        for _ in range(MAX_ATTEMPTS):
            entry = self.entry(kind, ns, name)
            meta = entry.obj["metadata"]
            for expected, actual, field_name in (
                (options.uid, meta.get("uid"), "UID"),
                (options.resource_version, meta["resourceVersion"], "ResourceVersion"),
            ):
                if expected and expected != actual:
                    why = (
                        f"Precondition failed: {field_name} in precondition: {expected}, "
                        f"{field_name} in object meta: {actual}"
                    )
                    raise errors.conflict(kind.group, kind.plural, name, why)
            if request is None:
                request = AdmissionAttributes(
                    "DELETE", kind, kind.versions[0], meta.get("namespace") or "", name, None, entry.copy(), user
                )
                request.dry_run = options.dry_run
                await self.admission.mutate(request)
                await self.admission.validate(request)
                continue  # the object may have changed during admission: read it again
            strategy.refuse_delete(kind, entry.obj)
            decision = deletion.decide(kind, entry.copy(), options, self.now())
            if options.dry_run:
                return decision.obj, decision.remove
            if decision.remove:
                last = self.store.remove(kind.stored_as, *entry.address, expect=entry.rv, last=decision.obj)
            elif decision.changed:
                last = self._put(kind, entry.address, decision.obj, entry.rv)
            else:
                await self.store.committed()
                return decision.obj, False
            await self.store.committed()
            return strategy.to_version(kind, last.copy(), None), decision.remove
        raise errors.conflict(kind.group, kind.plural, name)

    async def delete_collection(
        self, key: str, ns: str | None, matcher: Matcher | None, user: ApiUser, options: DeletionOptions
    ) -> Objects:
        """Delete all objects that match; one that disappears in the meantime is no error."""
        kind = self.kind(key)
        deleted = []
        for entry in self.store.entries(kind.stored_as, ns):
            if matcher is not None and not matcher(entry.obj):
                continue
            try:
                obj, _ = await self.delete(key, entry.address[0] or None, entry.address[1], user, options)
            except errors.StatusError as error:
                if error.reason != "NotFound":
                    raise
                continue
            deleted.append(obj)
        return deleted

    def _put(self, kind: ResourceKind, address: Address, obj: Json, expect: int | None) -> Entry:
        try:
            return self.store.put(kind.stored_as, *address, obj, expect)
        except TooLarge as error:
            raise errors.too_large_object(kind.group, kind.plural, address[1], str(error)) from error

    def _accept(self, kind: ResourceKind, ns: str | None, obj: Json, options: WriteOptions, name: str = "") -> Json:
        """Check that `obj` has this kind, version, namespace and name; return it in the stored version."""
        if problem := objectmeta.shape_error(obj):
            raise errors.bad_request(problem)
        obj = {**obj, "metadata": dict(obj.get("metadata") or {})}  # the caller's object stays unchanged
        served = kind.served_as(options.version)
        identity = (obj.setdefault("apiVersion", served), obj.setdefault("kind", kind.kind))
        if identity != (served, kind.kind):
            _, _, got_version = obj["apiVersion"].rpartition("/")
            raise errors.bad_request(
                f'{obj["kind"]} in version "{got_version}" cannot be handled as a {kind.kind}: '
                f'no kind "{obj["kind"]}" is registered for version "{obj["apiVersion"]}"'
                if not kind.custom or obj["apiVersion"] == served
                else "the API version in the data "
                f"({obj['apiVersion']}) does not match the expected API version ({served})"
            )
        meta = obj["metadata"]
        if kind.namespaced:
            if meta.setdefault("namespace", ns or "") != (ns or ""):
                raise errors.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        else:
            meta.pop("namespace", None)
        if name and meta.setdefault("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            )
        return strategy.to_storage(kind, obj)

    def _preconditions(self, kind: ResourceKind, entry: Entry, new: Json) -> None:
        meta, live = new["metadata"], entry.obj["metadata"]
        if meta.get("uid") and meta["uid"] != live.get("uid"):
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {live.get('uid')}"
            raise errors.conflict(kind.group, kind.plural, entry.address[1], why)
        sent_rv = meta.get("resourceVersion")
        if sent_rv and sent_rv != live["resourceVersion"]:
            raise errors.conflict(kind.group, kind.plural, entry.address[1])

    def _structure(self, kind: ResourceKind, obj: Json, options: WriteOptions, old: Json | None = None) -> None:
        """Prune unknown fields or report them (`options.field_validation`), then fill in defaults."""
        version = options.version or kind.versions[0]
        unknown = self.schemas.unknown_fields(kind, version, obj, old)
        if unknown and options.field_validation == "Strict":
            listed = ", ".join(f'unknown field "{path}"' for path in unknown)
            head = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}'
            raise errors.bad_request(f"{head}: strict decoding error: {listed}")
        if options.field_validation == "Warn":
            options.warnings.extend(f'unknown field "{path}"' for path in unknown)
        self.schemas.default(kind, version, obj)

    def _request(
        self, op: Any, kind: ResourceKind, obj: Json, old: Json | None, user: ApiUser, options: WriteOptions
    ) -> AdmissionAttributes:
        meta = obj["metadata"]
        return AdmissionAttributes(
            op,
            kind,
            options.version or kind.versions[0],
            meta.get("namespace") or "",
            meta.get("name") or "",
            obj,
            old,
            user,
            options.subresource,
            options.dry_run,
            {"fieldManager": options.field_manager},
            options.warnings,
        )

    def _admitted(self, kind: ResourceKind, request: AdmissionAttributes, options: WriteOptions) -> Json:
        assert request.obj is not None, "admission of a write never removes the object"
        self.schemas.default(kind, options.version or kind.versions[0], request.obj)
        return request.obj

    def _validate(
        self, kind: ResourceKind, obj: Json, old: Json | None, options: WriteOptions, subresource: str
    ) -> None:
        version = options.version or kind.versions[0]
        field_errors = objectmeta.metadata_errors(kind, obj["metadata"])
        field_errors += self.schemas.validate(kind, version, obj, old, subresource)
        if old is not None:
            field_errors += strategy.immutable_errors(kind, old, obj)
        if field_errors:
            raise errors.invalid(kind.group, kind.kind, obj["metadata"].get("name") or "", field_errors)

    def _track(self, kind: ResourceKind, live: Json | None, new: Json, options: WriteOptions) -> None:
        version = options.version or kind.versions[0]
        schema = self.schemas.merge_schema(kind, version)
        now = objectmeta.timestamp(self.now())
        if live is None:
            live = self.schemas.zero(kind, version)
            if kind.status and "status" in new:  # a new object's status is not written by its creator
                live = {**live, "status": new["status"]}
        try:
            result = update_on_write(live, new, options.field_manager, "Update", schema, options.subresource, now)
        except ManagedFieldsError as error:
            raise errors.of_reason("Invalid", str(error)) from error
        new["metadata"] = result["metadata"]


def _authorize_create(options: WriteOptions) -> None:
    if options.authorize_create is not None:
        options.authorize_create()
