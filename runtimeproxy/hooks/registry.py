"""Hook servers as registration files name them (spec 08 §8).

A file of the directory whose name ends in `json` is one server. Nothing watches: whoever asks for the servers has the
directory and the files stat-ed first, so that no call goes by what is no longer there. That costs ten microseconds
while nothing changes. A file that cannot be used counts with its last good content while it exists, and is not a server
if it never had any. Problems are logged when they begin or change.
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
from runtimeproxy.hooks.stages import Policy

log = get_logger(__name__)

DIRECTORY = Path("/etc/runtime/hookserver.d")
SUFFIX = "json"
"""Without a dot: `xjson` is a server, `x.json.bak` is not."""
MAX_BYTES = 1 << 20
SETTLED_SECONDS = 0.1
"""A file changed less than this ago is read again even if its stamp is the same: stamps advance in steps of the
kernel's tick, and two writes within one look alike."""
MAX_SOCKET_PATH = 107
"""Bytes that fit into a unix socket address."""


class RegistrationError(ValueError):
    """What a registration file says cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class HookServer:
    """One registered server."""

    name: str
    """Of its file."""
    endpoint: str
    """Path of its unix socket."""
    policy: Policy
    hooks: frozenset[str]
    """As written; names that are no hook's never match."""


class _Stamp(NamedTuple):
    """What changes when a file's content, or a directory's list, may have changed."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def settled(self, now: float) -> bool:
        """Whether a change that comes now, at wall time `now`, would show."""
        return now - max(self.modified_ns, self.changed_ns) / 1e9 > SETTLED_SECONDS


@dataclass(slots=True)
class _File:
    """One file of the directory: `server` is its last good content, `problem` what is wrong with the present one."""

    path: Path
    stamp: _Stamp | None = None
    settled: bool = False
    server: HookServer | None = None
    problem: str = ""


class Registry:
    """The servers of one directory, which is made when it is absent."""

    def __init__(self, directory: Path = DIRECTORY, *, wall: Callable[[], float] = time.time) -> None:
        self._directory, self._text, self._wall = directory, os.fspath(directory), wall
        self._files: dict[str, _File] = {}
        self._listed: tuple[_Stamp, set[str]] | None = None
        """The directory's list, once it is settled."""
        self._servers: tuple[HookServer, ...] | None = None
        """As files said it last; None when one of them may say something else since."""
        self._problem = ""

    def servers(self) -> tuple[HookServer, ...]:
        """What the files say now, in the order of their names."""
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
        """Look every `period` seconds until cancelled, so that mistakes are in the log before a pod meets them."""
        while True:
            self.servers()
            await asyncio.sleep(period)

    def _names(self) -> set[str]:
        """Names that may be registration files. No directory is no server, and is said once."""
        try:
            stamp = _Stamp.of(os.stat(self._text))  # noqa: PTH116 - at every hook
            listed, self._listed = self._listed, None
            if listed is not None and listed[0] == stamp:
                self._listed = listed
                return listed[1]
            names = {entry.name for entry in self._directory.iterdir() if entry.name.endswith(SUFFIX)}
            self._listed = (stamp, names) if stamp.settled(self._wall()) else None
        except FileNotFoundError:
            names = self._made()
        except OSError as error:
            self._say(f"cannot read: {error.strerror}")
            return set()
        else:
            self._say("")
        return names

    def _made(self) -> set[str]:
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            self._say(f"cannot make: {error.strerror}")
        else:
            self._say("")
        return set()

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("No hook server can be registered", directory=str(self._directory), problem=problem)
        self._problem = problem

    def _refresh(self, name: str) -> None:
        """Read the file if it may have changed."""
        file = self._files.get(name)
        path = self._directory / name if file is None else file.path
        try:
            status = os.stat(f"{self._text}/{name}")  # noqa: PTH116
        except FileNotFoundError:  # removed since the listing, or a link to nothing
            self._files.pop(name, None)
            self._servers = None
            return
        except OSError as error:
            self._bad(self._files.setdefault(name, _File(path)), f"cannot stat: {error.strerror}")
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
        except RegistrationError as error:
            self._bad(file, str(error))
            return
        except OSError as error:
            file.settled = False
            self._bad(file, f"cannot read: {error.strerror}")
            return
        if server != file.server or file.problem:
            log.info(
                "Hook server registered",
                file=str(path),
                endpoint=server.endpoint,
                policy=server.policy.value,
                hooks=",".join(sorted(server.hooks)),
            )
        file.server, file.problem = server, ""

    def _bad(self, file: _File, problem: str) -> None:
        if problem != file.problem:
            kept = "its last good content" if file.server is not None else "nothing"
            log.warning("Hook server registration cannot be used", file=str(file.path), problem=problem, in_force=kept)
        file.problem = problem


def _content(path: Path, status: os.stat_result) -> bytes:
    """Raises RegistrationError for what is no file of a sensible size, OSError."""
    if not stat.S_ISREG(status.st_mode):
        raise RegistrationError("is not a regular file")
    if status.st_size > MAX_BYTES:
        raise RegistrationError(f"is larger than {MAX_BYTES} bytes")
    return path.read_bytes()


def parse(name: str, content: bytes) -> HookServer:
    """A registration file's content (spec 08 §8). Raises RegistrationError."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistrationError(f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RegistrationError("is not a JSON object")
    endpoint = document.get("remote-endpoint")
    policy = document.get("failure-policy")
    hooks = document.get("runtime-hooks")
    if not isinstance(endpoint, str) or not endpoint:
        raise RegistrationError("remote-endpoint is not the path of a socket")
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/") or not path.isprintable() or len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise RegistrationError(
            f"remote-endpoint {endpoint!r} is not an absolute path of at most {MAX_SOCKET_PATH} bytes"
        )
    if policy is not None and not isinstance(policy, str):
        raise RegistrationError("failure-policy is not a text")
    if hooks is not None and not (isinstance(hooks, list) and all(isinstance(hook, str) for hook in hooks)):
        raise RegistrationError("runtime-hooks is not a list of texts")
    if policy not in (None, "", *(known.value for known in (Policy.FAIL, Policy.IGNORE))):
        log.once(f"{name}: {policy}", "Unknown failure policy counts as Ignore", file=name, policy=policy)
    return HookServer(
        name=name,
        endpoint=path,
        policy=Policy.FAIL if policy == Policy.FAIL.value else Policy.IGNORE,
        hooks=frozenset(hooks or ()),
    )
