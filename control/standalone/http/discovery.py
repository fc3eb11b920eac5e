"""Discovery: the served groups, versions and resources, in the unaggregated and the aggregated form.

Everything is derived from `Kinds` and cached until the set of kinds changes. A client selects the aggregated form
(apidiscovery.k8s.io/v2) by its Accept header on /api and /apis.
"""

from __future__ import annotations

import hashlib
from typing import Any

from control.standalone.http.responses import encode
from control.standalone.kinds import Kinds, ResourceKind, api_version, version_priority

Json = dict[str, Any]

_SUB_KINDS = {  # subresource -> (group, version, kind, verbs)
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "log": ("", "", "", ("get",)),
    "exec": ("", "v1", "PodExecOptions", ("create", "get")),
    "attach": ("", "v1", "PodAttachOptions", ("create", "get")),
    "portforward": ("", "v1", "PodPortForwardOptions", ("create", "get")),
    "proxy": ("", "v1", "", ("create", "delete", "get", "patch", "update")),
    "finalize": ("", "", "", ("update",)),
}


class Discovery:
    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._generation = -1
        self._cache: dict[str, bytes] = {}

    def core(self, aggregated: str) -> bytes:
        """/api"""
        return self._cached(f"/api {aggregated}", lambda: self._aggregated(True, aggregated) if aggregated else _API)

    def groups(self, aggregated: str) -> bytes:
        """/apis"""

        def make() -> Json:
            if aggregated:
                return self._aggregated(False, aggregated)
            groups = [self._group(g, ks) for g, ks in self._kinds.groups().items() if g]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

        return self._cached(f"/apis {aggregated}", make)

    def group(self, name: str) -> bytes | None:
        """/apis/GROUP; None when there is no such group."""
        kinds = self._kinds.groups().get(name)
        if not kinds or not name:
            return None
        return self._cached(
            f"/apis/{name}", lambda: {"kind": "APIGroup", "apiVersion": "v1", **self._group(name, kinds)}
        )

    def resources(self, group: str, version: str) -> bytes | None:
        """/api/v1 and /apis/GROUP/VERSION; None when it isn't served."""
        kinds = [k for k in self._kinds.groups().get(group, []) if version in k.versions]
        if not kinds:
            return None

        def make() -> Json:
            head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version)}
            return {**head, "resources": [r for k in kinds for r in _resources(k)]}

        return self._cached(f"{group}/{version}", make)

    def etag(self, body: bytes) -> str:
        return f'"{hashlib.sha256(body).hexdigest()[:40].upper()}"'

    def versions(self, group: str) -> list[str]:
        """Served versions of a group, the preferred one first."""
        versions = {v for k in self._kinds.groups().get(group, []) for v in k.versions}
        return sorted(versions, key=version_priority)

    def _cached(self, key: str, make: Any) -> bytes:
        if self._generation != self._kinds.generation:
            self._cache.clear()
            self._generation = self._kinds.generation
        body = self._cache.get(key)
        if body is None:
            body = self._cache[key] = encode(make())
        return body

    def _group(self, name: str, kinds: list[ResourceKind]) -> Json:
        versions = [{"groupVersion": api_version(name, v), "version": v} for v in self.versions(name)]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _aggregated(self, core: bool, version: str) -> Json:
        items = []
        for group, kinds in self._kinds.groups().items():
            if (group == "") is not core:
                continue
            versions = [
                {
                    "version": v,
                    "resources": [_aggregated_resource(k, v) for k in kinds if v in k.versions],
                    "freshness": "Current",
                }
                for v in self.versions(group)
            ]
            items.append({"metadata": {"name": group, "creationTimestamp": None}, "versions": versions})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": items,
        }


_API = {
    "kind": "APIVersions",
    "versions": ["v1"],
    "serverAddressByClientCIDRs": [],
}


def _resources(kind: ResourceKind) -> list[Json]:
    main: Json = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "storageVersionHash": hashlib.sha256(kind.stored_as.encode()).hexdigest()[:11] + "=",
    }
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    if kind.categories:
        main["categories"] = list(kind.categories)
    resources = [main]
    for name in kind.all_subresources:
        group, version, sub_kind, verbs = _subresource(kind, name)
        sub: Json = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": sub_kind,
            "verbs": list(verbs),
        }
        if version and (group, version) != (kind.group, kind.versions[0]):
            sub["group"], sub["version"] = group, version
        resources.append(sub)
    return resources


def _subresource(kind: ResourceKind, name: str) -> tuple[str, str, str, tuple[str, ...]]:
    group, version, sub_kind, verbs = _SUB_KINDS.get(name, ("", "", "", ("get", "patch", "update")))
    if not sub_kind:
        return kind.group, kind.versions[0], kind.kind, verbs
    return group, version, sub_kind, verbs


def _aggregated_resource(kind: ResourceKind, version: str) -> Json:
    resource: Json = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    subs = []
    for name in kind.all_subresources:
        group, sub_version, sub_kind, verbs = _subresource(kind, name)
        if (group, sub_kind) == (kind.group, kind.kind):
            sub_version = version
        subs.append(
            {
                "subresource": name,
                "responseKind": {"group": group, "version": sub_version, "kind": sub_kind},
                "verbs": list(verbs),
            }
        )
    if subs:
        resource["subresources"] = subs
    return resource
