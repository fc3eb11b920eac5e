"""The JSON of create and update calls: read for hooks, changed member by member, never decoded and encoded whole.

An object is kept as its members' own bytes, so that fields nobody here knows, numbers of any size and the order of
members survive a change of others. Names are matched as Go's decoder does it: without regard to case, the last wins.
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
"""Of HostConfig and of UpdateConfig, and what hooks call them."""
_CREATE_FIELDS = (*_FIELDS, ("OomScoreAdj", "oom_score_adj"))
_TEXTS = ("cpuset_cpus", "cpuset_mems")
_KINDS: tuple[Any, ...] = (str, int, dict[str, str], list[str])
_DECODERS = {kind: msgspec.json.Decoder(kind | None) for kind in _KINDS}
"""Of what members are read as; making one takes longer than its work."""


class Undecodable(ValueError):
    """No JSON object, or a member of another kind than Docker's; the message names it."""


class Members:
    """A JSON object; `raw` is what it is now, the bytes it came from as long as nothing was set."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._what = what
        self._raw = raw
        try:
            self._members: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Undecodable(f"{what}: {error}") from error
        self._keys = {key.casefold(): key for key in self._members}
        """The last of those that are the same name."""
        self.changed = False

    def get(self, name: str, kind: type[_T]) -> _T | None:
        """None when absent or null. `kind`: one of `_KINDS`."""
        key = self._keys.get(name.casefold())
        if key is None:
            return None
        try:
            value: _T | None = _DECODERS[kind].decode(self._members[key])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Undecodable(f"{self._what}: {name}: {error}") from error
        return value

    def object(self, name: str) -> Members:
        """A member that is an object itself; an empty one when absent or null."""
        key = self._keys.get(name.casefold())
        raw = bytes(self._members[key]) if key is not None else b"null"
        return Members(b"{}" if raw == b"null" else raw, f"{self._what}: {name}")

    def set(self, name: str, value: Any) -> None:
        """`value`: anything that JSON has, or other Members."""
        folded = name.casefold()
        last = self._keys.setdefault(folded, name)
        if len(self._keys) < len(self._members):
            for key in [key for key in self._members if key != last and key.casefold() == folded]:
                del self._members[key]
        self._members[last] = msgspec.Raw(value.raw if isinstance(value, Members) else msgspec.json.encode(value))
        self.changed = True

    @property
    def raw(self) -> bytes:
        return msgspec.json.encode(self._members) if self.changed else self._raw


def read_resources(members: Members) -> LinuxContainerResources:
    """The resources of a HostConfig or UpdateConfig; what is absent is zero, as for dockerd."""
    found = LinuxContainerResources()
    for name, field in _CREATE_FIELDS:
        value = members.get(name, str if field in _TEXTS else int)
        if not value:
            continue
        try:
            setattr(found, field, value)
        except ValueError as error:  # beyond 64 bits, or text that protobuf refuses
            raise Undecodable(f"{name}: {error}") from error
    return found


def write_create(host: Members, wanted: LinuxContainerResources) -> None:
    """A hook's answer overwrites all of HostConfig's resources, zeros included (spec 08 §12)."""
    _write(host, wanted, _CREATE_FIELDS)


def write_update(update: Members, wanted: LinuxContainerResources) -> LinuxContainerResources:
    """The same for an UpdateConfig, which has no OOM score and in which zero leaves a value as it is. What it says
    now."""
    return _write(update, wanted, _FIELDS)


def _write(
    members: Members, wanted: LinuxContainerResources, fields: Sequence[tuple[str, str]]
) -> LinuxContainerResources:
    now = read_resources(members)
    wanted = acceptable(now, wanted)
    for name, field in fields:
        if getattr(now, field) != getattr(wanted, field):
            members.set(name, getattr(wanted, field))
    return wanted


def acceptable(asked: LinuxContainerResources, answered: LinuxContainerResources) -> LinuxContainerResources:
    """The answer without what CRI understands and dockerd refuses, which would keep a pod from starting.

    Below zero (-1: unlimited) only a quota and swap may be, for the others zero says it; a score out of range is not
    said; swap, which for dockerd holds the memory too, is not below it and goes with it.
    """
    if answered == asked:  # what the caller says itself is between it and dockerd
        return answered
    found = LinuxContainerResources()
    found.CopyFrom(answered)
    for field in ("cpu_period", "cpu_shares", "memory_limit_in_bytes"):
        setattr(found, field, max(0, getattr(found, field)))
    if found.oom_score_adj not in OOM_RANGE:
        found.oom_score_adj = asked.oom_score_adj
    if found.memory_swap_limit_in_bytes > 0:
        least = found.memory_limit_in_bytes
        found.memory_swap_limit_in_bytes = max(found.memory_swap_limit_in_bytes, least) if least else 0
    return found


def merge_resources(stored: LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources:
    """What an update says over what is known: numbers above zero and texts that aren't empty, never the OOM score."""
    return _merged(stored, new, lambda value: value if isinstance(value, str) else value > 0)


def told_resources(known: LinuxContainerResources, told: LinuxContainerResources) -> LinuxContainerResources:
    """What dockerd has after it was told an update: a zero leaves its value as it was, -1 is a value."""
    return _merged(known, told, bool)


def _merged(old: LinuxContainerResources, new: LinuxContainerResources, counts: Any) -> LinuxContainerResources:
    merged = LinuxContainerResources()
    merged.CopyFrom(old)
    for _, field in _FIELDS:
        if counts(getattr(new, field)):
            setattr(merged, field, getattr(new, field))
    return merged


def env_map(env: Sequence[str]) -> dict[str, str]:
    """Variables as hooks see them: the last of equal names wins, entries without `=` are left out."""
    return {name: value for name, equals, value in (entry.partition("=") for entry in env) if equals}


def merge_env(env: Sequence[str], wanted: Mapping[str, str]) -> list[str]:
    """The list with a hook's variables, which replace the map that it was shown.

    Order and duplicates stay, changed values are written in place, variables missing in `wanted` go, new ones come
    last and sorted. Entries without `=` (Docker: unset the image's) stay.
    """
    shown = env_map(env)
    merged = []
    for entry in env:
        name, equals, _ = entry.partition("=")
        if not equals:
            merged.append(entry)
        elif name in wanted:
            merged.append(entry if wanted[name] == shown[name] else f"{name}={wanted[name]}")
    return merged + [f"{name}={wanted[name]}" for name in sorted(set(wanted) - set(shown))]
