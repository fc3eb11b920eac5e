"""Settings that are not a value in a cgroup's or the node's file: groups, members, objects of other subsystems.

A store knows its resources as `KernelFiles` knows files; values are text, `""` means that the object is not there, and
writing it removes the object. So the executor's merging, order, ledger and giving back hold for them as they are.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.system.errors import UnreadableFile

ABSENT = ""


def read_now(path: Path | str) -> str | None:
    """A kernel file's content; None when it, or what it is about, is not there. Raises UnreadableFile."""
    try:
        return Path(path).read_text(encoding="ascii", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
            return None
        raise UnreadableFile(path, error) from error


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
