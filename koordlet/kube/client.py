"""Typed verbs of the Kubernetes API: structs in, structs out, bytes decoded by msgspec.

    async with Client(ClientConfig.load()) as client:
        node = await client.get(Node, "n1")
        pods = await client.list(Pod, field_selector={"spec.nodeName": "n1"})
        await client.patch(Node, "n1", body={"metadata": {"labels": {"a": "b"}}})

There is no PUT of a decoded object on purpose: the structs are trimmed, and a PUT would delete the fields that they
omit. Existing objects are only written by patches of named fields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from koordlet.api.encoding.shape import has_floats
from koordlet.api.meta import DeleteOptions, Preconditions
from koordlet.api.registry import ApiResource, InvalidName
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.kube.config import ClientConfig
from koordlet.kube.connections import MAX_BODY_BYTES
from koordlet.kube.decode import KubeObject, ObjectDecoder, RawList, resource_of
from koordlet.kube.errors import AnswerTooLong, Gone, NotFound
from koordlet.kube.patch import PatchKind
from koordlet.kube.selectors import Selector, field_query, label_query
from koordlet.kube.transport import Transport

T = TypeVar("T", bound=KubeObject)
_S = TypeVar("_S", bound=msgspec.Struct)

PAGE_SIZE = 500
"""Objects per page: client-go's value, and small enough to decode without blocking the loop for long."""


PAGE_DIVISOR = 4
"""Of the number of objects, after a page that was too long."""
MAX_LIST_BYTES = 1 << 30
"""Of a list that cannot be read in pages."""


class Listing(list[T]):
    """A list of objects with the resourceVersion of the snapshot."""

    def __init__(self, items: Sequence[T] = (), resource_version: str = "") -> None:
        super().__init__(items)
        self.resource_version = resource_version


