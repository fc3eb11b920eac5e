"""Tables that `kubectl get` prints, made on the server (meta.k8s.io/v1 Table).

A column has a name, a type, a priority (1: only with -o wide) and a function from an object to a cell. The columns of
the built-in kinds are in `columns`, those of custom kinds come from additionalPrinterColumns. Pure: ages are relative
to a time that the caller passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from control.standalone.http.jsonpath import JsonPathError, compile_path
from control.standalone.kinds import ResourceKind
from control.standalone.objectmeta import parse_timestamp

Json = dict[str, Any]
Cell = Callable[[Json, float], Any]


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""
    description: str = ""

    def definition(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def human_duration(seconds: float) -> str:
    """`95s`, `5m10s`, `2h5m`, `3d4h`, `400d`: the second unit only for small values, as kubectl prints durations."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    s = int(seconds)
    if s < 120:
        return f"{s}s"
    minutes, hours = s // 60, s // 3600
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 24 * 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    if days < 365 * 8:
        return f"{years}y{days % 365}d" if days % 365 else f"{years}y"
    return f"{years}y"


def age(text: Any, now: float) -> str:
    if not text:
        return "<unknown>"
    try:
        return human_duration(now - parse_timestamp(str(text)))
    except ValueError:
        return "<invalid>"


def age_of(obj: Json, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


NAME = TableColumn(
    "Name",
    lambda o, _: o["metadata"].get("name", ""),
    format="name",
    description="Name must be unique within a namespace.",
)
AGE = TableColumn("Age", age_of, description="CreationTimestamp is the server time when this object was created.")
CREATED_AT = TableColumn("Created At", lambda o, _: o["metadata"].get("creationTimestamp"), type="date")


def custom_columns(kind: ResourceKind, version: str) -> tuple[TableColumn, ...]:
    """Name and the columns of the CRD's version; Name and Age when it has none."""
    assert kind.crd is not None
    served: Json = next((v for v in kind.crd["spec"]["versions"] if v["name"] == version), {})
    listed = served.get("additionalPrinterColumns") or []
    if not listed:
        return (NAME, AGE)
    return (NAME, *(_custom_column(c) for c in listed))


def _custom_column(spec: Json) -> TableColumn:
    kind, path = spec.get("type", "string"), spec["jsonPath"]
    try:
        values = compile_path(path)
    except JsonPathError:
        values = _no_values
    date = kind == "date"

    def cell(obj: Json, now: float) -> Any:
        cell_values = values(obj)
        if not cell_values:
            return "<unknown>" if date and path == ".metadata.creationTimestamp" else None
        if date:
            return age(cell_values[0], now)
        return _typed(kind, cell_values)

    return TableColumn(
        spec["name"],
        cell,
        type=kind,  # date too, although its cells are ages
        priority=spec.get("priority") or 0,
        format=spec.get("format") or "",
        description=spec.get("description") or "",
    )


def _no_values(_document: Any) -> list[Any]:
    return []


def _typed(kind: str, cell_values: list[Any]) -> Any:
    first = cell_values[0]
    if kind == "integer" and isinstance(first, int | float) and not isinstance(first, bool):
        return int(first)
    if kind == "number" and isinstance(first, int | float) and not isinstance(first, bool):
        return first
    if kind == "boolean" and isinstance(first, bool):
        return first
    if kind in ("integer", "number", "boolean"):
        return None
    return ",".join(_plain(v) for v in cell_values)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{_plain(v)}" for k, v in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(_plain(v) for v in value) + "]"
    return str(value)


def row(columns: tuple[TableColumn, ...], obj: Json, now: float, include: str) -> Json:
    """One row; `include` is None, Metadata or Object, like the query parameter includeObject."""
    cells = []
    for column in columns:
        try:
            cells.append(column.cell(obj, now))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            cells.append("<invalid>")  # a malformed object must not make the whole list fail
    if include == "Object":
        return {"cells": cells, "object": obj}
    return {"cells": cells, "object": None if include == "None" else partial(obj)}


def partial(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(columns: tuple[TableColumn, ...], rows: list[Json], metadata: Json, *, header: bool = True) -> Json:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [c.definition() for c in columns] if header else None,
        "rows": rows,
    }
