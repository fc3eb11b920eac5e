"""The OpenAPI documents of the server, including custom kinds: v2 as one document, v3 per group version.

kubectl reads v3 for `explain`, for the merge keys of `apply`, and to find out that the server validates fields (the
`fieldValidation` parameter of PATCH); older clients read v2. Paths therefore have operations, kinds and
parameters, but no response bodies except a reference to the kind. Documents are built at the first request
and cached until the set of kinds changes (`Kinds.generation`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from control.standalone.kinds import Kinds, ResourceKind
from control.standalone.schema import openapi_proto
from control.standalone.schema.builtin import META, Builtins, public_name
from control.standalone.schema.custom import complete, version_schema
from control.standalone.schema.models import references
from koordlet.app.logging import get_logger

log = get_logger(__name__)

Json = dict[str, Any]

TITLE = "Kubernetes"
VERSION = "v1.37.0"
_GVK = "x-kubernetes-group-version-kind"
_V2, _V3 = "#/definitions/", "#/components/schemas/"
_ACTIONS = {
    "get": ("get", "read"),
    "list": ("get", "list"),
    "create": ("post", "create"),
    "update": ("put", "replace"),
    "patch": ("patch", "patch"),
    "delete": ("delete", "delete"),
    "deletecollection": ("delete", "deletecollection"),
}
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "read": ("pretty",),
    "list": ("allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "pretty",
             "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch"),
    "create": _WRITE_PARAMETERS,
    "replace": _WRITE_PARAMETERS,
    "patch": (*_WRITE_PARAMETERS, "force"),
    "delete": ("dryRun", "gracePeriodSeconds", "orphanDependents", "pretty", "propagationPolicy"),
    "deletecollection": ("continue", "dryRun", "fieldSelector", "gracePeriodSeconds", "labelSelector", "limit",
                         "orphanDependents", "propagationPolicy", "timeoutSeconds"),
}  # fmt: skip
_BOOLEANS = frozenset({"allowWatchBookmarks", "force", "orphanDependents", "sendInitialEvents", "watch"})
_INTEGERS = frozenset({"limit", "timeoutSeconds", "gracePeriodSeconds"})
_PATCH_TYPES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


class OpenAPI:
    """The documents of `kinds`; every method is fast after the first call for a set of kinds."""

    def __init__(self, kinds: Kinds, builtins: Builtins) -> None:
        self._kinds = kinds
        self._builtins = builtins
        self._generation = -1
        self._cache: dict[str, bytes] = {}

    def v2(self) -> bytes:
        """/openapi/v2 as JSON."""
        return self._cached("v2", lambda: _to_json(self._v2()))

    def v2_protobuf(self) -> bytes:
        """/openapi/v2 as protobuf, the only form that kubectl requests."""
        return self._cached("v2 protobuf", self._v2_protobuf)

    def v3_index(self) -> Json:
        """/openapi/v3: the URL of the document of each group version, with a hash for caching by clients."""
        paths: Json = {}
        for path in self._group_versions():
            document = self.v3(path)
            assert document is not None
            digest = hashlib.sha256(document).hexdigest()[:64].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return {"paths": paths}

    def v3(self, path: str) -> bytes | None:
        """The document of a group version; `path` is `api/v1` or `apis/apps/v1`; None if it is not served."""
        group_version = self._group_versions().get(path)
        if group_version is None:
            return None
        group, version = group_version
        return self._cached(path, lambda: _to_json(self._v3(group, version)))

    def _cached(self, key: str, build: Callable[[], bytes]) -> bytes:
        if self._generation != self._kinds.generation:
            self._cache.clear()
            self._generation = self._kinds.generation
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    def _group_versions(self) -> dict[str, tuple[str, str]]:
        return {
            (f"apis/{kind.group}/{version}" if kind.group else f"api/{version}"): (kind.group, version)
            for kind in self._kinds
            for version in kind.versions
        }

    def _v2(self) -> Json:
        definitions = dict(self._builtins.definitions())
        paths: Json = {}
        for kind in self._kinds:
            for version in kind.versions:
                if kind.custom:
                    definitions.update(_v2_subset(item) for item in self._custom(kind, version, _V2))
                paths.update(_paths(kind, version, _V2, v3=False))
        return {
            "swagger": "2.0",
            "info": {"title": TITLE, "version": VERSION},
            "paths": paths,
            "definitions": definitions,
        }

    def _v2_protobuf(self) -> bytes:
        """A custom schema that can't be encoded is reduced to its name, so that the document stays available."""
        document = self._v2()
        definitions = document["definitions"]
        for name in definitions.keys() - self._builtins.definitions().keys():
            try:
                openapi_proto.encode({"definitions": {name: definitions[name]}})
            except openapi_proto.EncodeError as error:
                log.warning("Cannot encode the schema of a custom kind as protobuf", definition=name, error=str(error))
                definitions[name] = {_GVK: definitions[name][_GVK]}
        return openapi_proto.encode(document)

    def _v3(self, group: str, version: str) -> Json:
        paths: Json = {}
        schemas: Json = {}
        builtin = self._builtins.definitions()
        roots = [f"{META}.DeleteOptions", f"{META}.Status"]
        for kind in self._kinds:
            if kind.group != group or version not in kind.versions:
                continue
            paths.update(_paths(kind, version, _V3, v3=True))
            if kind.custom:
                for name, schema in self._custom(kind, version, _V2):
                    schemas[name] = _to_v3(schema)
                    roots.extend(references(schema))
                continue
            name = public_name(group, version, kind.kind)
            roots.extend(each for each in (name, name + "List") if each in builtin)
            if kind.scale:
                roots.append(public_name("autoscaling", "v1", "Scale"))
            if "eviction" in kind.subresources:
                roots.append(public_name("policy", "v1", "Eviction"))
        while roots:
            name = roots.pop()
            if name not in schemas and name in builtin:
                schemas[name] = _to_v3(builtin[name])
                roots.extend(references(builtin[name]))
        return {
            "openapi": "3.0.0",
            "info": {"title": TITLE, "version": VERSION},
            "paths": paths,
            "components": {"schemas": dict(sorted(schemas.items()))},
        }

    def _custom(self, kind: ResourceKind, version: str, prefix: str) -> Iterator[tuple[str, Json]]:
        name = public_name(kind.group, version, kind.kind)
        raw = version_schema(kind.crd or {"spec": {}}, version) or {"type": "object"}
        schema = complete(raw, f"{prefix}{META}.ObjectMeta")
        schema[_GVK] = [_gvk(kind.group, version, kind.kind)]
        yield name, schema
        listed = {
            "type": "object",
            "description": f"{kind.list_kind} is a list of {kind.kind}.",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"$ref": f"{prefix}{META}.ListMeta"},
                "items": {"type": "array", "items": {"$ref": prefix + name}},
            },
            _GVK: [_gvk(kind.group, version, kind.list_kind)],
        }
        yield public_name(kind.group, version, kind.list_kind), listed


