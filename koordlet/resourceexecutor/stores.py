"""Settings that are not a value in a cgroup file or a file of the node: groups, members, objects of other subsystems.

A store reads and writes its resources as `KernelFiles` does files. Values are text; `""` means that the object does not
exist, and writing it removes the object. So the executor merges, orders, records and restores them as it does files.
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
    """A kernel file's content; None when it, or its object, does not exist. Raises UnreadableFile."""
    try:
        return Path(path).read_text(encoding="ascii", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
            return None
        raise UnreadableFile(path, error) from error


class SettingStore(Protocol):
    """The part of `KernelFiles` for some resources; the errors are those of `KernelFiles`."""

    @property
    def resources(self) -> Collection[str]:
        """Names of its settings."""
        ...

    def check(self, setting: Setting, value: Value) -> Value:
        """`value` in canonical form. Raises InvalidValue or ResourceUnsupported."""
        ...

    def read(self, setting: Setting) -> Value | None:
        """The current value; None when the object that would hold it does not exist. Raises KernelFileError."""
        ...

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError."""
        ...

    def gone(self, setting: Setting) -> bool:
        """Whether the object that would hold the value does not exist: a group to be created, a removed interface. By
        default never."""
        return False

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        """Whether the setting has the desired value, where comparing values does not show it; otherwise None. Raises
        KernelFileError."""
        return None

    def period(self, setting: Setting) -> float | None:
        """Seconds until a setting that held is checked again; None for the executor's period."""
        return None
