"""Schemas of the built-in kinds, read from the model classes of the installed `kubernetes` package.

The models are generated from Kubernetes' OpenAPI document: one class per file, one field per line with its
type, JSON name, whether it is optional, and its description. Only that part of a file is read, as text:
importing the classes would build hundreds of pydantic validators (seconds, tens of megabytes) for the same
facts. A test compares the result with the imported classes, to detect changes of the generator.
Facts that the models don't have (merge rules, enums, quantities) are in `facts`.

Definitions are named by class (`V1PodSpec`) and read on first use.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from control.standalone.schema import facts

Definition = dict[str, Any]

QUANTITY = "Quantity"
INT_OR_STRING = "IntOrString"

_CLASS = re.compile(r"^class (\w+)\(BaseModel\):\n(.*?)^    openapi_types: ", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): (.+?)(?: = (Field\(.*\)|None))?$", re.MULTILINE)
_JSON_NAME = re.compile(r'\b(?:serialization_)?alias="((?:[^"\\]|\\.)*)"')
_DESCRIPTION = re.compile(r'description=("(?:[^"\\]|\\.)*")\)?')
_MODEL = re.compile(r"^(?:[A-Z][a-z]+)*V\d\w*$")
_DOC = re.compile(r'^    """\n(.*?)\n\s*Attributes:\n', re.DOTALL)

_SCALARS: Mapping[str, Definition] = {
    "StrictStr": {"type": "string"},
    "str": {"type": "string"},
    "StrictInt": {"type": "integer"},
    "StrictBool": {"type": "boolean"},
    "StrictFloat": {"type": "number"},
    "datetime": {"type": "string", "format": "date-time"},
    "StrictInt | StrictStr": {"$ref": f"#/definitions/{INT_OR_STRING}"},
    "Union[StrictFloat, StrictInt]": {"type": "number"},
    "Union[Annotated[bytes, Field(strict=True)], Annotated[str, Field(strict=True)]]": {
        "type": "string",
        "format": "byte",
    },
    "Any": {},
}


class ModelError(RuntimeError):
    """A model is missing in the installed `kubernetes` package, or can't be read."""


class BuiltinModels:
    """All definitions, each read once at first use: `models.get("V1Pod")`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else _installed()
        self._files = {path.stem.replace("_", ""): path for path in self._folder.glob("*.py")}
        if not self._files:
            raise ModelError(f"{self._folder}: no model classes")
        self._read: dict[str, Definition] = dict(_SPECIAL)

    def has(self, name: str) -> bool:
        return name in self._read or name.lower() in self._files

    def get(self, name: str) -> Definition:
        """The definition of a class; raises ModelError for an unknown one."""
        definition = self._read.get(name)
        if definition is None:
            definition = self._read[name] = self._load(name)
        return definition

    def closure(self, roots: Iterator[str] | list[str]) -> list[str]:
        """The roots and all definitions that they refer to, depth first in the order of the first reference."""
        seen: dict[str, None] = {}
        stack = list(reversed(list(roots)))
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen[name] = None
            stack.extend(reversed([ref for ref in references(self.get(name)) if ref not in seen]))
        return list(seen)

    def _load(self, name: str) -> Definition:
        path = self._files.get(name.lower())
        if path is None:
            raise ModelError(f"{self._folder}: no model class {name}")
        match = _CLASS.search(path.read_text(encoding="utf-8"))
        if match is None or match[1] != name:
            raise ModelError(f"{path}: no class {name} of the expected form")
        return _definition(name, match[2])


def _installed() -> Path:
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError("the Python package `kubernetes` is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "client" / "models"


def _definition(name: str, body: str) -> Definition:
    definition: Definition = {"type": "object"}
    if doc := _DOC.search(body):
        definition["description"] = " ".join(doc[1].split())
    properties: dict[str, Definition] = {}
    required: list[str] = []
    for match in _FIELD.finditer(body):
        python_name, annotation, value = match.groups()
        alias = _JSON_NAME.search(value or "")
        json_name = alias[1] if alias else python_name
        properties[json_name] = _property(name, json_name, annotation, value or "")
        optional = annotation.startswith("Optional[") or value == "None" or "default=None" in (value or "")
        if not optional:
            required.append(json_name)
    definition["properties"] = properties
    if required:
        definition["required"] = required
    if name in facts.ATOMIC_OBJECTS:
        definition["x-kubernetes-map-type"] = "atomic"
    return definition


def _property(owner: str, name: str, annotation: str, value: str) -> Definition:
    if annotation.startswith("Optional["):
        annotation = annotation.removeprefix("Optional[")[:-1]
    schema = _type(annotation)
    key = f"{owner}.{name}"
    if key in facts.QUANTITIES:
        schema = _with_quantity(schema)
    if description := _DESCRIPTION.search(value):
        schema["description"] = str(ast.literal_eval(description[1]))
    schema.update(facts.field_extensions(key, schema.get("type") == "array"))
    return schema


def _type(annotation: str) -> Definition:
    """The schema of an annotation such as `Dict[str, List[StrictStr]]`; an unknown union accepts any value."""
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if _MODEL.match(annotation):
        return {"$ref": f"#/definitions/{annotation}"}
    if " | " not in annotation and annotation.endswith("]"):
        if annotation.startswith("List["):
            return {"type": "array", "items": _type(annotation[5:-1])}
        if annotation.startswith("Dict[str, "):
            inner = _type(annotation[10:-1])
            return {"type": "object", "additionalProperties": inner} if inner else {"type": "object"}
    return {}


def _with_quantity(schema: Definition) -> Definition:
    ref = {"$ref": f"#/definitions/{QUANTITY}"}
    return {"type": "object", "additionalProperties": ref} if schema.get("type") == "object" else ref


def references(schema: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rsplit("/", 1)[-1]
            else:
                yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


_SPECIAL: Mapping[str, Definition] = {
    QUANTITY: {
        "description": "An amount of a resource: a number with an optional suffix, such as 500m, 2, 1.5Gi or 3e6.",
        "type": "string",
        "format": "quantity",
    },
    INT_OR_STRING: {
        "description": "Either a whole number or a string, for example a port by number or by name.",
        "format": "int-or-string",
        "type": "string",
        "x-kubernetes-int-or-string": True,
    },
}
