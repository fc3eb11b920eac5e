"""Hook servers from registration files (spec 08 §8).

Every file of the directory whose name ends in `json` registers one server. There is no watcher: each query for the
servers first stats the directory and the files, so that no call uses a removed registration. This costs ten
microseconds while nothing changes. A file that becomes invalid keeps its last valid content while it exists; one that
never was valid registers nothing. Problems are logged when they begin or change.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from koordlet.app.logging import get_logger
from runtimeproxy.hooks.stages import HookFailurePolicy

log = get_logger(__name__)

SUFFIX = "json"
"""Without a dot: `xjson` is a registration, `x.json.bak` is not."""
MAX_BYTES = 1 << 20
STAMP_SETTLED_S = 0.1
"""A file changed less than this ago is read again even if its stamp is the same: time stamps advance in steps of the
kernel's tick, so two writes within one tick have the same stamp."""
MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket address."""


class InvalidRegistration(ValueError):
    """The content of a registration file is invalid; the message names the field."""


@dataclass(frozen=True, slots=True)
class RegisteredServer:
    """One registered server."""

    name: str
    """File name of the registration."""
    endpoint: str
    """Path of its unix socket."""
    policy: HookFailurePolicy
    hooks: frozenset[str]
    """As in the file; names of unknown hooks never match."""


class _Stamp(NamedTuple):
    """Changes when a file's content, or a directory's list, may have changed."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def settled(self, now: float) -> bool:
        """Whether a change at wall time `now` would change the stamp."""
        return now - max(self.modified_ns, self.changed_ns) / 1e9 > STAMP_SETTLED_S


@dataclass(slots=True)
class _File:
    """One file of the directory. `server`: its last valid content; `problem`: what is wrong with the present
    content."""

    path: Path
    stamp: _Stamp | None = None
    settled: bool = False
    server: RegisteredServer | None = None
    problem: str = ""


class HookServerRegistry:
    """The servers registered in one directory, which is created when it is absent."""

    def __init__(self, directory: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._directory_text = os.fspath(directory)
        self._wall = wall
        self._files: dict[str, _File] = {}
        self._listed: tuple[_Stamp, set[str]] | None = None
        """The directory's list, once its stamp is settled."""
        self._servers: tuple[RegisteredServer, ...] | None = None
        """The last result; None when a file may have changed since."""
        self._problem = ""

    def servers(self) -> tuple[RegisteredServer, ...]:
        """The registered servers, in the order of the file names."""
        names = self._names()
        for gone in self._files.keys() - names:
            log.info("Hook server unregistered", file=str(self._directory / gone))
            del self._files[gone]
            self._servers = None
        for name in names:
            self._refresh(name)
        if self._servers is None:
            self._servers = tuple(file.server for _, file in sorted(self._files.items()) if file.server is not None)
        return self._servers

    async def watch(self, period: float = 1.0) -> None:
        """Read every `period` seconds until cancelled, so that mistakes are logged before the first pod needs the
        server."""
        while True:
            self.servers()
            await asyncio.sleep(period)

    def _names(self) -> set[str]:
        """Names of files that may be registrations. A missing directory means no servers, and is logged once."""
        try:
            stamp = _Stamp.of(os.stat(self._directory_text))  # noqa: PTH116 - runs at every hook
            listed, self._listed = self._listed, None
            if listed is not None and listed[0] == stamp:
                self._listed = listed
                return listed[1]
            names = {entry.name for entry in self._directory.iterdir() if entry.name.endswith(SUFFIX)}
            self._listed = (stamp, names) if stamp.settled(self._wall()) else None
        except FileNotFoundError:
            names = self._create_directory()
        except OSError as error:
            self._set_problem(f"cannot read: {error.strerror}")
            return set()
        else:
            self._set_problem("")
        return names

    def _create_directory(self) -> set[str]:
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            self._set_problem(f"cannot create: {error.strerror}")
        else:
            self._set_problem("")
        return set()

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("Cannot read hook server registrations", directory=str(self._directory), problem=problem)
        self._problem = problem

    def _refresh(self, name: str) -> None:
        """Read the file if it may have changed."""
        file = self._files.get(name)
        path = self._directory / name if file is None else file.path
        try:
            status = os.stat(f"{self._directory_text}/{name}")  # noqa: PTH116
        except FileNotFoundError:  # removed since the listing, or a dangling link
            self._files.pop(name, None)
            self._servers = None
            return
        except OSError as error:
            self._reject(self._files.setdefault(name, _File(path)), f"cannot stat: {error.strerror}")
            return
        stamp = _Stamp.of(status)
        if file is not None and file.settled and file.stamp == stamp:
            return
        if file is None:
            file = self._files[name] = _File(path)
        self._servers = None
        file.stamp = stamp
        file.settled = stamp.settled(self._wall())
        try:
            server = parse(name, _content(path, status))
        except InvalidRegistration as error:
            self._reject(file, str(error))
            return
        except OSError as error:
            file.settled = False
            self._reject(file, f"cannot read: {error.strerror}")
            return
        if server != file.server or file.problem:
            log.info(
                "Hook server registered",
                file=str(path),
                endpoint=server.endpoint,
                policy=server.policy.value,
                hooks=",".join(sorted(server.hooks)),
            )
        file.server = server
        file.problem = ""

    def _reject(self, file: _File, problem: str) -> None:
        if problem != file.problem:
            in_force = "its last valid content" if file.server is not None else "nothing"
            log.warning("Invalid hook server registration", file=str(file.path), problem=problem, in_force=in_force)
        file.problem = problem


def _content(path: Path, status: os.stat_result) -> bytes:
    """Raises InvalidRegistration when it is not a regular file or is too large, OSError."""
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRegistration("is not a regular file")
    if status.st_size > MAX_BYTES:
        raise InvalidRegistration(f"is larger than {MAX_BYTES} bytes")
    return path.read_bytes()


def parse(name: str, content: bytes) -> RegisteredServer:
    """Parse a registration file (spec 08 §8). Raises InvalidRegistration."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRegistration(f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRegistration("is not a JSON object")
    endpoint = document.get("remote-endpoint")
    policy = document.get("failure-policy")
    hooks = document.get("runtime-hooks")
    if not isinstance(endpoint, str) or not endpoint:
        raise InvalidRegistration("remote-endpoint is not the path of a socket")
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/") or not path.isprintable() or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise InvalidRegistration(
            f"remote-endpoint {endpoint!r} is not an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes"
        )
    if policy is not None and not isinstance(policy, str):
        raise InvalidRegistration("failure-policy is not a string")
    if hooks is not None and not (isinstance(hooks, list) and all(isinstance(hook, str) for hook in hooks)):
        raise InvalidRegistration("runtime-hooks is not a list of strings")
    if policy not in (None, "", *(known.value for known in (HookFailurePolicy.FAIL, HookFailurePolicy.IGNORE))):
        log.once(f"{name}: {policy}", "Unknown failure policy is treated as Ignore", file=name, policy=policy)
    return RegisteredServer(
        name=name,
        endpoint=path,
        policy=HookFailurePolicy.FAIL if policy == HookFailurePolicy.FAIL.value else HookFailurePolicy.IGNORE,
        hooks=frozenset(hooks or ()),
    )
