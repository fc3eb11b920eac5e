"""Schema notes on struct fields, which are copied into the CRD schema and do not affect decoding.

The API server validates a custom resource against its schema. A reader that validated again, with the rules of its own
release, would reject whole objects when a newer release adds an enum value. Therefore enums, bounds and server-side
defaults are *notes* on a field: `koordlet.api.encoding.crdgen` copies them into the schema, and decoding ignores them.
Decoding enforces only types and required fields.

`doc(...)` creates such a note. `written(...)` creates a field that is encoded even if it holds its zero value (the
starred fields of spec 01 §2).
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

ListType = Literal["atomic", "set", "map"]


def doc(
    description: str,
    *,
    enum: tuple[str, ...] | None = None,
    default: object = None,
    minimum: int | None = None,
    maximum: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    min_items: int | None = None,
    max_items: int | None = None,
    min_properties: int | None = None,
    max_properties: int | None = None,
    pattern: str | None = None,
    nullable: bool = False,
    preserve: bool = False,
    atomic: bool = False,
    list_type: ListType | None = None,
    map_keys: tuple[str, ...] | None = None,
    required: bool = False,
) -> Meta:
    """A description and schema notes for one field.

    `default` is the default that the API server sets, `preserve` keeps unknown members, `atomic` marks an object that
    server-side apply owns as a whole. `required` makes a field required in the schema although it is optional when a
    struct is decoded (it has a zero value and is always written).
    """
    notes: dict[str, Any] = {
        "enum": list(enum) if enum else None,
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "minLength": min_length,
        "maxLength": max_length,
        "minItems": min_items,
        "maxItems": max_items,
        "minProperties": min_properties,
        "maxProperties": max_properties,
        "pattern": pattern,
        "nullable": nullable or None,
        "x-kubernetes-preserve-unknown-fields": preserve or None,
        "x-kubernetes-map-type": "atomic" if atomic else None,
        "x-kubernetes-list-type": list_type,
        "x-kubernetes-list-map-keys": list(map_keys) if map_keys else None,
        "required": required or None,
    }
    return Meta(description=description, extra_json_schema={k: v for k, v in notes.items() if v is not None})


def written(factory: Callable[[], T], *, name: str | None = None) -> T:
    """A field that may be missing on input and is always written, even if it is zero."""
    # msgspec omits a default created by a factory only if the factory is `list`, `dict` or `set` itself.
    return msgspec.field(default_factory=lambda: factory(), name=name)


Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
"""An integer with format int32 in the schema (plain `int` has int64)."""
