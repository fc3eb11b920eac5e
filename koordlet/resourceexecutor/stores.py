"""Settings that are not a value in a cgroup's or the node's file: groups, members, objects of other subsystems.

A store knows its resources as `KernelFiles` knows files; values are text, `""` means that the object is not there, and
writing it removes the object. So the executor's merging, order, ledger and giving back hold for them as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from koordlet.resourceexecutor.settings import Setting, Value

ABSENT = ""


class Store(Protocol):
    """What `KernelFiles` asks of it. Errors are those of `KernelFiles`."""

    @property
    def resources(self) -> Collection[str]:
        """Names of its settings."""
        ...

    def check(self, setting: Setting, value: Value) -> Value:
        """`value` in canonical form. Raises InvalidValue or ResourceUnsupported."""
        ...

    def read(self, setting: Setting) -> Value | None:
        """What is there; None when not even the place for it is. Raises KernelFileError."""
        ...

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError."""
        ...

    def gone(self, setting: Setting) -> bool:
        """Whether the place is missing for now: a group to be, an interface that left."""
        ...

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Whether the kernel does what was asked, where comparing values can't tell; else None. Raises
        KernelFileError."""
        ...

    def period(self, setting: Setting) -> float | None:
        """Seconds after which to look again at what held; None for the executor's own time."""
        ...
