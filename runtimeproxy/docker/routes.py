"""Which requests to dockerd concern pods: path and name only, whatever the method (spec 08 §12). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, unquote

from runtimeproxy.docker.http1 import Request


class Route(StrEnum):
    """The value is what metrics and logs call it."""

    CREATE = "create"
    START = "start"
    STOP = "stop"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Target:
    """`name`: of create the name asked for, else what the path names: an id, the start of one, or a name."""

    route: Route
    name: str


_PATH = re.compile(
    r"(?:[a-z]+://[^/]*)?(?:/v[0-9]+\.[0-9]+)?/containers/(?:(create)|([^/]+)(?:/(start|stop|update))?)/?"
)


def target(request: Request) -> Target | None:
    """None: nothing that hooks or the store have to do with."""
    path, _, query = request.target.decode("latin-1").partition("?")
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    create, name, action = found.groups()
    if create:
        return Target(Route.CREATE, parse_qs(query).get("name", [""])[0])
    if action:
        return Target(Route(action), unquote(name))
    return Target(Route.REMOVE, unquote(name)) if request.method == b"DELETE" else None
