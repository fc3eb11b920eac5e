"""The base of every wire struct.

Encoding drops a field that holds its Go zero value, and msgspec's `omit_defaults` does exactly that as
long as **defaults are zero values**: `None`, `0`, `False`, `""`, `[]`, `{}`. A default that is not zero
belongs into a table or a constructor function, never onto a field. What must be written even when zero
gets a default *factory* (`koordlet.api.encoding.fields.written`), and a nested object that is not optional gets
its class as the factory, so that it is written as `{}` (spec 01 §2).

Wire names are the camelCase of the attribute; names with runs of capitals say so with `name=`.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


class _KeywordOnly(msgspec.StructMeta):
    """msgspec does not inherit `kw_only`; wire structs have too many fields for positions."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> type:
        config.setdefault("kw_only", True)
        return super().__new__(mcls, name, bases, namespace, **config)


@dataclass_transform(kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, metaclass=_KeywordOnly, omit_defaults=True, rename="camel", forbid_unknown_fields=False):
    """A JSON object of the wire. Mutable: a caller may build it step by step."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(
    msgspec.Struct,
    metaclass=_KeywordOnly,
    frozen=True,
    omit_defaults=True,
    rename="camel",
    forbid_unknown_fields=False,
):
    """A JSON object that readers share and that therefore never changes (strategies, annotations)."""
