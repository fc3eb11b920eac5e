"""Checks that the API server's version is supported: a readiness check that names the version and what to do.

The version is read at the start, then every PERIOD_S until it is supported. A server that does not report its version
(an aggregator that refuses /version) is not judged.
"""

from __future__ import annotations

import asyncio

from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube.advice import OLDEST_SERVER, oldest_server
from koordlet.kube.client import Client
from koordlet.kube.errors import ConnectionFailed, KubeError

log = get_logger(__name__)
PERIOD_S = 30.0
PATH = "/version"


class ServerInfo(Struct):
    """The body of /version; `minor` may have a suffix, as in `27+`."""

    major: str = ""
    minor: str = ""
    git_version: str = ""


def problem_of(info: ServerInfo) -> str | None:
    """Why the version is not supported; None if it is, or if it is not a pair of numbers."""
    major, minor = info.major, info.minor.rstrip("+")
    if not (major.isascii() and major.isdecimal() and minor.isascii() and minor.isdecimal()):
        return None
    if len(major + minor) > 8 or (int(major), int(minor)) >= OLDEST_SERVER:
        return None
    return (
        f"the API server's version {info.git_version[:40] or f'{major}.{minor}'} is not supported:"
        f" upgrade Kubernetes to {oldest_server()} or later"
    )


class ServerVersionCheck:
    """A service for `Runner`; `problem` fits `HealthChecks.check`."""

    def __init__(self, client: Client) -> None:
        self.name = "server-version"
        self.problem: str | None = None
        self._client = client
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while not await self._supported():
            await self._client.clock.sleep(PERIOD_S)

    async def _supported(self) -> bool:
        """Read the version and update `problem`; whether the server reports a supported version."""
        try:
            info: ServerInfo = wire.decode(await self._client.transport.request("GET", PATH), ServerInfo)
        except ConnectionFailed:
            return False  # the informers report it
        except (KubeError, wire.WireError) as error:
            log.once(self.name, "The API server's version is not known", err=error)
            return False
        problem = problem_of(info)
        if problem is not None and problem != self.problem:
            log.error("API server is not supported", reason=problem)
        elif problem is None and self.problem is not None:
            log.info("API server is supported", version=info.git_version)
        self.problem = problem
        return problem is None
