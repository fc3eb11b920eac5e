"""The errors that readers of kernel files raise.

An absent file is None, malformed content raises `MalformedFile`. A cgroup that was removed between listing and reading
raises `CgroupGone`, which callers ignore because containers end all the time. The messages of the two errors that
callers may ignore begin with `cgroup path or file not exist` and `resource is unsupported` (spec 03 §1.3).
"""

from __future__ import annotations

from pathlib import Path


class KernelFileError(Exception):
    """Base class of errors about one kernel file, `path`."""

    def __init__(self, path: str | Path, message: str) -> None:
        super().__init__(message)
        self.path = str(path)


class MalformedFile(KernelFileError):
    """The content of a kernel file does not have the documented format.

    `line` is the offending text (cut to 120 characters), `why` what was expected.
    """

    def __init__(self, path: str | Path, line: str, why: str) -> None:
        self.line = line if len(line) <= 120 else line[:117] + "..."
        self.why = why
        super().__init__(path, f"{path}: malformed at {self.line!r}: {why}")


class CgroupGone(KernelFileError):
    """The cgroup directory does not exist (any longer). Harmless: the container has ended."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, f"cgroup path or file not exist: {path}")


class UnreadableFile(KernelFileError):
    """The file exists but the kernel refuses to read it; `errno` is its reason."""

    def __init__(self, path: str | Path, error: OSError) -> None:
        self.errno = error.errno
        super().__init__(path, f"{path}: cannot be read: {error.strerror}")


class ResourceUnsupported(KernelFileError):
    """This kernel or this cgroup version has no such file; `reason` names the rule."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.reason = reason
        super().__init__(path, f"resource is unsupported: {path}: {reason}")


class InvalidValue(ValueError):
    """A value that the file would not accept; raised before anything is written.

    `name` is the resource or file.
    """

    def __init__(self, name: str, value: object, why: str) -> None:
        super().__init__(f"{name}: invalid value {value!r}: {why}")
        self.name = name
        self.value = value
        self.why = why
