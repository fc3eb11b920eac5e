"""resctrl as settings: the mount, groups, their schemata lines and their tasks (spec 03 §1.7, §2.5).

    resctrl.mount               "on"
    resctrl.group[LS]           "present"
    resctrl.L3[LS]              "0=7ff;1=7ff"    hexadecimal masks by cache id
    resctrl.MB[LS]              "0=100;1=100"
    resctrl.tasks[LS]           cgroup directories whose threads belong to the group, separated by blanks

Threads are listed by directory at each check; those that start between two checks are found by the next one, and
threads that a moved thread starts are in its group from the beginning. A thread that ends meanwhile is no error.
Threads that leave a group go to the root group, as the kernel does with those of a removed group.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT, read_now
from koordlet.system.errors import InvalidValue, KernelFileError, UnreadableFile
from koordlet.system.resctrl import (
    ResctrlFacts,
    Schemata,
    check_mask,
    format_l3,
    format_mb,
    parse_schemata,
    read_facts,
)
from koordlet.system.write import TargetGone, WriteError, write_error, write_value

MOUNT = "resctrl.mount"
GROUP = "resctrl.group"
L3 = "resctrl.L3"
MB = "resctrl.MB"
TASKS = "resctrl.tasks"
ON = "on"
PRESENT = "present"
MEMBERS = "members"
CHECK_PERIOD_S = 5.0
"""How often threads are searched that were not started by a member (`kubectl exec`). Listing 110 pods with three
cgroups each takes 10 ms of CPU time."""
LISTINGS_PER_PASS = 4
"""Threads of a process that forks faster than this are found at the next check."""
MOVES_PER_PASS = 2_000
"""A move takes some microseconds."""
NEXT_MOVES_S = 1.0
"""When the remaining threads are moved."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED_NAMES = ("info", "mon_groups", "mon_data")
_MS_RELATIME = 1 << 21
_libc = ctypes.CDLL(None, use_errno=True)

Threads = Callable[[str], Iterable[int]]
"""Thread ids of a cgroup directory and all below; raises KernelFileError."""


