"""Decodes objects of the API server one at a time, so that one malformed object does not affect others."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ListMeta, ObjectMeta
from koordlet.api.registry import ApiResource, resource_for


class KubeObject(Protocol):
    """Any API object: a struct, possibly trimmed, with at least name, namespace, uid and resourceVersion."""

    metadata: ObjectMeta


T = TypeVar("T", bound=KubeObject)


class OnlyMeta(Struct):
    """The part that an otherwise malformed object should have."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class RawList(Struct):
    """A list with undecoded items. Go encodes an empty list as null."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


def resource_of(struct: type, resource: ApiResource | type | None = None) -> ApiResource:
    """The resource: `resource` itself, the one of that type, or the one of `struct`.

    A trimmed struct has no resource: `client.list(PodLite, resource=Pod)`. Raises KeyError.
    """
    return resource if isinstance(resource, ApiResource) else resource_for(resource or struct)


def where_of(resource: ApiResource, namespace: str | None, name: str | None) -> str:
    """The name of an object in errors: `Pod default/web-0`."""
    return f"{resource.kind} {'/'.join(part for part in (namespace, name) if part)}".rstrip()


class ObjectDecoder(Generic[T]):
    """Decodes objects of one type; WireError names the object."""

    def __init__(self, struct: type[T], resource: ApiResource) -> None:
        self._decoder: wire.FastDecoder[T] = wire.json_decoder(struct)
        self._resource = resource

    def decode(self, raw: bytes | msgspec.Raw) -> T:
        data = bytes(raw)
        try:
            return self._decoder.decode(data)
        except wire.WireError as error:
            meta = decode_meta(data)
            where = where_of(self._resource, meta.namespace, meta.name) if meta else self._resource.kind
            raise wire.WireError(error.reason, where=where, path=error.path) from error


def decode_meta(raw: bytes | msgspec.Raw) -> ObjectMeta | None:
    """The metadata of an object that may be malformed elsewhere; None if it cannot be decoded."""
    try:
        decoded: OnlyMeta = wire.json_decoder(OnlyMeta).decode(bytes(raw))
    except wire.WireError:
        return None
    return decoded.metadata
