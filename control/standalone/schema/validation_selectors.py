"""Validation of labels, selectors, affinity, spreading and tolerations.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.objectmeta import key_errors, label_value_problem
from control.standalone.schema import fielderrors as fe

Json = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_NODE_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False, "Gt": True, "Lt": True}
_NO_OPERATOR = "not a valid selector operator"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def labels(values: Any, path: str) -> Iterator[FieldError]:
    for key, value in (values or {}).items():
        yield from key_errors(path, key)
        if why := label_value_problem(str(value)):
            yield fe.invalid(path, value, why)


def label_selector(selector: Any, path: str) -> Iterator[FieldError]:
    yield from labels((selector or {}).get("matchLabels"), f"{path}.matchLabels")
    for at, requirement in enumerate((selector or {}).get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator = requirement.get("operator")
        if operator in ("In", "NotIn"):
            if not requirement.get("values"):
                yield fe.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if requirement.get("values"):
                message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield fe.forbidden(f"{where}.values", message)
        else:
            yield fe.invalid(f"{where}.operator", operator or "", _NO_OPERATOR)


def affinity(value: Json, path: str) -> Iterator[FieldError]:
    node = value.get("nodeAffinity") or {}
    if isinstance(required := node.get(_REQUIRED), Mapping):
        where = f"{path}.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
        if not required.get("nodeSelectorTerms"):
            yield fe.required(where, "must have at least one node selector term")
        for at, term in enumerate(required.get("nodeSelectorTerms") or ()):
            yield from _node_term(term, f"{where}[{at}]")
    for at, weighted in enumerate(node.get(_PREFERRED) or ()):
        where = f"{path}.nodeAffinity.{_PREFERRED}[{at}]"
        yield from _weight(weighted, where)
        yield from _node_term(weighted.get("preference") or {}, f"{where}.preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        part = value.get(kind) or {}
        for at, term in enumerate(part.get(_REQUIRED) or ()):
            yield from _pod_term(term, f"{path}.{kind}.{_REQUIRED}[{at}]")
        for at, weighted in enumerate(part.get(_PREFERRED) or ()):
            where = f"{path}.{kind}.{_PREFERRED}[{at}]"
            yield from _weight(weighted, where)
            yield from _pod_term(weighted.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")


def _weight(weighted: Json, path: str) -> Iterator[FieldError]:
    weight = weighted.get("weight", 0)
    if not 1 <= weight <= 100:
        yield fe.invalid(f"{path}.weight", weight, "must be in the range 1-100")


def _node_term(term: Json, path: str) -> Iterator[FieldError]:
    for at, requirement in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator = requirement.get("operator")
        values = requirement.get("values") or ()
        if operator not in _NODE_OPERATORS:
            yield fe.invalid(f"{where}.operator", operator or "", _NO_OPERATOR)
        elif operator in ("Gt", "Lt"):
            if len(values) != 1:
                yield fe.required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        elif _NODE_OPERATORS[operator] and not values:
            yield fe.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif not _NODE_OPERATORS[operator] and values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield fe.forbidden(f"{where}.values", why)
        yield from key_errors(f"{where}.key", str(requirement.get("key") or ""))
    for at, requirement in enumerate(term.get("matchFields") or ()):
        if requirement.get("key") != "metadata.name":
            why = "not a valid field selector key"
            yield fe.invalid(f"{path}.matchFields[{at}].key", requirement.get("key") or "", why)


def _pod_term(term: Json, path: str) -> Iterator[FieldError]:
    yield from label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    yield from label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    key = term.get("topologyKey")
    if not key:
        yield fe.required(f"{path}.topologyKey", "can not be empty")
    yield from key_errors(f"{path}.topologyKey", str(key or ""))


def spread(constraints: list[Json], path: str) -> Iterator[FieldError]:
    identities = [(each.get("topologyKey"), each.get("whenUnsatisfiable")) for each in constraints]
    for at, constraint in enumerate(constraints):
        where = f"{path}[{at}]"
        skew = constraint.get("maxSkew")
        if not isinstance(skew, int) or skew <= 0:
            yield fe.invalid(f"{where}.maxSkew", skew, "must be greater than zero")
        if not constraint.get("topologyKey"):
            yield fe.required(f"{where}.topologyKey", "can not be empty")
        action = constraint.get("whenUnsatisfiable")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield fe.not_supported(f"{where}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
        if identities[at] in identities[at + 1 :]:
            shown = f"{{{constraint.get('topologyKey')}, {action}}}"
            yield fe.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", shown)
        if (domains := constraint.get("minDomains")) is not None and domains <= 0:
            yield fe.invalid(f"{where}.minDomains", domains, "must be greater than zero")
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if constraint.get(policy) not in (None, "Honor", "Ignore"):
                yield fe.not_supported(f"{where}.{policy}", constraint[policy], ("Honor", "Ignore"))
        yield from label_selector(constraint.get("labelSelector"), f"{where}.labelSelector")


def toleration(value: Json, path: str) -> Iterator[FieldError]:
    if key := value.get("key"):
        yield from key_errors(f"{path}.key", str(key))
    operator = value.get("operator") or ""
    if operator not in ("", "Equal", "Exists", "Lt", "Gt"):
        yield fe.not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    if not key and operator != "Exists":
        message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield fe.invalid(f"{path}.operator", operator, message)
    if operator == "Exists" and value.get("value"):
        yield fe.invalid(f"{path}.operator", value["value"], "value must be empty when `operator` is 'Exists'")
    effect = value.get("effect")
    if effect and effect not in _EFFECTS:
        yield fe.not_supported(f"{path}.effect", effect, _EFFECTS)
    if value.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield fe.invalid(f"{path}.effect", effect or "", "effect must be 'NoExecute' when `tolerationSeconds` is set")


def taints(value: Any, path: str) -> Iterator[FieldError]:
    seen: set[tuple[Any, Any]] = set()
    for at, taint in enumerate(value or ()):
        where, key, effect = f"{path}[{at}]", taint.get("key"), taint.get("effect")
        if not key:
            yield fe.required(f"{where}.key")
        else:
            yield from key_errors(f"{where}.key", str(key))
        if why := label_value_problem(str(taint.get("value") or "")):
            yield fe.invalid(f"{where}.value", taint["value"], why)
        if not effect:
            yield fe.required(f"{where}.effect")
        elif effect not in _EFFECTS:
            yield fe.not_supported(f"{where}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            yield fe.duplicate(where, taint)
        seen.add((key, effect))
