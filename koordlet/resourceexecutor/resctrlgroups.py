"""resctrl as settings: the mount, groups, their schemata lines and their tasks (spec 03 §1.7, §2.5).

    resctrl.mount               "on"
    resctrl.group[LS]           "present"
    resctrl.L3[LS]              "0=7ff;1=7ff"    hexadecimal masks by cache id
    resctrl.MB[LS]              "0=100;1=100"
    resctrl.tasks[LS]           cgroup directories whose threads belong into the group, separated by blanks

Threads are found when they are needed, by directory: what starts between two looks is caught by the next one, and what
a moved thread starts is in its group from birth. A thread that ends meanwhile is nobody's fault. What leaves a group
goes to the root group, as the kernel does with the threads of a removed one.
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

MOUNT, GROUP, L3, MB, TASKS = "resctrl.mount", "resctrl.group", "resctrl.L3", "resctrl.MB", "resctrl.tasks"
ON, PRESENT, MEMBERS = "on", "present", "members"
SCAN_SECONDS = 5.0
"""How often threads are looked for that came by another way than from a member (`kubectl exec`): a look at 110 pods
with three cgroups each takes 10 ms of CPU time."""
SWEEPS = 4
"""A process that forks faster than this is caught by the next look."""
AT_ONCE, BEHIND_SECONDS = 2_000, 1.0
"""Threads moved in one pass (some microseconds each), and when the rest follows."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAKEN = ("info", "mon_groups", "mon_data")
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
    """A schemata line's values as a setting holds them."""
    return ";".join(f"{key}={value:x}" if base == 16 else f"{key}={value}" for key, value in sorted(values.items()))


class ResctrlStore:
    """`root` is the mount point. Bounded by the groups that the hardware has."""

    resources = (MOUNT, GROUP, L3, MB, TASKS)

    def __init__(
        self,
        root: Path,
        threads: Threads,
        *,
        mount: Callable[[Path], None] = mount,
        unmount: Callable[[Path], None] = unmount,
    ) -> None:
        self._root, self._threads, self._mount, self._unmount = root, threads, mount, unmount
        self._behind: set[str] = set()
        """Groups that have threads to come."""

    def check(self, setting: Setting, value: Value) -> Value:
        """Masks are held to what the mounted resctrl says it takes, while it can be asked."""
        name, text = setting.device, str(value)
        if setting.resource == MOUNT:
            return _one_of(setting, text, ON)
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise InvalidValue(setting.label, text, f"{name!r} can't be a group's name")
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
        """None while the group, or resctrl itself, is not there."""
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
        found = parse_schemata(text, path=str(group / "schemata"))
        values = dict(found.l3 if setting.resource == L3 else found.mb)
        return row(values, 16 if setting.resource == L3 else 10) if values else None

    def gone(self, setting: Setting) -> bool:
        """Whether the group, or the mount, is not there."""
        if setting.resource == MOUNT:
            return False
        try:
            return not self._mounted() or not (self._root / setting.device).is_dir()
        except (OSError, KernelFileError):  # what can't be looked at has not gone
            return False

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Of tasks: whether every thread is in the group."""
        return None if setting.resource != TASKS else not self._missing(setting.device, str(asked))

    def period(self, setting: Setting) -> float | None:
        """Threads come and go."""
        if setting.resource != TASKS:
            return None
        return BEHIND_SECONDS if setting.device in self._behind else SCAN_SECONDS

    def write(self, setting: Setting, value: Value) -> None:
        """As the module says."""
        group, text = self._root / setting.device, str(value)
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
                self._told(group / "schemata", format_l3(values) if setting.resource == L3 else format_mb(values))
        except FileExistsError:
            return
        except OSError as error:
            raise write_error(os.fspath(group), text, error.errno or 5, self._why()) from error

    def _mounted(self) -> bool:
        text = read_now(self._root / "schemata")
        return text is not None and parse_schemata(text) != Schemata()

    def _facts(self) -> ResctrlFacts | None:
        try:
            return read_facts(self._root, "")
        except (OSError, KernelFileError):  # the kernel will judge
            return None

    def _unmount_unused(self, root: Path) -> None:
        facts = self._facts()
        if facts is None or not facts.groups:  # somebody else's groups would go with it
            self._unmount(root)

    def _move(self, group: str, text: str) -> None:
        if text == ABSENT:
            self._enter("", self._members(group))
            return
        left = AT_ONCE
        self._behind.discard(group)
        for _ in range(SWEEPS):
            missing = sorted(self._missing(group, text))
            if not missing:
                return
            self._enter(group, missing[:left])
            left -= len(missing)
            if left <= 0:
                self._behind.add(group)
                return

    def _enter(self, group: str, threads: Iterable[int]) -> None:
        """One write a thread, in ascending order. A thread that ended is passed over; the first other refusal is told
        after all were tried."""
        refused: WriteError | None = None
        for thread in sorted(threads):
            try:
                self._told(self._root / group / "tasks", str(thread))
            except TargetGone:
                if not (self._root / group).is_dir():
                    raise
            except WriteError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _told(self, path: Path, text: str) -> None:
        """A write whose refusal carries the kernel's own words."""
        try:
            write_value(path, text)
        except WriteError as error:
            said = self._why()
            if not said:
                raise
            raise write_error(str(path), text, error.errno, said) from error

    def _why(self) -> str:
        try:
            said = read_now(self._root / "info/last_cmd_status")
        except UnreadableFile:
            return ""
        return "" if said is None or said.strip() == "ok" else said.strip()

    def _missing(self, group: str, directories: str) -> set[int]:
        wanted: set[int] = set()
        for directory in directories.split():
            wanted.update(self._threads(directory))
        return wanted - self._members(group)

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
        raise InvalidValue(setting.label, text, "values are above 0")
    return values
