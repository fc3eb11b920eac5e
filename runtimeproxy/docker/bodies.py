"""The JSON bodies of create and update calls: parsed for hooks, changed per member, never decoded and encoded as a
whole.

An object is kept as its members' original bytes, so that unknown fields, numbers of any size and the order of members
survive a change of other members. Names match as in Go's decoder: case-insensitively, the last one wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from runtimeproxy.hooks.merge import OOM_RANGE

_T = TypeVar("_T")
_FIELDS = (
    ("CpuPeriod", "cpu_period"),
    ("CpuQuota", "cpu_quota"),
    ("CpuShares", "cpu_shares"),
    ("Memory", "memory_limit_in_bytes"),
    ("CpusetCpus", "cpuset_cpus"),
    ("CpusetMems", "cpuset_mems"),
    ("MemorySwap", "memory_swap_limit_in_bytes"),
)
"""Fields of HostConfig and UpdateConfig, and their names in hook requests."""
_CREATE_FIELDS = (*_FIELDS, ("OomScoreAdj", "oom_score_adj"))
_TEXTS = ("cpuset_cpus", "cpuset_mems")
_KINDS: tuple[Any, ...] = (str, int, dict[str, str], list[str])
_DECODERS = {kind: msgspec.json.Decoder(kind | None) for kind in _KINDS}
"""Cached, as building a decoder takes longer than using it."""


class InvalidBody(ValueError):
    """Not a JSON object, or a member of another type than Docker's; the message names it."""


class JsonObject:
    """A JSON object; `raw`: its present bytes, the original ones until a member is set."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._what = what
        self._raw = raw
        try:
            self._members: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidBody(f"{what}: {error}") from error
        self._keys = {key.casefold(): key for key in self._members}
        """The last of equal names."""
        self.changed = False

    def get(self, name: str, kind: type[_T]) -> _T | None:
        """None when absent or null. `kind`: one of `_KINDS`."""
        key = self._keys.get(name.casefold())
        if key is None:
            return None
        try:
            value: _T | None = _DECODERS[kind].decode(self._members[key])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidBody(f"{self._what}: {name}: {error}") from error
        return value

    def object(self, name: str) -> JsonObject:
        """A member that is an object; an empty one when absent or null."""
        key = self._keys.get(name.casefold())
        raw = bytes(self._members[key]) if key is not None else b"null"
        return JsonObject(b"{}" if raw == b"null" else raw, f"{self._what}: {name}")

    def set(self, name: str, value: Any) -> None:
        """`value`: any JSON value, or a JsonObject."""
        folded = name.casefold()
        last = self._keys.setdefault(folded, name)
        if len(self._keys) < len(self._members):
            for key in [key for key in self._members if key != last and key.casefold() == folded]:
                del self._members[key]
        self._members[last] = msgspec.Raw(value.raw if isinstance(value, JsonObject) else msgspec.json.encode(value))
        self.changed = True

    @property
    def raw(self) -> bytes:
        return msgspec.json.encode(self._members) if self.changed else self._raw


def read_resources(members: JsonObject) -> LinuxContainerResources:
    """The resources of a HostConfig or UpdateConfig; an absent field is zero, as in dockerd."""
    resources = LinuxContainerResources()
    for name, field in _CREATE_FIELDS:
        value = members.get(name, str if field in _TEXTS else int)
        if not value:
            continue
        try:
            setattr(resources, field, value)
        except ValueError as error:  # beyond 64 bits, or a string that protobuf refuses
            raise InvalidBody(f"{name}: {error}") from error
    return resources


def write_create(host: JsonObject, desired: LinuxContainerResources) -> None:
    """A hook's response replaces all of HostConfig's resources, zeros included (spec 08 §12)."""
    _write(host, desired, _CREATE_FIELDS)


def write_update(update: JsonObject, desired: LinuxContainerResources) -> LinuxContainerResources:
    """The same for an UpdateConfig, which has no OOM score and in which zero means "unchanged". Returns its
    resources."""
    return _write(update, desired, _FIELDS)


def _write(
    members: JsonObject, desired: LinuxContainerResources, fields: Sequence[tuple[str, str]]
) -> LinuxContainerResources:
    now = read_resources(members)
    desired = without_refused_values(now, desired)
    for name, field in fields:
        if getattr(now, field) != getattr(desired, field):
            members.set(name, getattr(desired, field))
    return desired


def without_refused_values(
    requested: LinuxContainerResources, returned: LinuxContainerResources
) -> LinuxContainerResources:
    """The response without values that CRI accepts and dockerd refuses, which would keep a pod from starting.

    Only a quota and swap may be negative (-1: unlimited); for the others zero means unlimited. An OOM score out of
    range is dropped. Swap, which in dockerd includes memory, is raised to the memory limit, and dropped without one.
    """
    if returned == requested:  # the caller's own values are dockerd's to check
        return returned
    resources = LinuxContainerResources()
    resources.CopyFrom(returned)
    for field in ("cpu_period", "cpu_shares", "memory_limit_in_bytes"):
        setattr(resources, field, max(0, getattr(resources, field)))
    if resources.oom_score_adj not in OOM_RANGE:
        resources.oom_score_adj = requested.oom_score_adj
    if resources.memory_swap_limit_in_bytes > 0:
        least = resources.memory_limit_in_bytes
        resources.memory_swap_limit_in_bytes = max(resources.memory_swap_limit_in_bytes, least) if least else 0
    return resources


def merge_resources(stored: LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources:
    """An update's values over the known ones: numbers above zero and non-empty strings, never the OOM score."""
    return _merged(stored, new, lambda value: value if isinstance(value, str) else value > 0)


def applied_resources(known: LinuxContainerResources, update: LinuxContainerResources) -> LinuxContainerResources:
    """dockerd's resources after an update: zero means "unchanged", -1 is a value."""
    return _merged(known, update, bool)


def _merged(old: LinuxContainerResources, new: LinuxContainerResources, counts: Any) -> LinuxContainerResources:
    merged = LinuxContainerResources()
    merged.CopyFrom(old)
    for _, field in _FIELDS:
        if counts(getattr(new, field)):
            setattr(merged, field, getattr(new, field))
    return merged


def env_map(env: Sequence[str]) -> dict[str, str]:
    """Variables as in hook requests: the last of equal names wins, entries without `=` are left out."""
    return {name: value for name, equals, value in (entry.partition("=") for entry in env) if equals}


def merge_env(env: Sequence[str], desired: Mapping[str, str]) -> list[str]:
    """The list with a hook's variables, which replace the map in the hook request.

    Order and duplicates are kept, changed values are written in place, variables missing in `desired` are removed, new
    ones follow in sorted order. Entries without `=` (Docker: unset the image's variable) are kept.
    """
    current = env_map(env)
    merged = []
    for entry in env:
        name, equals, _ = entry.partition("=")
        if not equals:
            merged.append(entry)
        elif name in desired:
            merged.append(entry if desired[name] == current[name] else f"{name}={desired[name]}")
    return merged + [f"{name}={desired[name]}" for name in sorted(set(desired) - set(current))]
