"""Reading `pluginConfig` of a profile: one entry per plugin, with versioned arguments."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from control.component.errors import duplicate, invalid, required
from koordlet.api.encoding import wire


class NamedArguments(Protocol):
    """One entry, before its arguments are decoded."""

    name: str
    args: Any


_Entry = TypeVar("_Entry", bound=NamedArguments)
_Args = TypeVar("_Args")


def arguments_by_plugin(
    entries: Sequence[_Entry],
    where: str,
    known: Container[str],
    decoded: Callable[[_Entry, str], _Args],
    errors: list[str],
) -> dict[str, _Args]:
    """The arguments of a profile, those of disabled plugins too. `decoded(entry, path)` decodes one entry."""
    args: dict[str, _Args] = {}
    for index, entry in enumerate(entries):
        path = f"{where}.pluginConfig[{index}]"
        if not entry.name:
            errors.append(required(f"{path}.name"))
        elif entry.name in args:
            errors.append(duplicate(path, entry.name))
        elif entry.name not in known:
            errors.append(f'{path}: plugin "{entry.name}" does not exist')
        else:
            args[entry.name] = decoded(entry, path)
    return args


def shown_arguments(arguments: Mapping[str, Any], api_version: str) -> list[dict[str, Any]]:
    """`pluginConfig` with these arguments by plugin, defaults included."""
    return [
        {
            "name": name,
            "args": {
                "apiVersion": api_version,
                "kind": f"{name}Args",
                **msgspec.to_builtins(args, enc_hook=wire.enc_hook),
            },
        }
        for name, args in sorted(arguments.items())
    ]


def arguments_body(
    entry: NamedArguments, path: str, kind: str, api_version: str, errors: list[str], *, shown_kind: str = ""
) -> dict[str, Any] | None:
    """The arguments without kind and version, which are checked; None if they are no object. `shown_kind`: the kind in
    messages, if it is not `kind`."""
    raw = {} if entry.args is None else entry.args
    if not isinstance(raw, dict):
        errors.append(invalid(f"{path}.args", raw, "must be an object"))
        return None
    named_kind, version = raw.get("kind", kind), raw.get("apiVersion", api_version)
    if named_kind != kind:
        expected = shown_kind or kind
        errors.append(f"{path}: args for plugin {entry.name} were not of type {expected}, got {named_kind}")
    if version != api_version:
        errors.append(f'{path}: no kind "{named_kind}" is registered for version "{version}"')
    return {key: value for key, value in raw.items() if key not in ("kind", "apiVersion")}
