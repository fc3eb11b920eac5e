"""Label and field selectors: parse the query parameters once, then match objects.

The syntax is Kubernetes' (`a=b,c!=d,e in (f,g),h notin (i),j,!k`); field selectors have only `=`, `==` and `!=`, and
only the fields that the kind supports. Pure; malformed selectors raise StatusError 400.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone import errors
from control.standalone.kinds import ResourceKind
from control.standalone.objectmeta import key_errors, label_value_problem

Json = dict[str, Any]
Matcher = Callable[[Json], bool]

_IN = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s=!<>,]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s=!,]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s=!<>,()]+)$")

_ESCAPED_TEXT = re.compile(r"(?:\\.|[^\\])*", re.DOTALL)
_FIELD_TERM = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
_FIELD_COMPARE = re.compile(r"(?P<key>[^\s=!<>,\\]+)\s*(?P<op>!=|==|=)\s*(?P<value>(?:\\[\\,=]|[^\\,=])*)")

FIELDS: Mapping[str, tuple[str, ...]] = {
    "/pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "/nodes": ("spec.unschedulable",),
    "/namespaces": ("status.phase",),
    "/secrets": ("type",),
    "/events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    "/replicationcontrollers": ("status.replicas",),
    "/services": ("spec.clusterIP", "spec.type"),
    "apps/replicasets": ("status.replicas",),
    "batch/jobs": ("status.successful",),
    "events.k8s.io/events": (
        "reason", "type", "reportingController", "regarding.kind", "regarding.namespace", "regarding.name",
        "regarding.uid", "regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    op: str  # in, notin, exists, absent, gt, lt
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.op == "in":
            return value in self.values
        if self.op == "notin":
            return value not in self.values
        if self.op == "exists":
            return value is not None
        if self.op == "absent":
            return value is None
        try:
            number, limit = int(value or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return number > limit if self.op == "gt" else number < limit


def parse_labels(text: str) -> list[Requirement]:
    """`a=b,c in (d,e)` as requirements; raises StatusError 400."""
    return [_requirement(part, text) for part in _split(text)]


def label_selector(selector: Mapping[str, Any] | None) -> Matcher:
    """The predicate of a metav1.LabelSelector on label maps; None selects nothing, an empty selector everything."""
    if selector is None:
        return lambda labels: False
    requirements = [Requirement(k, "in", frozenset([v])) for k, v in (selector.get("matchLabels") or {}).items()]
    names = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for expression in selector.get("matchExpressions") or []:
        op = names[expression["operator"]]
        requirements.append(Requirement(expression["key"], op, frozenset(expression.get("values") or [])))
    return lambda labels: all(r.matches(labels) for r in requirements)


def compile_matcher(kind: ResourceKind, labels: str | None, fields: str | None, name: str = "") -> Matcher | None:
    """One predicate for both selectors and, if not empty, the object's name; None when every object matches."""
    requirements = parse_labels(labels) if labels else []
    checks = parse_fields(kind, fields) if fields else []
    if name:
        checks.append((("metadata", "name"), True, name))
    if not requirements and not checks:
        return None

    def matches(obj: Json) -> bool:
        for path, equal, value in checks:
            if (field_value(obj, path) == value) is not equal:
                return False
        if requirements:
            object_labels = obj["metadata"].get("labels") or {}
            return all(r.matches(object_labels) for r in requirements)
        return True

    return matches


def parse_fields(kind: ResourceKind, text: str) -> list[tuple[tuple[str, ...], bool, str]]:
    """`a.b=c,d!=e` as (path, must be equal, value); raises StatusError 400 for fields the kind doesn't support."""
    checks = []
    for key, equal, value in field_terms(text):
        if key not in supported_fields(kind):
            if kind.key not in FIELDS and not kind.custom:
                known = '"metadata.name", "metadata.namespace"' if kind.namespaced else '"metadata.name"'
                raise errors.bad_request(f'"{key}" is not a known field selector: only {known}')
            raise errors.bad_request(f"field label not supported: {key}")
        checks.append((tuple(key.split(".")), equal, value))
    return checks


def required_name(text: str) -> str:
    """The name that every object selected by a field selector has; "" when the selector requires none."""
    try:
        terms = field_terms(text)
    except errors.StatusError:
        return ""
    return next((value for key, equal, value in terms if key == "metadata.name" and equal), "")


def field_terms(text: str) -> list[tuple[str, bool, str]]:
    """The terms of a field selector as (field, must be equal, value); raises StatusError 400.

    Commas separate terms. In values `\\\\`, `\\,` and `\\=` stand for the character after the backslash.
    """
    if not _ESCAPED_TEXT.fullmatch(text):
        raise errors.bad_request(f"invalid selector: {text!r}; it ends in the middle of an escape sequence")
    return [_field_term(term.group(), text) for term in _FIELD_TERM.finditer(text) if term.group().strip()]


def _field_term(term: str, text: str) -> tuple[str, bool, str]:
    match = _FIELD_COMPARE.fullmatch(term.strip())
    if match is None:
        raise errors.bad_request(f"invalid selector: {text!r}; can't understand {term.strip()!r}")
    value = re.sub(r"\\(.)", r"\1", match["value"])
    return match["key"], match["op"] != "!=", value


def supported_fields(kind: ResourceKind) -> tuple[str, ...]:
    extra = FIELDS.get(kind.key, ())
    if kind.crd:
        extra = tuple(
            f["jsonPath"].lstrip(".") for v in kind.crd["spec"]["versions"] for f in v.get("selectableFields") or []
        )
    return ("metadata.name", "metadata.namespace", *extra)


def field_value(obj: Json, path: tuple[str, ...]) -> str:
    value: Any = obj
    for part in path:
        if not isinstance(value, dict):
            return ""
        value = value.get(part)
    if path == ("source",) and isinstance(value, dict):
        value = value.get("component")
    if value is None:
        return "false" if path[-1] in ("unschedulable", "hostNetwork") else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _split(text: str) -> list[str]:
    """A label selector's requirements: split at commas outside parentheses; empty parts are dropped."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def _checked(requirement: Requirement) -> Requirement:
    """The requirement, if its key and values can be those of a label; raises StatusError 400."""
    for problem in key_errors("<nil>", requirement.key):
        raise errors.bad_request(f"unable to parse requirement: {problem}")
    for at, value in enumerate(sorted(requirement.values)):
        if requirement.op in ("gt", "lt"):
            if not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
                why = "for 'Gt', 'Lt' operators, the value must be an integer"
                raise errors.bad_request(f'unable to parse requirement: values[{at}]: Invalid value: "{value}": {why}')
        elif why := label_value_problem(value):
            where = f"values[{at}][{requirement.key}]"
            raise errors.bad_request(f'unable to parse requirement: {where}: Invalid value: "{value}": {why}')
    return requirement


def _requirement(part: str, whole: str) -> Requirement:
    if match := _IN.match(part):
        values = frozenset(v.strip() for v in match["values"].split(","))
        return _checked(Requirement(match["key"], match["op"], values))
    if match := _COMPARE.match(part):
        op = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}[match["op"]]
        return _checked(Requirement(match["key"], op, frozenset([match["value"]])))
    if match := _EXISTS.match(part):
        return _checked(Requirement(match["key"], "absent" if match["not"] else "exists"))
    raise errors.bad_request(
        f"unable to parse requirement: found '{part}' in selector \"{whole}\", expected: a key, an operator and values"
    )
