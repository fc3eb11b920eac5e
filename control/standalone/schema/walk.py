"""The view of a schema for all code that walks objects: patches, apply, pruning, unknown-field checks.

A `Schema` wraps one node of an OpenAPI or structural schema (a plain dict) and the definitions of its `$ref`s.
It has only what walkers need: the child of a key, how a list merges, the key that identifies an item.
Nodes are made on demand and cached, so that the recursive built-in schemas cost nothing until they are
walked. `UNKNOWN` means that there is no schema: maps merge by key and lists are replaced, as Kubernetes does for
objects without a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(order="sorted").encode
Definitions = Callable[[str], Mapping[str, Any]]
"""Maps a definition name (the part of a `$ref` after its last slash) to its schema dict."""


class SchemaNodeError(ValueError):
    """A schema refers to a definition that does not exist."""


def no_definitions(name: str) -> Mapping[str, Any]:
    """The resolver for schemas without `$ref`s."""
    raise SchemaNodeError(f"schema refers to unknown definition {name!r}")


class Schema:
    """A schema node. `raw` is the resolved dict; siblings of a `$ref` override its target."""

    __slots__ = ("_children", "_definitions", "_element", "properties", "raw", "required", "zeros")

    def __init__(self, raw: Mapping[str, Any], definitions: Definitions = no_definitions) -> None:
        self._definitions = definitions
        self.raw: Mapping[str, Any] = _resolve(raw, definitions)
        self.properties: Mapping[str, Any] = self.raw.get("properties") or {}
        self.required: frozenset[str] = frozenset(self.raw.get("required") or ())
        self.zeros = {name: raw["x-zero"] for name, raw in self.properties.items() if "x-zero" in raw}
        self._children: dict[str, Schema] = {}
        self._element: Schema | None = None

    @property
    def type(self) -> str:
        """JSON type, or "" when the schema has none."""
        return str(self.raw.get("type", ""))

    @property
    def preserves_unknown(self) -> bool:
        """Whether unknown fields are kept: by the keyword, or because the schema describes no fields at all."""
        if self.raw.get("x-kubernetes-preserve-unknown-fields"):
            return True
        return not self.properties and "additionalProperties" not in self.raw and not self.closed

    @property
    def closed(self) -> bool:
        """True for an object schema with `properties` (possibly empty): other fields are unknown."""
        return "properties" in self.raw

    def has_property(self, name: str) -> bool:
        """Whether `name` is a declared field, not a key of a map."""
        return name in self.properties

    def field(self, name: str) -> Schema | None:
        """The schema of a key; UNKNOWN when it may have any value; None when the key is not allowed."""
        child = self._children.get(name)
        if child is not None:
            return child
        if name in self.properties:
            child = Schema(self.properties[name], self._definitions)
            self._children[name] = child
            return child
        if (values := self.values()) is not None:
            return values
        if self.raw.get("x-kubernetes-embedded-resource") and name in ("apiVersion", "kind", "metadata"):
            return UNKNOWN
        return UNKNOWN if self.preserves_unknown else None

    def values(self) -> Schema | None:
        """The schema of the values of a map (`additionalProperties`); None when it is not a map."""
        additional = self.raw.get("additionalProperties")
        if isinstance(additional, dict):
            if self._element is None:
                self._element = Schema(additional, self._definitions)
            return self._element
        return UNKNOWN if additional is True else None

    def element(self) -> Schema:
        """The schema of the items of a list."""
        items = self.raw.get("items")
        if not isinstance(items, dict):
            return UNKNOWN
        if self._element is None:
            self._element = Schema(items, self._definitions)
        return self._element

    @property
    def is_collection(self) -> bool:
        """Whether the values are lists or maps."""
        return self.type == "array" or "additionalProperties" in self.raw

    @property
    def list_type(self) -> str:
        """ "atomic" (the default), "set" or "map"."""
        return str(self.raw.get("x-kubernetes-list-type", "atomic"))

    @property
    def list_map_keys(self) -> tuple[str, ...]:
        return tuple(self.raw.get("x-kubernetes-list-map-keys", ()))

    @property
    def atomic_map(self) -> bool:
        return self.raw.get("x-kubernetes-map-type") == "atomic"

    @property
    def patch_strategies(self) -> frozenset[str]:
        """Strategic merge strategies: any of "merge", "replace", "retainKeys"."""
        return frozenset(s for s in str(self.raw.get("x-kubernetes-patch-strategy", "")).split(",") if s)

    @property
    def patch_merge_key(self) -> str:
        return str(self.raw.get("x-kubernetes-patch-merge-key", ""))

    def default_of(self, name: str) -> Any:
        """The default of a declared field; None when it has none."""
        child = self.field(name)
        return None if child is None else child.raw.get("default")

    def item_key(self, item: Any) -> str | None:
        """The field-path element of a list item (`k:{…}` or `v:…`); None when the items have no identity.

        Missing keys have their schema default, as in the stored object; a map item without any of its
        keys has no identity.
        """
        kind = self.list_type
        if kind == "set":
            return "v:" + _encode(item).decode()
        if kind != "map" or not isinstance(item, dict):
            return None
        element = self.element()
        keys = {}
        for name in self.list_map_keys:
            value = item.get(name)
            if value is None:
                value = element.default_of(name)
            if value is not None:
                keys[name] = value
        if not keys:
            return None
        return "k:" + _encode(keys).decode()


def _resolve(raw: Mapping[str, Any], definitions: Definitions) -> Mapping[str, Any]:
    """Follow a `$ref`: alone, with siblings, or in an `allOf` of one element, as OpenAPI v3 writes it."""
    all_of = raw.get("allOf")
    if "$ref" not in raw and isinstance(all_of, list) and len(all_of) == 1 and "$ref" in all_of[0]:
        raw = {**{k: v for k, v in raw.items() if k != "allOf"}, **all_of[0]}
    if "$ref" not in raw:
        return raw
    target = _resolve(definitions(str(raw["$ref"]).rsplit("/", 1)[-1]), definitions)
    siblings = {key: value for key, value in raw.items() if key != "$ref"}
    return {**target, **siblings} if siblings else target


UNKNOWN = Schema({})
