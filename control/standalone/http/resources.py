"""The verbs on resources: get, list, watch, create, update, patch, delete, deletecollection.

Each handler converts query parameters to registry options and the result to bytes. Authentication and
authorization are done by the caller; `subresources` handles the subresources with their own rules.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from aiohttp import web

from control.standalone import errors, objectmeta, strategy
from control.standalone.deletion import DeletionOptions
from control.standalone.http.authorization import require
from control.standalone.http.lists import ListOptions, resource_version, select
from control.standalone.http.negotiate import decode_body, decode_json, view
from control.standalone.http.render import Renderer
from control.standalone.http.requestinfo import RequestInfo
from control.standalone.http.responses import JSON, encode, json_response
from control.standalone.http.watch import WatchConfig, stream
from control.standalone.kinds import ResourceKind
from control.standalone.policyinterfaces import ApiUser, Authorizer, AuthzAttributes
from control.standalone.registry import ObjectRegistry, PatchKind, WriteOptions
from control.standalone.selectors import compile_matcher

Json = dict[str, Any]

PATCHES: dict[str, PatchKind] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
    "application/apply-patch+json": "apply",
}
MAX_BODY_BYTES = 3 * 1024 * 1024
"""Limit of a request body, as in Kubernetes; a stored object may have half of it (`store.MAX_OBJECT_BYTES`)."""
YAML_INLINE_BYTES = 16 * 1024
"""Decoding this much YAML takes about 20 ms; longer bodies are decoded in a thread."""
STALL_SECONDS = 60.0
"""The connection of a watcher that reads nothing for this long is closed."""


class ResourceHandlers:
    """The handlers, on one registry. `open_watches` is read by the metrics.

    The caller has authorized the request's own verb. An update or apply that creates the object also needs `create`.
    """

    def __init__(self, registry: ObjectRegistry, watches: WatchConfig, authorizer: Authorizer) -> None:
        self.registry = registry
        self._authorizer = authorizer
        self.watches = watches
        self.open_watches = 0

    async def handle(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.StreamResponse:
        if info.verb == "get":
            return self.get(request, info, kind)
        if info.verb == "list":
            return self.list(request, info, kind)
        if info.verb == "watch":
            return await self.watch(request, info, kind)
        if info.verb == "create":
            return await self.create(request, info, kind, user)
        if info.verb == "update":
            return await self.update(request, info, kind, user)
        if info.verb == "patch":
            return await self.patch(request, info, kind, user)
        if info.verb == "delete":
            return await self.delete(request, info, kind, user)
        if info.verb == "deletecollection":
            return await self.delete_collection(request, info, kind, user)
        raise errors.method_not_allowed()

    def get(self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind) -> web.Response:
        renderer = self._renderer(request, info, kind)
        store = self.registry.store
        store.commit()
        requested_rv = resource_version(request.query.get("resourceVersion", ""))
        if requested_rv > store.revision:
            raise errors.too_large(requested_rv, store.revision)
        entry = self.registry.entry(kind, info.namespace, info.name)
        return json_response(request, renderer.object(entry, self.registry.now()))

    def list(self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind) -> web.Response:
        renderer = self._renderer(request, info, kind)
        options = ListOptions.parse(kind, request.query, name=info.name)
        entries, meta = select(self.registry, kind, _namespace(kind, info), options)
        return json_response(request, renderer.list(entries, meta, self.registry.now()))

    async def watch(self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind) -> web.StreamResponse:
        renderer = self._renderer(request, info, kind)
        options = ListOptions.parse(kind, request.query, name=info.name, watching=True)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.open_watches += 1
        try:
            async for chunk in stream(self.registry, renderer, _namespace(kind, info), options, self.watches):
                await _write(request, response, chunk)
            await response.write_eof()
        except (ConnectionResetError, BrokenPipeError):
            pass  # the client disconnected; it resumes by resourceVersion
        finally:
            self.open_watches -= 1
        return response

    async def create(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        options = write_options(request, info)
        obj = await body_object(request)
        _require_kind(kind, obj)
        stored = await self.registry.create(kind.key, info.namespace or None, obj, user, options)
        return self._written(request, info, kind, stored, options, 201)

    async def update(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        options = self._with_authorization(write_options(request, info, create_missing=True), info, user)
        obj = await body_object(request)
        _require_kind(kind, obj)
        meta = obj.get("metadata") or {}
        if isinstance(meta, dict) and not meta.get("name"):
            why = f"the name of the object ({info.name} based on URL) was undeterminable: name must be provided"
            raise errors.bad_request(why)
        existed = self.registry.store.entry(kind.stored_as, info.namespace, info.name) is not None
        stored = await self.registry.update(kind.key, info.namespace or None, info.name, obj, user, options)
        return self._written(request, info, kind, stored, options, 200 if existed else 201)

    async def patch(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        patch_kind = PATCHES.get(content_type)
        if patch_kind is None:
            accepted = ", ".join(list(PATCHES)[:4])
            raise errors.generic(
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format - accepted media types include: {accepted}",
            )
        raw = await read_body(request)
        body = await decode(raw, content_type) if patch_kind == "apply" else decode_json(raw)
        if not isinstance(body, list if patch_kind == "json" else dict):
            raise errors.bad_request(
                f"the body of a {content_type} request must be a JSON {'array' if patch_kind == 'json' else 'object'}"
            )
        options = self._with_authorization(write_options(request, info), info, user)
        if patch_kind == "apply" and not request.query.get("fieldManager"):
            cause = errors.FieldError(
                "FieldValueRequired", "fieldManager", "Required value: is required for apply patch"
            )
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        if patch_kind != "apply" and options.force:
            cause = errors.FieldError(
                "FieldValueForbidden", "force", "Forbidden: may not be specified for non-apply patch"
            )
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        ns = info.namespace or None
        existed = self.registry.store.entry(kind.stored_as, ns if kind.namespaced else None, info.name) is not None
        stored = await self.registry.patch(kind.key, ns, info.name, patch_kind, body, user, options)
        return self._written(request, info, kind, stored, options, 200 if existed else 201)

    async def delete(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        options = await delete_options(request)
        obj, removed = await self.registry.delete(kind.key, info.namespace or None, info.name, user, options)
        if removed and not kind.returns_deleted:
            details = {"name": info.name, "kind": kind.plural, "uid": obj["metadata"].get("uid", "")}
            if kind.group:
                details["group"] = kind.group
            return json_response(request, success(details))
        return json_response(request, strategy.to_version(kind, obj, info.version))

    async def delete_collection(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        options = await delete_options(request)
        query = request.query
        matcher = compile_matcher(kind, query.get("labelSelector"), query.get("fieldSelector"))
        deleted = await self.registry.delete_collection(kind.key, info.namespace or None, matcher, user, options)
        self.registry.store.commit()
        items = [strategy.to_version(kind, obj, info.version) for obj in deleted]
        if not kind.custom:
            items = [{k: v for k, v in item.items() if k not in ("apiVersion", "kind")} for item in items]
        meta = {"resourceVersion": str(self.registry.store.revision)}
        body = {"kind": kind.list_kind, "apiVersion": kind.served_as(info.version), "metadata": meta, "items": items}
        return json_response(request, body)

    def _with_authorization(self, options: WriteOptions, info: RequestInfo, user: ApiUser) -> WriteOptions:
        create = AuthzAttributes(user, "create", info.group, info.version, info.resource, "", info.namespace, info.name)
        return replace(options, authorize_create=lambda: require(self._authorizer, create))

    def timestamp(self) -> str:
        return objectmeta.timestamp(self.registry.now())

    def _renderer(self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind) -> Renderer:
        include = request.query.get("includeObject") or "Metadata"
        if include not in ("None", "Metadata", "Object"):
            why = f"Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise errors.bad_request(f"Unable to convert to Table as requested: includeObject: {why}")
        return Renderer(kind, info.version, view(request.headers.get("Accept", "")), include)

    def _written(
        self,
        request: web.BaseRequest,
        info: RequestInfo,
        kind: ResourceKind,
        obj: Json,
        options: WriteOptions,
        status: int,
    ) -> web.Response:
        if view(request.headers.get("Accept", "")) != "object":
            renderer = self._renderer(request, info, kind)
            return json_response(request, renderer.written(obj, self.registry.now()), status, warnings=options.warnings)
        return json_response(request, encode(obj), status, warnings=options.warnings)


def _require_kind(kind: ResourceKind, obj: Json) -> None:
    """Objects of custom kinds have to name their kind; those of built-in kinds get it from the URL."""
    if kind.custom and not obj.get("kind"):
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): Object 'Kind' is missing"
        )


def _namespace(kind: ResourceKind, info: RequestInfo) -> str | None:
    """The namespace to list; None: all, or a cluster-scoped kind (/namespaces/NAME has a namespace in its path)."""
    return (info.namespace or None) if kind.namespaced else None


def manager_name(request: web.BaseRequest) -> str:
    """The fieldManager parameter, else the User-Agent up to its first slash, as in Kubernetes."""
    return request.query.get("fieldManager") or request.headers.get("User-Agent", "unknown").partition("/")[0][:128]


MAX_MANAGER_BYTES = 128
_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


def write_options(request: web.BaseRequest, info: RequestInfo, *, create_missing: bool = False) -> WriteOptions:
    query = request.query
    options_kind = _OPTIONS.get(info.verb, "CreateOptions")
    dry = query.get("dryRun", "")
    if dry not in ("", "All"):
        cause = errors.FieldError(
            "FieldValueNotSupported", "dryRun", f'Unsupported value: ["{dry}"]: supported values: "All"'
        )
        raise errors.invalid("meta.k8s.io", options_kind, "", [cause])
    if len(query.get("fieldManager", "").encode()) > MAX_MANAGER_BYTES:
        text = f"Too long: may not be more than {MAX_MANAGER_BYTES} bytes"
        cause = errors.FieldError("FieldValueTooLong", "fieldManager", text)
        raise errors.invalid("meta.k8s.io", options_kind, "", [cause])
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        cause = errors.FieldError(
            "FieldValueNotSupported",
            "fieldValidation",
            f'Unsupported value: "{validation}": supported values: "", "Ignore", "Strict", "Warn"',
        )
        raise errors.invalid("meta.k8s.io", options_kind, "", [cause])
    return WriteOptions(
        dry_run=dry == "All",
        field_manager=manager_name(request),
        field_validation=validation,
        subresource=info.subresource,
        version=info.version,
        force=query.get("force", "").lower() in ("1", "true"),
        create_missing=create_missing,
    )


async def delete_options(request: web.BaseRequest) -> DeletionOptions:
    """From the body and, for fields that the body leaves out, from the query."""
    raw = await read_body(request)
    body = await decode(raw, request.headers.get("Content-Type", "")) if raw else {}
    if not isinstance(body, dict):
        raise errors.bad_request("DeleteOptions must be a JSON object")
    query = request.query
    grace = body.get("gracePeriodSeconds")
    if grace is None and query.get("gracePeriodSeconds"):
        grace = query["gracePeriodSeconds"]
    try:
        grace = int(grace) if grace is not None else None
    except (TypeError, ValueError) as error:
        raise errors.bad_request(f"gracePeriodSeconds must be an integer, is {grace!r}") from error
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        version = str(body.get("apiVersion", ""))
        raise errors.bad_request(
            f'no kind "{body["kind"]}" is registered for version "{version}" as options of a delete'
        )
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or None
    orphan = body.get("orphanDependents")
    if orphan is not None and policy is not None:
        text = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        cause = errors.FieldError("FieldValueInvalid", "propagationPolicy", text)
        raise errors.invalid("meta.k8s.io", "DeleteOptions", "", [cause])
    if orphan is not None and policy is None:
        policy = "Orphan" if orphan else "Background"
    if policy not in (None, "Orphan", "Background", "Foreground"):
        cause = errors.FieldError(
            "FieldValueNotSupported",
            "propagationPolicy",
            f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan", "nil"',
        )
        raise errors.invalid("meta.k8s.io", "DeleteOptions", "", [cause])
    preconditions = body.get("preconditions") or {}
    return DeletionOptions(
        grace,
        policy,
        preconditions.get("uid"),
        preconditions.get("resourceVersion"),
        "All" in (body.get("dryRun") or []) or query.get("dryRun") == "All",
    )


async def body_object(request: web.BaseRequest) -> Json:
    obj = await decode(await read_body(request), request.headers.get("Content-Type", ""))
    if not isinstance(obj, dict):
        raise errors.bad_request("the body must be a JSON object")
    return obj


async def decode(raw: bytes, content_type: str) -> Any:
    """`decode_body`; YAML beyond YAML_INLINE_BYTES is decoded in a thread, so that the event loop continues."""
    if len(raw) > YAML_INLINE_BYTES and "yaml" in content_type.lower():
        return await asyncio.to_thread(decode_body, raw, content_type)
    return decode_body(raw, content_type)


async def read_body(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise errors.of_reason(
            "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY_BYTES}"
        ) from error
    except web.RequestPayloadError as error:
        raise errors.bad_request(f"the body cannot be read: {error}") from error


async def _write(request: web.BaseRequest, response: web.StreamResponse, chunk: bytes) -> None:
    """Write; abort the connection of a client that doesn't read for STALL_SECONDS: it keeps old versions in memory."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client disconnected")
    timer = asyncio.get_running_loop().call_later(STALL_SECONDS, transport.abort)
    try:
        await response.write(chunk)
    finally:
        timer.cancel()


def success(details: Json) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def created() -> Json:
    """The answer to a binding or an eviction."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
