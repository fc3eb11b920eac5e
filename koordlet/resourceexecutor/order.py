"""The order in which a batch of changes is written, so that the kernel refuses no step. Pure.

A child must not exceed its parent: a v1 quota above the parent's and a CPU set outside it are EINVAL, and protection
beyond the parent's has no effect. So growing values are written from the root down, then shrinking values from the
leaves up (spec 03 §2.3). A CPU set that neither contains the old one nor lies within it is first set to the union.
Settings that the tree does not bound (shares, wmark …) are written on the way down. Objects of stores are removed on
the way up. Which bound applies to a resource is data in `system.cgroup.registry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from koordlet.resourceexecutor.settings import RANKS, Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.cgroup import registry
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cgroup.registry import ValueBound
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError

PARENTS_CPUS = ""
"""A v2 CPU set that equals the parent's: written after the parent has its final set."""
EXCLUSIVE = frozenset({"sched_core", "sched_group_identity_enabled"})
"""Switches of the node of which the kernel allows only one to be on: off is written before on."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """`setting` has `current` and is to have `value`. `last` is False for the union step of a CPU set."""

    setting: Setting
    current: Value
    value: Value
    last: bool = True


def ordered(changes: Iterable[SettingChange]) -> list[SettingChange]:
    """Every change once (a CPU set possibly in two steps): growing and unbounded values top-down, then shrinking values
    bottom-up. Bursts come before everything when they shrink, and after everything when they grow."""
    first: list[SettingChange] = []
    down: list[SettingChange] = []
    up: list[SettingChange] = []
    last: list[SettingChange] = []
    for change in changes:
        resource = change.setting.resource
        match registry.bound(resource):
            case ValueBound.PARENT_CPUS:
                union = _union(str(change.current), str(change.value))
                if change.value in (union, PARENTS_CPUS):
                    down.append(change)
                    continue
                if union != str(change.current):
                    down.append(replace(change, value=union, last=False))
                up.append(change)
            case ValueBound.OWN_QUOTA:
                (first if _shrinks(change) else last).append(change)
            case ValueBound.PARENT:
                (up if _shrinks(change) else down).append(change)
            case ValueBound.NONE:
                (up if resource in RANKS and change.value == ABSENT else down).append(change)
    down.sort(key=lambda change: (change.setting.depth, _switched_on(change), change.setting))
    up.sort(key=lambda change: (-change.setting.depth, change.setting))
    return first + down + up + last


def _switched_on(change: SettingChange) -> int:
    return int(change.value) if change.setting.resource in EXCLUSIVE else 0


def _shrinks(change: SettingChange) -> bool:
    return _size(change.value) < _size(change.current)


def _size(value: Value) -> float:
    return float("inf") if value == UNLIMITED else float(value)


def _union(current: str, value: str) -> str:
    try:
        return str(CPUSet.parse(current) | CPUSet.parse(value))
    except CPUSetError:  # the current set cannot be parsed: write the desired set directly
        return value
