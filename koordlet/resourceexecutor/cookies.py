"""Core scheduling as settings: the processes of a cgroup share the cookie of their group (spec 03 §1.8, §4.9).

    core_sched_cookie of a container's directory     "group:-expeller"

Threads with different cookies never run on one core at the same time. A cookie exists only in the processes that have
it: child processes inherit it, and a restarted koordlet finds it in them. So the cookie of a group is taken from a
running member, else from a process that is to join and has a cookie of no other group (this is how groups are found
again after a restart), else created. Every result is read back. A process that enters a container in another way
(`kubectl exec`) is found at the next check. Restoring sets cookie 0.
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
"""Needed because a group may have an empty name, while an empty value means that there is no group."""
CARRIED: Final = "a cookie"
"""The value that is read when some processes have a cookie; `holds` determines whether it is the group's."""
CHECK_PERIOD_S: Final = 10.0
OUTCOME_TTL_S: Final = 300.0

Processes = Callable[[str], tuple[int, ...] | None]
"""Process ids of a cgroup directory; None when it does not exist. Raises KernelFileError."""


def group_value(group: str) -> str:
    """The setting's value for membership in a group."""
    return PREFIX + group


@dataclass
class _Group:
    cookie: int
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Directory -> processes that had the cookie when last read."""


class Cookies:
    """A `SettingStore`. `available` is the host's feature; without it every setting is rejected by `check`."""

    resources: Collection[str] = (COOKIE,)

    def __init__(self, processes: Processes, available: Feature, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes = processes
        self._available = available
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._outcomes: dict[tuple[str, str], tuple[int, float]] = {}
        """(group, status) -> number of assignments, time of the last one."""

    def check(self, setting: Setting, value: Value) -> Value:
        """A group of a cgroup directory."""
        if not self._available:
            raise ResourceUnsupported(COOKIE, self._available.reason)
        if setting.cgroup_dir is None or not str(value).startswith(PREFIX):
            raise InvalidValue(setting.label, value, "not a core scheduling group")
        return value

    def read(self, setting: Setting) -> Value | None:
        """ABSENT when no process of the directory has a cookie, CARRIED when one has; None without processes."""
        cookies = self._cookies(setting)
        if not cookies:
            self._forget(_directory(setting))
            return None
        return CARRIED if any(cookies.values()) else ABSENT

    def gone(self, setting: Setting) -> bool:
        """Whether the cgroup has no process (yet)."""
        return not self._cookies(setting)

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        """Whether all processes have the cookie of the group; an unknown group takes its cookie from them."""
        cookies = self._cookies(setting)
        name = str(desired).removeprefix(PREFIX)
        group = self._groups.get(name) or self._adopted(name, cookies)
        if group is None or set(cookies.values()) != {group.cookie}:
            return False
        self._joins(setting, group, cookies)
        return True

    def period(self, setting: Setting) -> float | None:
        """Short, because processes start and end."""
        return CHECK_PERIOD_S

    def write(self, setting: Setting, value: Value) -> None:
        """Give all processes of the directory the cookie of the group, or cookie 0. Raises WriteError."""
        cookies = self._cookies(setting)
        if not cookies:
            self._forget(_directory(setting))
            raise TargetGone(setting.label, str(value), errno.ESRCH, "no process is left")
        if value == ABSENT:
            self._clear(setting, cookies)
            return
        name = str(value).removeprefix(PREFIX)
        try:
            self._assign(setting, str(value), name, cookies)
        except Exception:
            self._count(name, "failed")
            raise
        self._count(name, "succeeded")

    def groups(self) -> Iterator[tuple[str, str, int]]:
        """(directory, group, cookie) of every directory that was set or already had its cookie."""
        for name, group in self._groups.items():
            for directory in group.members:
                yield directory, name, group.cookie

    def outcomes(self) -> Iterator[tuple[tuple[str, str], float]]:
        """((group, succeeded or failed), number) of groups of the last five minutes: groups may be named after pods."""
        now = self._clock()
        self._outcomes = {key: row for key, row in self._outcomes.items() if now - row[1] < OUTCOME_TTL_S}
        return ((key, float(count)) for key, (count, _) in self._outcomes.items())

    def _clear(self, setting: Setting, cookies: dict[int, int]) -> None:
        try:
            failed = coresched.clear(CookieScope.THREAD_GROUP, [pid for pid, cookie in cookies.items() if cookie])
        except CoreSchedError as error:
            raise write_error(setting.label, ABSENT, error.errno or errno.EIO, str(error)) from error
        self._forget(_directory(setting))
        self._refuse_alive(setting, ABSENT, failed, 0)

    def _assign(self, setting: Setting, value: str, name: str, cookies: dict[int, int]) -> None:
        group = self._groups.get(name) or self._adopted(name, cookies)
        source = None if group is None else self._source(group, cookies)
        try:
            if group is None or source is None:
                source = min(cookies)
                coresched.create(source, CookieScope.THREAD_GROUP)
                cookies[source] = coresched.get_cookie(source)
                if not cookies[source]:
                    raise write_error(
                        setting.label, value, errno.EIO, f"process {source} has no cookie after its creation"
                    )
                group = self._groups[name] = _Group(cookies[source])
            cookie = group.cookie
            wrong = sorted(pid for pid, carried in cookies.items() if carried != cookie)
            failed = coresched.assign(source, CookieScope.THREAD_GROUP, wrong) if wrong else []
        except CoreSchedError as error:
            raise write_error(setting.label, value, error.errno or errno.EIO, str(error)) from error
        self._joins(setting, group, [pid for pid in cookies if pid not in failed])
        self._refuse_alive(setting, value, failed, cookie)

    def _count(self, group: str, status: str) -> None:
        before, _ = self._outcomes.get((group, status), (0, 0.0))
        self._outcomes[group, status] = before + 1, self._clock()

    def _source(self, group: _Group, cookies: dict[int, int]) -> int | None:
        """The running process with the lowest id that has the cookie of the group; other members are removed."""
        members = [pid for pid, cookie in cookies.items() if cookie == group.cookie]
        for directory, pids in list(group.members.items()):
            running = tuple(pid for pid in pids if _cookie(pid) == group.cookie)
            if running:
                group.members[directory] = running
            else:
                del group.members[directory]
            members += running
        return min(members, default=None)

    def _adopted(self, name: str, cookies: dict[int, int]) -> _Group | None:
        """A new group with the first cookie of its processes that belongs to no other group."""
        taken = {group.cookie for group in self._groups.values()}
        cookie = next((cookies[pid] for pid in sorted(cookies) if cookies[pid] and cookies[pid] not in taken), None)
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
        """Remove the directory from all groups except `but`, and groups that have no members left."""
        for name, group in list(self._groups.items()):
            if group is not but and group.members.pop(directory, None) is not None and not group.members:
                del self._groups[name]

    def _refuse_alive(self, setting: Setting, value: Value, pids: list[int], cookie: int) -> None:
        """Raises WriteError for processes that failed, unless they ended."""
        alive = [pid for pid in pids if _cookie(pid) not in (None, cookie)]
        if alive:
            raise write_error(setting.label, str(value), errno.EPERM, f"failed for processes {alive}")

    def _cookies(self, setting: Setting) -> dict[int, int]:
        """Cookie of each process whose cookie could be read."""
        cookies = {}
        for pid in self._processes(_directory(setting)) or ():
            cookie = _cookie(pid) if pid else None  # pid 0: a process of another PID namespace
            if cookie is not None:
                cookies[pid] = cookie
        return cookies


def _directory(setting: Setting) -> str:
    return setting.cgroup_dir or ""


def _cookie(pid: int) -> int | None:
    try:
        return coresched.get_cookie(pid)
    except CoreSchedError:  # the process ended
        return None
