"""Applies structural schemas: prune unknown fields, fill in defaults, validate.

A custom resource goes through these three passes in this order before it is stored. Pruning and defaulting change the
object in place; validation returns all errors, with kube-apiserver's wording, up to MAX_ERRORS. The built-in
kinds, whose schemas come from `models`, use the same passes.

CEL rules (`x-kubernetes-validations`) are not evaluated: a CRD with such rules is accepted and they have no effect.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema import patterns
from control.standalone.schema.formats import conforms
from control.standalone.schema.walk import UNKNOWN, Schema
from koordlet.api.encoding.quantity import Quantity, QuantityError

MAX_ERRORS = 100
_TYPE_NAMES = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
}  # fmt: skip
_IDENTITY = ("apiVersion", "kind", "metadata")


def prune(obj: Any, schema: Schema) -> list[str]:
    """Remove fields that the schema doesn't have; returns their paths (`spec.x[0].y`), for strict clients."""
    removed: list[str] = []
    _prune(obj, schema, "", removed, root=True)
    return removed


def _prune(value: Any, schema: Schema, where: str, removed: list[str], root: bool = False) -> None:
    if schema is UNKNOWN:
        return
    if isinstance(value, dict):
        embedded = root or bool(schema.raw.get("x-kubernetes-embedded-resource"))
        for key in list(value):
            path = f"{where}.{key}" if where else key
            child = schema.field(key)
            if child is not None:
                _prune(value[key], child, path, removed)
            elif not (embedded and key in _IDENTITY):
                del value[key]
                removed.append(path)
    elif isinstance(value, list):
        element = schema.element()
        for at, item in enumerate(value):
            _prune(item, element, f"{where}[{at}]", removed)


def fill_defaults(obj: Any, schema: Schema) -> None:
    """Fill in defaults for absent fields, in place; null counts as absent where it is not allowed."""
    if isinstance(obj, dict):
        for name, raw in schema.properties.items():
            if name in obj and obj[name] is None and "default" not in raw and not raw.get("nullable"):
                del obj[name]
            if "default" in raw and (name not in obj or (obj[name] is None and not raw.get("nullable"))):
                obj[name] = copy.deepcopy(raw["default"])
        for key, value in obj.items():
            if isinstance(value, dict | list):
                child = schema.field(key)
                if child is not None and child is not UNKNOWN:
                    fill_defaults(value, child)
    elif isinstance(obj, list):
        element = schema.element()
        if element is not UNKNOWN:
            for item in obj:
                fill_defaults(item, element)


