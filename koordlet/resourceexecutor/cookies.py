"""Core scheduling as settings: the processes of a cgroup share the cookie of their group (spec 03 §1.8, §4.9).

    core_sched_cookie of a container's directory     "group:-expeller"

Threads with different cookies never run on one core at a time. A cookie lives in the processes that carry it and
nowhere else: what a process starts inherits it, and a new koordlet finds it in them. So a group's cookie is taken from
a living member, else from whoever is to join and carries one that is no other group's (that is how groups are found
again after a restart), else made. Nothing is trusted that was not read back. What comes into a container by another way
than from one of its processes (`kubectl exec`) is found at the next look. The way back is cookie 0.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.cpu import coresched
from koordlet.system.cpu.coresched import CookieScope, CoreSchedError
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.kernel import Feature
from koordlet.system.write import TargetGone, write_error

COOKIE: Final = "core_sched_cookie"
PREFIX: Final = "group:"
"""A group may have the empty name, a setting not the empty value."""
CARRIED: Final = "a cookie"
"""What is read of a group of processes some of which carry one: whose it is, `holds` tells."""
LOOK_SECONDS: Final = 10.0
SHOWN_SECONDS: Final = 300.0

Processes = Callable[[str], tuple[int, ...] | None]
"""Process ids of a cgroup directory; None when it is gone. Raises KernelFileError."""


def group_value(group: str) -> str:
    """The setting's value for membership in a group."""
    return PREFIX + group


