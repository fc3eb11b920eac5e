"""Decides whether a webhook is called for a request, by rules, scope, selectors and match policy; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone.kinds import NAMESPACE, ResourceKind
from control.standalone.policyinterfaces import AdmissionAttributes
from control.standalone.selectors import label_selector

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Match:
    """The version of the object that is sent to the webhook."""

    version: str


def match(webhook: Json, request: AdmissionAttributes, namespace: Json | None) -> Match | None:
    """None: the webhook is not called. `namespace` is the object of the request's namespace, if it has one."""
    if not _namespace_selected(webhook, request, namespace) or not _object_selected(webhook, request):
        return None
    return _match_rules(webhook, request)


def _match_rules(webhook: Json, request: AdmissionAttributes) -> Match | None:
    rules = webhook.get("rules") or ()
    if any(_rule_matches(rule, request, request.version) for rule in rules):
        return Match(request.version)
    if webhook.get("matchPolicy", "Equivalent") == "Equivalent":
        for version in request.kind.versions:
            if any(_rule_matches(rule, request, version) for rule in rules):
                return Match(version)
    return None


def _rule_matches(rule: Json, request: AdmissionAttributes, version: str) -> bool:
    kind = request.kind
    return (
        _has(rule.get("operations"), request.operation)
        and _has(rule.get("apiGroups"), kind.group)
        and _has(rule.get("apiVersions"), version)
        and _scope_matches(str(rule.get("scope", "*")), kind)
        and any(_resource_matches(pattern, kind.plural, request.subresource) for pattern in rule.get("resources") or ())
    )


def _has(values: Any, expected: str) -> bool:
    return any(value in ("*", expected) for value in values or ())


def _scope_matches(scope: str, kind: ResourceKind) -> bool:
    return scope == "*" or (scope == "Namespaced") == kind.namespaced


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    """`pods`, `pods/status`, `pods/*`, `*`, `*/scale`, `*/*`; `*` alone matches no subresource."""
    resource, slash, sub = pattern.partition("/")
    if resource not in ("*", plural):
        return False
    if not slash:
        return not subresource
    return sub in ("*", subresource)


def _namespace_selected(webhook: Json, request: AdmissionAttributes, namespace: Json | None) -> bool:
    selector = webhook.get("namespaceSelector")
    if not selector:
        return True
    if request.kind.key == NAMESPACE:
        holder: Json | None = request.obj if request.operation == "CREATE" else (request.old or request.obj)
    elif request.kind.namespaced:
        holder = namespace
    else:
        return True
    return label_selector(selector)(_labels(holder))


def _object_selected(webhook: Json, request: AdmissionAttributes) -> bool:
    selector = webhook.get("objectSelector")
    if not selector:
        return True
    matches = label_selector(selector)
    return any(matches(_labels(obj)) for obj in (request.obj, request.old) if obj is not None)


def _labels(obj: Json | None) -> dict[str, str]:
    return dict(((obj or {}).get("metadata") or {}).get("labels") or {})
