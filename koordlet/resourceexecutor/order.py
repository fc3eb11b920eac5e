"""In which order a batch of changes is written, so that no step is one the kernel refuses. Pure.

A child must never exceed its parent: a v1 quota above the parent's is EINVAL, a cpuset outside it too, and protection
beyond the parent's does not count. So what grows is written from the root down, then what shrinks from the leaves up
(spec 03 §2.3); a CPU set that neither contains the old one nor lies in it grows to the union first. Settings that the
tree does not bind (shares, burst, wmark ...) are written on the way down. What a store makes is removed on the way up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from koordlet.resourceexecutor.settings import RANKS, Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.cgroup.codecs import UNLIMITED
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError

LIMITS = frozenset({"cpu.cfs_quota_us"})
"""Bound by the parent; -1 is more than any number."""
PROTECTIONS = frozenset({"memory.min", "memory.low", "memory.high"})
"""Bound by the parent; the largest number is unlimited."""
CPU_SETS = frozenset({"cpuset.cpus"})
FOLLOWING = ""
"""A v2 CPU set that is the parent's: written when the parent has what it shall."""
BURSTS = frozenset({"cpu.cfs_burst_us"})
"""Bound by the directory's own quota: before one that shrinks, after one that grows."""
EXCLUSIVE = frozenset({"sched_core", "sched_group_identity_enabled"})
"""Switches of the node of which the kernel lets one be on: off comes before on."""


@dataclass(frozen=True, slots=True)
class Change:
    """`setting` holds `current` and shall hold `value`. `last` is False for the union step of a CPU set."""

    setting: Setting
    current: Value
    value: Value
    last: bool = True


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Every change once (a CPU set possibly in two steps), growing ones and unbound ones top-down, then shrinking ones
    bottom-up."""
    first: list[Change] = []
    down: list[Change] = []
    up: list[Change] = []
    last: list[Change] = []
    for change in changes:
        resource = change.setting.resource
        if resource in CPU_SETS:
            union = _union(str(change.current), str(change.value))
            if change.value in (union, FOLLOWING):
                down.append(change)
                continue
            if union != str(change.current):
                down.append(replace(change, value=union, last=False))
            up.append(change)
        elif resource in BURSTS:
            (first if _size(change.value) < _size(change.current) else last).append(change)
        elif resource in RANKS:
            (up if change.value == ABSENT else down).append(change)
        elif resource in LIMITS | PROTECTIONS and _size(change.value) < _size(change.current):
            up.append(change)
        else:
            down.append(change)
    down.sort(key=lambda change: (change.setting.depth, _switched_on(change), change.setting))
    up.sort(key=lambda change: (-change.setting.depth, change.setting))
    return first + down + up + last


def _switched_on(change: Change) -> int:
    return int(change.value) if change.setting.resource in EXCLUSIVE else 0


def _size(value: Value) -> float:
    return float("inf") if value == UNLIMITED else float(value)


def _union(current: str, value: str) -> str:
    try:
        return str(CPUSet.parse(current) | CPUSet.parse(value))
    except CPUSetError:  # what the kernel shows is not ours to judge: written as asked
        return value
