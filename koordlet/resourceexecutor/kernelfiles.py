"""Settings as files: read in v1 units, written in the form of the file. Settings of a store are passed to it. Only this
package calls `system.write`.

Each function is about one setting. `read` returns None when file or cgroup does not exist (a container that has not
started yet or has ended) and raises KernelFileError when the file cannot be used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import SettingStore
from koordlet.system.beneath import open_beneath
from koordlet.system.cgroup import registry, tree
from koordlet.system.cgroup.codecs import WEIGHT, Codec
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.registry import FileKind, FileSpec, NodeRoot, Support
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from koordlet.system.errors import InvalidValue, MalformedFile, ResourceUnsupported, UnreadableFile
from koordlet.system.roots import Roots
from koordlet.system.write import WriteRefused, write_value

EMPTY = "\n"
"""Text of an empty value: a write of 0 bytes does not reach a cgroup file."""


class KernelFiles:
    """Reads and writes settings on this host."""

    def __init__(self, files: CgroupFS, roots: Roots, stores: Iterable[SettingStore] = ()) -> None:
        self._files = files
        self._roots = roots
        self._stores = {resource: store for store in stores for resource in store.resources}

    def path(self, setting: Setting) -> str:
        """Absolute path; raises ResourceUnsupported when this host has no such file."""
        if setting.cgroup_dir is not None:
            return self._files.path(setting.resource, setting.cgroup_dir)
        node = registry.NODE_FILES.get(setting.resource)
        if node is None or node.root is NodeRoot.VIRTUAL:
            raise ResourceUnsupported(setting.resource, "not a file of the node")
        root = self._roots.proc_sys if node.root is NodeRoot.PROC_SYS else self._roots.sys
        return os.fspath(root / node.path)

    def check(self, setting: Setting, value: Value) -> Value:
        """`value` in canonical form. Raises InvalidValue, or ResourceUnsupported when this host has no such setting."""
        if store := self._stores.get(setting.resource):
            return store.check(setting, value)
        self.path(setting)
        spec = self._spec(setting)
        if spec is None:
            if setting.device and value not in (0, 1):
                raise InvalidValue(setting.label, value, "a scheduler feature is on (1) or off (0)")
            node = registry.NODE_FILES[setting.resource]
            if node.validator is not None:
                node.validator.check(setting.resource, str(value))
            return value
        if spec.read_only:
            raise InvalidValue(setting.resource, value, "the file is read only")
        if spec.support is not Support.DIRECTORY:  # DIRECTORY is only known once the directory exists
            support = self._files.support(setting.resource, setting.cgroup_dir or "")
            if not support:
                raise ResourceUnsupported(setting.label, support.reason)
        if spec.kind is FileKind.CPU_LIST:
            try:
                return str(CPUSet.parse(str(value)))
            except CPUSetError as error:
                raise InvalidValue(setting.resource, value, str(error)) from error
        if spec.validator is not None:
            spec.validator.check(setting.resource, spec.codec.encode(int(value), ""))
        return value

    def read(self, setting: Setting) -> Value | None:
        """The kernel's current value. Raises MalformedFile and UnreadableFile."""
        if store := self._stores.get(setting.resource):
            return store.read(setting)
        path = self.path(setting)
        try:
            text = self._content(setting, path).decode("ascii", "surrogateescape").strip("\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ENODEV:  # the cgroup was removed between open and read
                return None
            raise UnreadableFile(path, error) from error
        spec = self._spec(setting)
        if spec is None:
            return _feature(text, setting.device) if setting.device else _number(text)
        try:
            return str(CPUSet.parse(text)) if spec.kind is FileKind.CPU_LIST else exactly(spec.codec, text)
        except ValueError as error:
            raise MalformedFile(path, text, str(error)) from error

    def write(self, setting: Setting, value: Value) -> None:
        """One write call. Raises WriteError."""
        if store := self._stores.get(setting.resource):
            return store.write(setting, value)
        path, spec = self.path(setting), self._spec(setting)
        if setting.device and spec is None:
            text = f"{'' if value else 'NO_'}{setting.device}"
        elif spec is None or spec.kind is FileKind.CPU_LIST:
            text = str(value) or EMPTY
        else:
            text = spec.codec.encode(int(value), self._current(setting, path))
        root = self._root(setting)
        try:
            write_value(path, text, below=root)
        except WriteRefused:
            if text != EMPTY:
                raise
            # Linux 6.1 refuses the empty CPU set in a group with tasks: write the parent's set, which is the same CPUs.
            write_value(path, self._parents_cpus(path), below=root)

    def _parents_cpus(self, path: str) -> str:
        """CPUs of the parent of a v2 group."""
        effective = Path(path).parents[1] / "cpuset.cpus.effective"
        try:
            return effective.read_text().strip()
        except OSError as error:
            raise UnreadableFile(os.fspath(effective), error) from error

    def covers_children(self, resource: str) -> bool:
        """Whether the kernel refuses a value that does not cover those of the child directories."""
        entry = registry.RESOURCES.get(resource)
        spec = None if entry is None else entry.spec(self._files.version)
        return spec is not None and spec.covers_children

    def child_settings(self, setting: Setting) -> list[Setting]:
        """The same setting of each child directory."""
        directory = setting.cgroup_dir
        if directory is None:
            return []
        subsystem = registry.lookup(setting.resource, self._files.version).subsystem
        names = tree.children(self._files.hierarchy(subsystem), directory)
        return [replace(setting, cgroup_dir=f"{directory}/{name}") for name in names]

    def gone(self, setting: Setting) -> bool:
        """Whether the cgroup itself does not exist, so that there is nothing to restore."""
        if store := self._stores.get(setting.resource):
            return store.gone(setting)
        return setting.cgroup_dir is not None and not self._files.exists(setting.cgroup_dir)

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        """See `SettingStore.holds`."""
        store = self._stores.get(setting.resource)
        return store.holds(setting, desired) if store is not None else None

    def period(self, setting: Setting) -> float | None:
        """See `SettingStore.period`."""
        store = self._stores.get(setting.resource)
        return store.period(setting) if store is not None else None

    def _spec(self, setting: Setting) -> FileSpec | None:
        return None if setting.cgroup_dir is None else registry.lookup(setting.resource, self._files.version)

    def _root(self, setting: Setting) -> str | None:
        """The hierarchy that the setting's file must not leave; None for a file of the node."""
        return None if setting.cgroup_dir is None else self._files.root(setting.resource)

    def _content(self, setting: Setting, path: str) -> bytes:
        """Raises OSError."""
        root = self._root(setting)
        if root is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            descriptor = open_beneath(root, path.removeprefix(root), os.O_RDONLY)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a kernel file, read once
            return file.read()

    def _current(self, setting: Setting, path: str) -> str:
        """The content of `cpu.max`, whose other field must stay. Empty for other files, and for a file that is gone:
        the write will report that."""
        if not path.endswith("/cpu.max"):
            return ""
        try:
            return self._content(setting, path).decode("ascii").strip("\n")
        except OSError:
            return ""


def exactly(codec: Codec, text: str) -> int:
    """The value in v1 units whose encoding is `text` again, so that exactly the original is restored."""
    value = codec.decode(text)
    rounded = codec is WEIGHT and codec.encode(value, "") != text == codec.encode(value + 1, "")
    return value + 1 if rounded else value


def _feature(text: str, name: str) -> Value | None:
    """1 or 0 of a scheduler feature (NAME or NO_NAME among the words); None when the kernel has no such feature."""
    words = text.split()
    return 1 if name in words else 0 if f"NO_{name}" in words else None


def _number(text: str) -> Value:
    return int(text) if text.lstrip("-").isdecimal() else text
