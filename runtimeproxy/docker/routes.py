"""Matches the requests to dockerd that concern pods, by path and name only, whatever the method (spec 08 §12). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, unquote

from runtimeproxy.docker.http1 import HttpRequest


class Route(StrEnum):
    """The value is used in metrics and logs."""

    CREATE = "create"
    START = "start"
    STOP = "stop"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """`name`: for create the requested name, else the reference in the path: an id, a prefix of one, or a name."""

    route: Route
    name: str


_PATH = re.compile(
    r"(?:[a-z]+://[^/]*)?(?:/v[0-9]+\.[0-9]+)?/containers/(?:(create)|([^/]+)(?:/(start|stop|update))?)/?"
)


def match_route(request: HttpRequest) -> RouteMatch | None:
    """None: irrelevant for hooks and the store."""
    path, _, query = request.target.decode("latin-1").partition("?")
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    create, name, action = match.groups()
    if create:
        return RouteMatch(Route.CREATE, parse_qs(query).get("name", [""])[0])
    if action:
        return RouteMatch(Route(action), unquote(name))
    return RouteMatch(Route.REMOVE, unquote(name)) if request.method == b"DELETE" else None
