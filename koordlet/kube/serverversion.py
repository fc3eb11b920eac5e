"""Checks that the API server's version is supported: a readiness check that names the version and what to do.

A server that does not report its version (an aggregator that refuses /version) is not judged.
"""

from __future__ import annotations

from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.app.logging import get_logger
from koordlet.kube.advice import OLDEST_SERVER, oldest_server
from koordlet.kube.client import Client
from koordlet.kube.errors import ConnectionFailed, KubeError
from koordlet.kube.startcheck import StartCheck

log = get_logger(__name__)
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


class ServerVersionCheck(StartCheck):
    """Passed when the server reports a supported version."""

    def __init__(self, client: Client) -> None:
        super().__init__("server-version", client)

    async def passed(self) -> bool:
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