def _to_json(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _gvk(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


def _patch_types(kind: ResourceKind) -> list[str]:
    """The patch types of a kind, by which clients choose; custom kinds don't accept strategic merge patches."""
    return [each for each in _PATCH_TYPES if not (kind.custom and "strategic" in each)]


def _paths(kind: ResourceKind, version: str, prefix: str, *, v3: bool) -> Json:
    root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    collection = f"{root}{scope}/{kind.plural}"
    item = collection + "/{name}"
    own = (kind.group, version, kind.kind)
    paths = {
        collection: _operations(kind, ("list", "create", "deletecollection"), own, prefix, v3),
        item: _operations(kind, ("get", "update", "patch", "delete"), own, prefix, v3),
    }
    if kind.namespaced and "list" in kind.verbs:
        paths[f"{root}/{kind.plural}"] = _operations(kind, ("list",), own, prefix, v3)
    if kind.status:
        paths[item + "/status"] = _operations(kind, ("get", "update", "patch"), own, prefix, v3)
    if kind.scale:
        scale = ("autoscaling", "v1", "Scale")
        paths[item + "/scale"] = _operations(kind, ("get", "update", "patch"), scale, prefix, v3)
    for path, operations in paths.items():
        names = [name for name in ("namespace", "name") if "{" + name + "}" in path]
        if names and operations:
            operations["parameters"] = [_parameter(name, "path", v3) for name in names]
    return {path: operations for path, operations in paths.items() if operations}


def _operations(kind: ResourceKind, verbs: Iterable[str], gvk: tuple[str, str, str], prefix: str, v3: bool) -> Json:
    out: Json = {}
    ref = {"$ref": prefix + public_name(*gvk)}
    for verb in verbs:
        if verb not in kind.verbs:
            continue
        method, action = _ACTIONS[verb]
        operation: Json = {
            "x-kubernetes-action": "post" if action == "create" else "put" if action == "replace" else action,
            _GVK: _gvk(*gvk),
            "parameters": [_parameter(name, "query", v3) for name in _PARAMETERS[action]],
        }
        responses: Json = {"200": {"description": "OK"}}
        if v3:
            if action in ("read", "create", "replace", "patch"):
                responses["200"]["content"] = {"application/json": {"schema": ref}}
            if action in ("create", "replace"):
                operation["requestBody"] = {"content": {"*/*": {"schema": ref}}}
            elif action == "patch":
                operation["requestBody"] = {
                    "content": {each: {"schema": {"type": "object"}} for each in _patch_types(kind)}
                }
        else:
            if action in ("read", "create", "replace", "patch"):
                responses["200"]["schema"] = ref
            if action == "patch":
                operation["consumes"] = _patch_types(kind)
            if action in ("create", "replace"):
                operation["parameters"].append({"name": "body", "in": "body", "required": True, "schema": ref})
        operation["responses"] = responses
        out[method] = operation
    return out


def _parameter(name: str, where: str, v3: bool) -> Json:
    kind = "boolean" if name in _BOOLEANS else "integer" if name in _INTEGERS else "string"
    parameter: Json = {"name": name, "in": where}
    if where == "path":
        parameter["required"] = True
    if v3:
        parameter["schema"] = {"type": kind, "uniqueItems": True}
    else:
        parameter.update({"type": kind, "uniqueItems": True})
    return parameter


def _to_v3(schema: Any) -> Any:
    """Definitions prefix -> components prefix; a `$ref` beside other keywords goes into an `allOf`."""
    if isinstance(schema, list):
        return [_to_v3(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _to_v3(value) for key, value in schema.items()}
    ref = out.get("$ref")
    if isinstance(ref, str):
        ref = ref.replace(_V2, _V3, 1)
        del out["$ref"]
        return {**out, "allOf": [{"$ref": ref}]} if out else {"$ref": ref}
    return out


_V3_ONLY = frozenset({"nullable", "oneOf", "anyOf", "not"})
_STRUCTURE = frozenset({"type", "properties", "additionalProperties", "items", "required"})
_DATA = frozenset({"default", "enum", "example"})  # keywords that hold values, not schemas


def _v2_subset(item: tuple[str, Json]) -> tuple[str, Json]:
    """A custom schema without the keywords that OpenAPI v2 doesn't have.

    Where null or unknown fields are valid, the v2 schema accepts anything, because v2 clients would reject them.
    """
    return item[0], _strip_v3(item[1])


def _strip_v3(schema: Any, properties: bool = False) -> Any:
    if isinstance(schema, list):
        return [_strip_v3(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    drop = frozenset() if properties else _V3_ONLY
    if not properties and (schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields")):
        drop |= _STRUCTURE
    return {
        key: value if key in _DATA and not properties else _strip_v3(value, key == "properties" and not properties)
        for key, value in schema.items()
        if key not in drop
    }