@dataclass
class _Group:
    cookie: int
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By directory: processes that were seen with the cookie."""


class Cookies:
    """A `Store`. `available` is the host's feature; without it every setting is refused before it is tried."""

    resources: Collection[str] = (COOKIE,)

    def __init__(self, processes: Processes, available: Feature, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes, self._available, self._clock = processes, available, clock
        self._groups: dict[str, _Group] = {}
        self._outcomes: dict[tuple[str, str], tuple[int, float]] = {}
        """(group, status) -> how often, and when last."""

    def check(self, setting: Setting, value: Value) -> Value:
        """A group's value."""
        if not self._available:
            raise ResourceUnsupported(COOKIE, self._available.reason)
        if setting.cgroup_dir is None or not str(value).startswith(PREFIX):
            raise InvalidValue(setting.label, value, "not a core scheduling group")
        return value

    def read(self, setting: Setting) -> Value | None:
        """ABSENT when nobody in the directory has a cookie, CARRIED when somebody has; None without processes."""
        found = self._cookies(setting)
        if not found:
            self._forget(_directory(setting))
            return None
        return CARRIED if any(found.values()) else ABSENT

    def gone(self, setting: Setting) -> bool:
        """Nobody is in there (yet)."""
        return not self._cookies(setting)

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Whether all processes have the cookie of the group, which may be learned from them."""
        found, name = self._cookies(setting), str(asked).removeprefix(PREFIX)
        group = self._groups.get(name) or self._adopted(name, found)
        if group is None or set(found.values()) != {group.cookie}:
            return False
        self._joins(setting, group, found)
        return True

    def period(self, setting: Setting) -> float | None:
        """Processes come and go."""
        return LOOK_SECONDS

    def write(self, setting: Setting, value: Value) -> None:
        """Have all processes of the directory carry the group's cookie, or none. Raises WriteError."""
        found = self._cookies(setting)
        if not found:
            self._forget(_directory(setting))
            raise TargetGone(setting.label, str(value), errno.ESRCH, "no process is left")
        if value == ABSENT:
            left = coresched.clear(CookieScope.THREAD_GROUP, [pid for pid, cookie in found.items() if cookie])
            self._forget(_directory(setting))
            self._refuse_alive(setting, value, left, 0)
            return
        name = str(value).removeprefix(PREFIX)
        try:
            self._assign(setting, str(value), name, found)
        except Exception:
            self._count(name, "failed")
            raise
        self._count(name, "succeeded")

    def groups(self) -> Iterator[tuple[str, str, int]]:
        """(directory, group, cookie) of every directory that was set or found right."""
        for name, group in self._groups.items():
            for directory in group.members:
                yield directory, name, group.cookie

    def outcomes(self) -> Iterator[tuple[tuple[str, str], float]]:
        """((group, succeeded or failed), how often) of the last five minutes: groups may be named after pods."""
        now = self._clock()
        self._outcomes = {key: row for key, row in self._outcomes.items() if now - row[1] < SHOWN_SECONDS}
        return ((key, float(count)) for key, (count, _) in self._outcomes.items())

    def _assign(self, setting: Setting, value: str, name: str, found: dict[int, int]) -> None:
        group = self._groups.get(name) or self._adopted(name, found)
        source = None if group is None else self._source(group, found)
        try:
            if group is None or source is None:
                source = min(found)
                coresched.create(source, CookieScope.THREAD_GROUP)
                found[source] = coresched.get_cookie(source)
                if not found[source]:
                    raise write_error(setting.label, value, errno.EIO, f"process {source} got no cookie")
                group = self._groups[name] = _Group(found[source])
            cookie = group.cookie
            wrong = sorted(pid for pid, carried in found.items() if carried != cookie)
            failed = coresched.assign(source, CookieScope.THREAD_GROUP, wrong) if wrong else []
        except CoreSchedError as error:
            raise write_error(setting.label, value, error.errno or errno.EIO, str(error)) from error
        self._joins(setting, group, [pid for pid in found if pid not in failed])
        self._refuse_alive(setting, value, failed, cookie)

    def _count(self, group: str, status: str) -> None:
        before, _ = self._outcomes.get((group, status), (0, 0.0))
        self._outcomes[group, status] = before + 1, self._clock()

    def _source(self, group: _Group, found: dict[int, int]) -> int | None:
        """The first living process that carries the group's cookie; members that don't are dropped."""
        right = [pid for pid, cookie in found.items() if cookie == group.cookie]
        for directory, pids in list(group.members.items()):
            living = tuple(pid for pid in pids if _cookie(pid) == group.cookie)
            if living:
                group.members[directory] = living
            else:
                del group.members[directory]
            right += living
        return min(right, default=None)

    def _adopted(self, name: str, found: dict[int, int]) -> _Group | None:
        """A group whose cookie is the first that its processes carry, unless that is another group's."""
        taken = {group.cookie for group in self._groups.values()}
        cookie = next((found[pid] for pid in sorted(found) if found[pid] and found[pid] not in taken), None)
        if cookie is None:
            return None
        self._groups[name] = _Group(cookie)
        return self._groups[name]

    def _joins(self, setting: Setting, group: _Group, pids: Collection[int]) -> None:
        directory = _directory(setting)
        if directory not in group.members:
            self._forget(directory, but=group)
        group.members[directory] = tuple(pids)

    def _forget(self, directory: str, but: _Group | None = None) -> None:
        """The directory is in no group (other than `but`) any more; a group without members has no cookie."""
        for name, group in list(self._groups.items()):
            if group is not but and group.members.pop(directory, None) is not None and not group.members:
                del self._groups[name]

    def _refuse_alive(self, setting: Setting, value: Value, pids: list[int], cookie: int) -> None:
        """Processes that refused because they ended are nobody's loss."""
        alive = [pid for pid in pids if _cookie(pid) not in (None, cookie)]
        if alive:
            raise write_error(setting.label, str(value), errno.EPERM, f"refused by processes {alive}")

    def _cookies(self, setting: Setting) -> dict[int, int]:
        """Cookie by process that could be asked."""
        found = {}
        for pid in self._processes(_directory(setting)) or ():
            cookie = _cookie(pid) if pid else None  # 0: out of sight, in another PID namespace
            if cookie is not None:
                found[pid] = cookie
        return found


def _directory(setting: Setting) -> str:
    return setting.cgroup_dir or ""


def _cookie(pid: int) -> int | None:
    try:
        return coresched.get_cookie(pid)
    except CoreSchedError:  # it ended
        return None
