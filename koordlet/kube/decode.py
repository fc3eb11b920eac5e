"""From bytes of the API server to structs, one object at a time, so that one bad object spoils nothing else."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ListMeta, ObjectMeta
from koordlet.api.registry import Resource, resource_for


class Object(Protocol):
    """Any API object: a struct, perhaps trimmed, with at least name, namespace, uid and resourceVersion."""

    metadata: ObjectMeta


T = TypeVar("T", bound=Object)


class OnlyMeta(Struct):
    """What even an object of the wrong shape should have."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class RawList(Struct):
    """A list whose items stay bytes. Go writes null for an empty one."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


def resource_of(type_: type, resource: Resource | type | None = None) -> Resource:
    """The resource to ask for: `resource` itself, the one of that type, or the one of `type_`.

    A trimmed struct is no kind of its own: `client.list(PodLite, resource=Pod)`. Raises KeyError.
    """
    return resource if isinstance(resource, Resource) else resource_for(resource or type_)


def where_of(resource: Resource, namespace: str | None = None, name: str | None = None) -> str:
    """How errors name an object: `Pod default/web-0`."""
    return f"{resource.kind} {'/'.join(part for part in (namespace, name) if part)}".rstrip()


class ObjectDecoder(Generic[T]):
    """Decodes objects of one type; WireError names the object."""

    def __init__(self, type_: type[T], resource: Resource) -> None:
        self._decoder: wire.FastDecoder[T] = wire.json_decoder(type_)
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
    """The metadata of an object that may be malformed elsewhere; None when even that can't be read."""
    try:
        found: OnlyMeta = wire.json_decoder(OnlyMeta).decode(bytes(raw))
    except wire.WireError:
        return None
    return found.metadata
