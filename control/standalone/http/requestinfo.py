"""Parses a URL into verb, group, version, resource, namespace, name and subresource.

Pure. The grammar is /api/v1/… and /apis/GROUP/VERSION/…, with /namespaces/NS/ before namespaced resources.
`namespaces` itself is cluster-scoped: /api/v1/namespaces/x/pods are pods, but /api/v1/namespaces/x/status is
a subresource.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control.standalone.selectors import required_name

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """`resource` is empty for other paths (discovery, health, …).

    `name` is what authorization decides about, also for lists and watches: it comes from the path or from a field
    selector that requires one name. Handlers must return no other objects.
    """

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""  # the path after the subresource, for proxies

    @property
    def key(self) -> str:
        return f"{self.group}/{self.resource}"


def parse(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    parts = [p for p in path.split("/") if p]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo("get" if method == "HEAD" else method.lower(), path)
    watching = rest[0] == "watch" and len(rest) > 1  # the deprecated /watch/ prefix
    if watching:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    resource, name = rest[0], rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    verb = _VERBS.get(method, "")
    if method in ("GET", "HEAD"):
        if name and not watching:
            verb = "get"
        else:
            verb = "watch" if watching or query.get("watch", "").lower() in ("1", "true") else "list"
            name = name or required_name(query.get("fieldSelector", ""))
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    return RequestInfo(verb, path, group, version, resource, namespace, name, subresource, "/".join(rest[3:]))
