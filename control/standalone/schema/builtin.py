"""Schemas of the built-in kinds: per kind for patches and validation, as named definitions for OpenAPI.

`Builtins.schema(group, version, kind)` returns a `Schema`; `Builtins.definitions()` returns all definitions by
Kubernetes' public names (`io.k8s.api.core.v1.Pod`), with `x-kubernetes-group-version-kind`. Both come from `models`.
Reading all of them takes about 0.15 s, at the first OpenAPI request; a single kind takes milliseconds at first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from control.standalone.kinds import BUILTIN, ResourceKind
from control.standalone.schema.facts import words
from control.standalone.schema.models import INT_OR_STRING, QUANTITY, BuiltinModels, Definition
from control.standalone.schema.walk import Schema

META = "io.k8s.apimachinery.pkg.apis.meta.v1"

_PACKAGES = {
    "": "io.k8s.api.core",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
    "apiregistration.k8s.io": "io.k8s.kube-aggregator.pkg.apis.apiregistration",
}

_META_CLASSES = words("""
    V1ObjectMeta V1ListMeta V1LabelSelector V1LabelSelectorRequirement V1OwnerReference V1ManagedFieldsEntry
    V1Status V1StatusDetails V1StatusCause V1DeleteOptions V1Preconditions V1Condition V1WatchEvent V1ShardInfo
    V1FieldSelectorRequirement
    """)

_FIXED_NAMES = {
    QUANTITY: "io.k8s.apimachinery.pkg.api.resource.Quantity",
    INT_OR_STRING: "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}

# Kinds whose class name is not version + kind, and kinds that only subresources accept.
_CLASSES = {
    ("", "v1", "Event"): "CoreV1Event",
    ("events.k8s.io", "v1", "Event"): "EventsV1Event",
    ("authentication.k8s.io", "v1", "TokenRequest"): "AuthenticationV1TokenRequest",
}
_SUBRESOURCE_KINDS = (
    ("autoscaling", "v1", "Scale"),
    ("authentication.k8s.io", "v1", "TokenRequest"),
    ("policy", "v1", "Eviction"),
)
_META_KINDS = ("DeleteOptions", "Status")

_CLASS_NAME = re.compile(r"^(?:[A-Z][a-z]+)*?(V\d+(?:alpha\d+|beta\d+)?)([A-Z]\w*)$")


class Builtins:
    """Schemas of the kinds in `kinds.BUILTIN`, made on demand and cached."""

    def __init__(self) -> None:
        self.models = BuiltinModels()
        self._schemas: dict[str, Schema] = {}
        self._definitions: dict[str, Definition] | None = None

    def schema(self, group: str, version: str, kind: str) -> Schema | None:
        """The schema of a kind; None when there is no model class for it."""
        return self.by_class(self.class_of(group, version, kind))

    def by_class(self, name: str) -> Schema | None:
        schema = self._schemas.get(name)
        if schema is None and self.models.has(name):
            schema = self._schemas[name] = Schema(self.models.get(name), self.models.get)
        return schema

    @property
    def object_meta(self) -> Schema:
        schema = self.by_class("V1ObjectMeta")
        assert schema is not None
        return schema

    @staticmethod
    def class_of(group: str, version: str, kind: str) -> str:
        return _CLASSES.get((group, version, kind), version[:1].upper() + version[1:] + kind)

    def definitions(self) -> dict[str, Definition]:
        """All definitions by public name, with matching `$ref`s; shared and read only."""
        if self._definitions is None:
            self._definitions = self._publish()
        return self._definitions

    def _publish(self) -> dict[str, Definition]:
        kinds: dict[str, list[dict[str, str]]] = {}  # class -> group-version-kinds
        names = dict(_FIXED_NAMES)
        # The core group first: shared definitions get its package name.
        order = sorted(_roots(BUILTIN), key=lambda root: root[0] != "")
        for group, version, kind in order:
            name = self.class_of(group, version, kind)
            lists = [name + "List"] if self.models.has(name + "List") else []
            for root, published in [(name, kind), *((each, kind + "List") for each in lists)]:
                gvk = {"group": group, "version": version, "kind": published}
                kinds.setdefault(root, []).append(gvk)
                for member in self.models.closure([root]):
                    names.setdefault(member, _public_name(member, group, version))
        for kind in _META_KINDS:
            kinds["V1" + kind] = [{"group": "", "version": "v1", "kind": kind}]
            for member in self.models.closure(["V1" + kind]):
                names.setdefault(member, _public_name(member, "", "v1"))
        published_definitions = {}
        for name, public in sorted(names.items(), key=lambda item: item[1]):
            definition = _renamed(self._described(name), names)
            if name in kinds:
                definition["x-kubernetes-group-version-kind"] = kinds[name]
            published_definitions[public] = definition
        return published_definitions

    def _described(self, name: str) -> Definition:
        """The definition of a class, in which fields that are only a `$ref` get the description of its target. The
        models have none for such fields, so that `kubectl explain` would show none."""
        definition = self.models.get(name)
        properties = {}
        for field, schema in definition.get("properties", {}).items():
            if "$ref" in schema and "description" not in schema:
                text = self.models.get(schema["$ref"].rsplit("/", 1)[-1]).get("description")
                schema = {"description": text, **schema} if text else schema
            properties[field] = schema
        return {**definition, "properties": properties} if properties else definition


def public_name(group: str, version: str, kind: str) -> str:
    """The definition name of a kind; of custom kinds: reversed group, version, kind."""
    if group in _PACKAGES or any(k.group == group for k in BUILTIN):
        return _public_name(Builtins.class_of(group, version, kind), group, version)
    return ".".join([*reversed(group.split(".")), version, kind])


def _public_name(name: str, group: str, version: str) -> str:
    match = _CLASS_NAME.match(name)
    short = match[2] if match else name
    if name in _META_CLASSES:
        return f"{META}.{short}"
    package = _PACKAGES.get(group) or "io.k8s.api." + group.split(".", 1)[0]
    return f"{package}.{match[1].lower() if match else version}.{short}"


def _roots(kinds: Iterable[ResourceKind]) -> list[tuple[str, str, str]]:
    roots = [(kind.group, version, kind.kind) for kind in kinds for version in kind.versions]
    return roots + [kind for kind in _SUBRESOURCE_KINDS if kind not in roots]


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """A copy in which every `$ref` has the public name."""
    if isinstance(schema, dict):
        out = {}
        for key, value in schema.items():
            if key == "x-zero":
                continue
            if key == "$ref" and isinstance(value, str):
                out[key] = "#/definitions/" + names[value.rsplit("/", 1)[-1]]
            else:
                out[key] = _renamed(value, names)
        return out
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    return schema