def validate(obj: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """All errors of `obj`, in the order of its fields, up to MAX_ERRORS."""
    out: list[FieldError] = []
    for error in _validate(obj, schema, path):
        out.append(error)
        if len(out) >= MAX_ERRORS:
            break
    return out


def type_name(value: Any) -> str:
    """The JSON type of a value, for messages."""
    return _TYPE_NAMES.get(type(value), "object")


def _is_type(value: Any, expected: str) -> bool:
    actual = type_name(value)
    if expected == "integer":
        return actual == "integer" or (actual == "number" and float(value).is_integer())
    return actual == expected or (expected == "number" and actual == "integer")


def _validate(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    raw = schema.raw
    if not raw:
        return
    if value is None and raw.get("nullable"):
        return
    if raw.get("x-kubernetes-int-or-string"):
        if type_name(value) not in ("integer", "string"):
            yield _wrong_type(path, value, "integer,string")
            return
    elif raw.get("format") == "quantity":
        yield from _quantity(value, path)
        return
    elif schema.type and not _is_type(value, schema.type):
        yield _wrong_type(path, value, schema.type)
        return
    if "enum" in raw and not any(value == each and type(value) is type(each) for each in raw["enum"]):
        yield fe.not_supported(path, value, raw["enum"])
    if isinstance(value, str):
        yield from _string(value, raw, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, raw, path)
    elif isinstance(value, list):
        yield from _array(value, schema, path)
    elif isinstance(value, dict):
        yield from _object(value, schema, path)
    yield from _logic(value, schema, path)


def _wrong_type(path: str, value: Any, expected: str) -> FieldError:
    actual = type_name(value)
    return fe.type_invalid(path, actual, f'{path} in body must be of type {expected}: "{actual}"')


QUANTITY_MESSAGE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def is_quantity(value: Any) -> bool:
    """Whether a JSON value is a resource quantity: a number, or a string of a number with an optional suffix."""
    return parse_quantity(str(value)) is not None if isinstance(value, str | int | float) else False


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity | None:
    """The quantity in a string; None if it is not one."""
    try:
        return Quantity(text)
    except QuantityError:
        return None


def _quantity(value: Any, path: str) -> Iterator[FieldError]:
    if not is_quantity(value):
        yield fe.invalid(path, value, QUANTITY_MESSAGE)


def _string(value: str, raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    length = len(value)
    if (limit := raw.get("maxLength")) is not None and length > limit:
        yield fe.too_long(path, limit)
    if (least := raw.get("minLength")) is not None and length < least:
        yield fe.invalid(path, value, f"{path} in body should be at least {least} chars long")
    if (pattern := raw.get("pattern")) is not None:
        try:
            matches = patterns.compiled(str(pattern)).search(value)
        except patterns.PatternError as error:
            yield fe.invalid(path, value, f"{path} in body should match '{pattern}', which can't be compiled: {error}")
        else:
            if not matches:
                yield fe.invalid(path, value, f"{path} in body should match '{pattern}'")
    if (name := raw.get("format")) is not None and not conforms(value, str(name)):
        yield fe.type_invalid(path, value, f"{path} in body must be of type {name}: {fe.show(value)}")


_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def _number(value: float, raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if (most := raw.get("maximum")) is not None:
        if raw.get("exclusiveMaximum") and value >= most:
            yield fe.invalid(path, value, f"{path} in body should be less than {most}")
        elif value > most:
            yield fe.invalid(path, value, f"{path} in body should be less than or equal to {most}")
    if (least := raw.get("minimum")) is not None:
        if raw.get("exclusiveMinimum") and value <= least:
            yield fe.invalid(path, value, f"{path} in body should be greater than {least}")
        elif value < least:
            yield fe.invalid(path, value, f"{path} in body should be greater than or equal to {least}")
    if (step := raw.get("multipleOf")) is not None and value % step:
        yield fe.invalid(path, value, f"{path} in body should be a multiple of {step}")
    bounds = _RANGES.get(str(raw.get("format", "")))
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        name = raw["format"]
        yield fe.invalid(path, value, f"{path} in body must be of type {name}: {fe.show(value)}")


def _array(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    raw = schema.raw
    if (limit := raw.get("maxItems")) is not None and len(value) > limit:
        yield fe.too_many(path, len(value), limit)
    if (least := raw.get("minItems")) is not None and len(value) < least:
        yield fe.invalid(path, len(value), f"{path} in body should have at least {least} items")
    if raw.get("uniqueItems") and any(item in value[:at] for at, item in enumerate(value)):
        yield fe.invalid(path, None, f"{path} in body shouldn't contain duplicates")
    element = schema.element()
    for at, item in enumerate(value):
        yield from _validate(item, element, f"{path}[{at}]")
    if schema.list_type in ("set", "map"):
        seen: set[str] = set()
        for at, item in enumerate(value):
            key = schema.item_key(item)
            if key is None:
                continue
            if key in seen:
                shown = item
                if schema.list_type == "map":
                    shown = {name: item.get(name) for name in schema.list_map_keys if name in item}
                yield fe.duplicate(f"{path}[{at}]", shown)
            seen.add(key)


def _object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    raw = schema.raw
    if (limit := raw.get("maxProperties")) is not None and len(value) > limit:
        yield fe.too_many(path, len(value), limit)
    if (least := raw.get("minProperties")) is not None and len(value) < least:
        yield fe.invalid(path, len(value), f"{path} in body should have at least {least} properties")
    for name in raw.get("required") or ():
        if name not in value:
            yield fe.required(f"{path}.{name}" if path else name)
    for key, item in value.items():
        child = schema.field(key)
        if child is None or child is UNKNOWN:
            continue
        yield from _validate(item, child, f"{path}.{key}" if path else key)


def _logic(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    raw = schema.raw
    for branch in raw.get("allOf") or ():
        yield from _validate(value, Schema(branch), path)
    if (options := raw.get("anyOf")) and not any(_fits(value, branch, path) for branch in options):
        yield fe.invalid(path, _brief(value), f'"{path}" must validate at least one schema (anyOf)')
    if options := raw.get("oneOf"):
        fitting = sum(_fits(value, branch, path) for branch in options)
        if fitting != 1:
            detail = "Found none valid" if not fitting else f"Found {fitting} valid alternatives"
            yield fe.invalid(path, _brief(value), f'"{path}" must validate one and only one schema (oneOf). {detail}')
    if (negated := raw.get("not")) is not None and _fits(value, negated, path):
        yield fe.invalid(path, _brief(value), f'"{path}" must not validate the schema (not)')


def _fits(value: Any, branch: Mapping[str, Any], path: str) -> bool:
    return next(_validate(value, Schema(branch), path), None) is None


def _brief(value: Any) -> Any:
    return "" if isinstance(value, dict | list) else value
