"""How a struct field says what its CRD schema says, without changing how it decodes.

A custom resource is checked by the API server against its schema; a reader that checks again, with
the rules of its own release, would throw away whole objects the day a newer release adds an enum
value. So enums, bounds and server-side defaults are *notes* on a field: `koordlet.api.encoding.crdgen` copies
them into the schema, and decoding ignores them. Only types and required fields are enforced on
decode.

`doc(...)` makes such a note, `written(...)` makes a field that is encoded even when it holds its
zero (the starred fields of spec 01 §2). Used by every module of custom resources here.
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
    min_properties: int | None = None,
    pattern: str | None = None,
    nullable: bool = False,
    preserve: bool = False,
    atomic: bool = False,
    list_type: ListType | None = None,
    map_keys: tuple[str, ...] | None = None,
    required: bool = False,
) -> Meta:
    """A description and schema notes for one field.

    `default` is the value the API server fills in, `preserve` keeps unknown members, `atomic` marks an
    object that server-side apply owns as a whole, `required` asks for a field in the schema that our
    structs can do without (they have a zero for it and always write it).
    """
    notes: dict[str, Any] = {
        "enum": list(enum) if enum else None,
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "minLength": min_length,
        "maxLength": max_length,
        "minItems": min_items,
        "minProperties": min_properties,
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
    """A field that may be missing on input and is always written, even when it is zero."""
    # msgspec drops what a factory made only if the factory is `list`, `dict` or `set` itself.
    return msgspec.field(default_factory=lambda: factory(), name=name)


Int32 = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
"""An integer whose schema says int32 (plain `int` says int64)."""