class Client:
    """API access for one process; share it. `resource=` is needed only for trimmed types (`resource=Pod`)."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.registry = registry
        self.transport = Transport(config, clock=clock, registry=registry)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    async def get(
        self,
        type: type[T],
        name: str,
        namespace: str | None = None,
        *,
        resource: ApiResource | type | None = None,
    ) -> T:
        """One object. Raises NotFound."""
        r = resource_of(type, resource)
        body = await self.transport.request("GET", _path(r, namespace, name))
        return ObjectDecoder(type, r).decode(body)

    async def list(
        self,
        type: type[T],
        namespace: str | None = None,
        *,
        label_selector: Selector = None,
        field_selector: str | Mapping[str, str] | None = None,
        limit: int = PAGE_SIZE,
        resource: ApiResource | type | None = None,
    ) -> Listing[T]:
        """All objects, fetched in pages of `limit` (0: no pages). Raises WireError if one is malformed."""
        r = resource_of(type, resource)
        decoder = ObjectDecoder(type, r)
        items: Listing[T] = Listing()
        async for page in self.pages(
            r, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit
        ):
            if page is None:
                items.clear()
                continue
            items.extend(decoder.decode(raw) for raw in page.items or ())
            items.resource_version = page.metadata.resource_version
        return items

    async def pages(
        self,
        resource: ApiResource,
        namespace: str | None = None,
        *,
        label_selector: Selector = None,
        field_selector: str | Mapping[str, str] | None = None,
        limit: int = PAGE_SIZE,
    ) -> AsyncGenerator[RawList | None, None]:
        """The pages of one consistent list, items undecoded.

        If the continue token expires in between, the list starts again without paging; this yields None first, and the
        caller must drop the pages before it. Tenants choose the size of objects: a page that is too long is read again
        with fewer of them, and so is the rest of the list.
        """
        path = resource.path(namespace)
        base = _params(labelSelector=label_query(label_selector), fieldSelector=field_query(field_selector))
        token = ""
        paged = limit > 0
        while True:
            params = dict(base)
            if paged:
                params["limit"] = str(limit)
            if token:
                params["continue"] = token
            try:
                body = await self.transport.request(
                    "GET", path, params=params, max_bytes=MAX_BODY_BYTES if paged else MAX_LIST_BYTES
                )
            except AnswerTooLong:
                if not paged or limit == 1:
                    raise
                limit = max(limit // PAGE_DIVISOR, 1)
                continue
            except Gone:
                if not token:
                    raise
                token = ""
                paged = False
                yield None
                continue
            page: RawList = wire.json_decoder(RawList).decode(body, where=f"{resource.kind} list")
            yield page
            token = page.metadata.continue_
            if not token:
                return

    async def create(
        self,
        obj: _S,
        *,
        namespace: str | None = None,
        field_manager: str | None = None,
    ) -> _S:
        """Create; returns the stored object. Raises Conflict (`already_exists`), Invalid."""
        body = await self._post(obj, namespace, field_manager)
        return wire.decode(body, type(obj), where=resource_of(type(obj)).kind)

    async def create_blind(self, obj: msgspec.Struct, *, namespace: str) -> None:
        """As `create`, for frequent objects of which the stored form isn't needed: its decoding takes a seventh of the
        time of a request."""
        await self._post(obj, namespace)

    async def _post(self, obj: msgspec.Struct, namespace: str | None, field_manager: str | None = None) -> bytes:
        """Create an object; returns the server's answer."""
        r = resource_of(type(obj))
        if r.namespaced:
            namespace = namespace or getattr(obj, "metadata").namespace or self.config.namespace  # noqa: B009
        document = {"apiVersion": r.api_version, "kind": r.kind, **wire.to_builtins(obj)}
        encode = wire.encode if has_floats(type(obj)) else wire.encode_plain  # the search for floats takes 30 us
        return await self.transport.request(
            "POST",
            r.path(namespace if r.namespaced else None),
            params=_params(fieldManager=field_manager),
            body=encode(document),
        )

    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str | None = None,
        *,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | msgspec.Struct,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        resource: ApiResource | type | None = None,
        repeatable: bool = False,
    ) -> T:
        """Patch; returns the patched object. A merge patch with metadata.resourceVersion is conditional.

        APPLY fills in apiVersion, kind and name, and needs `field_manager`. `repeatable`: the request is idempotent,
        which APPLY always is. Raises NotFound, Conflict, Invalid.
        """
        r = resource_of(type, resource)
        if kind is PatchKind.APPLY:
            if not field_manager:
                raise ValueError("server-side apply needs a field manager")
            body = _apply_body(body, r, name, namespace)
        answer = await self.transport.request(
            "PATCH",
            _path(r, namespace, name, subresource),
            params=_params(fieldManager=field_manager, force="true" if force else None),
            body=wire.encode(body),
            content_type=kind.value,
            repeatable=repeatable or kind is PatchKind.APPLY,
        )
        return ObjectDecoder(type, r).decode(answer)

    async def update_status(
        self,
        type: type[T],
        name: str,
        namespace: str | None = None,
        *,
        status: Mapping[str, Any] | msgspec.Struct,
        resource_version: str | None = None,
    ) -> T:
        """Merge `status` (owned fields; null deletes one) into the object's status.

        Uses the status subresource if the kind has one. With `resource_version` it raises Conflict if the object has
        changed since.
        """
        body: dict[str, Any] = {"status": wire.to_builtins(status)}
        if resource_version:
            body["metadata"] = {"resourceVersion": resource_version}
        subresource = "status" if resource_of(type).status_subresource else None
        return await self.patch(type, name, namespace, body=body, subresource=subresource)

    async def delete(
        self,
        type: type,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
        missing_ok: bool = False,
        options: DeleteOptions | None = None,
        repeatable: bool = False,
    ) -> bool:
        """Delete; with `missing_ok` returns False if the object does not exist. With `uid` only the object with this
        UID is deleted. `options` replaces the single options. `repeatable`: retry after a lost answer; the second
        answer may be NotFound then."""
        r = resource_of(type)
        options = options or _delete_options(grace_seconds, uid)
        try:
            await self.transport.request(
                "DELETE", _path(r, namespace, name), body=wire.encode(options), repeatable=repeatable
            )
        except NotFound:
            if not missing_ok:
                raise
            return False
        return True

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
        options: DeleteOptions | None = None,
    ) -> None:
        """Evict a pod (policy/v1). `options` replaces `grace_seconds` and `uid`. Raises TooManyRequests if a
        disruption budget does not allow it now."""
        options = options or _delete_options(grace_seconds, uid)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": wire.to_builtins(options),
        }
        path = _path(resource_of(Pod), namespace, name, "eviction")
        await self.transport.request("POST", path, body=wire.encode(eviction), retry_429=False)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        repeatable: bool | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> bytes:
        """Any request; `body` is bytes, or an object to encode as JSON. Raises ApiError."""
        data = body if body is None or isinstance(body, bytes) else wire.encode(body)
        return await self.transport.request(
            method,
            path,
            params=params,
            body=data,
            content_type=content_type,
            accept=accept,
            repeatable=repeatable,
            max_bytes=max_bytes,
        )


def _path(resource: ApiResource, namespace: str | None, name: str, subresource: str | None = None) -> str:
    """The path of an object. Raises NotFound for what is no name."""
    try:
        return resource.path(namespace, name, subresource)
    except InvalidName as error:
        raise NotFound(404, "NotFound", str(error)) from error


def _params(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def _delete_options(grace_seconds: int | None, uid: str | None) -> DeleteOptions:
    return DeleteOptions(
        kind="DeleteOptions",
        api_version="v1",
        grace_period_seconds=grace_seconds,
        preconditions=Preconditions(uid=uid) if uid else None,
    )


def _apply_body(body: object, r: ApiResource, name: str, namespace: str | None) -> dict[str, Any]:
    plain = wire.to_builtins(body)
    if not isinstance(plain, dict):
        raise TypeError("server-side apply takes an object")
    meta = {**plain.get("metadata", {}), "name": name}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": r.api_version, "kind": r.kind, **plain, "metadata": meta}