def mount(point: Path) -> None:
    """mount(2) of resctrl; raises OSError."""
    if _libc.mount(b"resctrl", os.fsencode(point), b"resctrl", _MS_RELATIME, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unmount(point: Path) -> None:
    """umount(2); raises OSError."""
    if _libc.umount2(os.fsencode(point), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def row(values: dict[int, int], base: int) -> str:
    """The values of a schemata line as the value of a setting."""
    return ";".join(f"{key}={value:x}" if base == 16 else f"{key}={value}" for key, value in sorted(values.items()))


class ResctrlStore:
    """`root` is the mount point. Bounded by the number of groups of the hardware."""

    resources = (MOUNT, GROUP, L3, MB, TASKS)

    def __init__(
        self,
        root: Path,
        threads: Threads,
        *,
        mount: Callable[[Path], None] = mount,
        unmount: Callable[[Path], None] = unmount,
    ) -> None:
        self._root = root
        self._threads = threads
        self._mount = mount
        self._unmount = unmount
        self._incomplete: set[str] = set()
        """Groups with threads that are still to be moved."""

    def check(self, setting: Setting, value: Value) -> Value:
        """Masks are checked by the rules that a mounted resctrl shows."""
        name = setting.device
        text = str(value)
        if setting.resource == MOUNT:
            return _one_of(setting, text, ON)
        if not _NAME.fullmatch(name) or name in _RESERVED_NAMES:
            raise InvalidValue(setting.label, text, f"{name!r} cannot be the name of a group")
        if setting.resource == GROUP:
            return _one_of(setting, text, PRESENT)
        if setting.resource == TASKS:
            return " ".join(sorted(set(text.split())))
        values = _values(setting, text)
        if setting.resource == L3 and (facts := self._facts()) is not None:
            for mask in values.values():
                check_mask(mask, facts)
        return row(values, 16 if setting.resource == L3 else 10)

    def read(self, setting: Setting) -> Value | None:
        """None while the group, or the mount, does not exist."""
        if setting.resource == MOUNT:
            return ON if self._mounted() else ABSENT
        if not self._mounted():
            return None
        group = self._root / setting.device
        if setting.resource == GROUP:
            return PRESENT if group.is_dir() else ABSENT
        if setting.resource == TASKS:
            return MEMBERS if group.is_dir() else None
        text = read_now(group / "schemata")
        if text is None:
            return None
        schemata = parse_schemata(text, path=str(group / "schemata"))
        values = dict(schemata.l3 if setting.resource == L3 else schemata.mb)
        return row(values, 16 if setting.resource == L3 else 10) if values else None

    def gone(self, setting: Setting) -> bool:
        """Whether the group, or the mount, does not exist."""
        if setting.resource == MOUNT:
            return False
        try:
            return not self._mounted() or not (self._root / setting.device).is_dir()
        except (OSError, KernelFileError):  # unreadable is not gone
            return False

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        """For tasks: whether every thread is in the group."""
        return None if setting.resource != TASKS else not self._missing(setting.device, str(desired))

    def period(self, setting: Setting) -> float | None:
        """Short for tasks, because threads start and end."""
        if setting.resource != TASKS:
            return None
        return NEXT_MOVES_S if setting.device in self._incomplete else CHECK_PERIOD_S

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError."""
        group = self._root / setting.device
        text = str(value)
        try:
            if setting.resource == MOUNT:
                (self._mount if text == ON else self._unmount_unused)(self._root)
            elif setting.resource == GROUP and text == PRESENT:
                group.mkdir(mode=0o755)
            elif setting.resource == GROUP:
                group.rmdir()
            elif setting.resource == TASKS:
                self._move(setting.device, text)
            else:
                values = _values(setting, text)
                self._write_line(group / "schemata", format_l3(values) if setting.resource == L3 else format_mb(values))
        except FileExistsError:
            return
        except OSError as error:
            raise write_error(os.fspath(group), text, error.errno or 5, self._last_status()) from error

    def _mounted(self) -> bool:
        text = read_now(self._root / "schemata")
        return text is not None and parse_schemata(text) != Schemata()

    def _facts(self) -> ResctrlFacts | None:
        try:
            return read_facts(self._root, "")
        except (OSError, KernelFileError):  # the mask is then checked by the kernel only
            return None

    def _unmount_unused(self, root: Path) -> None:
        facts = self._facts()
        if facts is None or not facts.groups:  # unmounting would remove groups of others
            self._unmount(root)

    def _move(self, group: str, text: str) -> None:
        if text == ABSENT:
            self._enter("", self._members(group))
            return
        remaining = MOVES_PER_PASS
        self._incomplete.discard(group)
        for _ in range(LISTINGS_PER_PASS):
            missing = sorted(self._missing(group, text))
            if not missing:
                return
            self._enter(group, missing[:remaining])
            remaining -= len(missing)
            if remaining <= 0:
                self._incomplete.add(group)
                return

    def _enter(self, group: str, threads: Iterable[int]) -> None:
        """One write per thread, in ascending order. Threads that ended are skipped; the first other refusal is raised
        after all threads were tried."""
        refused: WriteError | None = None
        for thread in sorted(threads):
            try:
                self._write_line(self._root / group / "tasks", str(thread))
            except TargetGone:
                if not (self._root / group).is_dir():
                    raise
            except WriteError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _write_line(self, path: Path, text: str) -> None:
        """A write whose error contains the kernel's explanation."""
        try:
            write_value(path, text)
        except WriteError as error:
            explanation = self._last_status()
            if not explanation:
                raise
            raise write_error(str(path), text, error.errno, explanation) from error

    def _last_status(self) -> str:
        """The kernel's explanation of the last refusal; empty without one."""
        try:
            status = read_now(self._root / "info/last_cmd_status")
        except UnreadableFile:
            return ""
        return "" if status is None or status.strip() == "ok" else status.strip()

    def _missing(self, group: str, directories: str) -> set[int]:
        threads: set[int] = set()
        for directory in directories.split():
            threads.update(self._threads(directory))
        return threads - self._members(group)

    def _members(self, group: str) -> set[int]:
        path = self._root / group / "tasks"
        text = read_now(path)
        if text is None:
            return set()
        try:
            return set(map(int, text.split()))
        except ValueError as error:
            raise KernelFileError(path, f"{path}: expected thread ids: {error}") from error


def _one_of(setting: Setting, text: str, word: str) -> str:
    if text not in (word, ABSENT):
        raise InvalidValue(setting.label, text, f"neither {word!r} nor empty")
    return text


def _values(setting: Setting, text: str) -> dict[int, int]:
    base = 16 if setting.resource == L3 else 10
    try:
        pairs = [pair.split("=") for pair in text.split(";")]
        values = {int(key): int(value, base) for key, value in pairs}
    except ValueError as error:
        raise InvalidValue(setting.label, text, "expected <cache id>=<value>;…") from error
    if any(value <= 0 for value in values.values()):
        raise InvalidValue(setting.label, text, "values must be above 0")
    return values
