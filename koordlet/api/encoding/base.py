"""Base classes of all wire structs.

Encoding omits a field that holds its Go zero value. msgspec's `omit_defaults` does that if **defaults are zero
values**: `None`, `0`, `False`, `""`, `[]`, `{}`. A default that is not zero belongs into a table or a constructor
function, not on a field. A field that must be written even if it is zero gets a default *factory*
(`koordlet.api.encoding.fields.written`), and a nested object that is not optional gets its class as the factory, so
that it is written as `{}` (spec 01 §2).

The wire name is the camelCase form of the attribute; a name with consecutive capitals is set with `name=`.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


class _WireMeta(msgspec.StructMeta):
    """Sets `kw_only`, which msgspec does not inherit (wire structs have too many fields for positional arguments), and
    the type of an `ApiObject`."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_version: str = "",
        kind: str = "",
        **config: Any,
    ) -> type:
        config.setdefault("kw_only", True)
        if api_version:
            namespace["__annotations__"] = {"kind": str, "api_version": str, **namespace.get("__annotations__", {})}
            namespace["kind"] = msgspec.field(default_factory=lambda: kind or name)
            namespace["api_version"] = msgspec.field(default_factory=lambda: api_version)
        return super().__new__(mcls, name, bases, namespace, **config)


@dataclass_transform(kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, metaclass=_WireMeta, omit_defaults=True, rename="camel", forbid_unknown_fields=False):
    """A mutable JSON object."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(
    msgspec.Struct,
    metaclass=_WireMeta,
    frozen=True,
    omit_defaults=True,
    rename="camel",
    forbid_unknown_fields=False,
):
    """An immutable JSON object, shared by its readers (strategies, annotations)."""
