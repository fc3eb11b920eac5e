"""The errors every reader of kernel files speaks.

Absent is ``None``, malformed raises :class:`MalformedFile`; a whole cgroup that left between a list and a
read is :class:`CgroupGone`, which callers forgive because containers end all the time. The texts
``cgroup path or file not exist`` and ``resource is unsupported`` begin the messages of the two ignorable
errors (spec 03 §1.3).
"""

from __future__ import annotations

from pathlib import Path


class KernelFileError(Exception):
    """Base of everything that can go wrong with one kernel file; ``path`` names it."""

    def __init__(self, path: str | Path, message: str) -> None:
        super().__init__(message)
        self.path = str(path)


class MalformedFile(KernelFileError):
    """A kernel file whose content does not have the documented shape.

    ``line`` is the offending text (cut to 120 characters), ``why`` says what was expected.
    """

    def __init__(self, path: str | Path, line: str, why: str) -> None:
        self.line = line if len(line) <= 120 else line[:117] + "..."
        self.why = why
        super().__init__(path, f"{path}: malformed at {self.line!r}: {why}")


class CgroupGone(KernelFileError):
    """The cgroup directory does not exist (any more); benign, the container has ended."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, f"cgroup path or file not exist: {path}")


class UnreadableFile(KernelFileError):
    """The file is there but the kernel refuses to show it; ``errno`` says why."""

    def __init__(self, path: str | Path, error: OSError) -> None:
        self.errno = error.errno
        super().__init__(path, f"{path}: cannot be read: {error.strerror}")


class ResourceUnsupported(KernelFileError):
    """This kernel or this cgroup version has no such file; ``reason`` says which rule refused it."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.reason = reason
        super().__init__(path, f"resource is unsupported: {path}: {reason}")


class InvalidValue(ValueError):
    """A value a file would not accept; raised before anything is written.

    ``name`` is the resource or file, ``value`` what was offered.
    """

    def __init__(self, name: str, value: object, why: str) -> None:
        super().__init__(f"{name}: invalid value {value!r}: {why}")
        self.name = name
        self.value = value
        self.why = why
