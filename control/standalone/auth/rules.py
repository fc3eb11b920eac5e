"""RBAC rules as data: whether a rule allows a request, and whether a set of rules covers another.

Pure functions over PolicyRule dicts (verbs, apiGroups, resources, resourceNames, nonResourceURLs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from control.standalone.policyinterfaces import AuthzAttributes

Rule = Mapping[str, Any]


def allows(rule: Rule, request: AuthzAttributes) -> bool:
    """Whether one rule allows one request."""
    if not _has(rule.get("verbs"), request.verb):
        return False
    if not request.resource:
        return any(_url_matches(url, request.path) for url in rule.get("nonResourceURLs") or ())
    full_resource = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), request.group)
        and _resource_matches(rule.get("resources") or (), full_resource, request.subresource)
        and (not names or request.name in names)
    )


def _has(values: Iterable[str] | None, expected: str) -> bool:
    return values is not None and any(value in ("*", expected) for value in values)


def _resource_matches(resources: Iterable[str], full_resource: str, subresource: str) -> bool:
    return any(
        resource in ("*", full_resource) or (subresource and resource == f"*/{subresource}") for resource in resources
    )


def _url_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern.rstrip("*")))


def uncovered(owned: Sequence[Rule], granted: Iterable[Rule]) -> list[dict[str, Any]]:
    """The parts of `granted` (one verb, one resource each) that no rule of `owned` covers."""
    return [piece for rule in granted for piece in _pieces(rule) if not any(_covers(own, piece) for own in owned)]


def _pieces(rule: Rule) -> Iterator[dict[str, Any]]:
    for verb in rule.get("verbs") or ():
        for url in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [url]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                piece = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                names = rule.get("resourceNames") or ()
                if not names:
                    yield piece
                for name in names:
                    yield {**piece, "resourceNames": [name]}


def _covers(rule: Rule, piece: Mapping[str, list[str]]) -> bool:
    if not _has(rule.get("verbs"), piece["verbs"][0]):
        return False
    if "nonResourceURLs" in piece:
        url = piece["nonResourceURLs"][0]
        return any(_url_matches(pattern, url) for pattern in rule.get("nonResourceURLs") or ())
    resource = piece["resources"][0]
    subresource = resource.partition("/")[2]
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("apiGroups"), piece["apiGroups"][0])
        and _resource_matches(rule.get("resources") or (), resource, subresource)
        and (not names or piece.get("resourceNames", [""])[0] in names)
    )


def show(piece: Mapping[str, list[str]]) -> str:
    """A part of a rule as Kubernetes prints it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`."""
    labels = (
        ("apiGroups", "APIGroups"),
        ("resources", "Resources"),
        ("resourceNames", "ResourceNames"),
        ("nonResourceURLs", "NonResourceURLs"),
        ("verbs", "Verbs"),
    )
    parts = [
        f"{label}:[" + " ".join(f'"{value}"' for value in piece[field]) + "]"
        for field, label in labels
        if field in piece
    ]
    return "{" + ", ".join(parts) + "}"
