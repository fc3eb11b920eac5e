"""Strict reading of configuration: unknown fields, duplicate keys and wrong types are errors, all reported together.

`parse(text)` reads JSON or YAML into plain objects. `Reader(errors).struct(value, type, path)` converts those into
structs; it records each error and continues with the default.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml
from msgspec import inspect

from control.component.errors import ConfigurationError, invalid
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.times import Duration


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise ConfigurationError([f'yaml: line {key_node.start_mark.line + 1}: key "{key}" already set in map'])
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def parse(text: str) -> dict[str, Any]:
    """One document as plain objects. Raises ConfigurationError."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError([f"error converting YAML to JSON: {' '.join(str(error).split())}"]) from error
    if not isinstance(document, dict):
        raise ConfigurationError(["the configuration is not an object"])
    return document


class Reader:
    """Converts plain objects to structs, and appends errors to `errors`."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors

    def struct(self, value: Any, kind: type[msgspec.Struct], path: str = "") -> Any:
        """A struct. Invalid and missing fields have their defaults. None is read as an empty object."""
        if value is None:
            return kind()
        if not isinstance(value, dict):
            self._wrong(path, value, "must be an object")
            return kind()
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        read_fields: dict[str, Any] = {}
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            field = fields.get(key)
            if field is None:
                self.errors.append(f'strict decoding error: unknown field "{where}"')
            elif item is not None:
                read = self._value(item, inspect.type_info(field.type), where)
                if read is not _INVALID:
                    read_fields[field.name] = read
        for field in fields.values():
            if field.required and field.name not in read_fields:
                where = f"{path}.{field.encode_name}" if path else field.encode_name
                if field.encode_name not in value:
                    self.errors.append(f"{where}: Required value")
                read_fields[field.name] = ""
        return kind(**read_fields)

    def _value(self, value: Any, shape: inspect.Type, path: str) -> Any:
        match shape:
            case inspect.Metadata(type=inner):
                return self._value(value, inner, path)
            case inspect.UnionType(types=types):
                inner = next(option for option in types if not isinstance(option, inspect.NoneType))
                return self._value(value, inner, path)
            case inspect.AnyType():
                return value
            case inspect.StructType(cls=cls):
                return self.struct(value, cls, path)
            case inspect.ListType(item_type=item):
                if not isinstance(value, list):
                    return self._wrong(path, value, "must be a list")
                read = [self._value(element, item, f"{path}[{index}]") for index, element in enumerate(value)]
                return [item for item in read if item is not _INVALID]
            case inspect.DictType(value_type=item):
                if not isinstance(value, dict):
                    return self._wrong(path, value, "must be an object")
                read_map = {str(key): self._value(element, item, f"{path}[{key}]") for key, element in value.items()}
                return {key: item for key, item in read_map.items() if item is not _INVALID}
            case inspect.CustomType(cls=cls):
                return self._custom(value, cls, path)
            case inspect.BoolType():
                return value if isinstance(value, bool) else self._wrong(path, value, "must be a boolean")
            case inspect.IntType():
                whole = isinstance(value, int) and not isinstance(value, bool)
                return value if whole else self._wrong(path, value, "must be an integer")
            case inspect.FloatType():
                number = isinstance(value, int | float) and not isinstance(value, bool)
                return value if number else self._wrong(path, value, "must be a number")
            case inspect.StrType():
                return value if isinstance(value, str) else self._wrong(path, value, "must be a string")
        raise TypeError(f"{path}: values of type {shape} are not supported in configuration")

    def _custom(self, value: Any, cls: type, path: str) -> Any:
        try:
            if cls is Quantity and isinstance(value, str | int) and not isinstance(value, bool):
                return Quantity(str(value))
            if cls is Duration and isinstance(value, str):
                return Duration(value)
        except (ValueError, QuantityError) as error:
            return self._wrong(path, value, str(error))
        return self._wrong(path, value, f"must be a {cls.__name__.lower()}")

    def _wrong(self, path: str, value: Any, detail: str) -> Any:
        self.errors.append(invalid(path or "<document>", value, detail))
        return _INVALID


_INVALID = object()
